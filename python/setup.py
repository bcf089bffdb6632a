"""Builds libentwine from the sources around this folder, with CMake, into the package; where MPI
is installed its module too.

CMAKE_ARGS passes options on, such as -DEW_CUDA=ON.  Without the sources or CMake both are left
out; `import entwine` then looks for an installed library, and says where.
"""
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # before setuptools 70.1
    from wheel.bdist_wheel import bdist_wheel

SOURCE = Path(__file__).resolve().parents[1]
LIBRARY, MPI_MODULE = "libentwine.so.0", "entwine_mpi.so"


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
        # No file of the package may look for others in a folder that is gone by then.
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DEW_CLI=OFF",
                   "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
                   *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        subprocess.run(["cmake", "-S", SOURCE, "-B", build, *options], check=True)
        subprocess.run(["cmake", "--build", build, "--target", "entwine", "tools", "--parallel",
                        str(os.cpu_count())], check=True)
        for name in (LIBRARY, MPI_MODULE):
            if name == LIBRARY or (build / name).exists():
                self.copy_file(str(build / name), f"{self.build_lib}/entwine/{name}")


class WheelOfThisMachine(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]  # any Python 3, since nothing links it


with tempfile.TemporaryDirectory() as scratch:  # not in the sources, which others may build too
    setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfThisMachine},
          options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
