#!/bin/sh
# mpich.sh MPI_CHECK LIBENTWINE: builds the MPI module against MPICH, which Debian installs
# beside Open MPI, and runs the tests with it.  Exits with 77, loudly, where it is missing.
set -eu
check=$1 library=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
for tool in mpicc.mpich mpiexec.hydra; do
    command -v $tool >/dev/null || { echo "SKIPPED: $tool is not installed (mpich, libmpich-dev)" >&2; exit 77; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mpicc.mpich -cc="${CC:-cc}" -std=c11 -O2 -Wall -Wextra -Werror -D_GNU_SOURCE= -fPIC -shared \
    -I"$root/include" "$root"/src/mpi/*.c -o "$work/entwine_mpi.so" \
    "$library" -Wl,-rpath,"$(dirname "$library")" -ldl
for group in conformance protocol faults input; do
    MPIEXEC=mpiexec.hydra CONFORMANCE_SEEDS=10 "$here/run.sh" "$check" "$work/entwine_mpi.so" $group
done
