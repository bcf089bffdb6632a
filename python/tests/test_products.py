"""Several weights on one gather, and the activation behind them: the bits of calls of their own."""
import numpy as np
import pytest

import entwine
from matrices import DTYPES, bits

K, WIDTHS = 24, (40, 5, 129)
ROWS = (0, 1, 7, 131)


def rows_of(world, m, dtype):
    A = np.random.default_rng(m).standard_normal((m, K)).astype(dtype)
    first, count = entwine.owned_rows(m, world.size, world.rank)
    return A, A[first:first + count]


def weights_of(world, widths, dtype):
    random = np.random.default_rng([world.rank, *widths])
    return [random.standard_normal((n, K)).astype(dtype) for n in widths]


def check_products(world, dtype):
    weights = weights_of(world, WIDTHS, dtype)
    packed = [entwine.Weight(world, weight) for weight in weights]
    plan = entwine.Plan(world, max(ROWS), sum(WIDTHS), K, dtype, op="ag-gemm")
    for m in ROWS:
        A, mine = rows_of(world, m, dtype)
        want = [bits(entwine.ag_gemm(mine, weight, world, num_rows=m)) for weight in weights]
        gathered, out = np.zeros((m, K), dtype), np.full((m, WIDTHS[1]), 77).astype(dtype)
        for given in (weights, packed, [weights[0], packed[1], weights[2]]):
            got = plan.ag_gemm_multi(mine, given, m, outs=(None, out, None), gathered=gathered)
            assert got[1] is out and [bits(one) for one in got] == want
            assert bits(gathered) == bits(A)
    return world.rank


def check_activation(world, dtype):
    n = 70
    weights = weights_of(world, (n, n), dtype)
    plan = entwine.Plan(world, max(ROWS), 2 * n, K, dtype, op="ag-gemm")
    alone = entwine.Plan(world, max(ROWS), n, K, dtype, op="ag-gemm")
    for m in ROWS:
        _, mine = rows_of(world, m, dtype)
        gate, up = plan.ag_gemm_multi(mine, weights, m)
        kept = [np.full((m, n), 77).astype(dtype) for _ in range(2)]
        h = plan.ag_gemm_act(mine, weights, "silu", m)
        assert bits(plan.ag_gemm_act(mine, weights, num_rows=m, products=kept)) == bits(h)
        assert [bits(one) for one in kept] == [bits(gate), bits(up)]
        wide = gate.astype("f8")
        want = wide / (1 + np.exp(-wide)) * up.astype("f8")
        rounding = 1e-6 if np.dtype(dtype).itemsize == 4 else 1e-2
        assert np.allclose(h.astype("f8"), want, rtol=rounding, atol=1e-6)
        product = plan.ag_gemm_act(mine, weights, "none", m)
        exact = (gate.astype("f4") * up.astype("f4")).astype(dtype)
        assert bits(product) == bits(exact)
        single = alone.ag_gemm_act(mine, weights[:1], "gelu-tanh", m)
        inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide ** 3)
        assert np.allclose(single.astype("f8"), wide / 2 * (1 + np.tanh(inner)), atol=1e-2)
    return world.rank


@pytest.mark.parametrize("ranks", (1, 3))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_one_gather_gives_the_bits_of_many(ranks, dtype):
    assert entwine.spawn(ranks, check_products, dtype, timeout=100) == list(range(ranks))
    assert entwine.spawn(ranks, check_activation, dtype, timeout=100) == list(range(ranks))


A, B = np.ones((4, 8), "f4"), np.ones((5, 8), "f4")
WRONG = {
    "another plan": (lambda p: entwine.Plan(p.world, 4, 10, 8, "float32").ag_gemm_multi(A, [B]),
                     "ag_gemm_multi cannot run a plan for gemm-rs"),
    "another depth": (lambda p: p.ag_gemm_multi(A, [B, np.ones((5, 9), "f4")]),
                      r"\(5, 9\); expected depth 8(.|\n)*fix: weights on one gather"),
    "a packed one of another depth": (
        lambda p: p.ag_gemm_multi(A, [B, entwine.Weight(p.world, np.ones((5, 9), "f4"))]),
        "expected depth 8"),
    "another type": (lambda p: p.ag_gemm_multi(A, [B, B.astype("f2")]),
                     "float16; expected float32"),
    "another sum": (lambda p: p.ag_gemm_multi(A, [B]), "n=5 together, the plan N=10(.|\n)*fix"),
    "no weight": (lambda p: p.ag_gemm_multi(A, []), "0 products"),
    "outputs missing": (lambda p: p.ag_gemm_multi(A, [B, B], outs=[None]), "1 outputs are given"),
    "an output of another shape": (
        lambda p: p.ag_gemm_multi(A, [B, B], outs=[None, np.ones((4, 4), "f4")]), "has shape"),
    "the same output": (lambda p: p.ag_gemm_multi(
        A, [B, B], outs=[(c := np.ones((4, 5), "f4")), c]), "overlap"),
    "an unknown activation": (lambda p: p.ag_gemm_act(A, [B, B], "relu"),
                              "'relu'; expected 'silu'"),
    "gate and up of two widths": (lambda p: p.ag_gemm_act(A, [B[:4], np.ones((6, 8), "f4")]),
                                  "gate has n=4 and the up n=6"),
    "rows of another rank": (lambda p: p.ag_gemm_act(A, [B, B], num_rows=3), "A has 4 rows"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_are_refused(world, what):
    plan = entwine.Plan(world, 4, 10, 8, "float32", op="ag-gemm")
    call, message = WRONG[what]
    with pytest.raises(entwine.EntwineError, match=message):
        call(plan)
    assert (plan.ag_gemm_act(A, [B, B], "none") == 64).all()
