"""Stands for megatron.core.tensor_parallel.layers of Megatron-Core 0.16: the arguments and
attributes of its layers, and products and sums by plain torch on CPUs."""
import torch
import torch.distributed as dist

from megatron.core.parallel_state import get_tensor_model_parallel_group


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y, group):
        y = y.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Layer(torch.nn.Module):
    def _begin(self, input_size, output_size, config, skip_bias_add, is_expert, tp_group):
        super().__init__()
        self.input_size, self.output_size, self.config = input_size, output_size, config
        self.skip_bias_add, self.is_expert = skip_bias_add, is_expert
        self.gradient_accumulation_fusion = config.gradient_accumulation_fusion
        self.sequence_parallel = config.sequence_parallel
        self.tp_group = tp_group or get_tensor_model_parallel_group()
        self.ranks = self.tp_group.size() if self.tp_group else 1  # as without torch.distributed
        self.explicit_expert_comm = is_expert and self.ranks > 1

    def _parameters_of(self, whole, dim, init_method, bias):
        init_method(whole)
        rank = self.tp_group.rank() if self.tp_group else 0
        mine = whole.chunk(self.ranks, dim)[rank].clone()
        self.weight = torch.nn.Parameter(mine)
        self.bias = torch.nn.Parameter(torch.zeros(mine.shape[0])) if bias else None


class RowParallelLinear(_Layer):
    def __init__(self, input_size, output_size, *, config, init_method, bias, input_is_parallel,
                 skip_bias_add, stride=1, keep_master_weight_for_test=False, is_expert=False,
                 tp_comm_buffer_name=None, tp_group=None):
        self._begin(input_size, output_size, config, skip_bias_add, is_expert, tp_group)
        self.input_is_parallel = input_is_parallel
        self._parameters_of(torch.empty(output_size, input_size), 1, init_method, bias)

    def forward(self, input_):
        assert not self.sequence_parallel and self.input_is_parallel
        y = torch.nn.functional.linear(input_, self.weight)
        if not self.explicit_expert_comm:
            y = _Sum.apply(y, self.tp_group)
        if self.skip_bias_add:
            return y, self.bias
        return y if self.bias is None else y + self.bias, None


class ColumnParallelLinear(_Layer):
    def __init__(self, input_size, output_size, *, config, init_method, bias=True,
                 gather_output=False, stride=1, keep_master_weight_for_test=False,
                 skip_bias_add=False, skip_weight_param_allocation=False,
                 embedding_activation_buffer=None, grad_output_buffer=None, is_expert=False,
                 tp_comm_buffer_name=None, disable_grad_reduce=False, tp_group=None):
        self._begin(input_size, output_size, config, skip_bias_add, is_expert, tp_group)
        self.gather_output = gather_output
        self._parameters_of(torch.empty(output_size, input_size), 0, init_method, bias)

    def forward(self, input_, weight=None, runtime_gather_output=None):
        assert not self.sequence_parallel
        y = torch.nn.functional.linear(_Copy.apply(input_, self.tp_group), self.weight)
        if self.skip_bias_add:
            return y, self.bias
        return y if self.bias is None else y + self.bias, None
