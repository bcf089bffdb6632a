"""Stands for megatron.core.tensor_parallel.mappings of Megatron-Core 0.16."""


def scatter_to_tensor_model_parallel_region(input_, group=None):
    return input_.chunk(group.size(), -1)[group.rank()].contiguous()
