"""A Llama of Transformers, tensor parallel, with its row-parallel layers on Entwine:

    torchrun --nproc-per-node 2 examples/torch_transformers.py

Entwine is a style in Transformers' own registry, and from_pretrained does the rest.  Exits with 0
when the model gives the logits and the tokens of the whole one.
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
    y = entwine.torch.gemm_ar(x.reshape(-1, x.shape[-1]), weight, world)
    return y.view(*x.shape[:-1], -1)


class EntwineRowwise(RowwiseParallel):
    def install_forward(self, module, mesh):
        world = entwine.torch.world_of(mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp"))

        def forward(x):
            y = row_parallel(x, module.weight.to_local(), world)
            return y if module.bias is None else y + module.bias.to_local()
        module.forward = forward
        return module


ALL_PARALLEL_STYLES.register("entwine_rowwise", EntwineRowwise())


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
def is_right(model, way):
    """Whether it gives the logits and the tokens of the whole model."""
    whole, tokens = tiny_llama(), torch.arange(14).view(2, 7)
    said, again = (one.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
                   for one in (whole, model))
    far = (model(tokens).logits - whole(tokens).logits).abs().max().item()
    print(f"rank {dist.get_rank()}, {way}: logits differ by {far:.1e}, tokens "
          f"{'are the same' if torch.equal(said, again) else 'DIFFER'}\n", end="", flush=True)
    return far < 1e-4 and torch.equal(said, again)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    right = is_right(from_style(tiny_llama()), "style")
    dist.destroy_process_group()
    raise SystemExit(not right)
