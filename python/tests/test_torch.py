"""Entwine in PyTorch.  Skipped as a whole where torch is not installed."""
import itertools
import os
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import torch.distributed as dist  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
import layers  # noqa: E402
from matrices import bits, expected, operands  # noqa: E402
from ranks import free_port, run_program, spawn  # noqa: E402

M, N, K = 20, 16, 24


def tensors(rank, m, n, k, dtype=torch.float32):
    return tuple(torch.from_numpy(array).to(dtype) for array in operands(rank, m, n, k))


def same_bits(one, other):
    return one.dtype == other.dtype and torch.equal(one, other)


# ---- Tensors as arguments ----

@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_bit_for_bit(world, dtype):
    A, B = tensors(0, M, N, K, dtype)
    want = torch.from_numpy(expected(1, M, N, K)).to(dtype)
    plan = entwine.Plan(world, M, N, K, dtype)
    plan.set_weight(B)
    assert same_bits(plan.gemm_rs(A), want)
    out = torch.full((M, N), 77.0, dtype=dtype)
    assert plan.gemm_rs(A, out=out) is out and same_bits(out, want)
    assert same_bits(entwine.gemm_rs(A, B.t().contiguous().t(), world), want)
    assert same_bits(et.gemm_rs(A, B, world), want)
    everywhere = entwine.Plan(world, M, N, K, dtype, op="gemm-ar")
    everywhere.set_weight(B)
    assert same_bits(everywhere.gemm_ar(A), want)
    out.fill_(77)
    assert everywhere.gemm_ar(A, out=out) is out and same_bits(out, want)
    assert same_bits(et.gemm_ar(A, B, world), want)


def test_numpy_and_torch_mix(world):
    A, B = operands(0, M, N, K)
    result = entwine.gemm_rs(torch.from_numpy(A), B, world)
    assert isinstance(result, torch.Tensor) and bits(result.numpy()) == bits(expected(1, M, N, K))


class OnlyDLPack:
    def __init__(self, tensor):
        self.__dlpack__, self.__dlpack_device__ = tensor.__dlpack__, tensor.__dlpack_device__


def test_bfloat16_through_dlpack(world):
    A, B = tensors(0, M, N, K, torch.bfloat16)
    out = torch.zeros(M, N, dtype=torch.bfloat16)
    plan = entwine.Plan(world, M, N, K, "bfloat16")
    plan.gemm_rs(OnlyDLPack(A), OnlyDLPack(B), out=out)
    assert same_bits(out, torch.from_numpy(expected(1, M, N, K)).bfloat16())
    with pytest.raises(entwine.ArgumentError, match="out is missing"):
        plan.gemm_rs(OnlyDLPack(A), OnlyDLPack(B))


