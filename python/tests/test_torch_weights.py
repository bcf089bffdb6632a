"""When entwine.torch packs a weight, when it packs it again, and when it lets it go."""
import copy
import ctypes
import gc
import io
import pickle
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from entwine import _shared_plans, _torch_weights  # noqa: E402

M, N, K = 6, 10, 12


def integers(*shape, seed=0):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def layer_of(world, kind=et.RowParallelLinear, **options):
    """A layer with exact values."""
    layer = kind(K, N, world=world, **options)
    with torch.no_grad():
        layer.weight.copy_(integers(N, K))
        layer.bias is not None and layer.bias.copy_(integers(N, seed=1))
    return layer


def packed_weights(world):
    return [kept.weight for kept in world._frozen.values() if kept.weight is not None]


def packed_bytes(world):
    return sum(weight.nbytes for weight in packed_weights(world))


# ---- A weight that changes -------------------------------------------------------------------

def step(layer):
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


@torch.no_grad()
def scale(layer):
    layer.weight.mul_(2)


def scale_in_inference_mode(layer):
    with torch.inference_mode():
        layer.weight.mul_(2)


def scale_a_view(layer):
    layer.weight.detach()[3, 4] += 1


def load(layer, **how):
    layer.load_state_dict({name: value + 1 for name, value in layer.state_dict().items()}, **how)


def replace_data(layer):
    layer.weight.data = layer.weight.data + 1


SHOWN = {"optimizer": step, "in place": scale, "in inference mode": scale_in_inference_mode,
         "one element through a view": scale_a_view, "load_state_dict": load,
         "load_state_dict(assign)": lambda layer: load(layer, assign=True),
         "data replaced": replace_data}
HIDDEN = {"through data": lambda layer: layer.weight.data.add_(1),
          "through numpy": lambda layer: layer.weight.detach().numpy().__iadd__(1)}
REGIONS = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("change, frozen", [*((change, False) for change in (*SHOWN, *HIDDEN)),
                                            *((change, True) for change in SHOWN)])
def test_a_changed_weight_is_packed_again(world, change, frozen, region):
    layer, x = layer_of(world), integers(M, K, seed=2)
    if frozen:
        layer.freeze()
    for _ in range(3):
        with REGIONS[region]():
            for _ in range(3):
                want = torch.nn.functional.linear(x, layer.weight, layer.bias)
                assert torch.equal(layer(x), want)
            assert len(packed_weights(world)) == 1
        {**SHOWN, **HIDDEN}[change](layer)


