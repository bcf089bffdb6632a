"""What linear layers compute, for inputs of any number of dimensions: the sums that a row-parallel
one ends in, whole on every rank or scattered over the ranks along a dimension, and the columns of a
column-parallel one whose input is whole, alone or as the gate and up of an MLP."""
from __future__ import annotations

import functools
import math

import torch

from ._errors import ShapeError
from ._products import activation_code, packed_products
from ._torch_again import activate_again, call_again, remember, remember_activation
from ._torch_dispatch import has_nothing_to_do
from ._torch_operators import _as_matrix, _replicated, gemm_ar_operator, gemm_rs_operator
from ._torch_products import activated
from ._torch_weights import note_training
from ._world import World

_get_num_threads, _is_grad_enabled = torch.get_num_threads, torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling


def as_matrix(x: torch.Tensor) -> torch.Tensor:
    matrix: torch.Tensor = _as_matrix(x)
    return matrix


def whole_sum(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, world: World,
              frozen: bool = False, pack: bool = True, config: str = "") -> torch.Tensor:
    """The sum over ranks of ``x @ weight.T``, and the bias: [..., n] on every rank."""
    y = call_again("gemm-ar", x, weight, world, frozen, config) if pack else None
    if y is None:
        y = gemm_ar_operator(x, weight, world.name, frozen, pack, config)
        if pack and has_nothing_to_do(x, weight):
            remember("gemm-ar", x, weight, world, frozen, config, y)
    if bias is not None:
        y = y + bias.to(y.dtype)  # autocast may have chosen the type of y
    return y


def _is_inference() -> bool:
    return not (_is_grad_enabled() or _is_compiling())


def _can_multiply(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether a product in inference can be our GEMM with a packed weight."""
    if type(x) is not torch.Tensor or not x.is_cpu or x.dtype != weight.dtype:
        return False
    return x.dtype in (torch.float32, torch.bfloat16, torch.float16) and not weight.is_inference()


@functools.lru_cache
def _with_workers(threads: int) -> str:
    return f"workers={threads}"


def own_columns(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, world: World,
                frozen: bool = False) -> torch.Tensor:
    """``x @ weight.T`` and the bias, of this rank's columns and an ``x`` that is whole on every
    rank, whose gradient is summed over the ranks.  In inference on a CPU the product is our own,
    for any number of rows, so that a row's bits do not depend on how many there are."""
    y = _own_product(x, weight, world, frozen) if _is_inference() else None
    if y is None:
        return torchs_columns(_replicated(x, world.name), weight, bias, world)
    return y if bias is None else y + bias.to(y.dtype)


def torchs_columns(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, world: World
                   ) -> torch.Tensor:
    """The same by torch's product."""
    if _is_grad_enabled() and not _is_compiling():
        alone = world if world._size == 1 else world._own
        if alone is not None:
            note_training(alone, weight)
    return torch.nn.functional.linear(x, weight, bias)


def _own_product(x: torch.Tensor, weight: torch.Tensor, world: World, frozen: bool
                 ) -> torch.Tensor | None:
    alone, config = world._own or world.alone(), _with_workers(_get_num_threads())
    y = call_again("gemm-ar", x, weight, alone, frozen, config)
    if y is None and _can_multiply(x, weight):
        y = whole_sum(x, weight, None, alone, frozen, config=config)
    return y


def activated_columns(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str,
                      world: World, frozen: bool = False) -> torch.Tensor | None:
    """``act(x @ gate.T) * (x @ up.T)`` of this rank's columns, in one call.  None, with nothing
    done, where ``own_columns`` would not be Entwine's own product."""
    if not _is_inference():
        return None
    code, alone = activation_code(activation), world._own or world.alone()
    config = _with_workers(_get_num_threads())
    y = activate_again(code, x, gate, up, alone, frozen, config)
    if y is None:
        if not all(_can_multiply(x, weight) and has_nothing_to_do(x, weight)
                   for weight in (gate, up)) or gate.shape != up.shape:
            return None
        h, weights = activated(as_matrix(x), gate, up, activation, alone, frozen, config)
        y = h.view(*x.shape[:-1], gate.shape[0])
        products = packed_products(weights)
        if products is not None:
            remember_activation(code, x, gate, up, alone, frozen, config, y, products)
    return y


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
    what = "gemm-rs", dim
    y = call_again(what, x, weight, world, frozen, config) if pack else None
    if y is None:
        y = _scattered_product(x, weight, world, frozen, dim, pack, config)
        if pack and has_nothing_to_do(x, weight) and _is_outermost(x.shape, dim):
            remember(what, x, weight, world, frozen, config, y)
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
