"""Builds libentwine from the sources around this folder, with CMake, into the package.

CMAKE_ARGS passes options on, such as -DEW_CUDA=ON.  Without the sources or CMake the library is
left out; `import entwine` then looks for an installed one, and says where.
"""
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).resolve().parents[1]
LIBRARY = "libentwine.so.0"


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if self.editable_mode:
            return
        if not (SOURCE / "src").is_dir() or not shutil.which("cmake"):
            print(f"{LIBRARY} is left out: no sources around this folder, or no cmake")
            return
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DEW_CLI=OFF",
                   *shlex.split(os.environ.get("CMAKE_ARGS", ""))]
        with tempfile.TemporaryDirectory() as build:
            subprocess.run(["cmake", "-S", SOURCE, "-B", build, *options], check=True)
            subprocess.run(["cmake", "--build", build, "--target", "entwine", "--parallel",
                            str(os.cpu_count())], check=True)
            self.copy_file(f"{build}/{LIBRARY}", f"{self.build_lib}/entwine/{LIBRARY}")


class WheelOfThisMachine(bdist_wheel):
    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]  # any Python 3, since nothing links it


setup(cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfThisMachine})
