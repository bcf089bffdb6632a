"""Calls that are made again without torch's dispatcher: the same bits, and the dispatcher wherever
it has something to do."""
import ctypes
import os

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from entwine import _shared_plans, _torch_again, _torch_sums  # noqa: E402
from ranks import spawn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

N, K = 10, 12
OUTPUTS = ("scattered", "replicated")


def integers(*shape, seed=0):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def layer_of(world, output="replicated", dtype=torch.float32, kind=et.RowParallelLinear, **options):
    layer = kind(K * world.size, N, output=output, world=world, dtype=dtype, **options)
    with torch.no_grad():
        layer.weight.copy_(integers(*layer.weight.shape, seed=world.rank))
        layer.bias.copy_(integers(N, seed=7))
    return layer


class Dispatched(list):
    """The operators that went through the dispatcher from here on."""

    def __init__(self, monkeypatch):
        super().__init__()
        for name in ("gemm_rs_operator", "gemm_ar_operator"):
            monkeypatch.setattr(_torch_sums, name, self._noting(getattr(_torch_sums, name)))

    def _noting(self, operator):
        def call(*arguments):
            self.append(operator)
            return operator(*arguments)
        return call


@pytest.fixture
def dispatched(monkeypatch):
    return Dispatched(monkeypatch)


def warm(layer, x):
    with torch.no_grad():
        for _ in range(2):
            layer(x)


def test_an_interrupt_while_a_weight_is_bound(world, monkeypatch):
    """Layers of one shape share a plan: that one of them was bound must not be forgotten."""
    other, layer, x = layer_of(world), layer_of(world), integers(3, K)
    with torch.no_grad():
        layer.weight.neg_()
        want, _ = layer(x), other(x)
    bind = world._call_briefly

    def bind_and_raise(*arguments):
        bind(*arguments)
        raise KeyboardInterrupt

    for use in (other, lambda x: torch.ops.entwine.gemm_ar(x, other.weight, world.name)):
        with torch.no_grad(), monkeypatch.context() as patch:
            layer(x)
            patch.setattr(world, "_call_briefly", bind_and_raise)
            with pytest.raises(KeyboardInterrupt):
                use(x)
        with torch.no_grad():
            assert torch.equal(layer(x), want)


# ---- The same results ------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(1, K), (5, K), (1, 1, K), (3, 2, K)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("output", OUTPUTS)
def test_bits(world, dispatched, output, dtype, shape):
    layer = layer_of(world, output, dtype)
    torch.manual_seed(1)
    first = torch.randn(shape).to(dtype)
    with torch.no_grad():
        layer.weight.normal_()
        layer(first)
        assert len(dispatched) == 1
        for x in (first, torch.randn(shape).to(dtype)):
            y = layer(x)
            assert len(dispatched) == 1
            product = torch.ops.entwine.gemm_ar(x, layer.weight, world.name)
            assert torch.equal(y, product + layer.bias) and y.dtype is dtype
            assert y.is_contiguous() and y.shape == (*shape[:-1], N)


def on_two_ranks(world, shape, dim):
    """Every rank's rows, again and again, along every dimension that can be scattered."""
    layer = layer_of(world, "scattered", scatter_dim=dim)
    x = integers(*shape, K, seed=world.rank)
    whole = layer_of(world, "replicated")
    with torch.no_grad():
        want = whole(x).chunk(2, dim % len(shape))[world.rank]
        for _ in range(4):
            assert torch.equal(layer(x), want)


@pytest.mark.parametrize("shape, dim", [((2, 3), 0), ((2, 2), 1), ((1, 4), 1), ((3, 2), -1),
                                        ((2, 1, 2), 2), ((1, 1, 4), 2)])
def test_rows_that_do_not_lie_together(shape, dim):
    spawn(2, on_two_ranks, shape, dim, timeout=60)


def test_a_rank_without_rows():
    spawn(2, one_row, timeout=60)


def one_row(world):
    layer, x = layer_of(world, "scattered"), integers(1, K)
    with torch.no_grad():
        for _ in range(4):
            assert layer(x).shape == (1 - world.rank, N)


def keep_two_plans(monkeypatch):
    monkeypatch.setattr(_shared_plans, "_FEWEST_PLANS", 2)
    monkeypatch.setattr(_shared_plans, "_MOST_BYTES", 0)


def test_plans_that_were_dropped(world, monkeypatch):
    keep_two_plans(monkeypatch)
    layer = layer_of(world)
    with torch.no_grad():
        for _ in range(3):
            for m in (1, 3, 9, 33, 1):
                x = integers(m, K, seed=m)
                want = torch.nn.functional.linear(x, layer.weight, layer.bias)
                assert torch.equal(layer(x), want)
    assert len(world._cache) == 2


