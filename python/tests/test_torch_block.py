"""ParallelMLP, ParallelAttentionProjections and their operators in torch: compiled, recomputed,
cast, with the bits of the layers they consist of; and a small Llama that trains on two ranks as it
does in torch's own tensor parallelism."""
import struct

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import torch.utils.checkpoint  # noqa: E402
from torch.nn import functional  # noqa: E402

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from entwine import _torch_block, _torch_products, _torch_sums  # noqa: E402
from ranks import spawn  # noqa: E402

RANKS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 2, 32, 48, 4, 2, 8


@pytest.fixture
def block(world):
    torch.manual_seed(1)
    return et.ParallelMLP(HIDDEN, INNER, world=world)


class Adapted(torch.nn.Module):
    """A layer and what is trained beside it, as adapters of low rank are written."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.weight = base.weight  # as in the layers of PEFT

    def forward(self, x, *num_rows):
        return 2 * self.base(x, *num_rows)


def adapt(block, name, how):
    layer = getattr(block, name)
    if how == "wrapped":
        setattr(block, name, Adapted(layer))
    elif how == "forward":
        theirs = layer.forward
        layer.forward = lambda *arguments: 2 * theirs(*arguments)
    elif how == "hook":
        layer.register_forward_hook(lambda layer, given, y: 2 * y)
    else:
        layer.register_full_backward_pre_hook(lambda layer, grads: tuple(2 * g for g in grads))


@pytest.mark.parametrize("how", ("wrapped", "forward", "hook", "backward hook"))
@pytest.mark.parametrize("rows", ("scattered", "replicated"))
def test_what_is_put_around_a_layer_counts(world, rows, how):
    """It was left out without a word: only the layer's weight was read."""
    x = torch.randn(5, HIDDEN)
    for name in ("gate_proj", "up_proj"):
        mlp = et.ParallelMLP(HIDDEN, INNER, activation="none", rows=rows, world=world)
        check_doubled(mlp, name, how, lambda: mlp(x), lambda: mlp(x, 5))
    for at, name in enumerate(("q_proj", "k_proj", "v_proj")):
        attention = et.ParallelAttentionProjections(HIDDEN, HEADS, KV_HEADS, rows=rows, world=world)
        check_doubled(attention, name, how, lambda: attention.qkv(x)[at])


def check_doubled(block, name, how, *calls):
    weight = getattr(block, name).weight
    if how == "backward hook":
        calls = [lambda call=call: torch.autograd.grad(call().sum(), weight)[0] for call in calls]
    before = [call() for call in calls]
    adapt(block, name, how)
    for call, was in zip(calls, before):
        torch.testing.assert_close(call(), 2 * was)
    if how != "backward hook":
        with torch.no_grad():
            torch.testing.assert_close(calls[0](), 2 * before[0])


# ---- The operators ---------------------------------------------------------------------------

def test_opcheck(world):
    a, b, c = (torch.ones(n, 5, requires_grad=True) for n in (7, 3, 3))
    for more in ((), (False, True)):
        torch.library.opcheck(torch.ops.entwine.ag_gemm_multi, (a, [b, c], 7, world.name, *more))
        with torch.no_grad():
            torch.library.opcheck(torch.ops.entwine.ag_gemm_multi,
                                  (a.detach(), [b.detach()], 7, world.name, *more))
    for up in (c, None):
        torch.library.opcheck(torch.ops.entwine.ag_gemm_act, (a, b, up, 7, world.name))
        with torch.no_grad():
            torch.library.opcheck(torch.ops.entwine.ag_gemm_act, (
                a.detach(), b.detach(), up, 7, world.name, "none", False, True, True))


def test_wrong_operands_are_refused(world):
    a, b = torch.ones(4, 5), torch.ones(3, 5)
    with pytest.raises(entwine.ShapeError, match=r"\(3, 6\); expected the same depth(.|\n)*fix"):
        et.ag_gemm_multi(a, [b, torch.ones(3, 6)], world)
    with pytest.raises(entwine.ArgumentError, match="empty"):
        et.ag_gemm_multi(a, [], world)
    with pytest.raises(entwine.ArgumentTypeError, match="float16"):
        et.ag_gemm_multi(a, [b, b.half()], world)
    with pytest.raises(entwine.ArgumentError, match="'relu'"):
        et.ag_gemm_act(a, b, b, world, activation="relu")
    with pytest.raises(entwine.ShapeError, match="gate has n=3 and the up n=4"):
        et.ag_gemm_act(a, b, torch.ones(4, 5), world)


