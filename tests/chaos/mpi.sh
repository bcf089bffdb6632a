#!/usr/bin/env bash
# mpi.sh CHAOS OPTION...: chaos under mpirun of Open MPI, which alone can go on without a rank.
set -u
command -v mpirun >/dev/null && mpirun --version | grep -q "Open MPI" ||
    { echo "SKIPPED: there is no mpirun of Open MPI" >&2; exit 77; }
exec "$@" --ways mpi
