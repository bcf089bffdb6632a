"""Interfaces of programs that the tests have no installation of: python/tests/stubs."""
import importlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUBS, EXAMPLES = HERE / "stubs", HERE.parents[1] / "examples"


def use_stubs():
    """Has imports of vllm and megatron find the stubs, in this process."""
    if str(STUBS) not in sys.path:
        sys.path.insert(0, str(STUBS))
        importlib.invalidate_caches()


def example(name, *paths):
    """What an example says on two ranks; its imports look into `paths` first."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
               "2", str(EXAMPLES / name)]
    path = os.pathsep.join(filter(None, (*map(str, paths), os.environ.get("PYTHONPATH"))))
    # Not killed by Python: ended by SIGTERM, torchrun takes its ranks along.
    ran = subprocess.run(["timeout", "-k", "5", "200", *command], capture_output=True, text=True,
                         env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
                         timeout=220)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
