"""entwine.megatron on two ranks (gloo): against Megatron-Core where that is installed, and always
against a stub of the interface of 0.16."""
import importlib.util
import logging

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

from ranks import spawn  # noqa: E402
from stubbed import STUBS, example, use_stubs  # noqa: E402
from test_torch import open_gloo  # noqa: E402
from test_torch_compile import lines_of_the_log  # noqa: E402
from test_torch_parallel import integers  # noqa: E402

RANKS, LENGTH, BATCH, WIDTH, HIDDEN = 2, 4, 3, 8, 16
INSTALLED = importlib.util.find_spec("megatron") is not None


def config(**options):
    from megatron.core.transformer.transformer_config import TransformerConfig
    return TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=4,
                             ffn_hidden_size=HIDDEN, tensor_model_parallel_size=RANKS,
                             use_cpu_initialization=True, **options)


def linear(kind, k, n, bias, seed, options=(), **settings):
    """A layer with weights of small integers, so that no sum rounds."""
    layer = kind(k, n, config=config(**settings), init_method=torch.nn.init.zeros_, bias=True,
                 **dict(options))
    weight = integers(n, k, seed=seed)
    dim = 1 if "Row" in kind.__name__ else 0
    with torch.no_grad():
        layer.weight.copy_(weight.chunk(RANKS, dim)[layer.tp_group.rank()])
        layer.bias.copy_(bias if dim else bias.chunk(RANKS)[layer.tp_group.rank()])
    return layer, weight


def check_block(rank, sequence_parallel, skip_bias_add):
    """Columns, then rows: output and every gradient against one process."""
    from entwine.megatron import ColumnParallelLinear, RowParallelLinear
    bias, other = integers(HIDDEN, seed=3), integers(WIDTH, seed=4)
    settings = {"sequence_parallel": sequence_parallel}
    up, up_weight = linear(ColumnParallelLinear, WIDTH, HIDDEN, bias, 5,
                           {"skip_bias_add": skip_bias_add, "gather_output": False}, **settings)
    down, down_weight = linear(RowParallelLinear, HIDDEN, WIDTH, other, 6,
                               {"skip_bias_add": skip_bias_add, "input_is_parallel": True},
                               **settings)
    assert down.entwine_world is not None
    assert (up.entwine_world is not None) == sequence_parallel

    def mine(tensor):
        return tensor.chunk(RANKS)[rank] if sequence_parallel else tensor

    x, grad = integers(LENGTH, BATCH, WIDTH), integers(LENGTH, BATCH, WIDTH, seed=1)
    whole = [one.clone().requires_grad_() for one in (x, up_weight, bias, down_weight, other)]
    want = torch.relu(whole[0] @ whole[1].t() + whole[2]) @ whole[3].t() + whole[4]
    want.backward(grad)
    share = mine(x).clone().requires_grad_()
    wide, left = up(share)
    y, last = down(torch.relu(wide if left is None else wide + left))
    assert (last is not None) == skip_bias_add
    y = y if last is None else y + last
    y.backward(mine(grad))
    assert torch.equal(y, mine(want)) and torch.equal(share.grad, mine(whole[0].grad))
    assert torch.equal(up.weight.grad, whole[1].grad.chunk(RANKS)[rank])
    assert torch.equal(up.bias.grad, whole[2].grad.chunk(RANKS)[rank])
    assert torch.equal(down.weight.grad, whole[3].grad.chunk(RANKS, 1)[rank])
    # With sequence parallelism Megatron sums it over the ranks itself, after the backward pass.
    assert torch.equal(down.bias.grad, mine(grad).sum((0, 1)))


