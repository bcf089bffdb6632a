"""Programs under mpirun."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 60

# As root, on few cores, without ssh: what mpirun refuses unless told.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_plm_rsh_agent": "sh", "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none", "ENTWINE_TIMEOUT_MS": "20000",
}

HEAD = """\
import atexit, os, pathlib, signal, sys, threading, time
import numpy as np
import entwine
from matrices import bits, expected, operands

def say(*words):  # whole lines, whatever the others print
    line = " ".join(map(str, words))
    os.write(1, (line + "\\n").encode())
    (pathlib.Path(os.environ["SAID"]) / line).touch()

def end_after(*words):  # the program waits with its end until others have said them
    def wait():
        for _ in range(2000):
            if all((pathlib.Path(os.environ["SAID"]) / word).exists() for word in words):
                return
            time.sleep(0.01)
    atexit.register(wait)

def is_exact(world, m=300, n=256, k=64):
    A, B = operands(world.rank, m, n, k)
    first, count = world.owned_rows(m)
    return bits(entwine.gemm_rs(A, B, world)) == bits(
        expected(world.size, m, n, k)[first:first + count])

"""


def mpirun(program, ranks=4, hosts=2, head=HEAD, **variables):
    """(exit status, sorted lines of stdout, stderr) of a program that runs on all ranks."""
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, **ENVIRONMENT, "ENTWINE_HOSTS": str(hosts), "PYTHONPATH": paths,
                   **variables}
    # Folders of its own: Open MPI fails when another mpirun makes the same one first.
    with tempfile.TemporaryDirectory() as said, tempfile.TemporaryDirectory() as files:
        # Not killed by Python: ended by SIGTERM, mpirun takes its ranks along.
        ran = subprocess.run(["timeout", "-k", "5", str(LIMIT_S), "mpirun", "-np", str(ranks),
                              sys.executable, "-c", head + program], capture_output=True,
                             text=True, timeout=2 * LIMIT_S,
                             env={**environment, "SAID": said, "TMPDIR": files})
    assert ran.returncode != 124, f"it hung: {ran.stdout}{ran.stderr}"
    return ran.returncode, sorted(ran.stdout.splitlines()), ran.stderr


def on_all(text, ranks=4):
    return [text.format(rank=rank) for rank in range(ranks)]
