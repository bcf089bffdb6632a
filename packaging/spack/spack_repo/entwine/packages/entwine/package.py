"""The recipe for Spack 1.0 or later, in a repository of its own:

    spack repo add packaging/spack/spack_repo/entwine && spack dev-build entwine@main

builds the sources of the current folder.  No released archive exists yet, so it knows no other version.
"""
from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Entwine(CMakePackage):
    """GEMM with ReduceScatter, AllReduce or AllGather, overlapped tile by tile."""

    license("Apache-2.0")

    version("main")

    variant("cli", default=True, description="the command-line tool")
    variant("cuda", default=False, description="the CUDA backend")
    variant("mpi", default=True, description="the module for ranks on several hosts")

    depends_on("c", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("pkgconfig", type="build", when="+cli")
    depends_on("jansson", when="+cli")
    depends_on("cuda@13:", when="+cuda")
    depends_on("mpi@3:", when="+mpi")

    @property
    def build_targets(self):
        return ["tools"]

    def cmake_args(self):
        return [
            self.define_from_variant("EW_CLI", "cli"),
            self.define_from_variant("EW_CUDA", "cuda"),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_MPI", "~mpi" in self.spec),
        ]
