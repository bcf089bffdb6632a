"""torch.ops.entwine.gemm_ar of inputs with any number of dimensions, and layers of one shape that
take turns, on two ranks."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from ranks import spawn  # noqa: E402
from test_torch_parallel import integers  # noqa: E402

RANKS, WIDTH, DEPTH = 2, 5, 8
SHAPES = (), (3,), (2, 3), (2, 1, 3), (0, 3), (4, 0)


def check_shape(world, leading):
    x, weight = integers(*leading, DEPTH), integers(WIDTH, DEPTH)
    grad = integers(*leading, WIDTH, seed=1)
    whole = [one.clone().requires_grad_() for one in (x, weight)]
    want = torch.nn.functional.linear(*whole)
    want.backward(grad)
    mine = [one.chunk(RANKS, -1)[world.rank].clone().requires_grad_() for one in (x, weight)]
    y = et.gemm_ar(*mine, world)
    assert y.shape == want.shape and torch.equal(y, want)
    y.backward(grad)
    for one, other in zip(mine, whole):
        assert torch.equal(one.grad, other.grad.chunk(RANKS, -1)[world.rank])
    with torch.no_grad():
        for frozen in (False, True, True):
            assert torch.equal(et.gemm_ar(*mine, world, frozen), want)
        # Not contiguous, so that it is copied first.
        if len(leading) > 1:
            back = mine[0].transpose(0, 1).contiguous().transpose(0, 1)
            assert torch.equal(et.gemm_ar(back, mine[1], world), want)
    fake = torch.ops.entwine.gemm_ar(*(one.detach().to("meta") for one in mine), world.name)
    assert fake.shape == want.shape


def shapes(world):
    for leading in SHAPES:
        check_shape(world, leading)
    with pytest.raises(entwine.ShapeError, match="expected two dimensions of b, and one or more"):
        et.gemm_ar(torch.tensor(1.0), torch.ones(WIDTH, DEPTH), world)
    with pytest.raises(entwine.ShapeError, match="expected the same depth k"):
        et.gemm_ar(torch.ones(2, 3, 4), torch.ones(WIDTH, DEPTH), world)
    with pytest.raises(entwine.ShapeError, match="expected two dimensions each"):
        et.gemm_rs(torch.ones(2, 3, DEPTH), torch.ones(WIDTH, DEPTH), world)
    return "right"


def test_shapes():
    assert spawn(RANKS, shapes, timeout=100) == ["right"] * RANKS


def turns(world):
    """They share a plan, which is bound to one weight after the other."""
    weights = [integers(WIDTH, DEPTH, seed=seed) for seed in (3, 4)]
    layers = [et.RowParallelLinear(DEPTH, WIDTH, bias=False, output="replicated", world=world)
              for _ in weights]
    x = integers(2, 3, DEPTH)
    share = x.chunk(RANKS, -1)[world.rank]
    with torch.no_grad():
        for layer, weight in zip(layers, weights):
            layer.weight.copy_(weight.chunk(RANKS, 1)[world.rank])
        for turn in (0, 1, 1, 0, 0, 1):
            assert torch.equal(layers[turn](share), x @ weights[turn].t())
        layers[1].weight.zero_()
        assert not layers[1](share).any()
        del layers[1]  # another packed weight may come to lie where its was
        layers.append(et.RowParallelLinear(DEPTH, WIDTH, bias=False, output="replicated",
                                           world=world))
        layers[1].weight.copy_(weights[1].chunk(RANKS, 1)[world.rank])
        for turn in (1, 0, 1):
            assert torch.equal(layers[turn](share), x @ weights[turn].t())
    return "right"


def test_layers_that_take_turns():
    assert spawn(RANKS, turns, timeout=100) == ["right"] * RANKS
