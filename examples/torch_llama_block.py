"""A Llama-style block, tensor parallel with sequence parallelism, on W processes of this machine:

    python examples/torch_llama_block.py 2

Both row-parallel projections are a RowParallelLinearNorm: the attention's output projection with
the norm in front of the MLP, and the MLP's down projection with the norm in front of the next
block.  Exits with 0 when each is near enough to dist.reduce_scatter_tensor, twice with equal bits.
"""
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F

import entwine
from entwine.torch import RowParallelLinearNorm, all_gather_rows

HIDDEN, HEADS, INTERMEDIATE, ROWS, DTYPE = 256, 8, 512, 96, torch.bfloat16


class Block(torch.nn.Module):
    """Maps this rank's normed rows and its rows of the residual to those of the next block."""
    def __init__(self, world):
        super().__init__()
        self.world = world
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN // world.size, bias=False)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * INTERMEDIATE // world.size, bias=False)
        self.attention_out = RowParallelLinearNorm(HIDDEN, HIDDEN, world=world)
        self.down = RowParallelLinearNorm(INTERMEDIATE, HIDDEN, world=world)

    def attend(self, normed):
        qkv = self.qkv(all_gather_rows(normed, ROWS, self.world))
        q, k, v = qkv.unflatten(1, (3, -1, HIDDEN // HEADS)).permute(1, 2, 0, 3)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1)

    def gated(self, normed):
        gate, up = self.gate_up(all_gather_rows(normed, ROWS, self.world)).chunk(2, dim=1)
        return F.silu(gate) * up

    def forward(self, normed, residual):
        normed, residual = self.attention_out(self.attend(normed), residual)
        return self.down(self.gated(normed), residual)


def torch_way(x, weight):
    mine = x.new_empty(ROWS // dist.get_world_size(), HIDDEN)
    dist.reduce_scatter_tensor(mine, F.linear(x, weight))
    return mine


def difference(layer, x):
    theirs = torch_way(x, layer.weight)
    _, ours = layer(x, torch.zeros_like(theirs))
    roundoff = x.shape[1] * 2.0**-24 + layer.world.size * torch.finfo(x.dtype).eps / 2
    allowed = 2 * roundoff * torch_way(x.abs().float(), layer.weight.abs().float())
    return ((ours.float() - theirs).abs() / allowed).max().item()  # at most 1 is right


@torch.no_grad()
def rank_main(world, meeting):
    dist.init_process_group("gloo", f"file://{meeting}", rank=world.rank, world_size=world.size)
    torch.manual_seed(world.rank)
    block, x = Block(world).to(DTYPE).eval(), torch.randn(ROWS // world.size, HIDDEN).to(DTYPE)
    projections = (block.attention_out, block.attend(x)), (block.down, block.gated(x))
    worst = max(difference(layer, features) for layer, features in projections)
    dist.destroy_process_group()
    return worst, torch.stack(block(F.rms_norm(x, (HIDDEN,)), x))


if __name__ == "__main__":
    ranks = int(sys.argv[1]) if sys.argv[1:] else 2
    with tempfile.TemporaryDirectory() as folder:
        runs = [entwine.spawn(ranks, rank_main, f"{folder}/{run}", timeout=300) for run in (1, 2)]
    good = [one[0] <= 1 and torch.equal(one[1], again[1]) for one, again in zip(*runs)]
    for rank, (worst, _) in enumerate(runs[0]):
        print(f"rank {rank}: difference from torch {worst:.2g} of what rounding allows,",
              "the same bits when run again" if good[rank] else "WRONG")
    raise SystemExit(not all(good))