@pytest.mark.parametrize("frozen", (False, True))
def test_weights_that_lie_differently(world, frozen):
    """Transposed ones, one of each, and one with gaps, packed or not: always the same bits."""
    a = torch.randn(9, 16)
    weights = [torch.randn(24, 16), torch.randn(40, 16)]
    want = [et.ag_gemm(a, weight, world) for weight in weights]
    turned = [weight.t().contiguous().t() for weight in weights]
    for given in (weights, turned, [weights[0], turned[1]]):
        for _ in range(3):
            got = et.ag_gemm_multi(a, given, world, frozen=frozen)
            assert all(map(torch.equal, got, want))
    gaps = torch.zeros(24, 32)[:, ::2].copy_(weights[0])
    assert all(map(torch.equal, et.ag_gemm_multi(a, [gaps, weights[1]], world), want))


# ---- The modules -----------------------------------------------------------------------------

@torch.no_grad()
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("activation", ("silu", "gelu-tanh", "none"))
def test_gate_and_up_in_one_call(world, monkeypatch, activation, dtype):
    """The bits of the operator, from the first call on, and for every write to a weight."""
    block = et.ParallelMLP(HIDDEN, INNER, activation=activation, rows="replicated", world=world,
                           dtype=dtype)
    plans = []
    monkeypatch.setattr(_torch_sums, "activated", lambda *given: (
        plans.append(given), _torch_products.activated(*given))[1])

    def check(*shape):
        x = torch.randn(*shape, HIDDEN).to(dtype)
        y = block(x)
        h = et.ag_gemm_act(x.flatten(0, -2), block.gate_proj.weight, block.up_proj.weight, world,
                           activation=activation)
        assert torch.equal(y, block.down_proj(h.view(*shape, INNER)))

    for shape in ((1, 1), (3,), (2, 5), (1, 1), (3,), (2, 5), (2, 5)):
        check(*shape)
    assert len(plans) == 3
    for layer in (block.gate_proj, block.up_proj):
        layer.weight[3, 7] += 1
        check(1, 1)
        layer.weight.data = torch.randn_like(layer.weight)
        check(1, 1)
    assert len(plans) == 7
    block.up_proj.weight.data = block.gate_proj.weight.data
    check(3)
    assert block(torch.empty(0, HIDDEN, dtype=dtype)).shape == (0, HIDDEN)
    with pytest.raises(entwine.ShapeError):
        block(torch.ones(2, HIDDEN + 1, dtype=dtype))


