"""Linear layers whose input features are split over the ranks, alone and with the residual and norm
that follow them."""
from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._problem import ConfigLike, config_text
from ._torch_linear import Device, ParallelLinear, check_plain
from ._torch_operators import all_gather_rows, may_pack, replicate
from ._torch_sums import as_matrix, owned_shape, scattered_sum, whole_sum
from ._torch_world import chosen_world
from ._world import World

if TYPE_CHECKING:
    from typing_extensions import Self


def _refuse_dtensor(x: torch.Tensor) -> None:
    if hasattr(x, "device_mesh"):
        raise ArgumentTypeError("x is a DTensor; expected this rank's features as a plain tensor\n"
                                "  fix: pass x.to_local(), or use parallelize_module with "
                                "entwine.torch.RowwiseParallel, which takes DTensors")


class RowParallelLinear(ParallelLinear):
    """A linear layer whose input features are split over the ranks and whose output is scattered
    over them (sequence parallelism), or whole on all of them.

    ``x`` holds this rank's ``in_features / W`` features.  With ``output="scattered"``, a matrix
    [m, in_features / W] gives [owned rows, out_features]; of an x with more dimensions
    ``scatter_dim`` is scattered, and W must divide it: 0 for [sequence, batch, features], 1 for
    [batch, sequence, features].  The weight is [out_features, in_features / W]; the bias is whole
    on every rank and is added once, to the owned rows.  Its gradient is summed over the ranks.

    With ``output="replicated"`` the output is whole on every rank, [..., out_features], and its
    gradient must be too: all ranks go on with the same computation, and what differs by rank gets
    it through ``replicate``.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.  ``config`` is that of its
    plans, as for ``gemm_rs``: with "invariant=8" the output has the same bits on 1, 2, 4 and 8 ranks.

    Where no gradient is wanted (``no_grad``, ``inference_mode``) the weight is packed at the
    first call, and again at the first call after it has changed.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *,
                 output: str = "scattered", scatter_dim: int = 0, world: World | None = None,
                 group: dist.ProcessGroup | None = None, device: Device = None,
                 dtype: torch.dtype | None = None, config: ConfigLike = None) -> None:
        super().__init__()
        if output not in ("scattered", "replicated"):
            raise ArgumentError(f"output is {output!r}; expected 'scattered' or 'replicated'")
        self.world: World = chosen_world(world, group)
        world = self.world
        if in_features % world.size:
            raise ShapeError(f"in_features is {in_features}; expected a multiple of the "
                             f"{world.size} ranks")
        self.in_features, self.out_features = in_features, out_features
        self.output, self.scatter_dim, self.frozen = output, scatter_dim, False
        self.config: str = config_text(config)
        self._world_name, self._share = world.name, in_features // world.size
        place = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(
            torch.empty(out_features, in_features // world.size, **place))
        self.bias = torch.nn.Parameter(torch.empty(out_features, **place)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, world: World | None = None, *,
                    group: dist.ProcessGroup | None = None, output: str = "scattered",
                    scatter_dim: int = 0, config: ConfigLike = None) -> RowParallelLinear:
        """This rank's part of a torch.nn.Linear that all ranks hold; frozen if that is."""
        return cls._part_of(linear, world=world, group=group, output=output,
                            scatter_dim=scatter_dim, config=config)

    @classmethod
    def _part_of(cls, linear: torch.nn.Linear, **options: Any) -> Self:
        check_plain(linear)
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, **options,
                    device="meta", dtype=linear.weight.dtype)
        layer._take(linear)
        return layer

    def _mine(self) -> tuple[slice, slice]:
        rank = self.world._rank
        return slice(0, self.out_features), slice(rank * self._share, (rank + 1) * self._share)

    def _check_features(self, x: torch.Tensor, least_dimensions: int) -> None:
        shape = x.shape
        if len(shape) < least_dimensions or shape[-1] != self._share:
            _refuse_dtensor(x)
            raise ShapeError(f"x has shape {tuple(shape)}; expected [..., {self._share}], this "
                             f"rank's features")

    def _owned_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        """Of this rank's rows of the result."""
        self._check_features(x, 2)
        return owned_shape(x.shape, self.out_features, self.world, self.scatter_dim)

    def _whole_shape(self, x: torch.Tensor) -> tuple[int, ...]:
        """Of all rows of the result."""
        self._check_features(x, 1)
        return *x.shape[:-1], self.out_features

    def _owned_sum(self, x: torch.Tensor) -> torch.Tensor:
        self._check_features(x, 2)
        weight = self.weight
        return scattered_sum(x, weight, self.bias, self.world, self.frozen, self.scatter_dim,
                             may_pack(weight), self.config)

    def _whole_sum(self, x: torch.Tensor) -> torch.Tensor:
        self._check_features(x, 1)
        weight = self.weight
        return whole_sum(x, weight, self.bias, self.world, self.frozen, may_pack(weight),
                         self.config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._owned_sum(x) if self.output == "scattered" else self._whole_sum(x)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, ranks={self.world._size}, "
                f"output={self.output!r}" + (f", config={self.config!r}" if self.config else ""))