class WritesData(torch.optim.Optimizer):
    """As many do that are not torch's."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(parameter.grad, alpha=group["lr"])


OPTIMIZERS = {"fused SGD": lambda parameters: torch.optim.SGD(parameters, lr=1.0, fused=True),
              "fused AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=1.0, fused=True,
                                                                  weight_decay=0.0),
              "SGD": lambda parameters: torch.optim.SGD(parameters, lr=1.0),
              "SGD in one call": lambda parameters: torch.optim.SGD(parameters, lr=1.0,
                                                                    foreach=True),
              "one that writes to data": lambda parameters: WritesData(parameters, lr=1.0)}


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_changes_one_element(world, name, frozen):
    """Which none of the sampled ones need be."""
    n, k = 64, 96
    weight = torch.nn.Parameter(integers(n, k))
    optimizer, x = OPTIMIZERS[name]([weight]), integers(M, k, seed=2)
    for row, column in ((5, 7), (40, 50), (61, 90)):  # no spread sample has three such places
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(et.gemm_ar(x, weight, world, frozen), x @ weight.t())
        assert len(packed_weights(world)) == 1
        weight.grad = torch.zeros(n, k)
        weight.grad[row, column] = 1
        optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(et.gemm_ar(x, weight, world, frozen), x @ weight.t())


def test_a_compiled_step(world):
    """The step is one graph, and what it writes is seen."""
    weight, x = torch.nn.Parameter(integers(64, 96)), integers(M, 96, seed=2)
    optimizer = torch.optim.SGD([weight], lr=torch.tensor(1.0))
    step = torch.compile(optimizer.step, backend="aot_eager")
    for row in (5, 40, 61):
        with torch.no_grad():
            for _ in range(3):
                assert torch.equal(et.gemm_ar(x, weight, world), x @ weight.t())
        weight.grad = torch.zeros(64, 96)
        weight.grad[row, 7] = 1
        step()


def test_a_changed_weight_of_the_norm_layer(world):
    layer, x = layer_of(world, et.RowParallelLinearNorm), integers(M, K, seed=2)
    with torch.no_grad():
        for _ in range(3):
            _, h = layer(x, torch.zeros(M, N))
            assert torch.equal(h, x @ layer.weight.t())
            layer.weight.add_(1)


def test_tensors_of_the_operator(world):
    x, b = integers(M, K), integers(N, K)
    for weight in (b, integers(K, N).t()):
        for frozen in (False, False, True, True, False):
            assert torch.equal(et.gemm_rs(x, weight, world, frozen), x @ weight.t())
            weight.add_(1)
            assert torch.equal(et.gemm_rs(x, weight, world, frozen), x @ weight.t())
            assert torch.equal(et.gemm_ar(x, weight, world, frozen), x @ weight.t())
    other = b.data  # another tensor, with a version of its own, of the same memory
    other.mul_(2)
    assert torch.equal(et.gemm_rs(x, other, world), x @ other.t())
    assert torch.equal(et.gemm_rs(x, b, world), x @ b.t())


@pytest.mark.parametrize("frozen", [False, True])
def test_inference_tensors_have_no_version(world, frozen):
    with torch.inference_mode():
        x, b = integers(M, K), integers(N, K)
        for _ in range(3):
            assert torch.equal(et.gemm_rs(x, b, world, frozen), x @ b.t())
            b.add_(1)
        if not frozen:
            b[3, 4] += 1
            assert torch.equal(et.gemm_rs(x, b, world), x @ b.t())
    assert torch.equal(et.gemm_rs(x, b, world, frozen), x @ b.t())
    assert frozen or not packed_weights(world), "nothing shows that it changes"


def test_a_sample_is_spread(world):
    """Any change of a whole row block, column block or quarter is seen, though hidden."""
    weight = torch.nn.Parameter(integers(96, 160))
    x = integers(M, 160)
    with torch.no_grad():
        for part in (weight.data[:24], weight.data[-24:], weight.data[:, 40:80], weight.data):
            assert torch.equal(et.gemm_rs(x, weight, world), x @ weight.t())
            part.add_(1)
            assert torch.equal(et.gemm_rs(x, weight, world), x @ weight.t())


def test_weights_in_training_are_not_kept(world):
    layer, x = layer_of(world), integers(M, K, seed=2)
    for _ in range(3):
        layer(x).sum().backward()
        step(layer)
    assert not packed_weights(world)


def test_tensors_that_are_used_once_are_not_kept(world):
    x = integers(M, K)
    for seed in range(5):
        et.gemm_rs(x, integers(N, K, seed=seed), world)
    assert not packed_weights(world) and not world._frozen


# ---- One copy, as long as the layer ----------------------------------------------------------

def resident_bytes():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was freed must not count
    for line in open("/proc/self/status"):
        if line.startswith("VmRSS"):
            return 1024 * int(line.split()[1])


def settles(condition):
    """Whether it comes true: torch's allocator may give memory back a little later."""
    for _ in range(100):
        if condition():
            return True
        torch.empty(1)
        time.sleep(0.05)
    return False


ROWS = (1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025)


@torch.no_grad()
def call_with_all_rows(layer):
    x = torch.zeros(max(ROWS), layer.in_features)
    for m in ROWS:
        layer(x[:m])


def test_one_packed_copy_for_all_rows(world):
    torch.set_num_threads(1)
    call_with_all_rows(et.RowParallelLinear(4096, 4096, bias=False, world=world))
    # What is left are the plans, which all layers of this shape share.
    for frozen in (False, True):
        layer = et.RowParallelLinear(4096, 4096, bias=False, world=world)
        size = layer.weight.numel() * layer.weight.element_size()
        if frozen:
            layer.freeze()
        before = resident_bytes()
        call_with_all_rows(layer)
        assert size == 64 << 20 and packed_bytes(world) <= 1.1 * size
        assert settles(lambda: resident_bytes() - before <= 1.1 * size)
        after = resident_bytes()
        del layer
        gc.collect()
        assert packed_bytes(world) == 0 and not world._weight_handles
        assert settles(lambda: after - resident_bytes() >= 1.9 * size), \
            "the weight and its packed copy"


