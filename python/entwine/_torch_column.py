"""ColumnParallelLinear, the first half of a tensor-parallel layer."""
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ._errors import ArgumentError, ShapeError
from ._torch_linear import Device, ParallelLinear, check_plain
from ._torch_operators import ag_gemm
from ._torch_sums import as_matrix, own_columns
from ._torch_world import chosen_world
from ._world import World

if TYPE_CHECKING:
    from typing_extensions import Self


class ColumnParallelLinear(ParallelLinear):
    """A linear layer whose output features are split over the ranks and whose input is scattered
    over them (sequence parallelism), or whole on all of them.

    With ``input="scattered"`` ``x`` holds this rank's rows: [owned rows, in_features] gives
    [m, out_features / W], all rows of this rank's features, computed as rows arrive.  m is ``num_rows`` of the call; without it
    every rank has as many rows as this one.  With more dimensions the first is gathered, and
    every rank has as much of it.  The weight is [out_features / W, in_features], the bias
    [out_features / W].

    With ``input="replicated"`` ``x`` is whole on every rank, [..., in_features], and so is its
    gradient, which is summed over the ranks.  Without gradients, on a CPU, the product is Entwine's
    own with a packed weight, and a row has the same bits however many rows there are; else it is
    torch's.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *,
                 input: str = "scattered", world: World | None = None,
                 group: dist.ProcessGroup | None = None,
                 device: Device = None,
                 dtype: torch.dtype | None = None) -> None:
        super().__init__()
        if input not in ("scattered", "replicated"):
            raise ArgumentError(f"input is {input!r}; expected 'scattered' or 'replicated'")
        self.world: World = chosen_world(world, group)
        world = self.world
        if out_features % world.size:
            raise ShapeError(f"out_features is {out_features}; expected a multiple of the "
                             f"{world.size} ranks")
        self.in_features, self.out_features = in_features, out_features
        self.input, self.frozen = input, False
        place, share = {"device": device, "dtype": dtype}, out_features // world.size
        self.weight = torch.nn.Parameter(torch.empty(share, in_features, **place))
        self.bias = torch.nn.Parameter(torch.empty(share, **place)) if bias else None
        self.reset_parameters()

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, world: World | None = None, *,
                    group: dist.ProcessGroup | None = None, input: str = "scattered") -> Self:
        """This rank's part of a torch.nn.Linear that all ranks hold; frozen if that is."""
        check_plain(linear)
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None,
                    input=input, world=world, group=group, device="meta",
                    dtype=linear.weight.dtype)
        layer._take(linear)
        return layer

    def _mine(self) -> tuple[slice, slice]:
        share, rank = self.out_features // self.world._size, self.world._rank
        return slice(rank * share, (rank + 1) * share), slice(0, self.in_features)

    def _check_rows(self, shape: torch.Size, num_rows: int | None) -> None:
        if len(shape) < 2 or shape[-1] != self.in_features:
            raise ShapeError(f"x has shape {tuple(shape)}; expected [..., {self.in_features}], "
                             f"this rank's rows")
        if len(shape) > 2 and num_rows is not None:
            raise ShapeError(f"x has shape {tuple(shape)}; expected two dimensions where num_rows "
                             f"is given")

    def forward(self, x: torch.Tensor, num_rows: int | None = None) -> torch.Tensor:
        if self.input == "replicated":
            return own_columns(x, self.weight, self.bias, self.world, self.frozen)
        shape = x.shape
        self._check_rows(shape, num_rows)
        y: torch.Tensor = ag_gemm(as_matrix(x), self.weight, self.world, num_rows, self.frozen)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)  # autocast may have chosen it
        if len(shape) == 2:
            return y
        return y.view(shape[0] * self.world.size, *shape[1:-1], y.shape[-1])

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, ranks={self.world._size}, "
                f"input={self.input!r}")
