"""PyTorch on a GPU, one rank: tensors, the operators, streams, graphs, torch.compile.  Skipped as
a whole where there is none."""
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO GPU TEST WAS RUN")
if not torch.cuda.is_available():
    pytest.skip("no GPU: NO GPU TEST WAS RUN", allow_module_level=True)

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
import layers  # noqa: E402
from entwine import _torch_sums  # noqa: E402
from matrices import expected, operands  # noqa: E402

M, N, K = 300, 264, 72
DTYPE = torch.bfloat16


def on_gpu(array):
    return torch.from_numpy(array).to("cuda", DTYPE)


@pytest.fixture
def product():
    """A, B and their product, exact in bfloat16."""
    A, B = operands(0, M, N, K)
    return on_gpu(A), on_gpu(B), on_gpu(expected(1, M, N, K))


@pytest.fixture
def layer(world):
    """The tensors of a layer, and its two results."""
    A, B, given, (_, h, _) = layers.problem(world, M, N, K)
    parts = {name: on_gpu(array) for name, array in given.items()}
    h = on_gpu(h)
    scale = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + layers.EPS)
    normed = (h.float() * scale).to(DTYPE) * parts["norm_weight"]
    return on_gpu(A), on_gpu(B), parts, h, normed


def test_tensors_bit_for_bit(world, product):
    A, B, want = product
    plan = entwine.Plan(world, M, N, K, DTYPE, backend="cuda")
    plan.set_weight(B)
    out = torch.full((M, N), 77.0, dtype=DTYPE, device="cuda")
    assert plan.gemm_rs(A, out=out) is out and torch.equal(out, want)
    assert torch.equal(plan.gemm_rs(A), want)
    assert torch.equal(entwine.gemm_rs(A, B, world), want)
    assert torch.equal(et.gemm_rs(A, B, world), want)
    assert torch.equal(et.gemm_rs(A[:7], B, world), want[:7])


def test_allreduce_into_symmetric_memory(world, product):
    A, B, want = product
    plan = entwine.Plan(world, M, N, K, DTYPE, backend="cuda", op="gemm-ar")
    memory = entwine.SymmetricMemory(world, want.nbytes + 512)
    out = memory.tensor(want.shape, DTYPE, offset=512).fill_(77.0)
    assert out.device == want.device and plan.gemm_ar(A, B, out=out) is out
    assert torch.equal(out, want)
    del out
    memory.close()


def test_allreduce_bit_for_bit(world, product):
    A, B, want = product
    plan = entwine.Plan(world, M, N, K, DTYPE, backend="cuda", op="gemm-ar")
    plan.set_weight(B)
    out = torch.full((M, N), 77.0, dtype=DTYPE, device="cuda")
    assert plan.gemm_ar(A, out=out) is out and torch.equal(out, want)
    assert torch.equal(entwine.gemm_ar(A, B, world), want)
    assert torch.equal(et.gemm_ar(A, B, world), want)
    assert torch.equal(et.gemm_ar(A[:7], B, world), want[:7])
    torch.library.opcheck(torch.ops.entwine.gemm_ar.default, (A, B, world.name))


def test_pieces_of_k(world):
    """With invariant=4 one rank rounds and adds four products, as four ranks would."""
    A, B = (torch.randn(rows, 4 * K, device="cuda").to(DTYPE) for rows in (M, N))
    pieces = [et.gemm_rs(a.contiguous(), b.contiguous(), world)
              for a, b in zip(A.split(K, dim=1), B.split(K, dim=1))]
    want = sum(piece.float() for piece in pieces).to(DTYPE)
    assert torch.equal(et.gemm_rs(A, B, world, config="invariant=4"), want)
    assert torch.equal(et.gemm_ar(A, B, world, config="invariant=4"), want)
    assert not torch.equal(et.gemm_rs(A, B, world), want)  # so the inputs can tell


def test_what_is_on_the_other_device(world, product):
    A, B, _ = product
    plan = entwine.Plan(world, M, N, K, DTYPE, backend="cuda")
    with pytest.raises(entwine.ArgumentError, match="A is on"):
        plan.gemm_rs(A.cpu(), B)
    with pytest.raises(entwine.ArgumentError, match="B is on|b on"):
        et.gemm_rs(A, B.cpu(), world)