def test_the_operator_lets_go_with_the_tensor(world):
    x = integers(M, K)
    for transposed in (False, True):
        b = integers(K, N).t() if transposed else integers(N, K)
        et.gemm_rs(x, b, world, frozen=True)
        view = b[:, :]  # the memory lives on
        del b
        assert len(packed_weights(world)) == 1
        assert torch.equal(et.gemm_rs(x, view, world, frozen=True), x @ view.t())
        assert len(packed_weights(world)) == 1
        del view
        assert not world._frozen and not world._weight_handles


def test_another_weight_at_the_same_place(world):
    x = integers(M, K)
    for seed in range(20):
        b = integers(N, K, seed=seed)
        assert torch.equal(et.gemm_rs(x, b, world, frozen=True), x @ b.t())
        del b


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_another_weight_at_the_same_place_after_an_interrupt(world, monkeypatch):
    """One that comes while the first is let go is raised in its finalizer."""
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_torch_weights, "_forget", interrupt)
    x, addresses, again = integers(M, K), set(), False
    for seed in range(500):  # until one lies where another did
        b = integers(N, K, seed=seed)
        place = (b.data_ptr(), b.untyped_storage()._cdata)
        again = place in addresses
        addresses.add(place)
        assert torch.equal(et.gemm_rs(x, b, world, frozen=True), x @ b.t())
        del b
        if again:
            break
    assert again


def test_memory_that_is_given_away_and_made_anew(world):
    """As FSDP does it with weights that it gathers for a call; the version stays, too."""
    layer, x, elsewhere = layer_of(world, output="replicated"), integers(M, K), []
    storage = layer.weight.untyped_storage()
    size, addresses = storage.nbytes(), set()
    with torch.no_grad():
        for seed in range(20):
            storage.resize_(0)
            elsewhere.append(torch.empty(size, dtype=torch.uint8))
            storage.resize_(size)
            with torch.autograd._unsafe_preserve_version_counter(layer.weight):
                layer.weight.copy_(integers(N, K, seed=seed))
            addresses.add(layer.weight.data_ptr())
            for _ in range(2):
                assert torch.equal(layer(x), x @ layer.weight.t() + layer.bias)
            assert len(world._frozen) == len(world._weight_handles) == 1
    assert len(addresses) > 1


def test_the_world_closed_first():
    world = entwine.World()
    layer = layer_of(world).freeze()
    layer(integers(M, K))
    world.close()
    with pytest.raises(entwine.ArgumentError, match="closed"):
        layer(integers(M, K))
    del layer
    gc.collect()


def test_layers_of_a_closed_world_can_be_printed():
    with entwine.World() as world:
        layers = (et.RowParallelLinear(K, N, world=world), et.ColumnParallelLinear(K, N, world=world),
                  et.RowParallelLinearNorm(K, N, world=world), et.ParallelMLP(K, N, world=world),
                  et.ParallelAttentionProjections(8, 2, world=world))
        printed = [repr(layer) for layer in layers]
    assert [repr(layer) for layer in layers] == printed


def test_more_shapes_than_plans_are_kept(world, monkeypatch):
    monkeypatch.setattr(_shared_plans, "_MOST_BYTES", 0)
    layers = [et.RowParallelLinear(K, n, world=world) for n in range(1, 40)]
    with torch.no_grad():
        for _ in range(2):
            for layer in layers:
                x = integers(M, K)
                assert torch.allclose(layer(x), torch.nn.functional.linear(x, layer.weight,
                                                                           layer.bias), atol=1e-5)
    assert len(world._cache) == 32


# ---- Compiled graphs -------------------------------------------------------------------------

ROWS = 300, 301, 303, 307


def rows_of_ones(n, k, numbers):
    """Weights that differ where no sampled element lies."""
    return [(torch.arange(n)[:, None] == number).float() * (torch.arange(k) == 7).float()
            for number in numbers]