class RowParallelLinearNorm(RowParallelLinear):
    """RowParallelLinear with what follows it in a Llama-style block, in one call: the residual
    is added and the sum normed (RMSNorm, fp32 statistics).

        normed, residual = layer(x, residual)

    ``residual`` holds this rank's rows.  Where no gradient is wanted, of a layer in evaluation mode
    (``eval()``), the sum takes the place of the residual that was passed, so go on with the one
    returned.  With gradients, and under autocast, the steps are torch's own; the last bit of
    ``normed`` may then differ.

    With ``output="replicated"`` ``normed`` is whole on every rank.  The residual still holds
    this rank's rows, so that each rank norms only these, or with ``residual_rows="all"`` all rows,
    equal on all ranks.

    ``norm_weight`` is whole on every rank, as the bias; its gradient is summed over the ranks.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False, *,
                 eps: float = 1e-5, output: str = "scattered", residual_rows: str = "owned",
                 world: World | None = None, group: dist.ProcessGroup | None = None,
                 device: Device = None, dtype: torch.dtype | None = None) -> None:
        super().__init__(in_features, out_features, bias, output=output, world=world,
                         group=group, device=device, dtype=dtype)
        self.eps = eps
        self._set_residual_rows(residual_rows)
        self.norm_weight = torch.nn.Parameter(
            torch.ones(out_features, device=device, dtype=dtype))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if "norm_weight" in self._parameters:  # else it is made next, as ones
            torch.nn.init.ones_(self.norm_weight)

    def _set_residual_rows(self, residual_rows: str) -> None:
        if residual_rows not in (("owned",) if self.output == "scattered" else ("owned", "all")):
            raise ArgumentError(f"residual_rows is {residual_rows!r}; expected 'owned', or with "
                                f"output='replicated' 'all'")
        self.residual_rows = residual_rows

    @classmethod
    def from_linear(  # type: ignore[override]
            cls, linear: torch.nn.Linear, world: World | None = None,
            norm_weight: torch.Tensor | None = None, eps: float = 1e-5, *,
            group: dist.ProcessGroup | None = None, output: str = "scattered",
            residual_rows: str = "owned") -> RowParallelLinearNorm:
        """This rank's part of a torch.nn.Linear, and the weight of the norm that follows it, both
        whole on all ranks."""
        layer = cls._part_of(linear, world=world, group=group, output=output)
        layer.eps = eps
        layer._set_residual_rows(residual_rows)
        if norm_weight is None:
            torch.nn.init.ones_(layer.norm_weight)
        else:
            with torch.no_grad():
                layer.norm_weight.copy_(norm_weight)
            if isinstance(norm_weight, torch.nn.Parameter):
                layer.norm_weight.requires_grad_(norm_weight.requires_grad)
        return layer

    def forward(  # type: ignore[override]
            self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        owned = self.residual_rows == "owned"
        shape = self._owned_shape(x) if owned else self._whole_shape(x)
        if tuple(residual.shape) != shape:
            whose = "this rank's" if owned else "all"
            raise ShapeError(f"residual has shape {tuple(residual.shape)}; expected {shape}, "
                             f"{whose} rows")
        if torch.is_autocast_enabled(x.device.type) or torch.is_grad_enabled() and any(
                tensor.requires_grad for tensor in (x, residual, *self.parameters())):
            return self._in_steps(x, residual)
        if self.training or residual.requires_grad:
            # This may be the first pass of a checkpoint, which is without gradients and which the
            # second one begins with the same residual; autograd would not see the write.
            residual = residual.clone()
        residual = residual.contiguous()
        weight = self.weight
        arguments = (as_matrix(x), weight, residual.view(-1, self.out_features), self.norm_weight,
                     self._world_name, self.bias, self.eps, self.frozen, may_pack(weight))
        if self.output == "scattered":
            return torch.ops.entwine.gemm_rs_layer(*arguments).view(shape), residual
        normed = torch.ops.entwine.gemm_ar_layer(*arguments, self.residual_rows)
        return normed.view(self._whole_shape(x)), residual

    def _in_steps(self, x: torch.Tensor, residual: torch.Tensor
                  ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.residual_rows == "all":
            h = self._whole_sum(x) + residual
            return self._norm(h, self.norm_weight), h
        h = self._owned_sum(x) + residual
        normed = self._norm(h, replicate(self.norm_weight, self.world))
        if self.output == "replicated":
            shape = self._whole_shape(x)
            normed = all_gather_rows(normed.reshape(-1, self.out_features), math.prod(shape[:-1]),
                                     self.world, replicated=True).view(shape)
        return normed, h

    def _norm(self, h: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + self.eps)
        return (h.float() * scale).to(h.dtype) * weight

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, residual_rows={self.residual_rows}, eps={self.eps}"
