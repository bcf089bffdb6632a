"""The Llama of torch_transformers.py without a style: modules that take the place of the model's.

    torchrun --nproc-per-node 2 examples/torch_transformers_modules.py

Exits with 0 when the model gives the logits and the tokens of the whole one.
"""
import torch
import torch.distributed as dist

import entwine.torch
from entwine.torch import RowParallelLinear
from torch_transformers import is_right, tiny_llama


def column_part(linear, world):
    """This rank's rows of a linear layer."""
    linear.weight = torch.nn.Parameter(linear.weight.detach().chunk(world.size)[world.rank].clone())


def make_parallel(model, world, row_layer=RowParallelLinear):
    """Leaves this rank's part of every decoder layer."""
    def replicate(module, arguments, output):
        return entwine.torch.replicate(output, world)  # sums the gradients of the ranks' columns

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj,
                       mlp.up_proj):
            column_part(linear, world)
        for block, name in ((attention, "o_proj"), (mlp, "down_proj")):
            linear = getattr(block, name)
            setattr(block, name, row_layer.from_linear(linear, world, sequence_parallel=False))
        layer.input_layernorm.register_forward_hook(replicate)
        layer.post_attention_layernorm.register_forward_hook(replicate)
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo")
    right = is_right(make_parallel(tiny_llama(), entwine.torch.world_of()), "modules")
    dist.destroy_process_group()
    raise SystemExit(not right)
