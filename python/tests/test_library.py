"""The way to libentwine, and that both sides mean the same structs."""
import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import entwine
from entwine import _library, _mpi

ROOT = Path(__file__).resolve().parents[2]
CC = shutil.which(os.environ.get("CC", "cc"))
needs_cc = pytest.mark.skipif(CC is None, reason="no C compiler")


def import_with(**variables):
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", "import entwine, sys; print(*sys.modules)"],
                          env=environment, capture_output=True, text=True, timeout=60)


def test_import_does_not_import_torch():
    modules = import_with().stdout.split()
    assert "entwine" in modules and "torch" not in modules


def test_a_wish_that_fails_is_explained():
    tried = import_with(ENTWINE_LIBRARY="/no/such/library.so")
    assert tried.returncode
    assert "ENTWINE_LIBRARY=/no/such/library.so cannot be loaded" in tried.stderr


def test_nothing_found_lists_every_place(monkeypatch):
    monkeypatch.delenv("ENTWINE_LIBRARY", raising=False)
    monkeypatch.setattr(_library, "SONAME", "libentwine-of-nobody.so.0")
    with pytest.raises(entwine.LibraryError) as caught:
        _library._find()
    text = str(caught.value)
    for place in ("ENTWINE_LIBRARY", os.path.dirname(_library.__file__), sys.prefix,
                  "/usr/local/lib", "ldconfig", "fix: "):
        assert place in text
    assert isinstance(caught.value, ImportError)


@needs_cc
@pytest.mark.parametrize("source, says", [
    ('const char *ew_version(void) { return "9.8.7"; }', "is version 9.8.7"),
    ("int nothing;", "is not Entwine's library"),
    ('const char *ew_version(void) { return "%s"; }' % entwine.__version__, "has no function"),
])
def test_another_library(tmp_path, source, says):
    (tmp_path / "other.c").write_text(source)
    subprocess.run([CC, "-shared", "-fPIC", "-o", tmp_path / "other.so", tmp_path / "other.c"],
                   check=True, timeout=60)
    tried = import_with(ENTWINE_LIBRARY=str(tmp_path / "other.so"))
    assert tried.returncode and says in tried.stderr


def test_versions_agree():
    header = (ROOT / "include/entwine/entwine.h").read_text()
    numbers = re.findall(r"#define EW_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    project = (ROOT / "python/pyproject.toml").read_text()
    assert ".".join(numbers) == entwine.__version__
    assert f'version = "{entwine.__version__}"' in project


STRUCTS = {
    "ew_world_options": _library.WorldOptions, "ew_problem": _library.Problem,
    "ew_epilogue": _library.Epilogue, "ew_launcher": _library.Launcher,
    "ew_timing": _library.TimingStruct,
    "ew_tune_options": _library.TuneOptions, "ew_tuning": _library.Tuning,
    "ew_tune_result": _library.TuneResultStruct, "ew_traffic": _library.Traffic,
    "ew_mpi_module": _mpi.Table,
}


@needs_cc
def test_structs_are_those_of_the_headers(tmp_path):
    lines, want = [], []
    for name, struct in STRUCTS.items():
        want.append(f"{name} {ctypes.sizeof(struct)}")
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            want.append(f"{name}.{field} {getattr(struct, field).offset}")
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    want.append(f"ew_config {_library.CONFIG_BYTES}")
    lines.append('printf("ew_config %zu\\n", sizeof(ew_config));')
    (tmp_path / "sizes.c").write_text(
        "#include <entwine/mpi_module.h>\n#include <entwine/tune.h>\n#include <stdio.h>\n"
        "int main(void) {" + "\n".join(lines) + "}")
    subprocess.run([CC, f"-I{ROOT}/include", "-o", tmp_path / "sizes", tmp_path / "sizes.c"],
                   check=True, timeout=60)
    found = subprocess.run([tmp_path / "sizes"], check=True, capture_output=True, text=True,
                           timeout=60).stdout.split("\n")
    assert found[:-1] == want


def test_statuses_are_those_of_the_library():
    for error in (entwine.ArgumentError, entwine.ShapeError, entwine.ConfigError,
                  entwine.UnsupportedError, entwine.MismatchError, entwine.OutOfMemoryError,
                  entwine.RankTimeoutError, entwine.PeerDiedError, entwine.AbortedError):
        assert _library.lib.ew_status_name(error.code).decode() == error.status


def test_domains_without_hwloc_are_told_of_once(monkeypatch):
    from entwine import _plan

    def describe(num_ranks, numa):
        assert num_ranks == 1
        numa.unknown = b"libhwloc.so.15 cannot be loaded"
        return 0

    monkeypatch.setattr(_plan.lib, "ew_numa_describe", describe)
    _plan._warn_of_domains.cache_clear()
    try:
        with entwine.World() as world, pytest.warns(RuntimeWarning, match="NUMA") as told:
            for _ in range(3):
                entwine.Plan(world, 4, 16, 8, "float32").close()
        assert len(told) == 1 and "libhwloc.so.15" in str(told[0].message)
    finally:
        _plan._warn_of_domains.cache_clear()
