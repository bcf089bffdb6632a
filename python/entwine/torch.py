"""Entwine in PyTorch: operators with gradients that torch.compile sees through, and a layer.

    torch.ops.entwine.gemm_rs(a, b, world.name)     # this rank's rows of the sum of a @ b.T
    torch.ops.entwine.gemm_ar(a, b, world.name)     # all rows of it
    entwine.torch.ag_gemm(a, b, world)              # all ranks' rows of a, @ b.T
    entwine.torch.ColumnParallelLinear(4096, 4096, world=world)
    entwine.torch.RowParallelLinear(4096, 4096, world=world)
    entwine.torch.RowParallelLinearNorm(4096, 4096, world=world)    # + residual, RMSNorm

All run on the CPU and, on the current CUDA stream, on a GPU.  Make one eager call of a new
shape before capturing a CUDA graph: it creates the plan, which all ranks do together.
"""
import math

import torch
import torch.distributed as dist

from ._errors import ArgumentError, ShapeError
from ._torch_column import ColumnParallelLinear
from ._torch_operators import (ag_gemm, all_gather_rows, gemm_ar, gemm_ar_layer, gemm_ar_operator, gemm_rs,
                               gemm_rs_layer, gemm_rs_operator, reduce_scatter_rows, replicate)
from ._world import World, check_world

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "RowParallelLinearNorm", "ag_gemm", "gemm_rs", "gemm_rs_layer", "gemm_ar",
           "gemm_ar_layer", "all_gather_rows", "reduce_scatter_rows", "replicate", "world_of"]


# ---- The world of a group --------------------------------------------------------------------

_by_group = {}


def world_of(group=None):
    """The world of a torch.distributed group (default: all processes), made when first asked
    for.  Collective then."""
    group = group if group is not None else dist.group.WORLD
    world = _by_group.get(group)
    if world is None or world._handle is None:
        world = _by_group[group] = World.from_torch(group)
    return world


# ---- The layer -------------------------------------------------------------------------------

def _as_matrix(x):
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