class WholeMLP(torch.nn.Module):
    """As Transformers has it."""

    def __init__(self, bias=False):
        super().__init__()
        self.gate_proj = torch.nn.Linear(HIDDEN, INNER, bias=bias)
        self.up_proj = torch.nn.Linear(HIDDEN, INNER, bias=bias)
        self.down_proj = torch.nn.Linear(INNER, HIDDEN, bias=bias)
        self.act_fn = torch.nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class WholeAttention(torch.nn.Module):
    def __init__(self, bias=False):
        super().__init__()
        self.head_dim = HEAD
        self.q_proj = torch.nn.Linear(HIDDEN, HEADS * HEAD, bias=bias)
        self.k_proj = torch.nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=bias)
        self.v_proj = torch.nn.Linear(HIDDEN, KV_HEADS * HEAD, bias=bias)
        self.o_proj = torch.nn.Linear(HEADS * HEAD, HIDDEN, bias=False)

    def forward(self, x):
        return self.o_proj(attend(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


def attend(q, k, v):
    """Causal, of any number of heads: [m, heads * HEAD]."""
    def by_head(x):
        return x.unflatten(-1, (-1, HEAD)).transpose(0, 1)

    groups = q.shape[-1] // k.shape[-1]
    k, v = (by_head(x).repeat_interleave(groups, 0) for x in (k, v))
    y = functional.scaled_dot_product_attention(by_head(q), k, v, is_causal=True)
    return y.transpose(0, 1).flatten(1)


@pytest.mark.parametrize("rows", ("scattered", "replicated"))
@pytest.mark.parametrize("bias", (False, True))
def test_parts_of_whole_modules(world, rows, bias):
    torch.manual_seed(2)
    x = torch.randn(11, HIDDEN)
    mlp, attention = WholeMLP(bias), WholeAttention(bias)
    part = et.ParallelMLP.from_module(mlp, world, rows=rows)
    assert torch.allclose(part(x), mlp(x), atol=1e-6)
    assert part.state_dict().keys() == mlp.state_dict().keys()
    assert all(parameter.device.type == "cpu" for parameter in part.parameters())
    part = et.ParallelAttentionProjections.from_module(attention, world, rows=rows)
    assert torch.allclose(part(x, attend), attention(x), atol=1e-6)
    assert part.state_dict().keys() == attention.state_dict().keys()
    assert torch.equal(part.out(attend(*part.qkv(x))), part(x, attend))


def test_bits_are_those_of_the_layers_alone(world, block):
    """Of gate, up and down; the activation is the library's, whose last place may differ."""
    x = torch.randn(5, HIDDEN)
    gate, up = et.ag_gemm_multi(x, [block.gate_proj.weight, block.up_proj.weight], world)
    assert torch.equal(gate, block.gate_proj(x)) and torch.equal(up, block.up_proj(x))
    h = et.ag_gemm_act(x, block.gate_proj.weight, block.up_proj.weight, world)
    assert torch.allclose(h, functional.silu(gate) * up, rtol=2e-6)
    assert torch.equal(block(x), block.down_proj(h))
    with torch.no_grad():
        assert torch.equal(block(x), block.down_proj(h))
    assert torch.equal(block.freeze()(x), block.down_proj(h))


@pytest.mark.parametrize("rows", ("scattered", "replicated"))
def test_compile_sees_one_graph(world, rows, monkeypatch):
    """With the bits of the layer as it is, but for torch's own gradient of silu, which may round
    otherwise when it is compiled (torch 2.8 on aarch64)."""
    torch.manual_seed(1)
    silu = torch.compile(lambda gate: functional.silu(gate), backend="aot_eager")
    layers = (et.ParallelMLP(HIDDEN, INNER, rows=rows, world=world),
              et.ParallelAttentionProjections(HIDDEN, HEADS, KV_HEADS, rows=rows, world=world))
    for layer, shape in ((layers[0], (5, HIDDEN)), (layers[0], (4, 3, HIDDEN)),
                         (layers[1], (5, HIDDEN))):
        more = () if layer is layers[0] else (attend,)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        x = torch.randn(shape, requires_grad=True)
        y = compiled(x, *more)
        assert torch.equal(y, layer(x, *more)) and y.shape == shape
        got = torch.autograd.grad(y.square().sum(), (x, *layer.parameters()))
        with monkeypatch.context() as patched:
            patched.setitem(_torch_block._ACTIVATIONS, "silu", silu)
            want = torch.autograd.grad(layer(x, *more).square().sum(), (x, *layer.parameters()))
        assert all(map(torch.equal, got, want))


def test_autocast(block):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = block(torch.ones(3, HIDDEN))
    assert y.dtype is torch.bfloat16
    y.float().sum().backward()
    assert block.gate_proj.weight.grad.dtype is torch.float32


WRONG = {
    "rows": (lambda world: et.ParallelMLP(HIDDEN, INNER, rows="all", world=world), "rows is 'all'"),
    "activation": (lambda world: et.ParallelMLP(HIDDEN, INNER, activation="tanh", world=world),
                   "'tanh'"),
    "features": (lambda world: et.ParallelMLP(HIDDEN, INNER, world=world)(torch.ones(3, 5)),
                 "x has shape"),
    "an unknown act_fn": (lambda world: et.ParallelMLP.from_module(
        torch.nn.ModuleDict({"gate_proj": torch.nn.Linear(2, 2)}), world), "fix: pass activation="),
    "no head_dim": (lambda world: et.ParallelAttentionProjections.from_module(
        torch.nn.ModuleDict({"q_proj": torch.nn.Linear(2, 2), "k_proj": torch.nn.Linear(2, 2)}),
        world), "fix: pass head_dim="),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_modules_are_refused(world, what):
    call, message = WRONG[what]
    with pytest.raises(entwine.EntwineError, match=message):
        call(world)


# ---- A small Llama ---------------------------------------------------------------------------

VOCABULARY, LAYERS, ROWS = 61, 2, (12, 7, 1, 9, 12, 5)  # tokens of a step: they change


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.input_norm, self.norm = torch.nn.RMSNorm(HIDDEN), torch.nn.RMSNorm(HIDDEN)
        self.attention, self.mlp = WholeAttention(), WholeMLP()

    def forward(self, x):
        x = x + self.attention(self.input_norm(x))
        return x + self.mlp(self.norm(x))


class Llama(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, HIDDEN)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)


def build():
    torch.manual_seed(5)
    return Llama()


def tokens_of(m):
    return torch.randint(0, VOCABULARY, (2, m), generator=torch.Generator().manual_seed(m))


def train_whole(parallelize=None):
    """Losses of one process, or of ranks that split the model by DTensors."""
    model = build()
    if parallelize:
        parallelize(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = []
    for m in ROWS:
        tokens, target = tokens_of(m)
        x = model.embedding(tokens)
        for layer in model.layers:
            x = layer(x)
        loss = functional.cross_entropy(model.head(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_with_dtensors(world):
    from test_torch import open_gloo
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    torch.set_num_threads(1)
    open_gloo(world)

    def parallelize(model):
        mesh = init_device_mesh("cpu", (world.size,))
        columns = ("attention.q_proj", "attention.k_proj", "attention.v_proj", "mlp.gate_proj",
                   "mlp.up_proj")
        plan = {**{name: ColwiseParallel() for name in columns},
                "attention.o_proj": RowwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        for layer in model.layers:
            parallelize_module(layer, mesh, plan)

    losses = train_whole(parallelize)
    torch.distributed.destroy_process_group()
    return losses


def train_in_parts(world, recompute):
    """The same with Entwine alone: rows, heads and hidden features are shared out."""
    model = build()
    for layer in model.layers:
        layer.attention = et.ParallelAttentionProjections.from_module(layer.attention, world)
        layer.mlp = et.ParallelMLP.from_module(layer.mlp, world)
    whole = [parameter for name, parameter in model.named_parameters() if "_proj" not in name]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)

    def run(layer, x, m):
        x = x + layer.attention(layer.input_norm(x), attend, m)
        return x + layer.mlp(layer.norm(x), m)

    losses = []
    for m in ROWS:
        first, count = world.owned_rows(m)
        tokens, target = tokens_of(m)[:, first:first + count]
        x = model.embedding(tokens)
        for layer in model.layers:
            x = torch.utils.checkpoint.checkpoint(run, layer, x, m, use_reentrant=False) \
                if recompute else run(layer, x, m)
        loss = functional.cross_entropy(model.head(x), target, reduction="sum") / m
        optimizer.zero_grad()
        loss.backward()
        for parameter in whole:  # each rank has seen its own rows
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parts = et.all_gather_rows(grad.reshape(1, -1), world.size, world, replicated=False)
            parameter.grad = parts.sum(0).view_as(parameter)
        optimizer.step()
        shares = world.allgather(struct.pack("d", loss.item()))
        losses.append(sum(struct.unpack("d", share)[0] for share in shares))
    return losses, [parameter.detach().numpy() for parameter in model.parameters()]


def train_often(world):
    torch.set_num_threads(1)
    with pytest.raises(entwine.ShapeError, match="num_key_value_heads is 1; expected a multiple"):
        et.ParallelAttentionProjections(HIDDEN, HEADS, 1, world=world)
    return [train_in_parts(world, recompute) for recompute in (False, False, True)]


def test_a_llama_trains_as_with_torch_alone():
    """Losses within 1e-4 of torch's tensor parallelism and of one process; the same bits in every
    run, with recomputed activations too."""
    want = train_whole()
    theirs = spawn(RANKS, train_with_dtensors, timeout=200)
    assert theirs[0] == pytest.approx(want, rel=1e-4)
    for first, *others in spawn(RANKS, train_often, timeout=200):
        losses, parameters = first
        assert losses == pytest.approx(theirs[0], rel=1e-4)
        assert losses == pytest.approx(want, rel=1e-4)
        for again in others:
            assert again[0] == losses
            assert all((one == other).all() for one, other in zip(again[1], parameters))
