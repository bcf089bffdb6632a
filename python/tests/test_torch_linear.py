"""The parameters of layers that are split over ranks: drawn as torch draws those of whole layers, or
taken from layers that all ranks hold."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from entwine import _torch_linear  # noqa: E402
from ranks import spawn  # noqa: E402

RANKS, IN, OUT = 3, 12, 18


# ---- Drawn -----------------------------------------------------------------------------------

def part(whole, dim, world):
    return whole.chunk(world.size, dim)[world.rank]


def whole_and_part(world, dtype):
    """Pairs of what torch draws and what Entwine does, in the same order from the same seed."""
    place = {"dtype": dtype}
    torch.manual_seed(7)
    linears = [torch.nn.Linear(*shape, bias=bias, **place) for bias in (False, True)
               for shape in ((IN, OUT), (IN, OUT), (OUT, IN), (IN, OUT))]
    torch.manual_seed(7)
    layers = []
    for bias in (False, True):
        mlp = et.ParallelMLP(IN, OUT, bias=bias, world=world, **place)
        layers += [mlp.gate_proj, mlp.up_proj, mlp.down_proj,
                   et.RowParallelLinear(IN, OUT, bias=bias, world=world, **place)]
    return zip(linears, layers)


def draw(world, together):
    _torch_linear._DRAWN_TOGETHER = together
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for linear, layer in whole_and_part(world, dtype):
            dim = 0 if isinstance(layer, et.ColumnParallelLinear) else 1
            assert torch.equal(layer.weight, part(linear.weight, dim, world))
            assert layer.bias is None or not layer.bias.any()
    made = et.RowParallelLinear(IN, OUT, world=world, device="meta").to_empty(device="cpu")
    torch.manual_seed(7)
    made.reset_parameters()
    torch.manual_seed(7)
    assert torch.equal(made.weight, part(torch.nn.Linear(IN, OUT).weight, 1, world))
    assert not made.bias.any()
    torch.manual_seed(world.rank)  # no less random where seeds differ
    return et.RowParallelLinear(IN, OUT, world=world).weight.std().item()


@pytest.mark.parametrize("together", [1, 5 * IN, 1 << 20])
def test_one_seed_draws_the_parts_of_one_weight(together):
    deviations = spawn(RANKS, draw, together, timeout=100)
    assert len(set(deviations)) == RANKS and 0.1 < min(deviations) and max(deviations) < 0.25


def test_a_layer_that_gets_its_memory_later_is_as_one_that_was_made_with_it(world):
    layer = et.RowParallelLinearNorm(IN, OUT, True, world=world, device="meta")
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(7)
    layer.reset_parameters()
    torch.manual_seed(7)
    made = et.RowParallelLinearNorm(IN, OUT, True, world=world)
    assert all(map(torch.equal, layer.parameters(), made.parameters()))


def test_a_layer_without_memory_draws_nothing(world):
    before = torch.get_rng_state()
    et.ParallelMLP(IN, OUT, bias=True, world=world, device="meta")
    et.RowParallelLinear.from_linear(torch.nn.utils.skip_init(torch.nn.Linear, IN, OUT), world)
    assert torch.equal(torch.get_rng_state(), before)


# ---- Taken -----------------------------------------------------------------------------------

def whole_mlp(**layers):
    modules = {"gate_proj": torch.nn.Linear(IN, OUT), "up_proj": torch.nn.Linear(IN, OUT),
               "down_proj": torch.nn.Linear(OUT, IN), "act_fn": torch.nn.SiLU(), **layers}
    return torch.nn.ModuleDict(modules)


def whole_attention(**layers):
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    return torch.nn.ModuleDict({**{name: torch.nn.Linear(IN, IN) for name in names}, **layers})


TAKE = {"rows": et.RowParallelLinear.from_linear, "columns": et.ColumnParallelLinear.from_linear,
        "norm": et.RowParallelLinearNorm.from_linear,
        "mlp": lambda linear, world: et.ParallelMLP.from_module(
            whole_mlp(down_proj=linear), world).down_proj,
        "attention": lambda linear, world: et.ParallelAttentionProjections.from_module(
            whole_attention(k_proj=linear), world, head_dim=2).k_proj}


def linear_for(taken, kind=torch.nn.Linear):
    return kind(OUT, IN) if taken == "mlp" else kind(IN, IN)


@pytest.mark.parametrize("taken", TAKE)
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_what_is_frozen_stays_so(world, taken, weight, bias):
    linear = linear_for(taken)
    linear.weight.requires_grad_(weight)
    linear.bias.requires_grad_(bias)
    layer = TAKE[taken](linear, world)
    assert (layer.weight.requires_grad, layer.bias.requires_grad) == (weight, bias)
    assert torch.equal(layer.weight, linear.weight) and torch.equal(layer.bias, linear.bias)


@pytest.mark.parametrize("taken", TAKE)
@pytest.mark.parametrize("training", [False, True])
def test_the_mode_is_taken_over(world, taken, training):
    """A layer with a norm writes to its residual in evaluation mode alone."""
    assert TAKE[taken](linear_for(taken).train(training), world).training is training


@pytest.mark.parametrize("training", [False, True])
def test_the_mode_of_a_block_is_taken_over(world, training):
    for layer in (et.ParallelMLP.from_module(whole_mlp().train(training), world),
                  et.ParallelAttentionProjections.from_module(
                      whole_attention().train(training), world, head_dim=2)):
        assert [module.training for module in layer.modules()] == [training] * len(
            list(layer.modules()))


def test_the_weight_of_the_norm(world):
    linear, given = torch.nn.Linear(IN, OUT), torch.rand(OUT)
    for norm_weight, wants in ((None, True), (given, True), (torch.nn.Parameter(given), True),
                               (torch.nn.Parameter(given, requires_grad=False), False)):
        layer = et.RowParallelLinearNorm.from_linear(linear, world, norm_weight)
        assert torch.equal(layer.norm_weight, torch.ones(OUT) if norm_weight is None else given)
        assert layer.norm_weight.requires_grad is wants


class Adapted(torch.nn.Linear):
    """As LoRA does it."""

    def forward(self, x):
        return super().forward(x) + 1


def replaced(*shape):
    linear = torch.nn.Linear(*shape)
    linear.forward = lambda x: x
    return linear


@pytest.mark.parametrize("taken", TAKE)
@pytest.mark.parametrize("kind, says", [
    (Adapted, "is a Adapted, whose forward is not that of"), (replaced, "was put in the place of"),
    (lambda *shape: torch.nn.Bilinear(2, *shape), "is a Bilinear, not a torch.nn.Linear")])
def test_a_layer_that_computes_something_else_is_refused(world, taken, kind, says):
    linear = linear_for(taken, kind)
    with pytest.raises(entwine.ArgumentTypeError, match=f"{says}(.|\n)*fix: merge") as caught:
        TAKE[taken](linear, world)
    name = {"mlp": "down_proj", "attention": "k_proj"}.get(taken, "linear")
    assert str(caught.value).startswith(name)


def test_a_subclass_that_computes_the_same_is_taken(world):
    kind = torch.nn.modules.linear.NonDynamicallyQuantizableLinear
    for taken, take in TAKE.items():
        linear = linear_for(taken, kind)
        assert torch.equal(take(linear, world).weight, linear.weight)
