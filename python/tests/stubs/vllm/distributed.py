"""Stands for vllm.distributed of vLLM 0.32: what entwine.vllm and its example use."""
import torch.distributed as dist

_group = None


class GroupCoordinator:
    """The tensor-parallel ranks."""

    def __init__(self):
        self.cpu_group = self.device_group = dist.group.WORLD
        self.rank_in_group, self.world_size = dist.get_rank(), dist.get_world_size()

    def all_reduce(self, input_):
        dist.all_reduce(input_, group=self.device_group)
        return input_


def init_distributed_environment(world_size=-1, rank=-1, distributed_init_method="env://",
                                 local_rank=-1, backend="nccl"):
    dist.init_process_group(backend, distributed_init_method, world_size=world_size, rank=rank)


def initialize_model_parallel(tensor_model_parallel_size=1):
    global _group
    assert tensor_model_parallel_size == dist.get_world_size()
    _group = GroupCoordinator()


def get_tp_group():
    return _group


def get_tensor_model_parallel_rank():
    return _group.rank_in_group


def get_tensor_model_parallel_world_size():
    return _group.world_size


def destroy_distributed_environment():
    dist.destroy_process_group()