@pytest.mark.parametrize("remembered", [False, True])
def test_plans_that_were_captured_are_kept(world, monkeypatch, remembered):
    """A CUDA graph writes to their memory when it is replayed.  (Here the CPU stands for a GPU.)"""
    keep_two_plans(monkeypatch)
    monkeypatch.setattr(_shared_plans, "CPU", 0)
    captures = []
    monkeypatch.setattr(_shared_plans, "is_capturing", lambda: bool(captures))
    layer = layer_of(world)
    with torch.no_grad():
        for m in (1, 3):
            for _ in range(3):
                layer(integers(m, K))
        captured = list(world._cache.values())
        captures.append("a graph")
        for m in (1, 3):
            layer(integers(m, K)) if remembered else et.gemm_ar(integers(m, K), layer.weight, world)
        captures.clear()
        for m in (9, 17, 33, 65):
            layer(integers(m, K))
        assert list(world._cache.values())[:2] == captured and len(world._cache) == 4
        for plan in captured:
            assert plan.config  # it is open
        assert [plan._is_captured for plan in world._cache.values()] == [True, True, False, False]


def test_plans_are_used_in_the_order_of_the_dispatcher(world):
    """Ranks that go different ways must drop the same plan."""
    layer, xs = layer_of(world), {m: integers(m, K) for m in (1, 3, 9)}
    with torch.no_grad():
        for m in (1, 3, 9, 1, 3, 9, 3, 1):
            layer(xs[m])
    assert [key[1] for key in world._cache] == [16, 4, 1]


def test_few_shapes_are_remembered(world):
    layer = layer_of(world)
    with torch.no_grad():
        for m in range(1, 100):
            layer(integers(m, K))
    kept, = world._frozen.values()
    assert 0 < len(kept.calls) <= _torch_again._MOST_SHAPES


# ---- Other operands --------------------------------------------------------------------------

@torch.no_grad()
def test_an_input_with_gaps(world, dispatched):
    layer, x = layer_of(world), integers(3, K)
    warm(layer, x)
    wide = integers(3, 2 * K, seed=4)
    assert torch.equal(layer(wide[:, ::2]), layer(wide[:, ::2].contiguous()))
    assert len(dispatched) == 2


@torch.no_grad()
def test_refusals_stay(world):
    layer, x = layer_of(world), integers(3, K)
    warm(layer, x)
    memory = torch.zeros(4 * 3 * K + 1, dtype=torch.uint8)
    address = memory.data_ptr() + 1
    odd = torch.frombuffer((ctypes.c_char * (4 * 3 * K)).from_address(address), dtype=torch.float32)
    for wrong, error in ((x.double(), entwine.ArgumentTypeError), (x[:, 1:], entwine.ShapeError),
                         (x.bfloat16(), entwine.ArgumentTypeError),
                         (odd.view(3, K), entwine.ArgumentError)):
        with pytest.raises(error):
            layer(wrong)
    with pytest.raises((RuntimeError, TypeError, AttributeError)):
        layer(x.numpy())


@torch.no_grad()
def test_a_weight_of_another_kind(world, dispatched):
    """The same memory in the same shape, with another meaning."""
    layer = et.RowParallelLinear(K, K, bias=False, output="replicated", world=world)
    layer.weight.copy_(integers(K, K))
    x = integers(2, K, seed=3)
    warm(layer, x)
    layer.weight.data = layer.weight.data.t()
    assert torch.equal(layer(x), x @ layer.weight.t())
    assert len(dispatched) == 2


@torch.no_grad()
@pytest.mark.parametrize("first", ["plain", "negated"])
def test_a_negated_weight(world, first):
    """The same memory, shape and strides, with other values: whichever of the two is met first."""
    weight, x = integers(N, K), integers(2, K, seed=3)
    negated = torch._neg_view(weight)
    assert negated.data_ptr() == weight.data_ptr()
    for b in (weight, negated, weight) if first == "plain" else (negated, weight, negated):
        for _ in range(3):
            assert torch.equal(_torch_sums.whole_sum(x, b, None, world), x @ b.t())