def through_layer(operator):
    """What it adds to a residual of zeros."""
    def product(x, weight, world):
        dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
        residual = torch.zeros(x.shape[0], weight.shape[0], dtype=dtype)
        operator(x, weight, residual, torch.ones(weight.shape[0], dtype=dtype), world)
        return residual

    return product


PRODUCTS = {
    "gemm_rs": et.gemm_rs, "gemm_ar": et.gemm_ar, "ag_gemm": et.ag_gemm,
    "ag_gemm_multi": lambda x, weight, world: et.ag_gemm_multi(x, [weight], world)[0],
    "ag_gemm_act": lambda x, weight, world: et.ag_gemm_act(x, weight, None, world,
                                                           activation="none"),
    "gemm_rs_layer": through_layer(et.gemm_rs_layer),
    "gemm_ar_layer": through_layer(et.gemm_ar_layer)}


@pytest.mark.parametrize("name", PRODUCTS)
def test_weights_that_a_graph_computes(world, name):
    """Inductor has them take turns in one piece of memory."""
    n, k = 512, 384

    def products(x, numbers):
        for number in numbers:
            weight = rows_of_ones(n, k, [number])[0]
            y = PRODUCTS[name](x, weight, world)
            yield y
            x = x + 0 * y.sum()

    x, numbers = integers(M, k), torch.tensor(ROWS)
    call = torch.compile(lambda *arguments: list(products(*arguments)))
    with torch.no_grad():
        for _ in range(2):
            for y, weight in zip(call(x, numbers), rows_of_ones(n, k, numbers)):
                assert torch.equal(y, x @ weight.t())


@pytest.mark.parametrize("name", PRODUCTS)
def test_operands_that_autocast_casts_in_a_graph(world, name):
    n, k = 512, 384
    x, weights = integers(M, k), rows_of_ones(n, k, ROWS)

    @torch.compile
    def call(x, weights):
        results = []
        for weight in weights:
            results.append(PRODUCTS[name](x, weight, world))
            x = x + 0 * results[-1].sum()
        return results

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            for y, weight in zip(call(x, weights), weights):
                assert y.dtype is torch.bfloat16 and torch.equal(y.float(), x @ weight.t())


@pytest.mark.parametrize("output", ["scattered", "replicated"])
def test_weights_that_autocast_casts_in_a_graph(world, output):
    n = 512
    layers = [et.RowParallelLinear(n, n, bias=False, output=output, world=world) for _ in range(4)]
    with torch.no_grad():
        for layer, weight in zip(layers, rows_of_ones(n, n, ROWS)):
            layer.weight.copy_(weight)
        x = integers(M, n)

        @torch.compile
        def call(x):
            results = []
            for layer in layers:
                results.append(layer(x))
                x = x + 0 * results[-1].sum()
            return results

        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16):
                for y, layer in zip(call(x), layers):
                    assert torch.equal(y.float(), x @ layer.weight.t())


# ---- autocast --------------------------------------------------------------------------------

@pytest.mark.parametrize("output", ["scattered", "replicated"])
def test_autocast(world, output):
    first = torch.nn.Linear(K, K)
    layer = layer_of(world, output=output)
    whole = torch.nn.Linear(K, N)
    whole.load_state_dict(layer.state_dict())
    x = integers(M, K)
    for region in (torch.no_grad, torch.enable_grad):
        for _ in range(3):
            with region(), torch.autocast("cpu", torch.bfloat16):
                ours, theirs = layer(first(x)), whole(first(x))
            assert ours.dtype == torch.bfloat16
            assert torch.allclose(ours.float(), theirs.float(), rtol=2e-2, atol=2e-2)
    theirs.float().sum().backward()
    grads = [parameter.grad.clone() for parameter in first.parameters()]
    first.zero_grad()
    ours.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    for one, other in [*zip((parameter.grad for parameter in first.parameters()), grads),
                       (layer.weight.grad, whole.weight.grad), (layer.bias.grad, whole.bias.grad)]:
        assert torch.allclose(one, other, rtol=2e-2, atol=2e-2)
    with torch.autocast("cpu", torch.float16):
        assert layer(x).dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False):
        assert layer(x).dtype == torch.float32
    assert layer(x).dtype == torch.float32


