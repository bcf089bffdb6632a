"""A row-parallel layer of vLLM, as its models make and load it, on Entwine:

    torchrun --nproc-per-node 2 examples/torch_vllm.py

vLLM calls ``entwine.vllm.register`` by itself, as a plugin; here the program does.  Exits with 0
when the layer gives the product of the whole weight.
"""
import logging
import os

import torch
from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import (destroy_distributed_environment, init_distributed_environment,
                              initialize_model_parallel)
from vllm.model_executor.layers.linear import RowParallelLinear

import entwine.vllm

WIDTH, HIDDEN = 64, 176


def loaded(layer, weight, bias):
    """As vLLM's loaders do it."""
    layer.weight_loader(layer.weight, weight)
    layer.weight_loader(layer.bias, bias)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def run(rank, ranks):
    generator = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(WIDTH, HIDDEN, generator=generator), torch.arange(float(WIDTH))
    layer = loaded(RowParallelLinear(HIDDEN, WIDTH, prefix="model.layers.0.mlp.down_proj"), weight,
                   bias)
    for rows in (512, 1, 1):  # a prompt, then tokens
        x = torch.randn(rows, HIDDEN, generator=generator)
        with torch.inference_mode():
            y, _ = layer(x.chunk(ranks, -1)[rank])
        far = (y - torch.nn.functional.linear(x, weight, bias)).abs().max().item()
        print(f"rank {rank}: {rows} rows differ by {far:.1e}\n", end="", flush=True)
        if far > 1e-3:
            return 1
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # shows what Entwine replaced
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    entwine.vllm.register()
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        init_distributed_environment(ranks, rank, "env://", rank, "gloo")
        initialize_model_parallel(ranks)
        status = run(rank, ranks)
    destroy_distributed_environment()
    raise SystemExit(status)
