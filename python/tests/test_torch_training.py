"""Packed weights and training: no training step uses a weight as it was before, whoever changes it
and however, and what an evaluation packs is renewed."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine.torch as et  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

M, N, K = 6, 64, 96
REGIONS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def packed_weights(world):
    return [kept.weight for kept in world._frozen.values() if kept.weight is not None]


def write_a_row(weight, row):
    """Without torch's knowledge, and where no sampled element lies."""
    weight.data[row, 7] += 1


class Mode(TorchDispatchMode):
    """With it the dispatcher does not go straight from autograd to the kernel."""

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        return function(*arguments, **(options or {}))


def in_a_mode(layer):
    def call(x):
        with Mode():
            return layer(x)

    return call


FORWARDS = {
    "eager": lambda layer: layer, "in a mode": in_a_mode,
    "compiled": lambda layer: torch.compile(layer, backend="aot_eager"),
    "by inductor": torch.compile,
    "compiled, by eager": lambda layer: torch.compile(layer, backend="eager"),
    "reentrant": lambda layer: lambda x: checkpoint(layer, x, use_reentrant=True),
    "reentrant, compiled": lambda layer: lambda x: checkpoint(
        torch.compile(layer, backend="aot_eager"), x, use_reentrant=True)}
TRAINED = {
    "scattered": lambda world: et.RowParallelLinear(K, N, bias=False, world=world),
    "whole": lambda world: et.RowParallelLinear(K, N, bias=False, output="replicated",
                                                world=world),
    "gathered": lambda world: et.ColumnParallelLinear(K, N, bias=False, world=world),
    "replicated": lambda world: et.ColumnParallelLinear(K, N, bias=False, input="replicated",
                                                        world=world)}


def fits(y, x, layer):
    return torch.allclose(y, x @ layer.weight.t(), atol=1e-4)


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize("how", FORWARDS)
def test_training_uses_the_weight_as_it_is(world, how, kind):
    """Whoever steps, and whatever was packed for an evaluation."""
    torch._dynamo.reset()
    layer = TRAINED[kind](world)
    forward, x = FORWARDS[how](layer), torch.randn(M, K, requires_grad=True)
    for row in (5, 40, 61, 9):
        y = forward(x)
        assert fits(y, x, layer)
        y.sum().backward()
        write_a_row(layer.weight, row)
    with torch.no_grad():
        for _ in range(3):
            assert fits(layer(x.detach()), x, layer)
    write_a_row(layer.weight, 30)
    if not how.startswith("reentrant"):  # whose first pass is like one more evaluation
        assert fits(forward(x), x, layer)


@pytest.mark.parametrize("how", ["eager", "compiled", "reentrant"])
def test_evaluation_behind_training(world, how):
    """Packs what was trained again, and then keeps it."""
    torch._dynamo.reset()
    layer = TRAINED["whole"](world)
    forward, x = FORWARDS[how](layer), torch.randn(M, K, requires_grad=True)
    for row in (5, 40, 61):
        with torch.no_grad():
            for _ in range(3):
                assert fits(layer(x.detach()), x, layer)
            weight, = packed_weights(world)
            kept, = world._frozen.values()
            assert kept.is_current(layer.weight._version, False) and kept.weight is weight
        forward(x).sum().backward()
        write_a_row(layer.weight, row)


def test_a_step_of_other_copies_of_the_weights(world):
    """As in mixed precision, where the optimizer has weights in fp32, which are then copied.  An
    evaluation between the backward pass and the step does not hide it."""
    layer, x = TRAINED["whole"](world), torch.randn(M, K)
    master = torch.nn.Parameter(layer.weight.detach().clone())
    optimizer = torch.optim.SGD([master], lr=1.0)
    for row in (5, 40, 61):
        layer(x).sum().backward()
        with torch.no_grad():
            for _ in range(3):
                assert fits(layer(x), x, layer)
        master.grad = torch.zeros(N, K)
        master.grad[row, 7] = 1
        optimizer.step()
        layer.weight.data.copy_(master.detach())
        with torch.no_grad():
            assert fits(layer(x), x, layer)


def test_steps_leave_weights_alone_that_are_not_trained(world):
    layer, x = TRAINED["whole"](world), torch.randn(M, K, requires_grad=True)
    layer.weight.requires_grad_(False)
    other = torch.nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    with torch.no_grad():
        layer(x)
    kept, = world._frozen.values()
    layer(x).sum().backward()
    torch.optim.SGD([other], lr=1.0).step()
    assert kept.is_current(layer.weight._version, False)


def test_a_step_of_a_weight_that_no_longer_wants_a_gradient(world):
    """The optimizer asks for nothing but a gradient that is there."""
    layer, x = TRAINED["whole"](world), torch.randn(M, K)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, fused=True)
    layer.weight.grad = torch.zeros(N, K)
    layer.weight.grad[40, 7] = 5
    layer.freeze()
    for _ in range(3):
        assert fits(layer(x), x, layer)
    optimizer.step()
    assert fits(layer(x), x, layer)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("wants", [True, False])
def test_compiled_inference_packs(world, region, wants):
    torch._dynamo.reset()
    layer, x = TRAINED["whole"](world), torch.randn(M, K)
    layer.weight.requires_grad_(wants)
    call = torch.compile(layer, backend="aot_eager")
    with REGIONS[region]():
        for _ in range(3):
            assert fits(call(x), x, layer)
    if not wants:
        assert fits(call(x), x, layer)  # nothing wants a gradient
    assert len(packed_weights(world)) == 1