@pytest.mark.parametrize("residual_type", [torch.float32, torch.bfloat16])
def test_autocast_of_the_norm_layer(world, residual_type):
    layer, x = layer_of(world, et.RowParallelLinearNorm), integers(M, K)
    want, _ = layer(x, torch.ones(M, N))
    for region in (torch.no_grad, torch.enable_grad):
        with region(), torch.autocast("cpu", torch.bfloat16):
            normed, residual = layer(x.bfloat16(), torch.ones(M, N, dtype=residual_type))
        assert residual.dtype == residual_type
        assert torch.allclose(normed.float(), want, rtol=3e-2, atol=3e-2)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for call, more in ((et.gemm_rs_layer, {}), (et.gemm_ar_layer, {"residual_rows": "all"})):
            normed = call(x.bfloat16(), layer.weight, torch.ones(M, N, dtype=residual_type),
                          layer.norm_weight, world, **more)
            assert normed.dtype == residual_type
            assert torch.allclose(normed.float(), want, rtol=3e-2, atol=3e-2)


# ---- Copies ----------------------------------------------------------------------------------

@pytest.mark.parametrize("output", ["scattered", "replicated"])
def test_deepcopy(world, output):
    layer, x = layer_of(world, output=output), integers(M, K)
    with torch.no_grad():
        want = layer(x)
        again = copy.deepcopy(layer)
        assert again.world is world and again.weight is not layer.weight
        layer.weight.zero_()
        assert torch.equal(again(x), want) and not torch.equal(layer(x), want)


def test_averaged_model(world):
    layer, x = layer_of(world), integers(M, K)
    average = torch.optim.swa_utils.AveragedModel(
        layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    average.update_parameters(layer)
    with torch.no_grad():
        average(x)
        layer.weight.add_(4)
        average.update_parameters(layer)
        assert torch.equal(average(x), x @ (layer.weight - 2).t() + layer.bias)


@pytest.mark.parametrize("output", ["scattered", "replicated"])
def test_pickle_in_the_same_world(world, output):
    layer, x = layer_of(world, output=output).freeze(), integers(M, K)
    want = layer(x)
    again = pickle.loads(pickle.dumps(layer))
    assert again.world is world and torch.equal(again(x), want)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(x), want)


def test_pickle_without_the_world(world):
    saved = pickle.dumps(layer_of(world))
    name = world.name
    world.close()
    with pytest.raises(entwine.ArgumentError, match="not open in this process(.|\n)*state_dict"):
        pickle.loads(saved)
    with entwine.World() as other:
        entwine._world._worlds[name] = other
        assert pickle.loads(saved).world is other
        with pytest.raises(entwine.ArgumentError,
                           match="rank-1-of-2', which is not open(.|\n)*load it on that rank"):
            pickle.loads(saved.replace(b"rank-0-of-1", b"rank-1-of-2"))


def test_state_dicts(world):
    layer, other, x = layer_of(world), et.RowParallelLinear(K, N, world=world), integers(M, K)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    with torch.no_grad():
        other(x)
        other.load_state_dict(torch.load(file))
        assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("kind", [
    lambda world: et.RowParallelLinear(K, N, world=world, output="replicated"),
    lambda world: et.ColumnParallelLinear(K, N, world=world, input="replicated"),
    lambda world: et.ParallelMLP(K, N, world=world, rows="replicated")],
    ids=["rows", "columns", "mlp"])
def test_parameters_that_torch_exchanges(world, kind):
    """torch refuses to exchange a tensor that somebody refers to, even weakly."""
    layer, x = kind(world), integers(M, K)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with torch.no_grad():
            want = [layer(x) for _ in range(3)][-1]
            layer.bfloat16()
            layer(x.bfloat16())
            state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
            layer.load_state_dict({name: 2 * tensor for name, tensor in state.items()})
            assert not torch.equal(layer(x.bfloat16()), want.bfloat16())
            layer.load_state_dict(state)
            layer.float()
            for _ in range(2):
                assert torch.allclose(layer(x), want, atol=0.2, rtol=0.05)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