def test_a_stream_of_ones_own(world, product):
    A, B, want = product
    stream = torch.cuda.Stream()
    late = torch.zeros_like(A)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(A)
        result = et.gemm_rs(late, B, world)
    stream.synchronize()
    assert torch.equal(result, want)


def test_a_result_on_a_given_stream_has_memory_of_its_own(world, product):
    """torch's allocator gives out again what the current stream has yet to write."""
    A, B, want = product
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    scatter = entwine.Plan(world, M, N, K, DTYPE, backend="cuda")
    gather = entwine.Plan(world, M, N, K, DTYPE, backend="cuda", op="ag-gemm")
    for plan in (scatter, gather):
        plan.set_weight(B)
    for call in (lambda: scatter.gemm_rs(A, stream=stream),
                 lambda: scatter.gemm_rs(A, stream=stream.cuda_stream),
                 lambda: scatter.gemm_rs_layer(A, stream=stream),
                 lambda: gather.ag_gemm(A, stream=stream),
                 lambda: gather.ag_gemm_multi(A, [B], stream=stream)[0],
                 lambda: gather.ag_gemm_act(A, [B], "none", stream=stream)):
        call()
        torch.cuda.synchronize()
        late = torch.empty_like(want)
        stream.wait_stream(current)
        torch.cuda._sleep(200_000_000)
        late.fill_(77.0)
        del late
        out = call()
        torch.cuda.synchronize()
        assert torch.equal(out, want)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("output", ["scattered", "replicated"])
def test_calls_that_are_made_again(world, product, monkeypatch, output, frozen):
    """Without the dispatcher: the same bits, for other shapes, on any stream, in a graph, and with a
    weight that was changed behind torch's back, which only a promise excludes."""
    A, B, want = product
    layer = et.RowParallelLinear(K, N, bias=False, output=output, world=world, dtype=DTYPE,
                                 device="cuda").requires_grad_(False)
    layer.frozen = frozen
    layer.weight.copy_(B)
    layer(A), layer(A[:7])
    for name in ("gemm_rs_operator", "gemm_ar_operator"):
        monkeypatch.setattr(_torch_sums, name, None)
    assert torch.equal(layer(A), want) and torch.equal(layer(A[:7]), want[:7])
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    late = torch.zeros_like(A)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        late.copy_(A)
        result = layer(late)
    stream.synchronize()
    assert torch.equal(result, want)
    with torch.cuda.graph(graph, stream=stream):
        result = layer(late)
    result.fill_(float("nan"))
    graph.replay()
    assert torch.equal(result, want)
    if not frozen:
        layer.weight.data.zero_()
        assert not layer(A).any()


@pytest.mark.parametrize("frozen", [False, True])
def test_the_layer_operator(world, layer, frozen):
    A, B, parts, h, normed = layer
    residual = parts["residual"].clone()
    result = et.gemm_rs_layer(A, B, residual, parts["norm_weight"], world, parts["bias"],
                              layers.EPS, frozen)
    assert torch.equal(residual, h)
    torch.testing.assert_close(result, normed, rtol=2**-7, atol=0)
    again = parts["residual"].clone()
    assert torch.equal(result, et.gemm_rs_layer(A, B, again, parts["norm_weight"], world,
                                                parts["bias"], layers.EPS, frozen))


def test_the_allreduce_layer_operator(world, layer):
    A, B, parts, h, normed = layer
    residual = parts["residual"].clone()
    result = et.gemm_ar_layer(A, B, residual, parts["norm_weight"], world, parts["bias"], layers.EPS,
                              residual_rows="all")
    assert torch.equal(residual, h)
    torch.testing.assert_close(result, normed, rtol=2**-7, atol=0)


def test_the_layer_in_a_graph(world, layer):
    A, B, parts, h, normed = layer
    residual = parts["residual"].clone()
    arguments = (A, B, residual, parts["norm_weight"], world, parts["bias"], layers.EPS, True)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        et.gemm_rs_layer(*arguments)  # makes the plan
    with torch.cuda.graph(graph, stream=stream):
        result = et.gemm_rs_layer(*arguments)
    for _ in range(5):
        residual.copy_(parts["residual"])
        result.fill_(float("nan"))
        graph.replay()
        assert torch.equal(residual, h)
        torch.testing.assert_close(result, normed, rtol=2**-7, atol=0)


