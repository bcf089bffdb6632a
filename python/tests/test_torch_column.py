"""ColumnParallelLinear and ag_gemm in torch: compiled, recomputed, and trained as the first half of
an MLP whose second half is RowParallelLinear."""
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import torch.utils.checkpoint  # noqa: E402

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from ranks import spawn  # noqa: E402

RANKS, HIDDEN, INNER = 2, 24, 32
ROWS = (10, 7, 1, 16)  # of a step: they change


def test_opcheck(world):
    a, b = torch.ones(7, 5, requires_grad=True), torch.ones(3, 5, requires_grad=True)
    for more in ((), (False, True)):
        torch.library.opcheck(torch.ops.entwine.ag_gemm, (a, b, 7, world.name, *more))
        with torch.no_grad():
            torch.library.opcheck(torch.ops.entwine.ag_gemm,
                                  (a.detach(), b.detach(), 7, world.name, *more))


@pytest.mark.parametrize("given", ("scattered", "replicated"))
def test_compile_sees_one_graph(world, given):
    torch.manual_seed(1)
    layer = et.ColumnParallelLinear(HIDDEN, INNER, input=given, world=world)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for shape in ((5, HIDDEN), (4, 3, HIDDEN)):
        x = torch.randn(shape, requires_grad=True)
        y = compiled(x)
        assert torch.equal(y, layer(x)) and y.shape == (*shape[:-1], INNER)
        got = torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))
        want = torch.autograd.grad(layer(x).square().sum(), (x, *layer.parameters()))
        for one, other in zip(got, want):
            assert torch.equal(one, other)


@pytest.mark.parametrize("what, call", {
    "rows": lambda layer: layer(torch.ones(3, HIDDEN), 4),
    "features": lambda layer: layer(torch.ones(3, HIDDEN + 1)),
    "dimensions": lambda layer: layer(torch.ones(3, 2, HIDDEN), 6)}.items())
def test_wrong_inputs_are_refused(world, what, call):
    layer = et.ColumnParallelLinear(HIDDEN, INNER, world=world)
    with pytest.raises(entwine.ShapeError, match="rows|shape"):
        call(layer)
    assert layer(torch.ones(3, HIDDEN)).shape == (3, INNER)


def test_autocast(world):
    layer = et.ColumnParallelLinear(HIDDEN, INNER, world=world)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(torch.ones(3, HIDDEN))
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32


# ---- Inference -------------------------------------------------------------------------------

def infer(world):
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 4e-3)):
        layer = et.ColumnParallelLinear(HIDDEN, INNER, input="replicated", world=world, dtype=dtype)
        layer.bias.normal_()
        x = torch.randn(4, 8, HIDDEN).to(dtype)
        for factor in (1, 2, 1):  # a weight that changes is seen
            layer.weight.mul_(factor)
            want = torch.nn.functional.linear(x.double(), layer.weight.double(),
                                              layer.bias.double())
            y = layer(x)
            torch.testing.assert_close(y.double(), want, rtol=bound, atol=bound)
            assert torch.equal(layer(x[1, 3:4]), y[1, 3:4])
        assert any(kept.weight for kept in world.alone()._frozen.values())
    return world.alone()


def test_inference_packs_the_columns(world):
    with torch.no_grad():
        assert infer(world) is world


@torch.no_grad()
def test_numbers_of_threads_share_a_packed_weight(world):
    layer = et.ColumnParallelLinear(HIDDEN, INNER, input="replicated", world=world)
    x, before = torch.randn(3, HIDDEN), torch.get_num_threads()
    want = torch.nn.functional.linear(x, layer.weight, layer.bias)
    try:
        for threads in (1, 2, 3, 1, 2):
            torch.set_num_threads(threads)
            for _ in range(2):  # the usual way, and that of a call that is made again
                torch.testing.assert_close(layer(x), want)
                assert f"workers={threads}" in str(list(world._cache)[-1])
    finally:
        torch.set_num_threads(before)
    assert len(world._weight_handles) == 1


def on_a_rank(world):
    with torch.no_grad():
        own = infer(world)
    assert own is not world and own.size == 1
    own.abort()  # as Ctrl-C does in a long product
    with torch.no_grad():
        infer(world)
    own = world.alone()
    world.close()
    with pytest.raises(entwine.EntwineError, match="closed"):
        own.barrier()
    return True


def test_ranks_infer_alone():
    assert spawn(RANKS, on_a_rank, timeout=100) == [True] * RANKS


# ---- Training --------------------------------------------------------------------------------

def whole_mlp():
    torch.manual_seed(3)
    return torch.nn.Linear(HIDDEN, INNER), torch.nn.Linear(INNER, HIDDEN)


def step_inputs(m):
    generator = torch.Generator().manual_seed(m)
    return torch.randn(2, m, HIDDEN, generator=generator)


def train_whole():
    """Losses and weights of one process."""
    up, down = whole_mlp()
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)
    losses = []
    for m in ROWS:
        x, target = step_inputs(m)
        loss = (down(torch.nn.functional.silu(up(x))) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, up.weight.detach(), down.weight.detach()


def train(world, recompute):
    """The same on ranks that share out rows, features, and the optimizer's work."""
    up, down = whole_mlp()
    up = et.ColumnParallelLinear.from_linear(up, world)
    down = et.RowParallelLinear.from_linear(down, world)
    optimizer = torch.optim.SGD([*up.parameters(), *down.parameters()], lr=0.1)

    def mlp(x, m):
        return down(torch.nn.functional.silu(up(x, m)))

    losses = []
    for m in ROWS:
        x, target = (rows[slice(*world_slice(world, m))] for rows in step_inputs(m))
        x.requires_grad_()
        y = torch.utils.checkpoint.checkpoint(mlp, x, m, use_reentrant=False) if recompute else \
            mlp(x, m)
        loss = (y - target).square().sum() / (m * HIDDEN)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shares = world.allgather(struct.pack("d", loss.item()))
        losses.append(sum(struct.unpack("d", share)[0] for share in shares))
    return losses, up.weight.detach().numpy(), down.weight.detach().numpy()


def world_slice(world, m):
    first, count = world.owned_rows(m)
    return first, first + count


def train_often(world):
    torch.set_num_threads(1)
    return [train(world, recompute) for recompute in (False, False, True)]


def test_an_mlp_trains_as_in_one_process():
    want_losses, want_up, want_down = train_whole()
    for rank, (first, *others) in enumerate(spawn(RANKS, train_often, timeout=200)):
        losses, up, down = first
        mine = slice(rank * INNER // RANKS, (rank + 1) * INNER // RANKS)
        assert losses == pytest.approx(want_losses, rel=1e-4)
        assert torch.allclose(torch.from_numpy(up), want_up[mine], atol=1e-5)
        assert torch.allclose(torch.from_numpy(down), want_down[:, mine], atol=1e-5)
        for again in others:  # the last with recomputed activations: the same bits
            assert again[0] == losses and (again[1] == up).all() and (again[2] == down).all()
