"""entwine.vllm on two ranks (gloo), against a stub of the interface of vLLM 0.32."""
import importlib.metadata
import logging

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

from ranks import spawn  # noqa: E402
from stubbed import STUBS, example, use_stubs  # noqa: E402
from test_torch import open_gloo  # noqa: E402
from test_torch_compile import lines_of_the_log  # noqa: E402
from test_torch_parallel import integers  # noqa: E402

RANKS, WIDTH, HIDDEN = 2, 16, 24


def loaded(layer, weight, bias):
    layer.weight_loader(layer.weight, weight)
    if layer.bias is not None:
        layer.weight_loader(layer.bias, bias)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def check_results(linear, rank):
    """Exact: small integers."""
    weight, bias = integers(WIDTH, HIDDEN), integers(WIDTH)
    for options in ({}, {"bias": False}, {"skip_bias_add": True}, {"return_bias": False},
                    {"input_is_parallel": False}):
        layer = loaded(linear.RowParallelLinear(HIDDEN, WIDTH, **options), weight, bias)
        assert type(layer).__name__ == "EntwineRowParallelLinear" and layer.weight.numel() > 0
        for shape in ((5, HIDDEN), (1, HIDDEN), (2, 3, HIDDEN)):
            x = integers(*shape)
            mine = x.chunk(RANKS, -1)[rank] if options.get("input_is_parallel", True) else x
            with torch.inference_mode():
                result = layer(mine)
            y, left = result if options.get("return_bias", True) else (result, None)
            added = options.get("bias", True) and not options.get("skip_bias_add")
            assert torch.equal(y, x @ weight.t() + (bias if added else 0)), (options, shape)
            assert (left is not None) == bool(options.get("skip_bias_add"))
    return layer


def check_compiled(layer):
    """vLLM compiles whole models, without a break."""
    x = integers(4, HIDDEN)
    with torch.no_grad():
        want = layer(x)[0]
        assert torch.equal(torch.compile(layer, backend="aot_eager", fullgraph=True)(x)[0], want)


def check_new_weight(layer):
    """vLLM writes a weight by its .data, which torch does not count as a change."""
    x = integers(3, HIDDEN)
    for seed in (7, 8):
        weight, bias = integers(WIDTH, HIDDEN, seed=seed), integers(WIDTH)
        layer.weight_loader(layer.weight, weight)
        layer.weight_loader(layer.bias, bias)
        for _ in range(2):
            with torch.inference_mode():
                y, _ = layer(x)
            assert torch.equal(y, x @ weight.t() + bias)


def check_a_new_element(linear):
    """As after a small step of training, where none of the sampled elements need change."""
    weight, x = integers(64, 2 * 192), integers(3, 2 * 192)
    layer = loaded(linear.RowParallelLinear(2 * 192, 64, bias=False, input_is_parallel=False),
                   weight, None)
    for number in range(12):
        for load in (layer.weight_loader, layer.weight_loader_v2):
            weight[5 * number + 1, 30 * number + 7] += 1
            load(layer.weight, weight)
            for _ in range(2):
                with torch.inference_mode():
                    y, _ = layer(x)
                assert torch.equal(y, x @ weight.t()), number


def check_what_is_left(linear, lines, rank):
    """One line for all layers that were made before the first was loaded."""
    weight, bias = integers(WIDTH, HIDDEN), integers(WIDTH)
    del lines[:]
    made = [linear.RowParallelLinear(HIDDEN, WIDTH, prefix=f"layers.{number}.{name}", **options)
            for number, (name, options) in enumerate((
                ("o_proj", {}), ("down_proj", {}), ("o_proj", {}), ("down_proj", {"quant_config": 1}),
                ("experts", {"reduce_results": False, "bias": False}),
                ("shared", {"disable_tp": True}), ("wide", {"params_dtype": torch.float64})))]
    for layer in made:
        loaded(layer, weight, bias)
    said = ("entwine: vLLM on 2 ranks: GEMM + AllReduce in 2 o_proj, 1 down_proj; left to vLLM: "
            "1 down_proj (is quantised (QuantizedLinearMethod)); "
            "1 experts (is not summed in the layer (reduce_results=False)); "
            "1 shared (is whole on one rank); 1 wide (has element type torch.float64)")
    assert lines == ([said] if rank == 0 else []), lines
    x = integers(5, HIDDEN)
    mine = x.chunk(RANKS, 1)[rank]
    for layer in made[:4]:  # what is left works as before
        assert torch.equal(layer(mine)[0], x @ weight.t() + bias)


def layers(spawned):
    use_stubs()
    open_gloo(spawned)
    lines = lines_of_the_log()
    import vllm.distributed
    from vllm.model_executor.layers import linear
    vllm.distributed.initialize_model_parallel(RANKS)
    import entwine.vllm
    entwine.vllm.register()
    entwine.vllm.register()
    layer = check_results(linear, spawned.rank)
    check_new_weight(layer)
    check_a_new_element(linear)
    check_compiled(layer)
    check_what_is_left(linear, lines, spawned.rank)
    torch.distributed.destroy_process_group()
    return "right"


def test_layers():
    assert spawn(RANKS, layers, timeout=200) == ["right"] * RANKS


def refusals(world):
    """Another plugin was first; a vLLM of another kind.  Neither may end vLLM."""
    use_stubs()
    lines = lines_of_the_log()
    import entwine.vllm
    from vllm.model_executor import custom_op
    custom_op.op_registry_oot["RowParallelLinear"] = logging.Logger
    entwine.vllm.register()
    del custom_op.op_registry_oot
    entwine.vllm.register()
    return lines


def test_refusals():
    (first, other), = spawn(1, refusals, timeout=100)
    assert "logging has replaced vLLM's RowParallelLinear already" in first
    assert "no interface that Entwine knows" in other and "op_registry_oot" in other


def test_example(tmp_path):
    said = example("torch_vllm.py", tmp_path, STUBS)
    assert said.count("GEMM + AllReduce in 1 down_proj; left to vLLM: none") == 1, said


def test_entry_point():
    """Of an installed package."""
    try:
        importlib.metadata.distribution("entwine")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the package is not installed: ITS ENTRY POINT WAS NOT LOOKED UP")
    plugin, = importlib.metadata.entry_points(group="vllm.general_plugins", name="entwine")
    assert plugin.value == "entwine.vllm:register"