def test_opcheck(world, product, layer):
    A, B, _ = product
    torch.library.opcheck(torch.ops.entwine.gemm_rs.default, (A, B, world.name))
    A, B, parts, _, _ = layer
    torch.library.opcheck(torch.ops.entwine.gemm_rs_layer.default,
                          (A, B, parts["residual"], parts["norm_weight"], world.name))


def test_compile_has_no_graph_break(world, product):
    A, B, want = product
    double = torch.compile(lambda a: et.gemm_rs(a, B, world) * 2, fullgraph=True)
    assert torch.equal(double(A), want * 2)


def test_gradients(world, product):
    A, B, want = product
    linear = et.RowParallelLinear(K, N, bias=False, world=world, device="cuda", dtype=DTYPE)
    with torch.no_grad():
        linear.weight.copy_(B)
    x = A.clone().requires_grad_()
    y = linear(x)
    y.sum().backward()
    plain = A.clone().requires_grad_()
    (plain @ B.t()).sum().backward()
    assert torch.equal(y, want)
    torch.testing.assert_close(x.grad, plain.grad)


def test_gathered_rows(world, product):
    A, B, want = product
    plan = entwine.Plan(world, M, N, K, DTYPE, backend="cuda", op="ag-gemm")
    plan.set_weight(B)
    gathered = torch.full_like(A, 77.0)
    assert torch.equal(plan.ag_gemm(A, gathered=gathered), want) and torch.equal(gathered, A)
    assert torch.equal(entwine.ag_gemm(A, B, world), want)
    assert torch.equal(et.ag_gemm(A, B, world), want)
    assert torch.equal(et.ag_gemm(A[:7], B, world), want[:7])
    torch.library.opcheck(torch.ops.entwine.ag_gemm.default, (A, B, M, world.name))
    double = torch.compile(lambda a: et.ag_gemm(a, B, world) * 2, fullgraph=True)
    assert torch.equal(double(A), want * 2)


def test_gathered_rows_in_a_graph(world, product):
    A, B, want = product
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        et.ag_gemm(A, B, world, frozen=True)  # makes the plan
    with torch.cuda.graph(graph, stream=stream):
        result = et.ag_gemm(A, B, world, frozen=True)
    for _ in range(5):
        result.fill_(float("nan"))
        graph.replay()
        assert torch.equal(result, want)


def test_gradients_of_gathered_rows(world, product):
    A, B, want = product
    linear = et.ColumnParallelLinear(K, N, bias=False, world=world, device="cuda", dtype=DTYPE)
    with torch.no_grad():
        linear.weight.copy_(B)
    x, plain = A.clone().requires_grad_(), A.clone().requires_grad_()
    weight = B.clone().requires_grad_()
    y = linear(x)
    y.sum().backward()
    (plain @ weight.t()).sum().backward()
    assert torch.equal(y, want)
    torch.testing.assert_close(x.grad, plain.grad)
    torch.testing.assert_close(linear.weight.grad, weight.grad)


# ---- Several weights on one gather -----------------------------------------------------------

WIDTHS = (128, 64, 72)
HEADS, KV_HEADS, HEAD = 4, 2, 16


@pytest.fixture
def several():
    """Rows and the weights of q, k and v, with values that are rounded."""
    torch.manual_seed(3)
    return (torch.randn(M, K, device="cuda", dtype=DTYPE),
            [torch.randn(n, K, device="cuda", dtype=DTYPE) for n in WIDTHS])


def swiglu(gate, up):
    """As the library rounds it: fp32 of what was rounded."""
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)


@pytest.mark.parametrize("frozen", [False, True])
def test_several_weights_bit_for_bit(world, several, frozen):
    A, weights = several
    want = [et.ag_gemm(A, weight, world) for weight in weights]
    plan = entwine.Plan(world, M, sum(WIDTHS), K, DTYPE, backend="cuda", op="ag-gemm")
    gathered = torch.full_like(A, 77.0)
    assert all(map(torch.equal, plan.ag_gemm_multi(A, weights, gathered=gathered), want))
    assert torch.equal(gathered, A)
    turned = [weight.t().contiguous().t() for weight in weights]
    for given in (weights, turned, [weights[0], turned[1], weights[2]]):
        for _ in range(2):
            got = et.ag_gemm_multi(A, given, world, frozen=frozen)
            assert all(map(torch.equal, got, want))
    torch.library.opcheck(torch.ops.entwine.ag_gemm_multi.default, (A, weights, M, world.name))


