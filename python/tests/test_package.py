"""The package as pip installs it: a source distribution made of this folder, the wheel that is built
from nothing else, and an environment into which that is installed."""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from launched import mpirun, on_all

FOLDER = Path(__file__).resolve().parents[1]
LIMIT_S = 400
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
def sdist(tmp_path_factory):
    before = sorted(FOLDER.iterdir())
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-c", "import sys; from setuptools.build_meta import build_sdist; "
        "build_sdist(sys.argv[1])", str(folder), cwd=FOLDER)
    assert sorted(FOLDER.iterdir()) == before, "this has left something in the sources"
    made, = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)
    unpacked, = folder.iterdir()
    pip("wheel", "--no-build-isolation", "-w", str(folder), str(unpacked),
        CMAKE_ARGS="-DEW_CUDA=OFF")
    made, = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """A fresh one, that has of this interpreter's packages only what lent.pth names."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", str(folder))
    site, = folder.glob("lib/python*/site-packages")
    numpy = Path(importlib.util.find_spec("numpy").origin).parents[1]
    (site / "lent.pth").write_text(f"{numpy}\n")
    # The interpreter may have the package among those that it lends.
    pip("--python", str(folder / "bin/python"), "install", "--ignore-installed", str(wheel))
    return folder


@pytest.fixture
def installed(environment, tmp_path, monkeypatch):
    """The folder of the installed package; programs started now use it and its own library."""
    for name in ("ENTWINE_LIBRARY", "ENTWINE_MPI_MODULE"):
        monkeypatch.delenv(name, raising=False)
    package, = environment.glob("lib/python*/site-packages/entwine")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.chdir(tmp_path)
    return package


def test_what_is_made_is_fit_to_be_installed_anywhere(sdist, wheel):
    """Tags, contents, metadata, what the binaries need; auditwheel's and twine's opinion."""
    said = run(sys.executable, str(FOLDER.parent / "scripts/check-wheel"), str(wheel), str(sdist))
    assert ("MPI's module" in said) == bool(shutil.which("mpicc")), said
    assert "the command" in said
    modules = {f"entwine/{path.name}" for path in (FOLDER / "entwine").glob("*.py")}
    assert modules <= set(zipfile.ZipFile(wheel).namelist())


def test_the_command_of_the_wheel(installed, environment):
    command = str(environment / "bin/entwine")
    assert run(command, "--version").startswith("entwine ")
    said = run(command, "bench", "--suite", "smoke:square", "-n", "2", "-q")
    assert "# Wrong values : 0 OK" in said
    (installed / "entwine").rename(installed / "elsewhere")
    ran = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    (installed / "elsewhere").rename(installed / "entwine")
    assert ran.returncode == 5 and "fix: install cmake" in ran.stderr


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


def test_the_installed_package_uses_its_own_library(installed, environment, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    Path("program.py").write_text(PROGRAM)
    library = installed / "libentwine.so.0"
    assert run(str(environment / "bin/python"), "program.py").splitlines() == [
        f"{installed}/__init__.py {library} (10, 8) 16.0 16.0",
        *[f"{library} (5, 8) 48.0 48.0"] * 2]


def test_the_program_of_the_packages_page(installed, environment, monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    program, = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.S)
    Path("program.py").write_text(program)
    assert run(str(environment / "bin/python"), "program.py") == 4 * "(50, 256) 256.0\n"


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
