#!/usr/bin/env python3
"""Compares the table of docs/SUPPORT.md with the code: check_support.py ENTWINE

Every operation that the tool knows has a row for each backend, and what a cell says of a type, of
several hosts or of an epilogue is tried: by a dry run, a short run, one under mpirun on emulated hosts,
or a simulation.  The cuda backend is asked without a GPU: which operations it has its sources tell,
and the types are those of the simulated one, which has the same check.  A new operation turns this red
until its rows are there.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
ENTWINE = os.path.realpath(sys.argv[1])
CPU, CUDA, SIM_CPU, SIM_GPU = "cpu", "cuda", "sim, profile of CPUs", "sim, profile of GPUs"
BACKENDS = {CPU: ["--backend", "cpu"], SIM_CPU: ["--profile", "cpu"], SIM_GPU: ["--profile", "h200-8"]}
HOSTS = {SIM_CPU: ["--profile", "cpu-2-hosts", "-W", "16"], SIM_GPU: ["--profile", "multi-node", "-W", "16"]}
SHAPE = ["-m", "512", "-N", "256", "-k", "128"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]


def works(*command, **variables):
    """Whether it runs; whether it is refused; anything else is a failure of its own."""
    ran = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=60)
    assert ran.returncode in (0, 77), f"{' '.join(command)}: {ran.stdout}{ran.stderr}"
    return ran.returncode == 0


def measure(op, *options):
    return [ENTWINE, "bench", "--op", op, *SHAPE, "-n", "1", "-w", "0", "-q", "--method", *options]


def types(op, backend):
    has = {name: backend != CUDA or (TOP / f"src/backend/cuda/ops/cuda_{op.replace('-', '_')}.c").exists()
           for name in ("fp32", "bf16", "fp16")}
    options = BACKENDS[SIM_GPU if backend == CUDA else backend]
    asked = "gemm-rs" if backend == CUDA else op  # which is simulated, whatever else is
    return {name: has[name] and works(ENTWINE, "plan", "--op", asked, "-d", name, *SHAPE, *options) for name in has}


def several_hosts(op, backend):
    if backend in HOSTS:
        return works(*measure(op, "entwine", *HOSTS[backend]))
    if backend == CPU and shutil.which("mpirun") and (Path(ENTWINE).parent / "entwine_mpi.so").exists():
        with tempfile.TemporaryDirectory() as own:  # Open MPI fails when another mpirun makes its folder first
            return works(*MPIRUN, *measure(op, "entwine"), ENTWINE_HOSTS="2", OMPI_MCA_plm_rsh_agent="sh",
                         TMPDIR=own)
    return None


def epilogue(op, backend):
    return None if backend == CUDA else works(*measure(op, "entwine+fused", *BACKENDS[backend]))


def known_operations():
    refused = subprocess.run([ENTWINE, "plan", "--op=?"], capture_output=True, text=True, timeout=60).stderr
    return re.search(r"one of (.*)", refused)[1].split(", ")


def table():
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")]
            for line in (TOP / "docs/SUPPORT.md").read_text().splitlines() if line.startswith("| ")]
    heads = rows[0]
    return {(row[0], row[1]): dict(zip(heads, row)) for row in rows if row[0] in known_operations()}


failed, tried, rows = [], 0, table()
for op in known_operations():
    for backend in (CPU, CUDA, SIM_CPU, SIM_GPU):
        row = rows.get((op, backend))
        if row is None:
            failed.append(f"{op} has no row for {backend}")
            continue
        found = {**types(op, backend), "several hosts": several_hosts(op, backend), "epilogue": epilogue(op, backend)}
        for column, does in found.items():
            tried += does is not None
            if does is not None and row[column] != ("yes" if does else "no"):
                failed.append(f"{op} on {backend}, {column}: {row[column]} in docs/SUPPORT.md, "
                              f"{'yes' if does else 'no'} in the code")
for text in failed:
    print(f"FAILED: {text}")
print(f"{tried} cells tried")
sys.exit(bool(failed))