@pytest.mark.parametrize("activation", ["silu", "gelu-tanh", "none"])
def test_activations_follow_the_products(world, several, activation):
    """The bits are those of the activation on the CPU, of products from the GPU."""
    A, (first, *_) = several
    second = torch.randn_like(first)
    gate, up = et.ag_gemm_multi(A, [first, second], world)
    one = torch.eye(128, dtype=DTYPE)
    on_cpu = entwine.Plan(world, M, 128, 128, DTYPE, op="ag-gemm")
    for its_up in (up, None):
        got = et.ag_gemm_act(A, first, second if its_up is not None else None, world,
                             activation=activation)
        alone = on_cpu.ag_gemm_act(gate.cpu(), [one], activation)  # times one: exact
        if its_up is None:
            assert torch.equal(got.cpu(), alone)
        elif activation == "silu":
            torch.testing.assert_close(got, swiglu(gate, up), rtol=2**-7, atol=0)
        elif activation == "none":
            assert torch.equal(got, (gate.float() * up.float()).to(DTYPE))
    torch.library.opcheck(torch.ops.entwine.ag_gemm_act.default,
                          (A, first, second, M, world.name, activation))


def test_products_in_a_graph(world, several):
    A, weights = several
    want = et.ag_gemm_multi(A, weights, world)
    activated = et.ag_gemm_act(A, weights[0], weights[0], world)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        results = et.ag_gemm_multi(A, weights, world)
        result = et.ag_gemm_act(A, weights[0], weights[0], world)
    for _ in range(5):
        for tensor in (*results, result):
            tensor.fill_(float("nan"))
        graph.replay()
        assert all(map(torch.equal, results, want)) and torch.equal(result, activated)


def test_parallel_mlp(world):
    torch.manual_seed(4)
    block = et.ParallelMLP(K, 128, world=world, device="cuda", dtype=DTYPE)
    x = torch.randn(M, K, device="cuda", dtype=DTYPE)
    gate, up = block.gate_proj(x), block.up_proj(x)
    h = et.ag_gemm_act(x, block.gate_proj.weight, block.up_proj.weight, world)
    torch.testing.assert_close(h, swiglu(gate, up), rtol=2**-7, atol=0)
    y = block(x)
    assert torch.equal(y, block.down_proj(h))
    compiled = torch.compile(block, fullgraph=True)
    with torch.no_grad():
        assert torch.equal(compiled(x), y) and torch.equal(block.freeze()(x), y)


def test_gradients_of_the_mlp(world):
    torch.manual_seed(5)
    block = et.ParallelMLP(K, 128, world=world, device="cuda", dtype=DTYPE)
    x = torch.randn(M, K, device="cuda", dtype=DTYPE, requires_grad=True)
    block(x).float().square().mean().backward()
    plain = x.detach().float().requires_grad_()
    weights = [p.detach().float().requires_grad_() for p in (
        block.gate_proj.weight, block.up_proj.weight, block.down_proj.weight)]
    gate, up, down = weights
    h = torch.nn.functional.silu(plain @ gate.t()) * (plain @ up.t())
    (h @ down.t()).square().mean().backward()
    for got, want in zip((x, *block.parameters()), (plain, *weights)):
        difference = (got.grad.float() - want.grad).norm() / want.grad.norm()
        assert difference < 0.03


def test_parallel_attention_projections(world):
    torch.manual_seed(6)
    layer = et.ParallelAttentionProjections(K, HEADS, KV_HEADS, HEAD, world=world, device="cuda",
                                            dtype=DTYPE)
    x = torch.randn(M, K, device="cuda", dtype=DTYPE, requires_grad=True)
    q, k, v = layer.qkv(x)
    for got, part in zip((q, k, v), (layer.q_proj, layer.k_proj, layer.v_proj)):
        assert torch.equal(got, part(x))
    y = layer(x, lambda q, k, v: q)
    assert torch.equal(y, layer.o_proj(q))
    y.sum().backward()
    assert x.grad.isfinite().all() and layer.q_proj.weight.grad.isfinite().all()
