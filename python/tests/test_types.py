"""Every public name has its types: all arguments and results of functions and of methods.  Every
exception has a public name."""
import importlib
import importlib.util
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import entwine
from entwine import _errors

PROGRAM = '''\
import numpy as np
import entwine

def rank_main(world: entwine.World) -> float:
    A = np.ones((8, 64), np.float32)
    plan = entwine.Plan(world, max_m=8, n=8, k=64, dtype="float32")
    plan.bind(entwine.Weight(world, A))
    reveal_type(entwine.gemm_rs(A, A, world).dtype)
    reveal_type(world.owned_rows(7))
    return plan.timing.total_us

reveal_type(entwine.spawn(2, rank_main))
'''


def functions_of(thing):
    """(name, function) of a public function, or of a class's own public methods."""
    if not inspect.isclass(thing):
        return [(thing.__name__, thing)] if inspect.isfunction(thing) else []
    return [(f"{thing.__name__}.{name}", getattr(member, "fget", None) or
             getattr(member, "__func__", member))
            for one in thing.__mro__ if one.__module__.startswith("entwine.")
            for name, member in vars(one).items()
            if not name.startswith("_") or name == "__init__"
            if callable(member) or isinstance(member, (property, classmethod))]


def missing(function):
    signature = inspect.signature(function)
    names = [name for name, parameter in signature.parameters.items()
             if parameter.annotation is parameter.empty and name not in ("self", "cls")]
    return names + (["return"] if signature.return_annotation is signature.empty else [])


@pytest.mark.parametrize("name", ["entwine", "entwine.torch", "entwine.transformers"])
def test_annotations(name):
    for package in name.split(".")[1:]:
        pytest.importorskip(package, reason=f"{package} is not installed: ITS TYPES WERE NOT SEEN")
    module = importlib.import_module(name)
    found = [pair for public in module.__all__ for pair in functions_of(getattr(module, public))
             if inspect.isfunction(pair[1])]
    assert len(found) >= 2
    assert {one: missing(function) for one, function in found if missing(function)} == {}


def test_exceptions_are_public():
    """What is raised can be caught by the name that docs/PYTHON.md gives it."""
    raised = {name for name, thing in vars(_errors).items()
              if inspect.isclass(thing) and issubclass(thing, entwine.EntwineError)}
    assert raised == set(_errors.__all__)
    assert {name for name in raised if getattr(entwine, name, None) is None} == set()


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None,
                    reason="mypy is not installed: IT DID NOT CHECK A PROGRAM")
def test_mypy(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent",
                          "--cache-dir", str(tmp_path), "program.py"], cwd=tmp_path, text=True,
                         capture_output=True, timeout=300,
                         env={"MYPYPATH": str(Path(entwine.__file__).parents[1]),
                              "PYTHONPATH": ":".join(sys.path)})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert '"tuple[int, int]"' in ran.stdout and '"list[float]"' in ran.stdout, ran.stdout
    assert "Any" not in ran.stdout, ran.stdout
