"""Stands for vllm.model_executor.custom_op of vLLM 0.32: classes that a plugin can put in the
place of vLLM's, by name, when a layer is made."""
import torch

op_registry_oot = {}


class PluggableLayer(torch.nn.Module):
    def __new__(cls, *arguments, **options):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    @classmethod
    def register_oot(cls, layer_class):
        assert cls.__name__ not in op_registry_oot
        op_registry_oot[cls.__name__] = layer_class
        return layer_class