def check_what_is_left(lines, rank):
    from entwine.megatron import RowParallelLinear
    from megatron.core.tensor_parallel import layers
    row = {"input_is_parallel": True, "skip_bias_add": True}
    for options, why in (({"is_expert": True}, "it is an expert's"), ({}, "adds to main_grad")):
        del lines[:]
        settings = {} if options else {"gradient_accumulation_fusion": True}
        layer, weight = linear(RowParallelLinear, HIDDEN, WIDTH, torch.zeros(WIDTH), 1,
                               {**row, **options, "tp_comm_buffer_name": "fc2"}, **settings)
        assert layer.entwine_world is None
        assert len(lines) == (rank == 0) and all(
            "fc2 of 8 x 16 is left to Megatron-Core: it " in line and why in line
            for line in lines), lines
    assert isinstance(layer, layers.RowParallelLinear)


def check_spec(lines):
    import entwine.megatron
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.mlp import MLP, MLPSubmodules
    from megatron.core.transformer.spec_utils import ModuleSpec

    class OtherRowParallelLinear:
        pass

    def mlp(rows):
        return ModuleSpec(module=MLP, submodules=MLPSubmodules(
            linear_fc1=ColumnParallelLinear, linear_fc2=rows))

    del lines[:]
    layer = ModuleSpec(module=logging.Logger, submodules=MLPSubmodules(
        linear_fc1=mlp(RowParallelLinear), linear_fc2=mlp(OtherRowParallelLinear)))
    found = entwine.megatron.with_entwine(layer)
    parts = [getattr(found.submodules, name).submodules for name in ("linear_fc1", "linear_fc2")]
    assert [one.linear_fc1 for one in parts] == [entwine.megatron.ColumnParallelLinear] * 2
    assert [one.linear_fc2 for one in parts] == [entwine.megatron.RowParallelLinear,
                                                 OtherRowParallelLinear]
    assert layer.submodules.linear_fc1.submodules.linear_fc2 is RowParallelLinear  # as it was
    assert lines == ["entwine: Megatron-Core's Logger: GEMM + AllReduce or ReduceScatter in 1 "
                     "linear_fc2; with sequence parallelism AllGather + GEMM in 2 linear_fc1; left "
                     "to Megatron-Core: 1 linear_fc2 (is a OtherRowParallelLinear, not a layer of "
                     "tensor_parallel)"], lines
    entwine.megatron.with_entwine(found)  # again: nothing changes
    with pytest.raises(entwine.ArgumentTypeError, match="spec is a int; expected a ModuleSpec"):
        entwine.megatron.with_entwine(3)


def layers(spawned, stubs):
    if stubs:
        use_stubs()
    open_gloo(spawned)
    lines, rank = lines_of_the_log(), spawned.rank
    from megatron.core import parallel_state
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    for sequence_parallel in (False, True):
        for skip_bias_add in (False, True):
            check_block(rank, sequence_parallel, skip_bias_add)
    check_what_is_left(lines, rank)
    check_spec(lines)
    torch.distributed.destroy_process_group()
    return "right"


def one_rank(spawned, stubs):
    """There is no group, and nothing to split: as where a checkpoint is converted."""
    if stubs:
        use_stubs()
    lines = lines_of_the_log()
    from entwine.megatron import RowParallelLinear
    layer = RowParallelLinear(HIDDEN, WIDTH, config=config(), init_method=torch.nn.init.ones_,
                              bias=False, input_is_parallel=True, skip_bias_add=False)
    assert layer.tp_group is None and layer.entwine_world is None
    assert len(lines) == 1 and "is left to Megatron-Core: it is whole on one rank" in lines[0]
    return tuple(layer.weight.shape)


KINDS = pytest.mark.parametrize("stubs", [True, pytest.param(False, marks=pytest.mark.skipif(
    not INSTALLED, reason="Megatron-Core is not installed: ONLY ITS STUB WAS USED"))])


@KINDS
def test_layers(stubs):
    assert spawn(RANKS, layers, stubs, timeout=200) == ["right"] * RANKS


@KINDS
def test_without_torch_distributed(stubs):
    assert spawn(1, one_rank, stubs, timeout=100) == [(WIDTH, HIDDEN)]


@KINDS
def test_example(stubs, tmp_path):
    said = example("torch_megatron.py", tmp_path, *([STUBS] if stubs else []))
    assert said.count("in 1 linear_fc2; with sequence parallelism AllGather + GEMM in 1") == 2, said
