"""Stands for megatron.core.transformer.mlp of Megatron-Core 0.16."""
import dataclasses

import torch

from megatron.core.transformer.spec_utils import build_module


@dataclasses.dataclass
class MLPSubmodules:
    linear_fc1: object = None
    activation_func: object = None
    linear_fc2: object = None


class MLP(torch.nn.Module):
    def __init__(self, config, submodules, is_expert=False, input_size=None, ffn_hidden_size=None,
                 tp_group=None):
        super().__init__()
        self.activation_func = config.activation_func
        self.linear_fc1 = build_module(
            submodules.linear_fc1, config.hidden_size, ffn_hidden_size, config=config,
            init_method=config.init_method, gather_output=False, bias=config.add_bias_linear,
            skip_bias_add=True, is_expert=is_expert, tp_comm_buffer_name="fc1", tp_group=tp_group,
            stride=1)
        self.linear_fc2 = build_module(
            submodules.linear_fc2, ffn_hidden_size, config.hidden_size, config=config,
            init_method=config.output_layer_init_method, bias=config.add_bias_linear,
            input_is_parallel=True, skip_bias_add=True, is_expert=is_expert,
            tp_comm_buffer_name="fc2", tp_group=tp_group)

    def forward(self, hidden_states):
        wide, bias = self.linear_fc1(hidden_states)
        wide = self.activation_func(wide if bias is None else wide + bias)
        return self.linear_fc2(wide)
