"""What linear layers compute, for inputs of any number of dimensions: the sums that a row-parallel
one ends in, whole on every rank or scattered over the ranks along a dimension, and the columns of a
column-parallel one whose input is whole."""
from __future__ import annotations

import math

import torch

from ._errors import ShapeError
from ._torch_again import call_again, remember
from ._torch_dispatch import has_nothing_to_do
from ._torch_operators import _as_matrix, _replicated, gemm_ar_operator, gemm_rs_operator
from ._world import World


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    matrix: torch.Tensor = _as_matrix(x)
    return matrix


def whole_sum(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, world: World,
              frozen: bool = False, pack: bool = True, config: str = "") -> torch.Tensor:
    """The sum over ranks of ``x @ weight.T``, and the bias: [..., n] on every rank."""
    is_plain = pack and has_nothing_to_do(x, weight)
    y = call_again("gemm-ar", x, weight, world, frozen, config) if is_plain else None
    if y is None:
        y = gemm_ar_operator(x, weight, world.name, frozen, pack, config)
        if is_plain:
            remember("gemm-ar", x, weight, world, config, y)
    if bias is not None:
        y = y + bias.to(y.dtype)  # autocast may have chosen the type of y
    return y


def _is_faster_alone(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether our GEMM with a packed weight is for this call: inference on a CPU.  For any number
    of rows, so that a row's bits do not depend on how many there are."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or weight.is_inference():
        return False
    if type(x) is not torch.Tensor or not x.is_cpu or x.dtype != weight.dtype:
        return False
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16)


def own_columns(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, world: World,
                frozen: bool = False) -> torch.Tensor:
    """``x @ weight.T`` and the bias, of this rank's columns and an ``x`` that is whole on every
    rank, whose gradient is summed over the ranks."""
    if _is_faster_alone(x, weight):
        return whole_sum(x, weight, bias, world.alone(), frozen,
                         config=f"workers={torch.get_num_threads()}")
    return torch.nn.functional.linear(_replicated(x, world.name), weight, bias)


def owned_shape(shape: torch.Size, n: int, world: World, dim: int = 0) -> tuple[int, ...]:
    """Of this rank's part of the sum."""
    extents = list(shape[:-1])
    if len(extents) == 1:
        return world._share(shape[0]), n
    if not -len(extents) <= dim < len(extents):
        raise ShapeError(f"x has shape {tuple(shape)} and scatter_dim is {dim}; expected one of "
                         f"the dimensions before the last")
    if extents[dim] % world.size:
        raise ShapeError(f"x has shape {tuple(shape)}; expected extent {dim}, which is scattered, "
                         f"to be a multiple of the {world.size} ranks\n  fix: scatter another "
                         f"dimension (scatter_dim), or pass x as a matrix")
    extents[dim] //= world.size
    return *extents, n


def scattered_sum(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, world: World,
                  frozen: bool = False, dim: int = 0, pack: bool = True, config: str = ""
                  ) -> torch.Tensor:
    """This rank's part, along a dimension, of what ``whole_sum`` returns.  ``dim`` counts the
    dimensions of x without the last, also from their end."""
    is_plain = pack and has_nothing_to_do(x, weight)
    what = "gemm-rs", dim
    y = call_again(what, x, weight, world, frozen, config) if is_plain else None
    if y is None:
        y = _scattered_product(x, weight, world, frozen, dim, pack, config)
        if is_plain and _is_outermost(x.shape, dim):
            remember(what, x, weight, world, config, y)
    if bias is not None:
        y = y + _replicated(bias, world.name).to(y.dtype)
    return y


def _is_outermost(shape: torch.Size, dim: int) -> bool:
    """Whether scattering that dimension gives each rank rows that lie together."""
    return len(shape) == 2 or math.prod(shape[:dim % (len(shape) - 1)]) == 1


def _scattered_product(x: torch.Tensor, weight: torch.Tensor, world: World, frozen: bool, dim: int,
                       pack: bool, config: str) -> torch.Tensor:
    shape = owned_shape(x.shape, weight.shape[0], world, dim)
    if x.dim() == 2:
        dim = 0
    elif dim % (x.dim() - 1) != 0:
        x = x.movedim(dim if dim >= 0 else dim - 1, 0)
    y: torch.Tensor = gemm_rs_operator(as_matrix(x), weight, world.name, frozen, pack, config)
    if len(shape) == 2:
        return y
    dim %= len(shape) - 1
    if dim == 0:
        return y.view(shape)
    return y.view(shape[dim], *shape[:dim], *shape[dim + 1:]).movedim(0, dim)