A, B = tensors(0, M, N, K)
BAD = {
    "float64": (lambda p: p.gemm_rs(A.double()), "A has element type torch.float64"),
    "int": (lambda p: p.gemm_rs(A.int()), "A has element type"),
    "bfloat16": (lambda p: p.gemm_rs(A.bfloat16()), "A has element type bfloat16"),
    "complex": (lambda p: p.gemm_rs(A.to(torch.complex64)), "A has element type"),
    "meta": (lambda p: p.gemm_rs(A.to("meta")), "A is on device meta"),
    "sparse": (lambda p: p.gemm_rs(A.to_sparse()), "A has layout"),
    "grad": (lambda p: p.gemm_rs(A.clone().requires_grad_()), "A requires grad"),
    "negated view": (lambda p: p.gemm_rs(torch._neg_view(A)), "A is a Tensor without plain"),
    "transposed": (lambda p: p.gemm_rs(torch.zeros(K, M).t()), "A has strides"),
    "expanded": (lambda p: p.gemm_rs(A[:1].expand(M, K)), "A has strides"),
    "3-D": (lambda p: p.gemm_rs(A[None]), "A has shape"),
    "B of numpy float16": (lambda p: p.gemm_rs(A, B.numpy().astype("f2")), "B has element type"),
    "out expanded": (lambda p: p.gemm_rs(A, out=torch.zeros(1, N).expand(M, N)), "out has strides"),
    "out is a view of A": (
        lambda p: p.gemm_rs(A, out=A.view(-1)[:M * N].view(M, N)), "out shares memory with A"),
    "stream": (lambda p: p.gemm_rs(A, stream=torch.cuda.Stream), "stream is"),
    "op with 1-D": (lambda p: et.gemm_rs(A[0], B, p.world), "a has shape"),
    "op with two types": (lambda p: et.gemm_rs(A, B.bfloat16(), p.world), "a has element type"),
    "op with two depths": (lambda p: et.gemm_rs(A, B[:, 1:].contiguous(), p.world), "same depth"),
    "op without a world": (lambda p: torch.ops.entwine.gemm_rs(A, B, "atlantis"), "no world named"),
    "op with None as world": (lambda p: et.gemm_rs(A, B, None), "world is a NoneType"),
    "frozen with gaps": (
        lambda p: et.gemm_rs(A, torch.zeros(N, 2 * K)[:, ::2], p.world, True), "frozen weight"),
    "layer with a wrong input": (
        lambda p: et.RowParallelLinear(K, N, world=p.world)(A[:, 1:]), "x has shape"),
    "layer without a group": (lambda p: et.RowParallelLinear(K, N), "not initialised"),
    "frozen op with 0-D": (lambda p: et.gemm_rs(A[0, 0], B, p.world, True), "a has shape"),
    "residual of all rows": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(2 * M, N), torch.ones(N), p.world),
        "residual has shape"),
    "residual of another type": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(M, N).half(), torch.ones(N), p.world),
        "residual has element type"),
    "residual expanded": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(N).expand(M, N), torch.ones(N), p.world),
        "residual has strides"),
    "residual with a gradient": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(M, N, requires_grad=True), torch.ones(N),
                                   p.world), "residual requires grad"),
    "norm_weight of another length": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(M, N), torch.ones(K), p.world),
        "norm_weight has shape"),
    "bias as a matrix": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(M, N), torch.ones(N), p.world,
                                   torch.ones(1, N)), "bias has shape"),
    "layer op with None as world": (
        lambda p: et.gemm_rs_layer(A, B, torch.ones(M, N), torch.ones(N), None),
        "world is a NoneType"),
    "gemm_ar of another plan": (lambda p: p.gemm_ar(A), "gemm_ar cannot run a plan for gemm-rs"),
    "gemm_ar with two depths": (
        lambda p: et.gemm_ar(A, B[:, 1:].contiguous(), p.world), "same depth"),
    "gemm_ar without a world": (
        lambda p: torch.ops.entwine.gemm_ar(A, B, "atlantis"), "no world named"),
    "gemm_ar with None as world": (lambda p: et.gemm_ar(A, B, None), "world is a NoneType"),
    "gemm_ar_layer with another word": (
        lambda p: et.gemm_ar_layer(A, B, torch.ones(M, N), torch.ones(N), p.world,
                                   residual_rows="mine"), "residual_rows is 'mine'"),
    "gemm_ar_layer with a part of the residual": (
        lambda p: et.gemm_ar_layer(A, B, torch.ones(M - 1, N), torch.ones(N), p.world,
                                   residual_rows="all"), "residual has shape .*all rows"),
    "whole layer with a wrong input": (
        lambda p: et.RowParallelLinear(K, N, output="replicated", world=p.world)(A[:, 1:]),
        "x has shape"),
    "norm layer with scattered rows and a whole residual": (
        lambda p: et.RowParallelLinearNorm(K, N, residual_rows="all", world=p.world),
        "residual_rows is 'all'; expected 'owned', or with output='replicated'"),
    "whole norm layer with a wrong residual": (
        lambda p: et.RowParallelLinearNorm(K, N, output="replicated", residual_rows="all",
                                           world=p.world)(A, torch.ones(M + 1, N)),
        "residual has shape .*all rows"),
    "norm layer with a wrong residual": (
        lambda p: et.RowParallelLinearNorm(K, N, world=p.world)(A, torch.ones(M + 1, N)),
        "residual has shape"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_tensors(world, what):
    attempt, says = BAD[what]
    plan = entwine.Plan(world, M, N, K, "float32")
    plan.set_weight(B)
    with pytest.raises(entwine.ArgumentError, match=says):
        attempt(plan)
    assert bits(plan.gemm_rs(A).numpy()) == bits(expected(1, M, N, K))


# ---- Operators ----

def test_opcheck(world):
    a, b = (tensor.clone().requires_grad_() for tensor in (A, B))
    for operator in (torch.ops.entwine.gemm_rs, torch.ops.entwine.gemm_ar):
        torch.library.opcheck(operator, (a, b, world.name))
        torch.library.opcheck(operator, (a, b.detach(), world.name, True))
    across = A.t().contiguous().t()
    for replicated, rows in itertools.product((False, True), (A.clone(), across)):
        rows.requires_grad_()
        torch.library.opcheck(torch.ops.entwine.all_gather_rows, (rows, M, world.name, replicated))
        torch.library.opcheck(torch.ops.entwine.reduce_scatter_rows, (rows, world.name, replicated))
    torch.library.opcheck(torch.ops.entwine.replicate, (a, world.name))
    for more in ((), (torch.ones(N), 1e-6, True)):
        torch.library.opcheck(torch.ops.entwine.gemm_rs_layer,
                              (A, B, torch.ones(M, N), torch.ones(N), world.name, *more))
    for more in ((), (torch.ones(N), 1e-6, True, True, "all")):
        torch.library.opcheck(torch.ops.entwine.gemm_ar_layer,
                              (A, B, torch.ones(M, N), torch.ones(N), world.name, *more))


class Seen(TorchDispatchMode):
    """A mode that writes down the operators below autograd."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, operator, types, arguments=(), keywords=None):
        self.operators.append(operator)
        return operator(*arguments, **(keywords or {}))


GEMMS = pytest.mark.parametrize("gemm", [et.gemm_rs, et.gemm_ar], ids=["gemm_rs", "gemm_ar"])


@GEMMS
@pytest.mark.parametrize("frozen", [False, True])
def test_modes_and_lazy_tensors_are_not_passed_by(world, gemm, frozen):
    want = gemm(A, B, world, frozen)
    assert torch.equal(gemm(torch._neg_view(A), B, world, frozen), -want)
    assert torch.equal(gemm(A, torch._neg_view(B), world, frozen), -want)
    weight = torch.nn.Parameter(B.clone())
    with torch.no_grad(), Seen() as seen:
        assert torch.equal(gemm(A, weight, world, frozen), want)
    assert getattr(torch.ops.entwine, gemm.__name__).default in seen.operators
    with torch.inference_mode():
        assert torch.equal(gemm(A, weight, world, frozen), want)


@GEMMS
def test_gradients_of_one_rank(world, gemm):
    a, b = (tensor.clone().requires_grad_() for tensor in (A, B))
    weights = torch.arange(M * N).view(M, N) % 7 - 3.0
    (gemm(a, b, world) * weights).sum().backward()
    assert torch.equal(a.grad, weights @ B) and torch.equal(b.grad, weights.t() @ A)


@pytest.mark.parametrize("output", ["scattered", "replicated"])
def test_compile_sees_one_graph(world, output):
    layer = et.RowParallelLinear(K, N, output=output, world=world)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for m in (M, 7, 13):  # the number of rows becomes symbolic
        x = tensors(0, m, N, K)[0].requires_grad_()
        y = compiled(x)
        y.sum().backward()
        assert torch.equal(y, layer(x)) and x.grad is not None
    assert torch._dynamo.explain(layer)(A).graph_break_count == 0


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("frozen", [False, True])
def test_the_layer_operator_bit_for_bit(world, dtype, frozen):
    a, b, given, want = layers.problem(world, M, N, K, dtype)
    given = {name: torch.from_numpy(part) for name, part in given.items()}
    for _ in range(2):
        residual = given["residual"].clone()
        normed = et.gemm_rs_layer(torch.from_numpy(a), torch.from_numpy(b), residual,
                                  given["norm_weight"], world, given["bias"], layers.EPS, frozen)
        assert [bits(residual.numpy()), bits(normed.numpy())] == [bits(one) for one in want[1:]]
        residual = given["residual"].clone()
        normed = et.gemm_ar_layer(torch.from_numpy(a), torch.from_numpy(b), residual,
                                  given["norm_weight"], world, given["bias"], layers.EPS, frozen,
                                  "all")
        assert [bits(residual.numpy()), bits(normed.numpy())] == [bits(one) for one in want[1:]]


NORM_KINDS = [{}, {"output": "replicated"},
              {"output": "replicated", "residual_rows": "all"}]


@pytest.mark.parametrize("kind", NORM_KINDS, ids=["scattered", "whole", "whole-residual-too"])
def test_compile_sees_the_layer(world, kind):
    layer = et.RowParallelLinearNorm(K, N, world=world, **kind).eval()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for m in (M, 7, 13):
        x, residual = tensors(0, m, N, K)[0], torch.ones(m, N)
        with torch.no_grad():
            want = layer(x, residual.clone())
            got = compiled(x, residual)
        assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
        assert torch.equal(residual, want[1]), "the residual that was passed holds the sum"
        normed, _ = compiled(x.requires_grad_(), torch.ones(m, N))
        normed.sum().backward()
        assert torch.allclose(normed, want[0]) and x.grad is not None
    with torch.no_grad():
        assert torch._dynamo.explain(layer)(A, torch.ones(M, N)).graph_break_count == 0


# ---- The layer, on several ranks ----

def open_gloo(world):
    """torch.distributed among the ranks of a world."""
    port = int(world.allgather(str(free_port()).encode())[0])
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=world.rank,
                            world_size=world.size)
    torch.set_num_threads(1)


def whole_problem(size, shape):
    """Exact inputs: the same on every rank."""
    generator = torch.Generator().manual_seed(1)

    def integers(*extents):
        return torch.randint(-1, 2, extents, generator=generator).float()

    linear = torch.nn.Linear(8 * size, 6)
    with torch.no_grad():
        linear.weight.copy_(integers(6, 8 * size))
        linear.bias.copy_(integers(6))
    return linear, integers(*shape, 8 * size), integers(*shape, 6)


def try_each(step, world, cases):
    """Steps on the ranks of one spawn, whose start takes longer than all of them."""
    for case in cases:
        try:
            step(world, *case)
        except AssertionError as error:
            raise AssertionError(f"{step.__name__}{case}") from error
    return "equal"


def train_a_step(world, shape, output):
    linear, x, grad = whole_problem(world.size, shape)
    share = x.shape[-1] // world.size
    mine = x[..., world.rank * share:(world.rank + 1) * share].clone().requires_grad_()
    layer = et.RowParallelLinear.from_linear(linear, world, output=output)
    first, count = world.owned_rows(shape[0]) if output == "scattered" else (0, shape[0])
    y = layer(mine)
    y.backward(grad[first:first + count])
    x.requires_grad_()
    whole = linear(x)
    whole.backward(grad)
    columns = slice(world.rank * share, (world.rank + 1) * share)
    assert torch.equal(y, whole[first:first + count])
    assert torch.equal(mine.grad, x.grad[..., columns])
    assert torch.equal(layer.weight.grad, linear.weight.grad[:, columns])
    assert torch.equal(layer.bias.grad, linear.bias.grad)
    with torch.no_grad():
        assert torch.equal(layer.freeze()(mine), y)


def train_steps(spawned, source, cases):
    open_gloo(spawned)
    outcome = try_each(train_a_step, et.world_of() if source == "torch" else spawned, cases)
    dist.destroy_process_group()
    return outcome


@pytest.mark.parametrize("source, cases", [
    ("torch", [((12,), "scattered"), ((7,), "scattered"), ((7,), "replicated")]),
    ("own", [((7,), "scattered"), ((6, 3), "scattered"), ((1,), "replicated"),
             ((2, 3), "replicated")])])
def test_the_layer_is_the_whole_linear_layer(source, cases):
    assert spawn(3, train_steps, source, cases, timeout=100) == ["equal"] * 3


def norm_a_step(world, shape, kind):
    """RowParallelLinearNorm against the whole layer in torch, forward and backward."""
    torch.set_num_threads(1)
    linear, x, grad = whole_problem(world.size, shape)
    weight = torch.arange(1.0, 7) / 4
    residual = torch.arange(grad.numel()).view(grad.shape) % 5 - 2.0
    share = x.shape[-1] // world.size
    columns = slice(world.rank * share, (world.rank + 1) * share)
    layer = et.RowParallelLinearNorm.from_linear(linear, world, weight, eps=1e-6, **kind)
    first, count = world.owned_rows(shape[0])
    normed_rows = slice(first, first + count) if layer.output == "scattered" else slice(None)
    rows = slice(first, first + count) if layer.residual_rows == "owned" else slice(None)
    mine = x[..., columns].clone().requires_grad_()
    my_residual = residual[rows].clone().requires_grad_()
    normed, h = layer(mine, my_residual)
    normed.backward(grad[normed_rows])
    for tensor in (x, weight, residual):
        tensor.requires_grad_()
    whole = linear(x) + residual
    torch.nn.functional.rms_norm(whole, (6,), weight, 1e-6).backward(grad)
    assert torch.equal(h, whole[rows])
    for ours, theirs in ((mine.grad, x.grad[..., columns]),
                         (my_residual.grad, residual.grad[rows]),
                         (layer.weight.grad, linear.weight.grad[:, columns]),
                         (layer.bias.grad, linear.bias.grad),
                         (layer.norm_weight.grad, weight.grad)):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    fused, in_place = layer.freeze().eval()(mine.detach(), my_residual.detach())
    assert torch.equal(in_place, h) and in_place.data_ptr() == my_residual.data_ptr()
    assert torch.allclose(fused, normed, rtol=1e-6, atol=0)


def norm_steps(world, cases):
    return try_each(norm_a_step, world, cases)


def test_the_norm_layer_is_the_whole_layer():
    cases = [(shape, kind) for shape in ((7,), (6, 3)) for kind in NORM_KINDS]
    assert spawn(3, norm_steps, cases, timeout=100) == ["equal"] * 3


def gather_rows(spawned):
    """Among CPUs of one host the group of torch.distributed is not used."""
    open_gloo(spawned)
    world = et.world_of()

    def refuse(*arguments, **keywords):
        raise AssertionError("torch.distributed was used")

    dist.all_gather = dist.all_to_all_single = refuse
    for m in (0, 1, 2, 3, 4, 7, 12, 2000):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            whole = torch.arange(m * 5).view(m, 5).to(dtype)
            first, count = world.owned_rows(m)
            got = et.all_gather_rows(whole[first:first + count], m, world)
            assert same_bits(got, whole) and got.is_contiguous()
            assert same_bits(et.reduce_scatter_rows(whole, world, True), whole[first:first + count])
    with pytest.raises(entwine.ShapeError, match="this rank's share of 7"):
        et.all_gather_rows(torch.ones(7, 5), 7, world)
    layer = et.RowParallelLinear.from_linear(torch.nn.Linear(6, 4), group=dist.group.WORLD)
    assert layer.world is world and layer.weight.shape == (4, 2)
    return "equal"


def test_rows_are_gathered_by_entwine_itself():
    assert spawn(3, gather_rows, timeout=100) == ["equal"] * 3


def pass_a_bias_alone(world):
    bias = torch.ones(4) if world.rank == 0 else None
    with pytest.raises(entwine.MismatchError) as caught, torch.no_grad():
        for _ in range(3):  # a rank may be through before the other has looked
            et.gemm_ar_layer(torch.ones(2, 8), torch.ones(4, 8), torch.zeros(2, 4), torch.ones(4),
                             world, bias=bias, residual_rows="all")
    return "a bias and a residual and a norm" in str(caught.value)


def test_a_bias_of_one_rank_alone_is_refused():
    assert spawn(2, pass_a_bias_alone, timeout=20) == [True, True]


def disagree_about_rows(world):
    """Of what has as many bytes on all ranks, the refusals; then the world is as good as before."""
    odd = world.rank == 1
    dtype = torch.float16 if odd else torch.bfloat16
    said = []
    for call in (
            lambda: et.all_gather_rows(torch.ones(2, 3, dtype=dtype), 6, world),
            lambda: et.all_gather_rows(torch.ones(3, 4) if odd else torch.ones(2, 6),
                                       9 if odd else 6, world),
            lambda: et.all_gather_rows(torch.ones(1, 4), 2 if odd else 3, world),
            lambda: et.reduce_scatter_rows(torch.ones(6, 2, dtype=dtype), world)):
        with pytest.raises(entwine.MismatchError) as caught:
            call()
        assert caught.value.rank == 1
        said.append(str(caught.value).split("\n")[0].removeprefix("ranks disagree: rank 0 "))
    assert et.all_gather_rows(torch.ones(1, 2), 3, world).sum() == 6
    return said


def test_rows_that_differ_are_refused_on_all_ranks():
    said = ["gathers 6 rows of 3 torch.bfloat16, rank 1 gathers 6 rows of 3 torch.float16",
            "gathers 6 rows of 6 torch.float32, rank 1 gathers 9 rows of 4 torch.float32",
            "gathers 3 rows of 4 torch.float32, rank 1 gathers 2 rows of 4 torch.float32",
            "sums 6 rows of 2 torch.bfloat16, rank 1 sums 6 rows of 2 torch.float16"]
    assert spawn(3, disagree_about_rows, timeout=20) == [said] * 3


def count_descriptors():
    """The fewest within a second: under load a group's own may be closed a little later."""
    counts = []
    for _ in range(20):
        counts.append(len(os.listdir("/proc/self/fd")))
        time.sleep(0.05)
    return min(counts)


def open_groups_in_turn(spawned):
    """How many descriptors are open with each group of its own, and with its world."""
    counts = []
    for turn in range(4):
        open_gloo(spawned)
        layer = et.RowParallelLinear(2 * spawned.size, 4, bias=False)
        with torch.no_grad():
            layer(torch.ones(3, 2))
        counts.append(count_descriptors())
        if turn == 0:
            kept = layer  # and its world, whatever becomes of the group
        del layer
        spawned.barrier()
        dist.destroy_process_group()
    with torch.no_grad():
        kept(torch.ones(3, 2))
    return len(set(counts[1:])) == 1 or counts


def test_the_world_of_a_destroyed_group_is_let_go():
    assert spawn(2, open_groups_in_turn, timeout=100) == [True, True]


def sum_on_all_ranks(world):
    """gemm_ar against the rows of gemm_rs, with values whose sums round."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(world.rank)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight = torch.nn.Parameter(torch.randn(N, K, generator=generator).to(dtype))
        for m in (0, 1, 2, 7, 300):
            x = torch.randn(m, K, generator=generator).to(dtype)
            with torch.no_grad():
                rows = et.all_gather_rows(et.gemm_rs(x, weight, world), m, world)
                assert same_bits(et.gemm_ar(x, weight, world), rows)
                assert same_bits(et.gemm_ar(x, weight, world, frozen=True), rows)
            assert same_bits(et.gemm_ar(x, weight, world).detach(), rows)
        assert len([kept for kept in world._frozen.values() if kept.weight is not None]) == 1
        del weight
    return "equal"


def test_all_ranks_have_the_rows_of_gemm_rs():
    assert spawn(3, sum_on_all_ranks, timeout=100) == ["equal"] * 3


def refuse_rows(world):
    layer = et.RowParallelLinear(8, 4, world=world)
    with pytest.raises(entwine.ShapeError, match="multiple of the 2 ranks"):
        layer(torch.zeros(5, 3, 4))
    with pytest.raises(entwine.ShapeError, match="multiple of the 2 ranks"):
        et.RowParallelLinear(9, 4, world=world)


def test_rows_that_cannot_be_split():
    spawn(2, refuse_rows, timeout=60)


def run_example(name, folder):
    example = Path(__file__).resolve().parents[2] / "examples" / name
    return run_program(example, folder=folder)


def test_the_llama_block(tmp_path):
    ran = run_example("torch_llama_block.py", tmp_path)
    assert ran.returncode == 0 and "rank 1: difference" in ran.stdout, ran.stdout + ran.stderr


def test_the_cuda_graph(tmp_path):
    ran = run_example("torch_cuda_graph.py", tmp_path)
    if ran.returncode == 77:
        pytest.skip(ran.stdout.strip() + ": NO GPU TEST WAS RUN")
    assert ran.returncode == 0, ran.stdout + ran.stderr
