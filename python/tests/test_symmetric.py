"""SymmetricMemory on the CPU: tensors in it, what is refused, and its end."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import entwine  # noqa: E402
from matrices import expected, operands  # noqa: E402

M, N, K = 12, 16, 24
BYTES = M * N * 4


def sum_into(world):
    A, B = (torch.from_numpy(array) for array in operands(world.rank, M, N, K))
    plan = entwine.Plan(world, M, N, K, "float32", op="gemm-ar")
    with entwine.SymmetricMemory(world, BYTES + 64, backend="cpu") as memory:
        out = memory.tensor((M, N), torch.float32, offset=64).fill_(77.0)
        assert plan.gemm_ar(A, B, out=out) is out
        assert torch.equal(out, torch.from_numpy(expected(world.size, M, N, K)))
        del out
    assert memory.nbytes == 0
    return world.rank


def test_an_output_in_it_has_the_sums():
    assert entwine.spawn(3, sum_into, timeout=60) == [0, 1, 2]


def disagree(world):
    with pytest.raises(entwine.MismatchError, match="bytes"):
        entwine.SymmetricMemory(world, 64 * (1 + world.rank), backend="cpu")


def test_ranks_that_ask_for_different_sizes():
    entwine.spawn(2, disagree, timeout=60)


@pytest.mark.parametrize("dtype", ("float32", torch.bfloat16, torch.float16))
def test_tensors_lie_where_they_are_asked_for(world, dtype):
    memory = entwine.SymmetricMemory(world, 256, backend="cpu")
    first, second = memory.tensor((2, 3), dtype), memory.tensor((4,), dtype, offset=64)
    assert second.data_ptr() - first.data_ptr() == 64 and first.shape == (2, 3)
    assert memory.tensor((0, 5), dtype).shape == (0, 5)
    again = memory.tensor((6,), dtype)
    first.fill_(3)
    assert torch.equal(again, torch.full_like(again, 3))


@pytest.mark.parametrize("shape, dtype, offset, message", (
    ((65,), torch.float32, 0, "ends at byte 260"), ((64,), torch.float32, 4, "ends at byte 260"),
    ((1,), torch.float32, 2, "multiple of 4"), ((1,), torch.float64, 0, "dtype is"),
    ((-1,), torch.float32, 0, "extent"), ((1,), torch.float32, -4, "offset")))
def test_what_does_not_fit_is_refused(world, shape, dtype, offset, message):
    memory = entwine.SymmetricMemory(world, 256, backend="cpu")
    with pytest.raises(entwine.EntwineError, match=message):
        memory.tensor(shape, dtype, offset)


@pytest.mark.parametrize("nbytes, backend, message", (
    (0, "cpu", "nbytes"), (1.5, "cpu", "nbytes"), (64, "sim", "backend is 'sim'")))
def test_bad_requests_are_refused(world, nbytes, backend, message):
    with pytest.raises(entwine.EntwineError, match=message):
        entwine.SymmetricMemory(world, nbytes, backend=backend)


def test_it_is_not_freed_under_a_tensor(world):
    memory = entwine.SymmetricMemory(world, 256, backend="cpu")
    rows = memory.tensor((4, 4), torch.float32)[1:]
    with pytest.raises(entwine.ArgumentError, match=r"1 tensor\(s\) lie in it"):
        memory.close()
    del rows
    memory.close()
    memory.close()
    with pytest.raises(entwine.ArgumentError, match="was closed"):
        memory.tensor((1,), torch.float32)


def test_it_ends_with_its_world():
    with entwine.World() as world:
        memory = entwine.SymmetricMemory(world, 256, backend="cpu")
    memory.close()
    with pytest.raises(entwine.ArgumentError, match="its world was"):
        memory.tensor((1,), torch.float32)
