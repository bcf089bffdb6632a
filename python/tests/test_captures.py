"""What is collected while torch captures a CUDA graph, which may neither wait nor free.  There need
not be a GPU: the capture is a stand-in."""
import gc

import pytest

import entwine
from entwine import _streams, _world
from entwine._library import lib
from matrices import operands

M, N, K = 12, 16, 24
A, B = operands(0, M, N, K)


@pytest.fixture
def capture(monkeypatch):
    """What is destroyed, and a switch."""
    class Capture:
        runs, freed = False, []

    monkeypatch.setattr(_streams, "is_capturing", lambda: Capture.runs)
    for name in ("ew_plan_destroy", "ew_weight_destroy", "ew_world_destroy"):
        destroy = getattr(lib, name)

        def destroyed(handle, _name=name, _destroy=destroy):
            assert not Capture.runs, f"{_name} in a capture"
            Capture.freed.append(_name)
            _destroy(handle)
        monkeypatch.setattr(lib, name, destroyed)
    return Capture


def on_gpu(world):
    world._gpu = 0  # as if a plan of it had chosen one
    return world


def test_plans_and_weights_wait_for_the_next_call_after_it(world, capture):
    on_gpu(world)
    plan = entwine.Plan(world, M, N, K, "float32")
    kept, weight = entwine.Plan(world, M, N, K, "float32"), entwine.Weight(world, B)
    kept.set_weight(B)
    capture.runs = True
    del plan, weight
    gc.collect()
    kept.gemm_rs(A)
    kept.set_timeout(1)
    assert capture.freed == []
    capture.runs = False
    kept.gemm_rs(A)
    assert sorted(capture.freed) == ["ew_plan_destroy", "ew_weight_destroy"]
    assert len(world._plan_handles) == 1 and not world._weight_handles


def test_they_end_with_their_world_at_the_latest(capture):
    world = on_gpu(entwine.World())
    plan, weight = entwine.Plan(world, M, N, K, "float32"), entwine.Weight(world, B)
    capture.runs = True
    del plan, weight
    capture.runs = False
    world.close()
    assert capture.freed == ["ew_plan_destroy", "ew_weight_destroy", "ew_world_destroy"]


def test_a_world_waits_for_a_call_of_another_one(world, capture):
    gone = on_gpu(entwine.World())
    entwine.Plan(gone, M, N, K, "float32")
    capture.freed.clear()
    gone.plan = entwine.Plan(gone, M, N, K, "float32")  # a cycle: the collector's
    capture.runs = True
    del gone
    gc.collect()
    world.barrier()
    assert capture.freed == [] and len(_world._forsaken_worlds) == 1
    capture.runs = False
    world.barrier()
    assert capture.freed == ["ew_plan_destroy", "ew_world_destroy"]
    assert not _world._forsaken_worlds


def test_after_a_fault_of_cuda_nothing_waits(world, capture, monkeypatch):
    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(_streams, "is_capturing", fail)
    plan = entwine.Plan(on_gpu(world), M, N, K, "float32")
    del plan
    world.barrier()
    assert capture.freed == ["ew_plan_destroy"]


def test_on_a_cpu_nothing_waits(world, capture, monkeypatch):
    """torch is not even asked, since asking it may start CUDA."""
    monkeypatch.setattr(_streams, "is_capturing", None)
    plan, weight = entwine.Plan(world, M, N, K, "float32"), entwine.Weight(world, B)
    del plan, weight
    assert capture.freed == ["ew_plan_destroy", "ew_weight_destroy"]
