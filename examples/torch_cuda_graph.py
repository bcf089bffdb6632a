"""Entwine's layer on a GPU: on a stream of one's own, captured into a CUDA graph and replayed.

    python examples/torch_cuda_graph.py --ranks 1

With several ranks on one GPU, as a virtual node, start CUDA's MPS daemon first.  Inputs are small
integers, so that the right result is known exactly; exits with 0 when every replay has its bits,
with 77 where there is no GPU.
"""
import argparse

import torch

import entwine
import entwine.torch

ROWS, FEATURES, OUTPUTS, REPLAYS = 300, 256, 512, 5


def integers(seed, *shape):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, 2, shape, generator=generator).float()


def inputs(rank, size, replay):
    """x and weight of a rank: at most 16 non-zeros in a row of x, so every sum is exact."""
    x, weight = integers(1000 * replay + rank, ROWS, FEATURES // size), integers(
        500 + rank, OUTPUTS, FEATURES // size)
    x[:, 16:] = 0
    return x, weight


def rank_main(world):
    torch.cuda.set_device(world.rank % torch.cuda.device_count())
    layer = entwine.torch.RowParallelLinear(FEATURES, OUTPUTS, bias=False, world=world,
                                            device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        layer.weight.copy_(inputs(world.rank, world.size, 0)[1])
    layer.freeze()
    x = torch.zeros(ROWS, FEATURES // world.size, device="cuda", dtype=torch.bfloat16)
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        layer(x)  # makes the plan
    with torch.cuda.graph(graph, stream=stream):
        y = layer(x)
    first, count = world.owned_rows(ROWS)
    wrong = 0
    for replay in range(REPLAYS):
        x.copy_(inputs(world.rank, world.size, replay)[0])
        graph.replay()
        everybody = [inputs(rank, world.size, replay) for rank in range(world.size)]
        want = sum(a @ b.t() for a, b in everybody)[first:first + count]
        wrong += int((y.float().cpu() != want).sum())
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=1, choices=(1, 2, 4, 8))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here")
        return 77
    wrong = entwine.spawn(options.ranks, rank_main, timeout=120)
    print(f"{REPLAYS} replays, wrong elements per rank: {wrong}")
    return 1 if any(wrong) else 0


if __name__ == "__main__":
    raise SystemExit(main())
