"""Builds libentwine and the command `entwine` from the C sources, with CMake, into the package;
where MPI is installed its module too.

The sources are those around this folder, or, in a source distribution, those that it has
below sources/.  CMAKE_ARGS passes options on, such as -DEW_CUDA=ON.  Without the sources or CMake
all of this is left out, without jansson the command; `import entwine` then looks for an installed
library, and says where.
"""
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "sources" if (HERE / "sources").is_dir() else HERE.parent
# What CMake needs of them.
PARTS = ["CMakeLists.txt", "cmake", "include", "src", "cli", "bench/suites", "bench/profiles"]
LIBRARY, MPI_MODULE, COMMAND = "libentwine.so.0", "entwine_mpi.so", "entwine"


def can_build_command():
    has_jansson = ["pkg-config", "--exists", "jansson"]
    return bool(shutil.which("pkg-config")) and subprocess.run(has_jansson).returncode == 0


def commit():
    if (SOURCE / "COMMIT").exists():
        return (SOURCE / "COMMIT").read_text().strip()
    describe = ["git", "-C", SOURCE, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(describe, capture_output=True, text=True).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return
        if not (SOURCE / "src").is_dir() or not shutil.which("cmake"):
            print(f"{LIBRARY} is left out: no sources around this folder, or no cmake")
            return
        with tempfile.TemporaryDirectory() as build:
            self.build_library(Path(build))

    def build_library(self, build):
        # All in one folder, in which files find each other wherever it is, and nowhere else.
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
                   "-DCMAKE_INSTALL_BINDIR=.", "-DCMAKE_INSTALL_LIBDIR=.",
                   f"-DEW_CLI={'ON' if can_build_command() else 'OFF'}", "-DEW_STATIC_JANSSON=ON",
                   *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        subprocess.run(["cmake", "-S", SOURCE, "-B", build, *options], check=True)
        subprocess.run(["cmake", "--build", build, "--target", "entwine", "tools", "--parallel",
                        str(os.cpu_count())], check=True)
        package = Path(self.build_lib, "entwine")
        for name in (LIBRARY, MPI_MODULE, COMMAND):
            if name == LIBRARY or (build / name).exists():
                self.copy_file(str(build / name), str(package / name))
        if (build / COMMAND).exists():
            self.copy_tree(str(SOURCE / "bench/suites"), str(package / "suites"))


class SourcesInside(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for part in PARTS:
            copy = shutil.copytree if (SOURCE / part).is_dir() else shutil.copy
            target = Path(base_dir, "sources", part)
            target.parent.mkdir(parents=True, exist_ok=True)
            copy(SOURCE / part, target)
        Path(base_dir, "sources", "COMMIT").write_text(commit() + "\n")


class WheelOfThisMachine(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]  # any Python 3, since nothing links it


class WithLibrary(Distribution):
    def has_ext_modules(self):
        return True  # of this machine's architecture, though none of it is a Python module


with tempfile.TemporaryDirectory() as scratch:  # not in the sources, which others may build too
    setup(distclass=WithLibrary,
          cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfThisMachine,
                    "sdist": SourcesInside},
          options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
