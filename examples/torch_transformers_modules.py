"""The Llama of torch_transformers.py without a style: modules that take the place of the model's.

    torchrun --nproc-per-node 2 examples/torch_transformers_modules.py

Exits with 0 when the model gives the logits and the tokens of the whole one.
"""
import torch
import torch.distributed as dist

import entwine.torch
from torch_transformers import is_right, row_parallel, tiny_llama


class RowParallel(torch.nn.Module):
    """This rank's columns of a linear layer without a bias."""

    def __init__(self, linear, world):
        super().__init__()
        self.world = world
        self.weight = torch.nn.Parameter(
            linear.weight.detach().chunk(world.size, 1)[world.rank].contiguous())

    def forward(self, x):
        return row_parallel(x, self.weight, self.world)


def column_part(linear, world):
    """This rank's rows of a linear layer."""
    linear.weight = torch.nn.Parameter(linear.weight.detach().chunk(world.size)[world.rank].clone())


def make_parallel(model, world, row_layer=RowParallel):
    """Leaves this rank's part of every decoder layer."""
    def replicate(module, arguments, output):
        return entwine.torch.replicate(output, world)  # sums the gradients of the ranks' columns

    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj,
                       mlp.up_proj):
            column_part(linear, world)
        attention.o_proj = row_layer(attention.o_proj, world)
        mlp.down_proj = row_layer(mlp.down_proj, world)
        layer.input_layernorm.register_forward_hook(replicate)
        layer.post_attention_layernorm.register_forward_hook(replicate)
    return model


if __name__ == "__main__":
    dist.init_process_group("gloo")
    right = is_right(make_parallel(tiny_llama(), entwine.torch.world_of()), "modules")
    dist.destroy_process_group()
    raise SystemExit(not right)
