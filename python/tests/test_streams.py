"""For which stream torch makes a result.  Neither torch nor a GPU need be there: tensors, streams
and the library's calls are stand-ins."""
import contextlib
import sys
from types import SimpleNamespace

import pytest

import entwine
from entwine import _buffers, _plan, _products
from entwine._library import lib

M, N, K = 12, 16, 24
GPU = 2


class Tensor:
    """On a GPU; made for the stream that is current."""

    current = "the current stream"

    def __init__(self, *shape):
        self.shape, self.made_for = shape, Tensor.current

    def new_empty(self, *shape):
        return Tensor(*shape)

    def data_ptr(self):
        return 4096


@contextlib.contextmanager
def stream(its):
    before, Tensor.current = Tensor.current, its
    yield
    Tensor.current = before


def describe(array, name, stream=None, dimensions=2):
    return _buffers.Buffer(array.data_ptr(), array.shape, None, _buffers.FP32, GPU, True, None,
                           "torch", array)


@pytest.fixture
def on_gpu(monkeypatch):
    """Has plans be on a GPU; what they would tell the library goes into this list."""
    told = []
    cuda = SimpleNamespace(stream=stream, Tensor=Tensor,
                           ExternalStream=lambda handle, device: (handle, device),
                           default_stream=lambda device: ("the default stream", device),
                           current_stream=lambda device: SimpleNamespace(cuda_stream=55),
                           is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "torch",
                        SimpleNamespace(cuda=cuda, Tensor=Tensor, dtype=type(None)))
    monkeypatch.setattr(lib, "ew_world_gpu", lambda world: GPU)
    monkeypatch.setattr(_plan, "backend_in", lambda config: "cuda")
    for module in (_plan, _products):
        monkeypatch.setattr(module, "describe", describe)
    for name in ("ew_ag_gemm_multi", "ew_ag_gemm_act"):
        monkeypatch.setattr(lib, name, lambda *arguments: told.append(arguments) or 0)
    monkeypatch.setattr(_plan, "_FUNCTIONS", {op: (
        lambda *arguments: told.append(arguments) or 0,
        lambda *arguments: told.append(arguments) or 0, whole)
        for op, (_, _, whole) in _plan._FUNCTIONS.items()})
    return told


CALLS = {
    "gemm_rs": ("gemm-rs", lambda plan, a, b, **given: plan.gemm_rs(a, b, **given)),
    "gemm_ar": ("gemm-ar", lambda plan, a, b, **given: plan.gemm_ar(a, b, **given)),
    "gemm_rs_layer": ("gemm-rs", lambda plan, a, b, **given: plan.gemm_rs_layer(a, b, **given)),
    "ag_gemm": ("ag-gemm", lambda plan, a, b, **given: plan.ag_gemm(a, b, **given)),
    "ag_gemm_multi": ("ag-gemm",
                      lambda plan, a, b, **given: plan.ag_gemm_multi(a, [b], **given)[0]),
    "ag_gemm_act": ("ag-gemm", lambda plan, a, b, **given: plan.ag_gemm_act(a, [b], **given)),
}


@pytest.mark.parametrize("op, call", CALLS.values(), ids=CALLS)
def test_a_new_result_is_made_for_the_stream_that_writes_it(world, on_gpu, op, call):
    plan = entwine.Plan(world, M, N, K, "float32", op=op)
    for given, handle, made_for in (
            (77, 77, (77, GPU)), (SimpleNamespace(cuda_stream=78), 78, (78, GPU)),
            (0, 1, ("the default stream", GPU)), (1, 1, ("the default stream", GPU)),
            (None, 55, "the current stream")):
        out = call(plan, Tensor(M, K), Tensor(N, K), stream=given)
        assert out.shape == (M, N) and out.made_for == made_for
        assert on_gpu.pop()[-1] == handle and not on_gpu
    assert Tensor.current == "the current stream"


def test_a_given_result_stays_the_callers(world, on_gpu):
    plan = entwine.Plan(world, M, N, K, "float32", op="ag-gemm")
    out = Tensor(M, N)
    got = plan.ag_gemm_multi(Tensor(M, K), [Tensor(N, K)], outs=[out], stream=77)
    assert got == [out] and out.made_for == "the current stream"
