"""gemm_rs_layer, bit for bit, and what it refuses."""
import numpy as np
import pytest

import entwine
import layers
from matrices import DTYPES, bits, expected, operands

M, N, K = 12, 16, 24


def check_rank(world, dtype, shapes):
    for m, n, k in shapes:
        A, B, given, want = layers.problem(world, m, n, k, dtype)
        without_plan = {**given, "residual": given["residual"].copy()}
        out = np.full(given["residual"].shape, 77).astype(dtype)
        normed = out.copy()
        with entwine.Plan(world, m + 3, n, k, dtype) as plan:
            plan.set_weight(B)
            assert plan.gemm_rs_layer(A, **given, out=out, normed=normed) is normed
            assert [bits(one) for one in (out, given["residual"], normed)] == [
                bits(one) for one in want]
        result = entwine.gemm_rs_layer(A, B, world, **without_plan)
        assert bits(result) == bits(want[2]) and result.dtype == A.dtype
        assert bits(without_plan["residual"]) == bits(want[1])
    return world.rank


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_all_element_types_bit_for_bit(dtype):
    shapes = [(256, 256, 64), (7, 130, 33), (1, 5, 3), (0, 8, 8), (129, 40, 16)]
    assert entwine.spawn(3, check_rank, dtype, shapes, timeout=100) == [0, 1, 2]


@pytest.fixture
def plan(world):
    """A plan with a bound weight."""
    plan = entwine.Plan(world, M, N, K, "float32")
    plan.set_weight(operands(0, M, N, K)[1])
    return plan


def test_parts_may_be_left_out(world, plan):
    A, _, given, (c, h, normed) = layers.problem(world, M, N, K)
    alone = expected(1, M, N, K)
    before = given["residual"].copy()
    assert bits(plan.gemm_rs_layer(A)) == bits(alone)
    assert bits(plan.gemm_rs_layer(A, bias=given["bias"])) == bits(c)
    out = np.zeros((M, N), "f4")
    assert plan.gemm_rs_layer(A, bias=given["bias"], out=out) is out and bits(out) == bits(c)
    assert bits(plan.gemm_rs_layer(A, norm_weight=given["norm_weight"])) == bits(
        layers.norm(alone, given["norm_weight"]))
    assert plan.gemm_rs_layer(A, residual=given["residual"]) is given["residual"]
    assert bits(given["residual"]) == bits(alone + before)
    plan.gemm_rs_layer(A, bias=given["bias"], residual=before, norm_weight=given["norm_weight"])
    assert bits(before) == bits(h)


def test_eps_counts(world, plan):
    A = np.zeros((M, K), "f4")
    residual, weight = np.ones((M, N), "f4"), np.ones(N, "f4")
    for eps in (0, 1e-6, 0.25, np.float32(1)):
        assert bits(plan.gemm_rs_layer(A, residual=residual, norm_weight=weight, eps=eps)) == bits(
            layers.norm(residual, weight, eps))


def test_the_weight_of_one_call(world):
    A, B, given, want = layers.problem(world, M, N, K)
    plan = entwine.Plan(world, M, N, K, "float32")
    assert bits(plan.gemm_rs_layer(A, B, **given)) == bits(want[2])
    with pytest.raises(entwine.ArgumentError, match="no weight is bound"):
        plan.gemm_rs_layer(A, **given)


A = operands(0, M, N, K)[0]
row, matrix = np.ones(N, "f4"), np.ones((M, N), "f4")
frozen_row = np.ones((M, N), "f4")
frozen_row.flags.writeable = False
whole = np.ones((2 * M, N), "f4")

# What is tried, and a word that the message must contain.
BAD = {
    "bias is a number": (dict(bias=1.0), "bias is a float"),
    "bias is a matrix": (dict(bias=matrix), "bias has shape"),
    "bias is too long": (dict(bias=np.ones(N + 1, "f4")), "bias has shape"),
    "bias is too short": (dict(bias=row[:-1]), "bias has shape"),
    "bias is float64": (dict(bias=row.astype("f8")), "bias has element type float64"),
    "bias is float16": (dict(bias=row.astype("f2")), "bias has element type float16"),
    "bias has gaps": (dict(bias=np.ones(2 * N, "f4")[::2]), "bias has stride 2"),
    "bias is reversed": (dict(bias=row[::-1]), "bias has stride -1"),
    "residual is a list": (dict(residual=[[1.0]]), "residual is a list"),
    "residual has all rows": (dict(residual=whole), "residual has shape"),
    "residual is a vector": (dict(residual=row), "residual has shape"),
    "residual is float16": (dict(residual=matrix.astype("f2")), "residual has element type"),
    "residual is read-only": (dict(residual=frozen_row), "residual is read-only"),
    "residual is broadcast": (dict(residual=np.broadcast_to(row, (M, N))), "residual has strides"),
    "residual is transposed": (dict(residual=np.ones((N, M), "f4").T), "residual has strides"),
    "norm_weight is a matrix": (dict(norm_weight=matrix), "norm_weight has shape"),
    "norm_weight is too long": (dict(norm_weight=np.ones(N + 1, "f4")), "norm_weight has shape"),
    "norm_weight is an int": (dict(norm_weight=row.astype(int)), "norm_weight has element type"),
    "normed alone": (dict(normed=matrix), "normed is given, but norm_weight is None"),
    "normed is too small": (dict(norm_weight=row, normed=matrix[:-1]), "normed has shape"),
    "normed is read-only": (dict(norm_weight=row, normed=frozen_row), "normed is read-only"),
    "normed is the residual": (
        dict(norm_weight=row, normed=matrix, residual=matrix), "normed shares memory with resid"),
    "normed is half the residual": (
        dict(norm_weight=row, normed=whole[M - 1:-1], residual=whole[:M]), "normed shares memory"),
    "out is the residual": (dict(out=matrix, residual=matrix), "residual shares memory with out"),
    "out holds the bias": (dict(out=matrix, bias=matrix[0]), "out shares memory with bias"),
    "residual holds the norm's weight": (
        dict(residual=matrix, norm_weight=matrix[3]), "residual shares memory with norm_weight"),
    "residual is A": (dict(residual=A.reshape(-1)[:M * N].reshape(M, N)), "shares memory with A"),
    "out is too large": (dict(out=whole, residual=matrix), "out has shape"),
    "eps is negative": (dict(norm_weight=row, eps=-1e-5), "eps is -1e-05"),
    "eps is no number": (dict(norm_weight=row, eps=float("nan")), "eps is nan"),
    "eps is infinite": (dict(norm_weight=row, eps=float("inf")), "eps is inf"),
    "eps is text": (dict(norm_weight=row, eps="small"), "eps is 'small'"),
    "eps is None": (dict(norm_weight=row, eps=None), "eps is None"),
    "stream on the cpu": (dict(norm_weight=row, stream=5), "stream is 5"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_layers(world, plan, what):
    arguments, says = BAD[what]
    with pytest.raises(entwine.ArgumentError, match=says):
        plan.gemm_rs_layer(A, **arguments)
    assert bits(matrix) == bits(np.ones((M, N), "f4")), "nothing may have been written"
    assert bits(plan.gemm_rs(A)) == bits(expected(1, M, N, K)), "the plan must stay usable"


def test_a_closed_plan_and_world(world, plan):
    plan.close()
    with pytest.raises(entwine.ArgumentError, match="the plan was closed"):
        plan.gemm_rs_layer(A)
    with pytest.raises(entwine.ArgumentError, match="world is a NoneType"):
        entwine.gemm_rs_layer(A, operands(0, M, N, K)[1], None)
