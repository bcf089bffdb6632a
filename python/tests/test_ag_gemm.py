"""ag_gemm: all rows on every rank, with the bits of a plain GEMM of the gathered rows."""
import numpy as np
import pytest

import entwine
from matrices import DTYPES, bits

M, N, K = 12, 16, 24
ROWS = (0, 1, 2, 7, 131)
CONFIGS = (None, "workers=2,order=contiguous", "release=output,order=default")


def random_operands(rank, m, n, k, dtype):
    """Rows of A are the same on all ranks, weights differ; sums of these round."""
    return (np.random.default_rng([m, n, k]).standard_normal((m, k)).astype(dtype),
            np.random.default_rng([rank, n, k]).standard_normal((n, k)).astype(dtype))


def check_rows(world, dtype, n, k):
    A, B = random_operands(world.rank, max(ROWS), n, k, dtype)
    weight = entwine.Weight(world, B)
    alone = entwine.World()
    plans = [entwine.Plan(world, max(ROWS), n, k, dtype, config, op="ag-gemm")
             for config in CONFIGS]
    for m in ROWS:
        want = bits(entwine.gemm_rs(A[:m], B, alone))
        first, count = entwine.owned_rows(m, world.size, world.rank)
        mine = A[first:first + count]
        for plan in plans:
            plan.bind(weight)
            out, gathered = np.full((m, n), 77).astype(dtype), np.zeros((m, k), dtype)
            assert plan.ag_gemm(mine, num_rows=m, out=out, gathered=gathered) is out
            assert bits(out) == want and bits(gathered) == bits(A[:m]), (plan, m)
            assert bits(plan.ag_gemm(mine, B, m)) == want
        assert bits(entwine.ag_gemm(mine, B, world, num_rows=m)) == want
        transposed = np.ascontiguousarray(B.T).T
        assert bits(entwine.ag_gemm(mine, transposed, world, num_rows=m)) == want
    share = A[:2]
    assert bits(entwine.ag_gemm(share, B, world)) == bits(
        entwine.gemm_rs(np.concatenate([share] * world.size), B, alone))
    alone.close()
    return world.rank


@pytest.mark.parametrize("ranks", (1, 3))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_all_ranks_have_all_rows(ranks, dtype):
    for n, k in ((40, 33), (260, 64)):
        assert entwine.spawn(ranks, check_rows, dtype, n, k, timeout=100) == list(range(ranks))


A = np.ones((M, K), "f4")
B = np.ones((N, K), "f4")
WRONG = {
    "another call": (lambda p: p.gemm_rs(A), "gemm_rs cannot run a plan for ag-gemm(.|\n)*"
                                              "call ag_gemm, or make the plan with op='gemm-rs'"),
    "a layer": (lambda p: p.gemm_rs_layer(A), "cannot run a plan for ag-gemm"),
    "another plan": (lambda p: entwine.Plan(p.world, M, N, K, "float32").ag_gemm(A, B),
                     "ag_gemm cannot run a plan for gemm-rs"),
    "not the rank's rows": (lambda p: p.ag_gemm(A[1:], num_rows=M),
                            "A has 11 rows; expected 12, those that rank 0 owns of num_rows=12"),
    "too many rows": (lambda p: p.ag_gemm(A, num_rows=M + 1), "num_rows is 13; expected 12"),
    "half a row": (lambda p: p.ag_gemm(A, num_rows=1.5), "num_rows is 1.5"),
    "another depth": (lambda p: p.ag_gemm(A[:, 1:].copy()), "A has shape"),
    "gathered too small": (lambda p: p.ag_gemm(A, gathered=np.ones((M - 1, K), "f4")),
                           "gathered has shape .*all rows"),
    "gathered is A": (lambda p: p.ag_gemm(A, gathered=A), "gathered shares memory with A"),
    "gathered is out": (lambda p: p.ag_gemm(
        A, out=(both := np.ones((M, K), "f4")).reshape(-1)[:M * N].reshape(M, N), gathered=both),
        "shares memory"),
    "out is A": (lambda p: p.ag_gemm(A, out=A.reshape(-1)[:M * N].reshape(M, N)), "out shares"),
    "on a GPU": (lambda p: entwine.Plan(p.world, M, N, K, "float32", backend="cuda",
                                        op="ag-gemm"), "cuda"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_calls_are_refused(world, what):
    plan = entwine.Plan(world, M, N, K, "float32", op="ag-gemm")
    plan.set_weight(B)
    call, message = WRONG[what]
    with pytest.raises(entwine.EntwineError, match=message):
        call(plan)
    assert bits(plan.ag_gemm(A)) == bits(A @ B.T), "the plan must stay usable"


def disagree(world):
    with pytest.raises(entwine.MismatchError, match="m=4(.|\n)*m=5|m=5(.|\n)*m=4"):
        plan = entwine.Plan(world, 8, N, K, "float32", op="ag-gemm")
        for _ in range(3):
            m = 4 + world.rank
            plan.ag_gemm(A[:entwine.owned_rows(m, world.size, world.rank)[1]], B, m)


def test_ranks_disagree_on_the_rows():
    entwine.spawn(2, disagree, timeout=60)
