"""Stands for megatron.core.transformer.transformer_config of Megatron-Core 0.16."""
import dataclasses

import torch


def normal(tensor):
    torch.nn.init.normal_(tensor, 0.0, 0.02)


@dataclasses.dataclass
class TransformerConfig:
    num_layers: int
    hidden_size: int
    num_attention_heads: int
    ffn_hidden_size: int
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    use_cpu_initialization: bool = False
    add_bias_linear: bool = True
    gradient_accumulation_fusion: bool = False
    defer_embedding_wgrad_compute: bool = False
    init_method = output_layer_init_method = staticmethod(normal)
    activation_func = staticmethod(torch.nn.functional.gelu)
