"""gemm_ar and gemm_ar_layer: all rows on every rank, with the bits of gemm_rs and its layer."""
import numpy as np
import pytest

import entwine
import layers
from matrices import DTYPES, bits, expected, operands

M, N, K = 12, 16, 24
ROWS = (0, 1, 2, 7, 131)
CONFIGS = (None, "shots=1", "shots=2")
SUMS = [*CONFIGS, "workers=2"]


def poisoned(rows, n, dtype):
    return np.full((rows, n), 77).astype(dtype)


def random_operands(rank, m, n, k, dtype):
    """Sums of these round, so that their bits tell in which order they were made."""
    random = np.random.default_rng([rank, m, n, k, 1])
    return (random.standard_normal((m, k)).astype(dtype),
            random.standard_normal((n, k)).astype(dtype))


def all_rows(world, rows):
    """The bytes of what all ranks own, one after the other."""
    return b"".join(world.allgather(bits(rows)))


# ---- gemm_ar ---------------------------------------------------------------------------------

def check_sums(world, dtype, n, k):
    A, B = operands(world.rank, max(ROWS), n, k, dtype)
    rough_A, rough_B = random_operands(world.rank, max(ROWS), n, k, dtype)
    want = expected(world.size, max(ROWS), n, k, dtype)
    weight, rough_weight = entwine.Weight(world, B), entwine.Weight(world, rough_B)
    scatter = entwine.Plan(world, max(ROWS), n, k, dtype)
    scatter.bind(rough_weight)
    plans = [entwine.Plan(world, max(ROWS), n, k, dtype, config, op="gemm-ar") for config in SUMS]
    for m in ROWS:
        rough = all_rows(world, scatter.gemm_rs(rough_A[:m]))
        for plan in plans:
            plan.bind(weight)
            out = poisoned(m, n, dtype)
            assert plan.gemm_ar(A[:m], out=out) is out and bits(out) == bits(want[:m])
            assert bits(plan.gemm_ar(A[:m], B)) == bits(want[:m])
            plan.bind(rough_weight)
            assert bits(plan.gemm_ar(rough_A[:m])) == rough, (plan, m)
        assert bits(entwine.gemm_ar(rough_A[:m], rough_B, world)) == rough
        transposed = np.ascontiguousarray(rough_B.T).T
        assert bits(entwine.gemm_ar(rough_A[:m], transposed, world)) == rough
    return world.rank


@pytest.mark.parametrize("ranks", (1, 3))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_all_ranks_have_the_rows_of_gemm_rs(ranks, dtype):
    for n, k in ((40, 33), (260, 64)):
        assert entwine.spawn(ranks, check_sums, dtype, n, k, timeout=100) == list(range(ranks))


def test_configs_of_the_operation(world):
    assert "gemm-ar" in repr(entwine.Plan(world, M, N, K, "float32", op="gemm-ar"))
    assert "shots=1" in entwine.Plan(world, M, N, K, "float32", {"shots": 1}, op="gemm-ar").config
    assert "shots=2" in entwine.explain(M, N, K, "float32", 2, "shots=2", op="gemm-ar")
    found = entwine.tune(world, 64, 128, 64, op="gemm-ar", budget=0.2, store=False)
    assert found.time_us > 0 and not found.stored


# ---- gemm_ar_layer ---------------------------------------------------------------------------

def layer_problem(world, m, n, k, dtype):
    """A, B, the parts with the whole residual, and what c, h and normed must be."""
    A, B = operands(world.rank, m, n, k, dtype)
    given = layers.parts(0, m, n, dtype)
    wide = {name: part.astype(np.float32) for name, part in given.items()}
    c = (expected(world.size, m, n, k) + wide["bias"]).astype(dtype)
    h = (c.astype(np.float32) + wide["residual"]).astype(dtype)
    return A, B, given, (c, h, layers.norm(h, given["norm_weight"]))


def check_layers(world, residual_rows, dtype, shapes):
    for m, n, k in shapes:
        A, B, given, (c, h, normed) = layer_problem(world, m, n, k, dtype)
        first, count = (0, m) if residual_rows == "all" else world.owned_rows(m)
        mine = slice(first, first + count)
        for config in (*CONFIGS, "epilogue=after"):
            with entwine.Plan(world, m + 3, n, k, dtype, config, op="gemm-ar") as plan:
                plan.set_weight(B)
                parts = {**given, "residual": given["residual"][mine].copy()}
                got = poisoned(m, n, dtype)
                assert plan.gemm_ar_layer(A, **parts, residual_rows=residual_rows,
                                          normed=got) is got
                assert bits(got) == bits(normed) and bits(parts["residual"]) == bits(h[mine])
                if residual_rows == "all":
                    out = poisoned(m, n, dtype)
                    parts["residual"] = given["residual"].copy()
                    plan.gemm_ar_layer(A, **parts, residual_rows="all", out=out)
                    assert [bits(out), bits(parts["residual"])] == [bits(c), bits(h)]
        parts = {**given, "residual": given["residual"][mine].copy()}
        got = entwine.gemm_ar_layer(A, B, world, **parts, residual_rows=residual_rows)
        assert bits(got) == bits(normed) and bits(parts["residual"]) == bits(h[mine])
    return world.rank


