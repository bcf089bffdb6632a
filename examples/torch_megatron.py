"""An MLP of Megatron-Core, tensor parallel, with its layers on Entwine:

    torchrun --nproc-per-node 2 examples/torch_megatron.py

One call replaces the layers of a spec.  With tensor parallelism alone the MLP must give the output
and the gradients of Megatron-Core's own; with sequence parallelism, those of the whole one.  Exits
with 0 when it does.
"""
import logging

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec, build_module
from megatron.core.transformer.transformer_config import TransformerConfig

import entwine.megatron

LENGTH, BATCH, WIDTH, HIDDEN = 6, 2, 64, 176


def mlp(spec, sequence_parallel=False):
    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=4, ffn_hidden_size=HIDDEN,
        tensor_model_parallel_size=dist.get_world_size(), sequence_parallel=sequence_parallel,
        use_cpu_initialization=True)
    torch.manual_seed(1)
    return build_module(spec, config=config, ffn_hidden_size=HIDDEN)


def step(model, x, grad):
    """The output, and the gradients of input and weights."""
    x = x.clone().requires_grad_()
    y, bias = model(x)
    (y + bias).backward(grad)
    return [y.detach(), x.grad, model.linear_fc1.weight.grad, model.linear_fc2.weight.grad]


def farthest(found, wanted):
    return max((one - other).abs().max().item() / other.abs().max().item()
               for one, other in zip(found, wanted))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows what Entwine replaced
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    spec = ModuleSpec(module=MLP, submodules=MLPSubmodules(linear_fc1=ColumnParallelLinear,
                                                           linear_fc2=RowParallelLinear))
    ours = entwine.megatron.with_entwine(spec)
    x, grad = torch.randn(2, LENGTH, BATCH, WIDTH, generator=torch.Generator().manual_seed(2))
    want = step(mlp(spec), x, grad)
    far = farthest(step(mlp(ours), x, grad), want)

    mine = slice(dist.get_rank() * LENGTH // dist.get_world_size(),
                 (dist.get_rank() + 1) * LENGTH // dist.get_world_size())
    found = step(mlp(ours, sequence_parallel=True), x[mine], grad[mine])
    far = max(far, farthest(found, [want[0][mine], want[1][mine], *want[2:]]))
    print(f"rank {dist.get_rank()}: outputs and gradients differ by {far:.1e}\n", end="", flush=True)
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    raise SystemExit(far > 1e-5)
