"""A Llama of Transformers, tensor parallel, with its row-parallel layers on Entwine:

    torchrun --nproc-per-node 2 examples/torch_transformers.py

Entwine is enabled by one call, and from_pretrained does the rest.  Exits with 0 when the model
gives the logits and the tokens of the whole one.
"""
import logging
import tempfile

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

import entwine.transformers


def tiny_llama():
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)).eval()


def saved(model):
    """A folder with the model, which all ranks know."""
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        model.save_pretrained(folder[0])
    dist.barrier()
    return folder[0]


@torch.no_grad()
def is_right(model):
    """Whether it gives the logits and the tokens of the whole model."""
    whole, tokens = tiny_llama(), torch.arange(14).view(2, 7)
    said, again = (one.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)
                   for one in (whole, model))
    far = (model(tokens).logits - whole(tokens).logits).abs().max().item()
    print(f"rank {dist.get_rank()}: logits differ by {far:.1e}, tokens "
          f"{'are the same' if torch.equal(said, again) else 'DIFFER'}\n", end="", flush=True)
    return far < 1e-4 and torch.equal(said, again)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows what Entwine replaced
    dist.init_process_group("gloo")
    folder = saved(tiny_llama())
    entwine.transformers.enable()
    model = LlamaForCausalLM.from_pretrained(
        folder, distributed_config=DistributedConfig(tp_plan="auto")).eval()
    right = is_right(model)
    dist.destroy_process_group()
    raise SystemExit(not right)
