"""A Llama of Transformers, tensor parallel, with its row-parallel layers on Entwine:

    torchrun --nproc-per-node 2 examples/torch_transformers.py

There are two ways: a style in Transformers' own registry, with which from_pretrained does the
rest, and modules that take the place of the model's.  Exits with 0 when both give the logits and
the tokens of the whole model.
"""
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, RowwiseParallel

import entwine.torch

PLAN = {"model.layers.*.self_attn.o_proj": "entwine_rowwise",
        "model.layers.*.mlp.down_proj": "entwine_rowwise"}


def row_parallel(x, weight, world):
    """The sum over ranks of x @ weight.T, whole on every rank, as the model wants it."""
    rows = x.reshape(-1, x.shape[-1])
    mine = entwine.torch.gemm_rs(rows, weight, world)
    whole = entwine.torch.all_gather_rows(mine, rows.shape[0], world, replicated=True)
    return whole.view(*x.shape[:-1], -1)


# ---- As a style ------------------------------------------------------------------------------

class EntwineRowwise(RowwiseParallel):
    def install_forward(self, module, mesh):
        world = entwine.torch.world_of(mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp"))

        def forward(x):
            y = row_parallel(x, module.weight.to_local(), world)
            return y if module.bias is None else y + module.bias.to_local()
        module.forward = forward
        return module


ALL_PARALLEL_STYLES.register("entwine_rowwise", EntwineRowwise())


# ---- As modules ------------------------------------------------------------------------------

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


# ---- Both against the whole model ------------------------------------------------------------

def tiny_llama():
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)).eval()


def from_style(whole):
    """The same model by from_pretrained, which takes this rank's parts from the files."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        whole.save_pretrained(folder[0])
    dist.barrier()
    return LlamaForCausalLM.from_pretrained(
        folder[0], distributed_config=DistributedConfig(tp_plan=PLAN)).eval()


@torch.no_grad()
def main():
    dist.init_process_group("gloo")
    world = entwine.torch.world_of()
    whole, tokens = tiny_llama(), torch.arange(14).view(2, 7)
    logits = whole(tokens).logits
    said = whole.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
    wrong = 0
    for way, model in (("style", from_style(whole)),
                       ("modules", make_parallel(tiny_llama(), world))):
        far = (model(tokens).logits - logits).abs().max().item()
        same = torch.equal(said, model.generate(tokens, max_new_tokens=8, do_sample=False,
                                                pad_token_id=0))
        wrong += far > 1e-4 or not same
        print(f"rank {world.rank}, {way}: logits differ by {far:.1e}, tokens "
              f"{'are the same' if same else 'DIFFER'}\n", end="", flush=True)
    dist.destroy_process_group()
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
