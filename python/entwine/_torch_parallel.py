"""Forward functions for linear layers whose parameters are DTensors: of a row-parallel layer, whose
product and collective are one call of Entwine's, and of a column-parallel layer, which exchanges
nothing.  How the parameters came to be DTensors is not known here."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed.tensor import DTensor

from ._torch_operators import _replicated, gemm_ar_operator
from ._world import World


def _pass_on_version(parameter: DTensor) -> None:
    """torch counts a write to a DTensor in its own version and not in that of the local tensor,
    which is what packed weights are compared by."""
    local = parameter._local_tensor
    if parameter.is_inference() or local.is_inference():
        return
    now = id(parameter), parameter._version
    if getattr(local, "_entwine_seen", now) != now:
        torch.autograd.graph.increment_version(local)
    local._entwine_seen = now  # type: ignore[attr-defined]


def _part(parameter: torch.Tensor | None) -> torch.Tensor | None:
    """This rank's part of a parameter."""
    if not isinstance(parameter, DTensor):
        return parameter
    if not torch.compiler.is_compiling():
        _pass_on_version(parameter)
        if not torch.is_grad_enabled():
            return parameter._local_tensor
    return parameter.to_local()


def row_forward(module: torch.nn.Linear, world: World) -> Callable[[torch.Tensor], torch.Tensor]:
    """The whole sum on every rank, of this rank's features."""
    name = world.name

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = gemm_ar_operator(x.reshape(-1, x.shape[-1]), _part(module.weight), name, False)
        bias = _part(module.bias)
        if bias is not None:
            y = y + bias.to(y.dtype)  # autocast may have chosen the type of y
        return y.view(*x.shape[:-1], y.shape[-1])

    return forward


def column_forward(module: torch.nn.Linear, world: World) -> Callable[[torch.Tensor], torch.Tensor]:
    """This rank's columns, of an input that is whole on every rank.  The gradient of the input is
    summed over the ranks."""
    name = world.name

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(_replicated(x, name), _part(module.weight),
                                          _part(module.bias))

    return forward
