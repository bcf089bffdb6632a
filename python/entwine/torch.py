"""Entwine in PyTorch: operators with gradients that torch.compile sees through, and a layer.

    torch.ops.entwine.gemm_rs(a, b, world.name)     # this rank's rows of the sum of a @ b.T
    entwine.torch.RowParallelLinear(4096, 4096, world=world)
    entwine.torch.RowParallelLinearNorm(4096, 4096, world=world)    # + residual, RMSNorm

All run on the CPU and, on the current CUDA stream, on a GPU.  Make one eager call of a new
shape before capturing a CUDA graph: it creates the plan, which all ranks do together.
"""
import math

import torch
import torch.distributed as dist

from ._errors import ShapeError
from ._torch_operators import (all_gather_rows, gemm_rs, gemm_rs_layer, reduce_scatter_rows,
                               replicate)
from ._world import World, check_world

__all__ = ["RowParallelLinear", "RowParallelLinearNorm", "gemm_rs", "gemm_rs_layer",
           "all_gather_rows", "reduce_scatter_rows", "replicate", "world_of"]


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

class RowParallelLinear(torch.nn.Module):
    """A linear layer whose input features are split over the ranks and whose output rows are
    scattered over them (sequence parallelism).

    ``x`` holds this rank's ``in_features / W`` features: [m, in_features / W] gives
    [owned rows, out_features]; with more dimensions the first is scattered and W must divide
    it.  The weight is [out_features, in_features / W]; the bias is whole on every rank and is
    added once, to the owned rows.  Its gradient is summed over the ranks.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.

    Where no gradient is wanted (``no_grad``, ``inference_mode``) the weight is packed at the
    first call, and again at the first call after it has changed.
    """

    def __init__(self, in_features, out_features, bias=True, *, world=None, group=None,
                 device=None, dtype=None):
        super().__init__()
        self.world = world = check_world(world if world is not None else world_of(group))
        if in_features % world.size:
            raise ShapeError(f"in_features is {in_features}; expected a multiple of the "
                             f"{world.size} ranks")
        self.in_features, self.out_features = in_features, out_features
        self.frozen = False
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
    def from_linear(cls, linear, world=None, *, group=None):
        """This rank's part of a torch.nn.Linear that all ranks hold."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, world=world,
                    group=group, device=linear.weight.device, dtype=linear.weight.dtype)
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

    def _rows(self, x):
        """x as a matrix, and the shape of the result."""
        share = self.weight.shape[1]
        if x.dim() < 2 or x.shape[-1] != share:
            raise ShapeError(f"x has shape {tuple(x.shape)}; expected [..., {share}], this rank's "
                             f"features")
        if x.dim() > 2 and x.shape[0] % self.world.size:
            raise ShapeError(f"x has shape {tuple(x.shape)}; expected a first extent that is a "
                             f"multiple of the {self.world.size} ranks, or two dimensions")
        count = x.shape[0] // self.world.size if x.dim() > 2 else self.world._share(x.shape[0])
        return x.reshape(-1, share), (count, *x.shape[1:-1], self.out_features)

    def forward(self, x):
        rows, shape = self._rows(x)
        y = torch.ops.entwine.gemm_rs(rows, self.weight, self._world_name, self.frozen)
        if self.bias is not None:
            y = y + replicate(self.bias, self.world).to(y.dtype)  # autocast may have chosen it
        return y.view(shape)

    def extra_repr(self):
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, ranks={self.world.size}")


class RowParallelLinearNorm(RowParallelLinear):
    """RowParallelLinear with what follows it in a Llama-style block, in one call: the residual
    is added and the sum normed (RMSNorm, fp32 statistics).

        normed, residual = layer(x, residual)

    ``residual`` holds this rank's rows.  Where no gradient is wanted the sum takes the place of
    the residual that was passed, so go on with the one returned.  With gradients, and under
    autocast, the steps are torch's own; the last bit of ``normed`` may then differ.

    ``norm_weight`` is whole on every rank, as the bias; its gradient is summed over the ranks.
    """

    def __init__(self, in_features, out_features, bias=False, *, eps=1e-5, world=None, group=None,
                 device=None, dtype=None):
        super().__init__(in_features, out_features, bias, world=world, group=group, device=device,
                         dtype=dtype)
        self.eps = eps
        self.norm_weight = torch.nn.Parameter(
            torch.ones(out_features, device=device, dtype=dtype))

    @classmethod
    def from_linear(cls, linear, world=None, norm_weight=None, eps=1e-5, *, group=None):
        """This rank's part of a torch.nn.Linear, and the weight of the norm behind it, both
        whole on all ranks."""
        layer = super().from_linear(linear, world, group=group)
        layer.eps = eps
        if norm_weight is not None:
            with torch.no_grad():
                layer.norm_weight.copy_(norm_weight)
        return layer

    def forward(self, x, residual):
        rows, shape = self._rows(x)
        if tuple(residual.shape) != shape:
            raise ShapeError(f"residual has shape {tuple(residual.shape)}; expected {shape}, this "
                             f"rank's rows")
        if torch.is_autocast_enabled(x.device.type) or torch.is_grad_enabled() and any(
                tensor.requires_grad for tensor in (x, residual, *self.parameters())):
            return self._in_steps(x, residual)
        residual = residual.contiguous()
        normed = torch.ops.entwine.gemm_rs_layer(
            rows, self.weight, residual.view(-1, self.out_features), self.norm_weight,
            self._world_name, self.bias, self.eps, self.frozen)
        return normed.view(shape), residual

    def _in_steps(self, x, residual):
        h = super().forward(x) + residual
        scale = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + self.eps)
        return (h.float() * scale).to(h.dtype) * replicate(self.norm_weight, self.world), h

    def extra_repr(self):
        return f"{super().extra_repr()}, eps={self.eps}"
