"""Whatever is passed in: an exception that says which argument and what was expected, and a
world and a plan that still work afterwards."""
import numpy as np
import pytest

import entwine
from matrices import bits, expected, operands
from test_results import OnlyDLPack

M, N, K = 12, 16, 24
A, B = operands(0, M, N, K)


class Broken:
    """Offers whatever attributes it is given."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def cuda_array(**changes):
    interface = {"data": (4096, False), "shape": (M, K), "typestr": "<f4", "strides": None,
                 "version": 3, **changes}
    return Broken(__cuda_array_interface__=interface)


def dlpack_of(device, capsule):
    return Broken(__dlpack__=lambda **_: capsule, __dlpack_device__=lambda: device)


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


def unaligned():
    return np.frombuffer(bytes(M * K * 4 + 1), np.uint8)[1:].view("f4").reshape(M, K)


used = A.__dlpack__()
entwine.gemm_rs(dlpack_of((1, 0), used), B, entwine.World())
odd_strides = np.ndarray((M, K), "f4", bytes(M * K * 8), strides=(K * 4 + 2, 4))

# (what is tried, a word that the message must contain).  p: a plan with a bound weight.
CALLS = {
    "A is None": (lambda p: p.gemm_rs(None), "A is a NoneType"),
    "A is a list": (lambda p: p.gemm_rs([[1.0]]), "A is a list"),
    "A is a number": (lambda p: p.gemm_rs(7), "A is a int"),
    "A is bytes": (lambda p: p.gemm_rs(b"abc"), "A is a bytes"),
    "A is a string": (lambda p: p.gemm_rs("A"), "A is a str"),
    "A is a type": (lambda p: p.gemm_rs(np.ndarray), "A "),
    "A is float64": (lambda p: p.gemm_rs(A.astype("f8")), "A has element type float64"),
    "A is int32": (lambda p: p.gemm_rs(A.astype("i4")), "A has element type int32"),
    "A is complex": (lambda p: p.gemm_rs(A.astype("c8")), "A has element type complex64"),
    "A is of objects": (lambda p: p.gemm_rs(A.astype(object)), "A has element type object"),
    "A is structured": (lambda p: p.gemm_rs(np.zeros((M, K), "f4,f4")), "A has element type"),
    "A is big-endian": (lambda p: p.gemm_rs(A.astype(">f4")), "A .*foreign byte order"),
    "A is float16": (lambda p: p.gemm_rs(A.astype("f2")), "A has element type float16"),
    "A is masked": (lambda p: p.gemm_rs(np.ma.array(A, mask=A > 0)), "A is a masked array"),
    "A is 1-D": (lambda p: p.gemm_rs(A[0]), "A has shape"),
    "A is 3-D": (lambda p: p.gemm_rs(A[None]), "A has shape"),
    "A is 0-D": (lambda p: p.gemm_rs(np.array(1, "f4")), "A has shape"),
    "A is a NumPy scalar": (lambda p: p.gemm_rs(np.float32(1)), "A is a float32"),
    "A is too deep": (lambda p: p.gemm_rs(np.zeros((M, K + 1), "f4")), "A has shape"),
    "A is too high": (lambda p: p.gemm_rs(np.zeros((M + 1, K), "f4")), "A has shape"),
    "A is transposed": (lambda p: p.gemm_rs(np.zeros((K, M), "f4").T), "A has strides"),
    "A has gaps": (lambda p: p.gemm_rs(np.zeros((M, 2 * K), "f4")[:, ::2]), "A has strides"),
    "A is reversed": (lambda p: p.gemm_rs(A[::-1]), "A has strides"),
    "A is broadcast": (lambda p: p.gemm_rs(np.broadcast_to(A[:1], (M, K))), "A has strides"),
    "A has odd strides": (lambda p: p.gemm_rs(odd_strides), "A has strides"),
    "A is unaligned": (lambda p: p.gemm_rs(unaligned()), "A starts at an address"),
    "A is on a GPU": (lambda p: p.gemm_rs(cuda_array()), "A is on cuda:0; expected the cpu"),
    "A's interface is empty": (
        lambda p: p.gemm_rs(Broken(__cuda_array_interface__={})), "A has a broken"),
    "A's interface is None": (
        lambda p: p.gemm_rs(Broken(__cuda_array_interface__=None)), "A has a broken"),
    "A's interface has no type": (lambda p: p.gemm_rs(cuda_array(typestr="<i8")), "A has element"),
    "A's interface has no numbers": (lambda p: p.gemm_rs(cuda_array(shape=("a", 2))), "A has a b"),
    "A's interface has three strides": (
        lambda p: p.gemm_rs(cuda_array(strides=(4, 4, 4))), "A has shape .* strides"),
    "A's interface has odd strides": (
        lambda p: p.gemm_rs(cuda_array(strides=(K * 4 + 1, 4))), "A has shape .* strides"),
    "A's interface is masked": (lambda p: p.gemm_rs(cuda_array(mask=A)), "A is masked"),
    "A's capsule is text": (lambda p: p.gemm_rs(dlpack_of((1, 0), "text")), "A .*DLPack"),
    "A's capsule is None": (lambda p: p.gemm_rs(dlpack_of((1, 0), None)), "A .*DLPack"),
    "A's capsule was used": (lambda p: p.gemm_rs(dlpack_of((1, 0), used)), "A .*unused"),
    "A's device is unknown": (lambda p: p.gemm_rs(dlpack_of((99, 0), None)), "A is on DLPack dev"),
    "A's device is no pair": (lambda p: p.gemm_rs(dlpack_of(None, None)), "A .*DLPack"),
    "A is float64 by DLPack": (lambda p: p.gemm_rs(OnlyDLPack(A.astype("f8"))), "A .*float64"),
    "A is int8 by DLPack": (lambda p: p.gemm_rs(OnlyDLPack(A.astype("i1"))), "A .*int8"),
    "B is a list": (lambda p: p.gemm_rs(A, [1]), "B is a list"),
    "B is float16": (lambda p: p.gemm_rs(A, B.astype("f2")), "B has element type float16"),
    "B is K x N": (lambda p: p.gemm_rs(A, np.ascontiguousarray(B.T)), "fix: pass B.T"),
    "B lies as K x N": (lambda p: p.gemm_rs(A, np.ascontiguousarray(B.T).T), "B has strides"),
    "B is too small": (lambda p: p.gemm_rs(A, B[:-1]), "B has shape"),
    "B has gaps": (lambda p: p.gemm_rs(A, np.zeros((2 * N, K), "f4")[::2]), "B has strides"),
    "weight is None": (lambda p: p.set_weight(None), "B is a NoneType"),
    "weight is 1-D": (lambda p: p.set_weight(B[0]), "B has shape"),
    "weight is int": (lambda p: p.set_weight(B.astype(int)), "B has element type"),
    "out is a list": (lambda p: p.gemm_rs(A, out=[]), "out is a list"),
    "out is too small": (lambda p: p.gemm_rs(A, out=np.zeros((M - 1, N), "f4")), "out has shape"),
    "out is too large": (lambda p: p.gemm_rs(A, out=np.zeros((M, N + 1), "f4")), "out has shape"),
    "out is float64": (lambda p: p.gemm_rs(A, out=np.zeros((M, N))), "out has element type"),
    "out is read-only": (
        lambda p: p.gemm_rs(A, out=read_only(np.zeros((M, N), "f4"))), "out is read-only"),
    "out has gaps": (
        lambda p: p.gemm_rs(A, out=np.zeros((M, 2 * N), "f4")[:, ::2]), "out has strides"),
    "out is column-major": (
        lambda p: p.gemm_rs(A, out=np.zeros((N, M), "f4").T), "out has strides"),
    "out is A": (lambda p: p.gemm_rs(A, out=A.reshape(-1)[:M * N].reshape(M, N)),
                 "out shares memory with A"),
    "out is B": (lambda p: p.gemm_rs(A, B, out=B.reshape(-1)[:M * N].reshape(M, N)),
                 "out shares memory with B"),
    "stream on the cpu": (lambda p: p.gemm_rs(A, stream=1), "stream is 1"),
    "stream is text": (lambda p: p.gemm_rs(A, stream="default"), "stream is 'default'"),
    "stream is negative": (lambda p: p.gemm_rs(A, stream=-1), "stream is -1"),
}


@pytest.mark.parametrize("what", CALLS)
def test_calls(world, what):
    attempt, says = CALLS[what]
    plan = entwine.Plan(world, M, N, K, "float32")
    plan.set_weight(B)
    with pytest.raises(entwine.ArgumentError, match=says):
        attempt(plan)
    assert bits(plan.gemm_rs(A)) == bits(expected(1, M, N, K)), "the plan must stay usable"


MAKERS = {
    "world is None": (lambda w: entwine.Plan(None, M, N, K, "fp32"), "world is a NoneType"),
    "world is a number": (lambda w: entwine.Plan(1234, M, N, K, "fp32"), "world is a int"),
    "max_m is negative": (lambda w: entwine.Plan(w, -1, N, K, "fp32"), "max_m is -1"),
    "max_m is huge": (lambda w: entwine.Plan(w, 2**70, N, K, "fp32"), "max_m is 118"),
    "n is zero": (lambda w: entwine.Plan(w, M, 0, K, "fp32"), "n is 0"),
    "k is a fraction": (lambda w: entwine.Plan(w, M, N, 1.5, "fp32"), "k is 1.5"),
    "k is text": (lambda w: entwine.Plan(w, M, N, "24", "fp32"), "k is '24'"),
    "dtype is None": (lambda w: entwine.Plan(w, M, N, K, None), "dtype is None"),
    "dtype is float64": (lambda w: entwine.Plan(w, M, N, K, np.float64), "dtype is .*float64"),
    "dtype is unknown": (lambda w: entwine.Plan(w, M, N, K, "fp8"), "dtype is 'fp8'"),
    "dtype is an object": (lambda w: entwine.Plan(w, M, N, K, w), "dtype is "),
    "layout is unknown": (lambda w: entwine.Plan(w, M, N, K, "fp32", layout="mn"), "layout is"),
    "config is a number": (lambda w: entwine.Plan(w, M, N, K, "fp32", 3), "config is a int"),
    "config is unknown": (lambda w: entwine.Plan(w, M, N, K, "fp32", "speed=11"), "speed"),
    "config has a bad value": (
        lambda w: entwine.Plan(w, M, N, K, "fp32", {"order": "random"}), "order"),
    "config has a zero": (lambda w: entwine.Plan(w, M, N, K, "fp32", "x=1\0"), "config is"),
    "backend is unknown": (lambda w: entwine.Plan(w, M, N, K, "fp32", backend="tpu"), "backend"),
    "backend twice": (
        lambda w: entwine.Plan(w, M, N, K, "fp32", "backend=cpu", backend="cuda"), "backend"),
    "no world in gemm_rs": (lambda w: entwine.gemm_rs(A, B, None), "world is a NoneType"),
    "gemm_rs of two depths": (lambda w: entwine.gemm_rs(A, B[:, :-1].copy(), w), "same depth"),
    "rank is negative": (lambda w: entwine.World(-1, 1), "rank is -1"),
    "rank is too large": (lambda w: entwine.World(1, 1), "rank is 1"),
    "size is zero": (lambda w: entwine.World(0, 0), "size is 0"),
    "size is huge": (lambda w: entwine.World(0, 10**6), "size is 1000000"),
    "no allgather": (lambda w: entwine.World(0, 2), "allgather is None"),
    "timeout is negative": (lambda w: entwine.World(timeout=-1), "timeout is -1"),
    "timeout is text": (lambda w: entwine.World(timeout="soon"), "timeout is 'soon'"),
    "timeout is no number": (lambda w: entwine.World(timeout=float("nan")), "timeout is nan"),
    "link is negative": (lambda w: entwine.World(link_gbps=-1), "link"),
    "a link's header is negative": (lambda w: entwine.World(link_header_bytes=-1), "headers of -1"),
    "link is text": (lambda w: entwine.World(link_gbps="fast"), "link_gbps is 'fast'"),
    "allgather of text": (lambda w: w.allgather("text"), "data is a str"),
    "comm is a number": (lambda w: entwine.World.from_mpi(7), "comm is a int"),
    "no ranks": (lambda w: entwine.spawn(0, print), "num_ranks is 0"),
    "no function": (lambda w: entwine.spawn(1, None), "function is None"),
    "unknown method": (lambda w: entwine.spawn(1, print, method="thread"), "method is 'thread'"),
    "m is negative": (lambda w: w.owned_rows(-3), "m is -3"),
    "tune without a world": (lambda w: entwine.tune(None, M, N, K), "world is a NoneType"),
    "tune with a bad progress": (lambda w: entwine.tune(w, M, N, K, progress=1), "progress is 1"),
    "explain of no ranks": (lambda w: entwine.explain(M, N, K, ranks=0), "ranks is 0"),
}


@pytest.mark.parametrize("what", MAKERS)
def test_makers(world, what):
    attempt, says = MAKERS[what]
    with pytest.raises(entwine.ArgumentError, match=says):
        attempt(world)
    world.barrier()


def test_freed_objects():
    world = entwine.World()
    plan = entwine.Plan(world, M, N, K, "float32")
    other = entwine.Plan(world, M, N, K, "float32")
    plan.close()
    plan.close()
    for use in (lambda: plan.gemm_rs(A, B), lambda: plan.set_weight(B), plan.explain, plan.wait,
                lambda: plan.timing, lambda: plan.config):
        with pytest.raises(entwine.ArgumentError, match="the plan was closed"):
            use()
    world.close()
    world.close()
    for use in (world.barrier, lambda: world.rank, lambda: world.allgather(b""),
                lambda: entwine.Plan(world, M, N, K, "float32"), lambda: other.gemm_rs(A, B),
                lambda: entwine.gemm_rs(A, B, world), world.__enter__,
                lambda: entwine.tune(world, M, N, K)):
        with pytest.raises(entwine.ArgumentError, match="the world was closed"):
            use()
    world.abort()
    other.close()
    assert "closed" in repr(world) and "closed" in repr(plan)


def test_an_aborted_world_stays_so():
    world = entwine.World()
    world.abort()
    with pytest.raises(entwine.AbortedError) as caught:
        world.barrier()
    assert (caught.value.rank, caught.value.status, caught.value.code) == (0, "EW_ERR_ABORTED", -10)
    world.close()


def test_gpus_that_are_not_there(world):
    from entwine._library import lib
    if lib.ew_gpu_count() > 0:
        pytest.skip("there is a GPU")
    with pytest.raises(entwine.UnsupportedError):
        entwine.Plan(world, 128, 128, 128, "bf16", backend="cuda")
    with pytest.raises(entwine.EntwineError):
        entwine.gemm_rs(cuda_array(), cuda_array(shape=(N, K)), world)


def test_memory_that_cannot_be_had(world):
    with pytest.raises(entwine.EntwineError):
        entwine.Plan(world, 1 << 30, 1 << 30, 1 << 20, "float32")
    world.barrier()