@torch.no_grad()
@pytest.mark.parametrize("frozen", [False, True])
def test_another_storage_of_the_same_memory(world, frozen):
    """A write through one tensor does not show in the version of the other."""
    memory = (ctypes.c_float * (N * K))()
    one, other = (torch.frombuffer(memory, dtype=torch.float32).view(N, K) for _ in range(2))
    layer = layer_of(world, bias=True)
    layer.weight.data = one.copy_(integers(N, K))
    if frozen:
        layer.freeze()
    x = integers(2, K, seed=3)
    warm(layer, x)
    other[1, 3] += 5
    layer.weight.data = other
    assert torch.equal(layer(x), torch.nn.functional.linear(x, other, layer.bias))


def test_a_closed_world():
    with entwine.World() as world:
        layer, x = layer_of(world), integers(3, K)
        warm(layer, x)
    with torch.no_grad(), pytest.raises(entwine.ArgumentError, match="closed"):
        layer(x)


def test_a_forked_process(world):
    layer, x = layer_of(world), integers(3, K)
    warm(layer, x)
    child = os.fork()
    if child == 0:
        try:
            with torch.no_grad():
                layer(x)
        except entwine.ArgumentError as error:
            os._exit(0 if "forked" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with torch.no_grad():
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


# ---- Where the dispatcher is needed ----------------------------------------------------------

class Count(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, operator, types, arguments=(), kwargs=None):
        self.seen.append(operator)
        return operator(*arguments, **(kwargs or {}))


class Look(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), kwargs=None):
        return function(*arguments, **(kwargs or {}))


class Tagged(torch.Tensor):
    pass


REGIONS = {"dispatch mode": Count, "function mode": Look,
           "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
           "profiler": torch.profiler.profile, "forward mode": torch.autograd.forward_ad.dual_level}


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("region", REGIONS)
def test_regions(world, dispatched, region, output):
    layer, x = layer_of(world, output), integers(3, K)
    layer.requires_grad_(False)
    warm(layer, x)
    with torch.no_grad(), REGIONS[region]() as inside:
        layer(x)
    assert len(dispatched) == 2
    if region == "dispatch mode":
        assert dispatched[0] in inside.seen
    with torch.no_grad():
        layer(x)
    assert len(dispatched) == 2


@pytest.mark.parametrize("output", OUTPUTS)
def test_gradients(world, dispatched, output):
    layer, x = layer_of(world, output), integers(3, K)
    warm(layer, x)
    for wanted in (x, x.clone().requires_grad_()):
        layer.zero_grad()
        layer(wanted).sum().backward()
        assert torch.equal(layer.weight.grad, x.sum(0).expand(N, K))
    assert torch.equal(wanted.grad, layer.weight.detach().sum(0).expand(3, K))
    assert len(dispatched) == 3
    layer.requires_grad_(False)
    for _ in range(3):
        layer(x)
    assert len(dispatched) == 4, "no gradient is wanted, and training may have changed the weight"


@torch.no_grad()
def test_subclasses(world, dispatched):
    layer, x = layer_of(world), integers(3, K)
    warm(layer, x)
    assert isinstance(layer(x.as_subclass(Tagged)), Tagged)
    assert len(dispatched) == 2


@torch.no_grad()
def test_a_transform(world, dispatched):
    layer, x = layer_of(world), integers(3, K)
    warm(layer, x)
    assert torch.equal(torch.func.functionalize(layer)(x), layer(x))
    assert len(dispatched) == 2


@torch.no_grad()
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_trace_has_the_operator(world, output):
    layer, x = layer_of(world, output), integers(3, K)
    warm(layer, x)
    traced = torch.jit.trace(layer, x, check_trace=False)
    assert "entwine::gemm" in str(traced.inlined_graph)
    other = integers(3, K, seed=5)
    assert torch.equal(traced(other), layer(other))


@torch.no_grad()
@pytest.mark.parametrize("output", OUTPUTS)
def test_a_compiled_graph_has_the_operator(world, output):
    layer, x = layer_of(world, output), integers(3, K)
    warm(layer, x)
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    y = torch.compile(layer, backend=keep, fullgraph=True)(x)
    assert torch.equal(y, layer(x))
    assert len(graphs) == 1 and "entwine.gemm" in graphs[0].code


@pytest.mark.skipif(not hasattr(torch.Tensor, "refine_names"),
                    reason="this torch has no named tensors: NOTHING TO REFUSE")
@torch.no_grad()
def test_names(world):
    """Named tensors are refused, as before."""
    layer, x = layer_of(world), integers(3, K)
    warm(layer, x)
    with pytest.raises(RuntimeError, match="[Nn]amed"):
        layer(x.refine_names("row", "feature"))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_inference(world, dispatched, mode):
    layer = layer_of(world)
    with mode():
        x = integers(3, K)
        for _ in range(3):
            layer(x)
    assert len(dispatched) == 1
