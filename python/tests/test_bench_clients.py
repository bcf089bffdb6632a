"""The parts of scripts/bench-clients that are short."""
import importlib.util
import json
from pathlib import Path

import pytest

from ranks import run_program

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/bench-clients"
MISSING = [name for name in ("torch", "transformers", "accelerate")
           if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: "
                                f"BENCH-CLIENTS WAS NOT RUN")


def part(folder, *arguments, ranks=1):
    ran = run_program(SCRIPT, "--part", *arguments, folder=folder, ranks=ranks)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_overhead(tmp_path):
    said = part(tmp_path, "overhead", "--repeats", "1")
    assert {len(samples) for samples in said["us"].values()} == {1} and len(said["us"]) == 3
    assert said["context"].keys() == {"commit", "python", "torch", "transformers"}


def test_model(tmp_path):
    said = part(tmp_path, "model", "--dtype", "bfloat16", "--repeats", "1", ranks=2)
    assert said["ms"].keys() == {"transformers", "torch", "entwine"}
    assert all(len(samples) == 1 for times in said["ms"].values() for samples in times.values())
    assert max(said["logits_differ_by"].values()) <= said["logits_may_differ_by"]


def test_training(tmp_path):
    said = part(tmp_path, "training", "--repeats", "3", ranks=2)
    assert said["parameters_without_gradient"] == {"transformers": 0, "entwine": 0}
    theirs, ours = said["losses"]["transformers"], said["losses"]["entwine"]
    assert len(ours) == 3 and max(abs(a - b) for a, b in zip(ours, theirs)) < 1e-3