class RowParallelLinear(torch.nn.Module):
    """A linear layer whose input features are split over the ranks and whose output rows are
    scattered over them (sequence parallelism), or whole on all of them.

    ``x`` holds this rank's ``in_features / W`` features: [m, in_features / W] gives
    [owned rows, out_features]; with more dimensions the first is scattered and W must divide
    it.  The weight is [out_features, in_features / W]; the bias is whole on every rank and is
    added once, to the owned rows.  Its gradient is summed over the ranks.

    With ``sequence_parallel=False`` the output is whole on every rank, [..., out_features], and
    its gradient must be too: all ranks go on with the same computation, and what differs by rank
    gets it through ``replicate``.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.

    Where no gradient is wanted (``no_grad``, ``inference_mode``) the weight is packed at the
    first call, and again at the first call after it has changed.
    """

    def __init__(self, in_features, out_features, bias=True, *, sequence_parallel=True, world=None,
                 group=None, device=None, dtype=None):
        super().__init__()
        self.world = world = check_world(world if world is not None else world_of(group))
        if in_features % world.size:
            raise ShapeError(f"in_features is {in_features}; expected a multiple of the "
                             f"{world.size} ranks")
        self.in_features, self.out_features = in_features, out_features
        self.sequence_parallel, self.frozen = sequence_parallel, False
        self._world_name = world.name
        place = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(
            torch.empty(out_features, in_features // world.size, **place))
        self.bias = torch.nn.Parameter(torch.empty(out_features, **place)) if bias else None
        self.reset_parameters()

    def reset_parameters(self):
        """As torch.nn.Linear of the whole size; the bias must be equal on all ranks, so it
        starts at zero."""
        bound = 1 / math.sqrt(self.in_features)
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @classmethod
    def from_linear(cls, linear, world=None, *, group=None, sequence_parallel=True):
        """This rank's part of a torch.nn.Linear that all ranks hold."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None,
                    sequence_parallel=sequence_parallel, world=world, group=group,
                    device=linear.weight.device, dtype=linear.weight.dtype)
        world = layer.world
        share = linear.in_features // world.size
        with torch.no_grad():
            layer.weight.copy_(linear.weight[:, world.rank * share:(world.rank + 1) * share])
            if linear.bias is not None:
                layer.bias.copy_(linear.bias)
        return layer

    def freeze(self):
        """Promises that the weight will change only by writes that its version shows, such as
        load_state_dict, so that calls need not look at its values.  Gradients end."""
        self.frozen = True
        self.requires_grad_(False)
        return self

    def _check_features(self, shape, least_dimensions):
        share = self.in_features // self.world.size
        if len(shape) < least_dimensions or shape[-1] != share:
            raise ShapeError(f"x has shape {tuple(shape)}; expected [..., {share}], this rank's "
                             f"features")

    def _owned_shape(self, x):
        """Of this rank's rows of the result."""
        shape, ranks = x.shape, self.world.size
        self._check_features(shape, 2)
        if len(shape) > 2 and shape[0] % ranks:
            raise ShapeError(f"x has shape {tuple(shape)}; expected a first extent that is a "
                             f"multiple of the {ranks} ranks, or two dimensions")
        count = shape[0] // ranks if len(shape) > 2 else self.world._share(shape[0])
        return count, *shape[1:-1], self.out_features

    def _whole_shape(self, x):
        """Of all rows of the result."""
        shape = x.shape
        self._check_features(shape, 1)
        return *shape[:-1], self.out_features

    def _owned_sum(self, x):
        shape, bias = self._owned_shape(x), self.bias
        y = gemm_rs_operator(_as_matrix(x), self.weight, self._world_name, self.frozen)
        if bias is not None:
            y = y + replicate(bias, self.world).to(y.dtype)  # autocast may have chosen it
        return y if len(shape) == 2 else y.view(shape)

    def _whole_sum(self, x):
        shape, bias = self._whole_shape(x), self.bias
        y = gemm_ar_operator(_as_matrix(x), self.weight, self._world_name, self.frozen)
        if bias is not None:
            y = y + bias.to(y.dtype)
        return y if len(shape) == 2 else y.view(shape)

    def forward(self, x):
        return self._owned_sum(x) if self.sequence_parallel else self._whole_sum(x)

    def extra_repr(self):
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, ranks={self.world.size}, "
                f"sequence_parallel={self.sequence_parallel}")


class RowParallelLinearNorm(RowParallelLinear):
    """RowParallelLinear with what follows it in a Llama-style block, in one call: the residual
    is added and the sum normed (RMSNorm, fp32 statistics).

        normed, residual = layer(x, residual)

    ``residual`` holds this rank's rows.  Where no gradient is wanted the sum takes the place of
    the residual that was passed, so go on with the one returned.  With gradients, and under
    autocast, the steps are torch's own; the last bit of ``normed`` may then differ.

    With ``sequence_parallel=False`` ``normed`` is whole on every rank.  The residual still holds
    this rank's rows, so that each rank norms only these, or with ``residual_rows="all"`` all rows,
    equal on all ranks.

    ``norm_weight`` is whole on every rank, as the bias; its gradient is summed over the ranks.
    """

    def __init__(self, in_features, out_features, bias=False, *, eps=1e-5, sequence_parallel=True,
                 residual_rows="owned", world=None, group=None, device=None, dtype=None):
        super().__init__(in_features, out_features, bias, sequence_parallel=sequence_parallel,
                         world=world, group=group, device=device, dtype=dtype)
        self.eps = eps
        self._set_residual_rows(residual_rows)
        self.norm_weight = torch.nn.Parameter(
            torch.ones(out_features, device=device, dtype=dtype))

    def _set_residual_rows(self, residual_rows):
        if residual_rows not in (("owned",) if self.sequence_parallel else ("owned", "all")):
            raise ArgumentError(f"residual_rows is {residual_rows!r}; expected 'owned', or with "
                                f"sequence_parallel=False 'all'")
        self.residual_rows = residual_rows

    @classmethod
    def from_linear(cls, linear, world=None, norm_weight=None, eps=1e-5, *, group=None,
                    sequence_parallel=True, residual_rows="owned"):
        """This rank's part of a torch.nn.Linear, and the weight of the norm behind it, both
        whole on all ranks."""
        layer = super().from_linear(linear, world, group=group,
                                    sequence_parallel=sequence_parallel)
        layer.eps = eps
        layer._set_residual_rows(residual_rows)
        if norm_weight is not None:
            with torch.no_grad():
                layer.norm_weight.copy_(norm_weight)
        return layer

    def forward(self, x, residual):
        owned = self.residual_rows == "owned"
        shape = self._owned_shape(x) if owned else self._whole_shape(x)
        if tuple(residual.shape) != shape:
            whose = "this rank's" if owned else "all"
            raise ShapeError(f"residual has shape {tuple(residual.shape)}; expected {shape}, "
                             f"{whose} rows")
        if torch.is_autocast_enabled(x.device.type) or torch.is_grad_enabled() and any(
                tensor.requires_grad for tensor in (x, residual, *self.parameters())):
            return self._in_steps(x, residual)
        residual = residual.contiguous()
        arguments = (_as_matrix(x), self.weight, residual.view(-1, self.out_features),
                     self.norm_weight, self._world_name, self.bias, self.eps, self.frozen)
        if self.sequence_parallel:
            return torch.ops.entwine.gemm_rs_layer(*arguments).view(shape), residual
        normed = torch.ops.entwine.gemm_ar_layer(*arguments, self.residual_rows)
        return normed.view(self._whole_shape(x)), residual

    def _in_steps(self, x, residual):
        if self.residual_rows == "all":
            h = self._whole_sum(x) + residual
            return self._norm(h, self.norm_weight), h
        h = self._owned_sum(x) + residual
        normed = self._norm(h, replicate(self.norm_weight, self.world))
        if not self.sequence_parallel:
            shape = self._whole_shape(x)
            normed = all_gather_rows(normed.reshape(-1, self.out_features), math.prod(shape[:-1]),
                                     self.world, replicated=True).view(shape)
        return normed, h

    def _norm(self, h, weight):
        scale = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + self.eps)
        return (h.float() * scale).to(h.dtype) * weight

    def extra_repr(self):
        return f"{super().extra_repr()}, residual_rows={self.residual_rows}, eps={self.eps}"
