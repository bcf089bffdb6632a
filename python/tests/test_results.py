"""Results, bit for bit: element types, layouts, kinds of arrays, plans and the plan cache."""
import numpy as np
import pytest

import entwine
from entwine import _shared_plans
from matrices import DTYPES, bits, expected, operands


def check_rank(world, dtype, shapes):
    for m, n, k in shapes:
        A, B = operands(world.rank, m, n, k, dtype)
        first, count = world.owned_rows(m)
        want = expected(world.size, m, n, k, dtype)[first:first + count]
        with entwine.Plan(world, m + 3, n, k, dtype) as plan:
            plan.set_weight(B)
            out = np.full((count, n), 77).astype(dtype)
            assert plan.gemm_rs(A, out=out) is out
            assert bits(out) == bits(want)
            assert bits(plan.gemm_rs(A)) == bits(want)
        assert bits(entwine.gemm_rs(A, B, world)) == bits(want)
    return world.rank


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_all_element_types_bit_for_bit(dtype):
    shapes = [(256, 256, 64), (7, 130, 33), (1, 5, 3), (0, 8, 8), (129, 40, 16)]
    assert entwine.spawn(3, check_rank, dtype, shapes, timeout=100) == [0, 1, 2]


def test_one_rank_and_m_that_changes(world):
    plan = entwine.Plan(world, 300, 40, 24, "fp32")
    for m in (0, 1, 17, 300, 2):
        A, B = operands(0, m, 40, 24)
        plan.set_weight(B)
        assert bits(plan.gemm_rs(A)) == bits(expected(1, m, 40, 24))


def test_layouts_come_from_strides(world):
    A, B = operands(0, 20, 16, 24)
    want = bits(expected(1, 20, 16, 24))
    kn = np.ascontiguousarray(B.T)  # as K rows of N
    assert bits(entwine.gemm_rs(A, B, world)) == want
    assert bits(entwine.gemm_rs(A, kn.T, world)) == want
    plan = entwine.Plan(world, 20, 16, 24, "float32", layout="kn")
    plan.set_weight(kn.T)
    assert bits(plan.gemm_rs(A)) == want
    for refused in (B, np.zeros((16, 48), "f4")[:, ::2]):
        with pytest.raises(entwine.ArgumentError, match="B has strides"):
            plan.set_weight(refused)
    with pytest.raises(entwine.ArgumentError, match="B has strides"):
        entwine.gemm_rs(A, np.zeros((16, 48), "f4")[:, ::2], world)


def test_both_layouts_of_a_thin_weight(world):
    for n, k in ((1, 8), (8, 1)):
        A, B = operands(0, 5, n, k)
        for layout in ("nk", "kn"):
            plan = entwine.Plan(world, 5, n, k, "float32", layout=layout)
            plan.set_weight(B)
            assert bits(plan.gemm_rs(A)) == bits(expected(1, 5, n, k))


def test_a_weight_of_one_call_leaves_the_bound_one(world):
    A, B = operands(0, 6, 8, 12)
    plan = entwine.Plan(world, 6, 8, 12, "float32")
    plan.set_weight(B)
    want = bits(expected(1, 6, 8, 12))
    with pytest.raises(entwine.ArgumentError):
        plan.gemm_rs(A, np.zeros((3, 3), "f4"))
    assert bits(plan.gemm_rs(A)) == want, "a refused weight must not unbind"
    assert bits(plan.gemm_rs(A, 0 * B)) == bits(np.zeros((6, 8), "f4"))
    assert bits(plan.gemm_rs(A)) == want


def random_rank(world, configs):
    random = np.random.default_rng(world.rank)
    A = random.standard_normal((300, 96), dtype=np.float32)
    B = random.standard_normal((256, 96), dtype=np.float32)
    results = set()
    for config in configs:
        with entwine.Plan(world, 300, 256, 96, "float32", config) as plan:
            plan.set_weight(B)
            results |= {bits(plan.gemm_rs(A)) for _ in range(3)}
    return results


def test_the_bits_depend_on_the_inputs_alone():
    configs = [None, "order=contiguous,release=output", {"order": "default", "workers": 2}]
    first = entwine.spawn(2, random_rank, configs, timeout=60)
    again = entwine.spawn(2, random_rank, configs[:1], timeout=60)
    assert [len(results) for results in first] == [1, 1]
    assert first == again


