"""Which GPU an array must be on.  There need not be one: the library's answer is a stand-in, and so
are the arrays."""
import pytest

import entwine
from entwine import _plan, _streams, _symmetric, _weight
from entwine._library import lib
from matrices import operands

M, N, K = 12, 16, 24
A, B = operands(0, M, N, K)


class OnGpu:
    """Says that it is an array on that GPU, as CuPy's do.  Nobody may look into it."""

    class Device:
        def __init__(self, number):
            self.id = number

    def __init__(self, number, shape, **more):
        self.device = self.Device(number)
        self.__cuda_array_interface__ = {"data": (4096, False), "shape": shape, "typestr": "<f4",
                                         "strides": None, "version": 3, **more}


@pytest.fixture
def gpu(monkeypatch):
    """Has the world of rank 0 be on GPU 2 of four, once something was made in it."""
    chosen = [-1]
    monkeypatch.setattr(lib, "ew_gpu_count", lambda: 4)
    monkeypatch.setattr(lib, "ew_world_gpu", lambda world: chosen[0])
    for name in ("ew_plan_create", "ew_alloc"):
        make = getattr(lib, name)

        def made(*arguments, _make=make):
            chosen[0] = 2
            return _make(*arguments)
        monkeypatch.setattr(lib, name, made)
    monkeypatch.setattr(_plan, "backend_in", lambda config: "cuda")
    return chosen


def test_a_plan_takes_arrays_of_the_gpu_that_the_library_chose(world, gpu):
    plan = entwine.Plan(world, M, N, K, "float32")
    assert plan._device == 2
    plan._check_weight(_plan.describe(OnGpu(2, (N, K)), "B"))
    for number in (0, 1, 3):
        with pytest.raises(entwine.ArgumentError, match=f"A is on cuda:{number}; expected cuda:2"):
            plan.gemm_rs(OnGpu(number, (M, K)), OnGpu(2, (N, K)))
        with pytest.raises(entwine.ArgumentError, match=f"B is on cuda:{number}; expected cuda:2"):
            plan.gemm_rs(OnGpu(2, (M, K)), OnGpu(number, (N, K)))
    with pytest.raises(entwine.ArgumentError, match="A is on the cpu; expected cuda:2"):
        plan.gemm_rs(A, B)


def test_the_first_weight_may_be_on_any_gpu(world, gpu, monkeypatch):
    packed = []

    def create(world, problem, config, address, handle):
        gpu[0] = 2
        packed.append(address)
        handle.value = 1  # nobody may use it
        return 0

    monkeypatch.setattr(lib, "ew_weight_create", create)
    monkeypatch.setattr(lib, "ew_weight_bytes", lambda handle: 0)
    monkeypatch.setattr(lib, "ew_weight_destroy", lambda handle: None)
    weight = entwine.Weight(world, OnGpu(2, (N, K)))
    assert weight._device == 2 and packed == [4096]
    with pytest.raises(entwine.ArgumentError, match="B is on cuda:0; expected cuda:2"):
        weight.update(OnGpu(0, (N, K)))
    with pytest.raises(entwine.ArgumentError, match="B is on cuda:1; expected cuda:2"):
        entwine.Weight(world, OnGpu(1, (N, K)))
    weight.close()


class Driver:
    """Of CUDA; says what was waited for."""

    def __init__(self, order, error=0):
        self.cuStreamSynchronize = lambda stream: order.append(stream.value) or error


def test_a_weight_is_packed_behind_the_stream_that_its_array_names(world, gpu, monkeypatch):
    plan, order = entwine.Plan(world, M, N, K, "float32"), []
    monkeypatch.setattr(lib, "ew_plan_set_weight", lambda *_: order.append("packed") or 0)
    monkeypatch.setattr(_streams.ctypes, "CDLL", lambda name: Driver(order))
    plan.set_weight(OnGpu(2, (N, K), stream=77))
    plan.set_weight(OnGpu(2, (N, K), stream=None))
    assert order == [77, "packed", "packed"]
    monkeypatch.setattr(_streams.ctypes, "CDLL", lambda name: Driver(order, error=700))
    with pytest.raises(entwine.ArgumentError, match="B cannot be waited for: CUDA error 700"):
        plan.set_weight(OnGpu(2, (N, K), stream=1))
    with pytest.raises(entwine.ArgumentTypeError, match="stream is 'no'"):
        plan.set_weight(OnGpu(2, (N, K), stream="no"))
    assert order == [77, "packed", "packed", 1]


def test_symmetric_memory_is_on_the_gpu_that_the_library_chose(world, gpu, monkeypatch):
    monkeypatch.setitem(_symmetric._BACKENDS, "cuda", _symmetric._BACKENDS["cpu"])
    memory = entwine.SymmetricMemory(world, 64)
    assert repr(memory) == "<entwine.SymmetricMemory 64 bytes on cuda:2>"
    memory.close()


def test_without_a_gpu_none_is_chosen(world):
    assert lib.ew_world_gpu(world._handle) == -1 and world._device_of("cuda") is None
    assert entwine.Plan(world, M, N, K, "float32")._device == _weight.CPU
    assert lib.ew_world_gpu(world._handle) == -1 and world._device_of("cuda") is None