@pytest.mark.parametrize("residual_rows", ("owned", "all"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_layers_bit_for_bit(dtype, residual_rows):
    shapes = [(256, 256, 64), (7, 130, 33), (1, 5, 3), (2, 8, 8), (0, 8, 8), (129, 40, 16)]
    assert entwine.spawn(3, check_layers, residual_rows, dtype, shapes, timeout=100) == [0, 1, 2]


@pytest.fixture
def plan(world):
    """A plan with a bound weight."""
    plan = entwine.Plan(world, M, N, K, "float32", op="gemm-ar")
    plan.set_weight(operands(0, M, N, K)[1])
    return plan


def test_parts_may_be_left_out(world, plan):
    A, _, given, (c, _, _) = layer_problem(world, M, N, K, "float32")
    alone = expected(1, M, N, K)
    assert bits(plan.gemm_ar_layer(A)) == bits(alone)
    assert bits(plan.gemm_ar_layer(A, bias=given["bias"])) == bits(c)
    assert bits(plan.gemm_ar_layer(A, norm_weight=given["norm_weight"])) == bits(
        layers.norm(alone, given["norm_weight"]))
    before = given["residual"].copy()
    assert plan.gemm_ar_layer(A, residual=given["residual"],
                              residual_rows="all") is given["residual"]
    assert bits(given["residual"]) == bits(alone + before)


# ---- Refusals --------------------------------------------------------------------------------

A, B = operands(0, M, N, K)
row, matrix = np.ones(N, "f4"), np.ones((M, N), "f4")
BAD = {
    "gemm_rs": (lambda p: p.gemm_rs(A),
                "gemm_rs cannot run a plan for gemm-ar(.|\n)*call gemm_ar,"),
    "gemm_rs_layer": (lambda p: p.gemm_rs_layer(A), "cannot run a plan for gemm-ar(.|\n)*"
                      "call gemm_ar_layer, or make the plan with op='gemm-rs'"),
    "gemm_ar of another plan": (
        lambda p: entwine.Plan(p.world, M, N, K, "float32").gemm_ar(A, B),
        "gemm_ar cannot run a plan for gemm-rs(.|\n)*call gemm_rs, or make the plan with "
        "op='gemm-ar'"),
    "gemm_ar_layer of another plan": (
        lambda p: entwine.Plan(p.world, M, N, K, "float32").gemm_ar_layer(A, B),
        "call gemm_rs_layer,"),
    "another op": (lambda p: entwine.Plan(p.world, M, N, K, "float32", op="gemm-ag"),
                   "op is 'gemm-ag'; expected 'gemm-rs', 'gemm-ar' or 'ag-gemm'"),
    "op is None": (lambda p: entwine.Plan(p.world, M, N, K, "float32", op=None), "op is None"),
    "explain of another op": (lambda p: entwine.explain(M, N, K, op="rs"), "op is 'rs'"),
    "tune of another op": (lambda p: entwine.tune(p.world, M, N, K, op="rs"), "op is 'rs'"),
    "three shots": (lambda p: entwine.Plan(p.world, M, N, K, "float32", "shots=3", op="gemm-ar"),
                    "shots"),
    "shots of gemm-rs": (lambda p: entwine.Plan(p.world, M, N, K, "float32", "shots=1"), "shots"),
    "too many rows": (lambda p: p.gemm_ar(np.ones((M + 1, K), "f4")), "A has shape"),
    "out too small": (lambda p: p.gemm_ar(A, out=matrix[1:]), "out has shape .*all rows"),
    "out is A": (lambda p: p.gemm_ar(A, out=A.reshape(-1)[:M * N].reshape(M, N)), "out shares"),
    "residual_rows": (lambda p: p.gemm_ar_layer(A, residual=matrix, residual_rows="mine"),
                      "residual_rows is 'mine'; expected 'owned' or 'all'"),
    "no norm of owned rows": (lambda p: p.gemm_ar_layer(A, residual=matrix),
                              "has no norm to return(.|\n)*pass norm_weight"),
    "c of owned rows": (
        lambda p: p.gemm_ar_layer(A, residual=matrix, norm_weight=row, out=np.ones((M, N), "f4")),
        "does not return c(.|\n)*leave out= away"),
    "residual of too few rows": (
        lambda p: p.gemm_ar_layer(A, residual=matrix[1:], residual_rows="all", norm_weight=row),
        "residual has shape .*all rows"),
    "residual is normed": (
        lambda p: p.gemm_ar_layer(A, residual=matrix, residual_rows="all", norm_weight=row,
                                  normed=matrix), "normed shares memory with residual"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_calls(world, plan, what):
    attempt, says = BAD[what]
    with pytest.raises(entwine.ArgumentError, match=says):
        attempt(plan)
    assert bits(matrix) == bits(np.ones((M, N), "f4")), "nothing may have been written"
    assert bits(plan.gemm_ar(A)) == bits(expected(1, M, N, K)), "the plan must stay usable"


def disagree(world):
    with pytest.raises(entwine.MismatchError):
        entwine.Plan(world, M, N, K, "float32", op=("gemm-rs", "gemm-ar")[world.rank])


def test_ranks_that_disagree_on_the_operation():
    entwine.spawn(2, disagree, timeout=60)