class OnlyDLPack:
    """An array of another library, of which nothing but DLPack is known."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_dlpack(world):
    A, B = operands(0, 30, 16, 24)
    want = bits(expected(1, 30, 16, 24))
    plan = entwine.Plan(world, 30, 16, 24, "float32")
    plan.set_weight(OnlyDLPack(B))
    result = plan.gemm_rs(OnlyDLPack(A))
    assert isinstance(result, np.ndarray) and bits(result) == want
    out = np.zeros((30, 16), "f4")
    plan.gemm_rs(OnlyDLPack(A), out=OnlyDLPack(out))
    assert bits(out) == want
    kn = np.ascontiguousarray(B.T)
    assert bits(entwine.gemm_rs(OnlyDLPack(A), OnlyDLPack(kn.T), world)) == want


def test_dlpack_memory_is_given_back(world):
    import sys
    A, B = operands(0, 4, 8, 8)
    before = sys.getrefcount(A)
    for _ in range(10):
        entwine.gemm_rs(OnlyDLPack(A), B, world)
    assert sys.getrefcount(A) == before


def plans_left(world, most_plans, most_bytes):
    _shared_plans._MOST_PLANS, _shared_plans._MOST_BYTES = most_plans, most_bytes
    if world.rank == 0:  # as where this rank's weights were packed before
        entwine.Plan._held_bytes = lambda plan: 0
    for n in range(1, 50):  # more shapes than are kept
        A, B = operands(world.rank, 9, n, 8)
        first, count = world.owned_rows(9)
        assert bits(entwine.gemm_rs(A, B, world)) == bits(
            expected(world.size, 9, n, 8)[first:first + count])
    return [plan._n for plan in world._cache.values()]


@pytest.mark.parametrize("most_plans, most_bytes, left", [
    (40, 1 << 30, 40), (100, 1 << 30, 49), (100, 0, 32),
    # Each holds 2 * 16 * (n + 8) + 8 n floats; those of n = 12 to 48 are just not too many.
    (100, sum(4 * (40 * n + 256) for n in range(12, 49)), 38)])
def test_plans_are_kept_while_they_hold_little(most_plans, most_bytes, left):
    kept = list(range(50 - left, 50))
    assert entwine.spawn(2, plans_left, most_plans, most_bytes, timeout=60) == [kept, kept]


def test_plans_of_a_model_are_all_kept(world):
    """Four shapes, for every power of two up to 4096 rows."""
    rounds = []
    for _ in range(2):
        for n, k in ((8, 8), (16, 8), (8, 16), (16, 16)):
            for power in range(13):
                entwine.gemm_rs(np.zeros((1 << power, k), "f4"), np.zeros((n, k), "f4"), world)
        rounds.append(set(world._cache.values()))
    assert rounds[0] == rounds[1] and len(rounds[0]) == 52


def test_what_a_plan_says_of_itself(world):
    plan = entwine.Plan(world, 256, 256, 64, "bf16", "order=contiguous")
    assert "order=contiguous" in plan.config and "workers=" in plan.config
    assert "order=contiguous" in plan.explain()
    again = entwine.Plan(world, 256, 256, 64, "bf16", plan.config)
    assert again.config == plan.config
    B = np.zeros((256, 64), "f4")
    timed = entwine.Plan(world, 256, 256, 64, "float32")
    timed.gemm_rs(np.zeros((256, 64), "f4"), B)
    timing = timed.timing
    assert timing.start_ns <= timing.gemm_end_ns <= timing.end_ns and timing.total_us > 0
    assert "workers=" in entwine.explain(8192, 8192, 1024, "bfloat16", ranks=8)


def tune_rank(world):
    rounds = []
    result = entwine.tune(world, 128, 128, 32, "float32", {"order": "interleaved"}, budget=1.0,
                          store=False, progress=lambda *report: rounds.append(report))
    assert "order=interleaved" in result.config
    assert result.time_us > 0 and result.num_candidates > 0 and result.speedup > 0
    return bool(rounds), result


def test_tune():
    (heard_0, result_0), (heard_1, result_1) = entwine.spawn(2, tune_rank, timeout=100)
    assert result_0 == result_1
    assert heard_0 and not heard_1, "progress is for rank 0"


def test_an_exception_in_progress_comes_out(world):
    def progress(*report):
        raise KeyError("stop")

    with pytest.raises(KeyError):
        entwine.tune(world, 32, 32, 32, store=False, budget=1.0, progress=progress)
    world.barrier()
