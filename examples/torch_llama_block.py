"""A Llama-style block, tensor parallel with sequence parallelism, on W processes of this machine:

    python examples/torch_llama_block.py --ranks 2

Every rank holds its heads and its part of the MLP, and a share of the rows between the layers.
The two row-parallel projections (attention's output and the MLP's down) are Entwine's
RowParallelLinear; the same block with torch.distributed.reduce_scatter_tensor instead is what
it is compared with.  Exits with 0 when, on every rank,

- each projection differs from torch's by no more than rounding allows: elementwise by
  2 (k 2^-24 + W u) sum over r of |A_r| |B_r|^T, where k is a rank's depth and u the unit
  roundoff of the element type (see docs/PYTHON.md);
- the block gives the same bits when the whole program is run again.
"""
import argparse
import hashlib
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F

import entwine
import entwine.torch

HIDDEN, HEADS, INTERMEDIATE, ROWS = 256, 8, 512, 96


class TorchRowParallel(torch.nn.Module):
    """The usual way: the whole product, then a reduce-scatter of its rows."""

    def __init__(self, layer):
        super().__init__()
        self.weight = layer.weight

    def forward(self, x):
        partial = F.linear(x, self.weight)
        mine = partial.new_empty(partial.shape[0] // dist.get_world_size(), partial.shape[1])
        dist.reduce_scatter_tensor(mine, partial)
        return mine


class Block(torch.nn.Module):
    """Attention and MLP with residuals; x is this rank's rows, [rows / W, hidden]."""

    def __init__(self, world, dtype):
        super().__init__()
        self.world = world
        size, options = world.size, {"bias": False, "dtype": dtype}
        self.qkv = torch.nn.Linear(HIDDEN, 3 * HIDDEN // size, **options)
        self.gate_up = torch.nn.Linear(HIDDEN, 2 * INTERMEDIATE // size, **options)
        self.attention_out = entwine.torch.RowParallelLinear(HIDDEN, HIDDEN, world=world, **options)
        self.down = entwine.torch.RowParallelLinear(INTERMEDIATE, HIDDEN, world=world, **options)

    def all_rows(self, x):
        x = F.rms_norm(x, (HIDDEN,))
        return entwine.torch.all_gather_rows(x, x.shape[0] * self.world.size, self.world)

    def attend(self, x):
        q, k, v = (part.unflatten(1, (-1, HIDDEN // HEADS)).transpose(0, 1)
                   for part in self.qkv(x).chunk(3, dim=1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return heads.transpose(0, 1).flatten(1)

    def gated(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=1)
        return F.silu(gate) * up

    def forward(self, x):
        x = x + self.attention_out(self.attend(self.all_rows(x)))
        return x + self.down(self.gated(self.all_rows(x)))


def check_projection(layer, x, name):
    """Entwine against torch on the same input."""
    world = layer.world
    ours, theirs = layer(x), TorchRowParallel(layer)(x)
    allowed = TorchRowParallel(layer)
    allowed.weight = torch.nn.Parameter(layer.weight.abs().float())
    roundoff = torch.finfo(x.dtype).eps / 2
    limit = 2 * (x.shape[1] * 2.0**-24 + world.size * roundoff) * allowed(x.abs().float())
    excess = ((ours.float() - theirs.float()).abs() - limit).max().item()
    if excess > 0:
        raise SystemExit(f"{name}: rank {world.rank} is beyond the rule by {excess:.3g}")
    return ((ours.float() - theirs.float()).abs() / limit).max().item()


def rank_main(world, meeting, dtype):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=world.rank,
                            world_size=world.size)
    torch.manual_seed(world.rank)
    block = Block(world, dtype)
    x = torch.randn(ROWS // world.size, HIDDEN).to(dtype)
    with torch.no_grad():
        y = block(x)
        heads, gated = block.attend(block.all_rows(x)), block.gated(block.all_rows(x))
        shares = (check_projection(block.attention_out, heads, "attention_out"),
                  check_projection(block.down, gated, "down"))
    dist.destroy_process_group()
    return hashlib.sha256(y.view(torch.uint8).numpy().tobytes()).hexdigest()[:16], shares


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, choices=(1, 2, 4, 8))
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    options = parser.parse_args()
    runs = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(entwine.spawn(options.ranks, rank_main, f"{folder}/meeting",
                                      getattr(torch, options.dtype), timeout=300))
    for rank, (digest, shares) in enumerate(runs[0]):
        again = runs[1][rank][0]
        print(f"rank {rank}: difference from torch at most {max(shares):.2g} of what the rule "
              f"allows; block {digest}, again {again}")
    return 0 if all(one[0] == other[0] for one, other in zip(*runs)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
