"""The package as pip installs it: a wheel built from this folder, with the library inside."""
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launched import mpirun, on_all

FOLDER = Path(__file__).resolve().parents[1]
LIMIT_S = 240
MISSING = [name for name in ("pip", "setuptools", "wheel") if not importlib.util.find_spec(name)]
MISSING += [name for name in ("cmake", os.environ.get("CC", "cc")) if not shutil.which(name)]

pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} not installed: NO WHEEL WAS BUILT OR TESTED")


def run(*command, **options):
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def pip(*arguments, **variables):
    """Without a network: what it needs is installed."""
    run(sys.executable, "-m", "pip", *arguments, "--no-deps", "--no-index",
        "--disable-pip-version-check", env={**os.environ, **variables})


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    before = sorted(FOLDER.iterdir())
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "-w", str(folder), str(FOLDER),
        CMAKE_ARGS="-DEW_CUDA=OFF")
    assert sorted(FOLDER.iterdir()) == before, "building has left something in the sources"
    made, = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(folder), str(wheel))
    return folder


@pytest.fixture
def installed(site, tmp_path, monkeypatch):
    """The folder of the installed package; programs started now use it and its own library."""
    for name in ("ENTWINE_LIBRARY", "ENTWINE_MPI_MODULE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.chdir(tmp_path)
    return site / "entwine"


def test_a_wheel_is_for_any_python_of_this_machine(wheel):
    assert wheel.name.startswith("entwine-") and "-py3-none-linux_" in wheel.name
    names = {name.rsplit("/", 1)[-1] for name in zipfile.ZipFile(wheel).namelist()}
    modules = {path.name for path in (FOLDER / "entwine").iterdir() if path.is_file()}
    assert modules | {"libentwine.so.0"} <= names
    assert ("entwine_mpi.so" in names) == bool(shutil.which("mpicc"))


PROGRAM = """
import numpy as np
import entwine
from entwine._library import library_path

def rank_main(world):
    A, B = np.ones((10, 16), "f4"), np.full((8, 16), 1 + world.rank, "f4")
    return entwine.gemm_rs(A, B, world), library_path

if __name__ == "__main__":
    with entwine.World() as world:
        rows, path = rank_main(world)
    print(entwine.__file__, path, rows.shape, rows.min(), rows.max())
    for rows, path in entwine.spawn(2, rank_main, timeout=60):
        print(path, rows.shape, rows.min(), rows.max())
"""


def test_the_installed_package_uses_its_own_library(installed):
    Path("program.py").write_text(PROGRAM)
    library = installed / "libentwine.so.0"
    assert run(sys.executable, "program.py").splitlines() == [
        f"{installed}/__init__.py {library} (10, 8) 16.0 16.0",
        *[f"{library} (5, 8) 48.0 48.0"] * 2]


@pytest.mark.skipif(not (shutil.which("mpicc") and shutil.which("mpirun")),
                    reason="MPI is not installed: THE WHEEL'S MODULE WAS NOT TESTED")
def test_the_installed_package_has_its_mpi_module(installed):
    status, lines, errors = mpirun(f"""
from entwine import _mpi
with entwine.init() as world:
    inside = _mpi.module_path() == {str(installed / "entwine_mpi.so")!r}
    say(world.rank, world.num_hosts, is_exact(world), inside)
""")
    assert (status, lines) == (0, on_all("{rank} 2 True True")), errors
