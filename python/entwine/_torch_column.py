"""ColumnParallelLinear, the first half of a tensor-parallel layer."""
import math

import torch

from ._errors import ShapeError
from ._torch_operators import ag_gemm, replicate
from ._world import check_world


class ColumnParallelLinear(torch.nn.Module):
    """A linear layer whose output features are split over the ranks and whose input rows are
    gathered from them (sequence parallelism), or whole on all of them.

    ``x`` holds this rank's rows: [owned rows, in_features] gives [m, out_features / W], all rows
    of this rank's features, computed as rows arrive.  m is ``num_rows`` of the call; without it
    every rank has as many rows as this one.  With more dimensions the first is gathered, and
    every rank has as much of it.  The weight is [out_features / W, in_features], the bias
    [out_features / W].

    With ``sequence_parallel=False`` ``x`` is whole on every rank, and the sum of its gradient
    over the ranks is, too.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.
    """

    def __init__(self, in_features, out_features, bias=True, *, sequence_parallel=True, world=None,
                 group=None, device=None, dtype=None):
        super().__init__()
        if world is None:
            from .torch import world_of
            world = world_of(group)
        self.world = check_world(world)
        if out_features % world.size:
            raise ShapeError(f"out_features is {out_features}; expected a multiple of the "
                             f"{world.size} ranks")
        self.in_features, self.out_features = in_features, out_features
        self.sequence_parallel, self.frozen = sequence_parallel, False
        place, share = {"device": device, "dtype": dtype}, out_features // world.size
        self.weight = torch.nn.Parameter(torch.empty(share, in_features, **place))
        self.bias = torch.nn.Parameter(torch.empty(share, **place)) if bias else None
        self.reset_parameters()

    def reset_parameters(self):
        """As torch.nn.Linear, with a bias that starts at zero."""
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
        share = linear.out_features // layer.world.size
        mine = slice(layer.world.rank * share, (layer.world.rank + 1) * share)
        with torch.no_grad():
            layer.weight.copy_(linear.weight[mine])
            if linear.bias is not None:
                layer.bias.copy_(linear.bias[mine])
        return layer

    def freeze(self):
        """Promises that the weight will change only by writes that its version shows, such as
        load_state_dict, so that calls need not look at its values.  Gradients end."""
        self.frozen = True
        self.requires_grad_(False)
        return self

    def _check_rows(self, shape, num_rows):
        if len(shape) < 2 or shape[-1] != self.in_features:
            raise ShapeError(f"x has shape {tuple(shape)}; expected [..., {self.in_features}], "
                             f"this rank's rows")
        if len(shape) > 2 and num_rows is not None:
            raise ShapeError(f"x has shape {tuple(shape)}; expected two dimensions where num_rows "
                             f"is given")

    def forward(self, x, num_rows=None):
        if not self.sequence_parallel:
            return torch.nn.functional.linear(replicate(x, self.world), self.weight, self.bias)
        shape = x.shape
        self._check_rows(shape, num_rows)
        rows = x if len(shape) == 2 else x.reshape(-1, shape[-1])
        y = ag_gemm(rows, self.weight, self.world, num_rows, self.frozen)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)  # autocast may have chosen it
        if len(shape) == 2:
            return y
        return y.view(shape[0] * self.world.size, *shape[1:-1], y.shape[-1])

    def extra_repr(self):
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, ranks={self.world.size}, "
                f"sequence_parallel={self.sequence_parallel}")
