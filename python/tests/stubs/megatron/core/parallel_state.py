"""Stands for megatron.core.parallel_state of Megatron-Core 0.16: what entwine.megatron and its
example use."""
import torch.distributed as dist


def initialize_model_parallel(tensor_model_parallel_size=1):
    assert tensor_model_parallel_size == dist.get_world_size()


def get_tensor_model_parallel_group():
    return dist.group.WORLD


def destroy_model_parallel():
    pass
