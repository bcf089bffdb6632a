"""Interfaces of programs that the tests have no installation of: python/tests/stubs."""
import importlib
import sys
from pathlib import Path

from ranks import run_program

HERE = Path(__file__).resolve().parent
STUBS, EXAMPLES = HERE / "stubs", HERE.parents[1] / "examples"


def use_stubs():
    """Has imports of vllm and megatron find the stubs, in this process."""
    if str(STUBS) not in sys.path:
        sys.path.insert(0, str(STUBS))
        importlib.invalidate_caches()


def example(name, folder, *paths):
    """What an example says on two ranks; its imports look into `paths` first."""
    ran = run_program(EXAMPLES / name, folder=folder, ranks=2, paths=paths)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr
