"""Stands for vllm.model_executor.layers.linear of vLLM 0.32: the arguments and attributes of its
row-parallel layer, and what becomes of a weight on CPUs after it was loaded."""
import torch

from vllm.distributed import (get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size,
                              get_tp_group)
from vllm.model_executor.custom_op import PluggableLayer


class UnquantizedLinearMethod:
    def create_weights(self, layer, n, k, dtype):
        layer.weight = torch.nn.Parameter(torch.empty(n, k, dtype=dtype), requires_grad=False)

    def process_weights_after_loading(self, layer):
        """Packs the weight for the product, and drops it."""
        packed = layer.weight.detach().clone()
        layer.cpu_linear = lambda x, bias: torch.nn.functional.linear(x, packed, bias)
        layer.weight = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def apply(self, layer, x, bias=None):
        return layer.cpu_linear(x, bias)


class QuantizedLinearMethod(UnquantizedLinearMethod):
    """As any other method that a quant_config brings along."""


class RowParallelLinear(PluggableLayer):
    def __init__(self, input_size, output_size, bias=True, input_is_parallel=True,
                 skip_bias_add=False, params_dtype=None, reduce_results=True, quant_config=None,
                 prefix="", *, return_bias=True, disable_tp=False):
        super().__init__()
        self.tp_rank = 0 if disable_tp else get_tensor_model_parallel_rank()
        self.tp_size = 1 if disable_tp else get_tensor_model_parallel_world_size()
        self.input_size, self.output_size, self.prefix = input_size, output_size, prefix
        self.input_is_parallel, self.reduce_results = input_is_parallel, reduce_results
        self.skip_bias_add, self.return_bias = skip_bias_add, return_bias
        self.quant_method = QuantizedLinearMethod() if quant_config else UnquantizedLinearMethod()
        params_dtype = params_dtype or torch.get_default_dtype()
        self.quant_method.create_weights(self, output_size, input_size // self.tp_size,
                                         params_dtype)
        self.bias = torch.nn.Parameter(torch.empty(output_size, dtype=params_dtype),
                                       requires_grad=False) if bias else None

    def weight_loader(self, param, loaded_weight):
        if param is self.weight:
            loaded_weight = loaded_weight.chunk(self.tp_size, 1)[self.tp_rank]
        param.data.copy_(loaded_weight)

    def weight_loader_v2(self, param, loaded_weight):
        RowParallelLinear.weight_loader(self, param, loaded_weight)

    def forward(self, input_):
        x = input_ if self.input_is_parallel else input_.chunk(self.tp_size, -1)[self.tp_rank]
        bias = None if self.tp_rank > 0 or self.skip_bias_add else self.bias
        y = self.quant_method.apply(self, x, bias)
        if self.reduce_results and self.tp_size > 1:
            y = get_tp_group().all_reduce(y)
        if not self.return_bias:
            return y
        return y, self.bias if self.skip_bias_add else None
