"""Calls without a plan of one's own, and the plans that they share."""
from __future__ import annotations

from array import array

from ._buffers import CPU, DTYPE_NAMES, count, describe
from ._errors import ArgumentError, ShapeError
from ._layer import Layer
from ._plan import Array, Plan
from ._problem import ConfigLike
from ._streams import is_capturing, stream_handle
from ._world import World, check_world

# A plan is dropped when there are _FEWEST_PLANS others and these hold more than _MOST_BYTES, or are
# _MOST_PLANS.  A model with four shapes and up to 4096 rows needs 52, of which most are small.
_FEWEST_PLANS, _MOST_PLANS, _MOST_BYTES = 32, 128, 2 << 30


# ---- The plans -------------------------------------------------------------------------------

def plan_of_shape(world, m, weight_shape, dtype, layout, on_cpu, config=None, op="gemm-rs"):
    """The plan that all calls without a plan of one's own share: of that shape, for as many rows
    as the next power of two.  All ranks make the same calls, so all caches hold the same plans
    and drop the same one."""
    n, k = weight_shape
    max_m = 1 << (m - 1).bit_length() if m > 1 else 1
    key = op, max_m, n, k, dtype, layout, on_cpu, config and str(config)
    plan = known_plan(world, key)
    if plan is None:
        _make_room(world)
        world._cache[key] = Plan(world, max_m, n, k, dtype, config,
                                 backend="cpu" if on_cpu else "cuda", layout=layout, op=op)
        plan = known_plan(world, key)
    return plan


def known_plan(world, key):
    """The shared plan of that key, which is now the last that was used; None: there is none."""
    plans = world._cache
    plan = plans.pop(key, None)
    if plan is not None:
        plans[key] = plan
        if plan._device != CPU and is_capturing():
            plan._is_captured = True
    return plan


def _make_room(world):
    """Closes the plans that were not used for longest, but none that was captured into a CUDA
    graph: nobody knows when a graph, which writes to the plan's memory, is replayed for the last
    time."""
    plans = world._cache
    free = [key for key, plan in plans.items() if not plan._is_captured]
    if len(free) < _FEWEST_PLANS:
        return
    held = _held_bytes(world, [plans[key] for key in free])
    while len(free) >= _FEWEST_PLANS and (len(free) >= _MOST_PLANS or sum(held) > _MOST_BYTES):
        plans.pop(free.pop(0)).close()
        held.pop(0)


def _held_bytes(world, plans):
    """What each plan holds on the rank where it holds most, since all ranks must drop the same
    ones.  After it no rank is in a call."""
    mine = array("q", [plan._held_bytes() for plan in plans]).tobytes()
    return [max(ranks) for ranks in zip(*(array("q", part)
                                          for part in world._allgather(mine, len(mine))))]


def _plan_for(a, b, world, config, op, num_rows=None):
    if a.shape[1] != b.shape[1]:
        raise ShapeError(f"A has shape {a.shape} and B {b.shape}; expected the same depth k")
    if not (b.is_row_major() or b.is_transposed()):
        raise ArgumentError(f"B has strides {b.strides}; expected {(b.shape[1], 1)} (row-major) or "
                            f"{(1, b.shape[0])} (its transpose)\n  fix: pass a contiguous copy")
    return plan_of_shape(world, a.shape[0] if num_rows is None else num_rows, b.shape,
                         DTYPE_NAMES[a.dtype], "nk" if b.is_row_major() else "kn", a.device == CPU,
                         config, op)


# ---- The calls -------------------------------------------------------------------------------

def _gemm(op, A, B, world, out, stream, config):
    check_world(world)
    stream = stream_handle(stream)
    a, b = describe(A, "A", stream), describe(B, "B", stream)
    return _plan_for(a, b, world, config, op)._run(a, b, out, stream)


def _layer(op, A, B, world, layer, stream, config):
    check_world(world)
    stream = stream_handle(stream)
    a, b = describe(A, "A", stream), describe(B, "B", stream)
    return _plan_for(a, b, world, config, op)._run_layer(a, b, layer, stream)


def gemm_rs(A: Array, B: object, world: World, *, out: Array | None = None, stream: object = None,
            config: ConfigLike = None) -> Array:
    """This rank's rows of the sum over ranks of ``A @ B.T``, without a plan of one's own:
    plans are made when a new shape comes and kept in a small cache.  Collective.

    A is [m, k] and B is [n, k], either row-major or a transposed K x N array.  B is packed in
    every call; with a fixed weight, a ``Plan`` and its ``set_weight`` are faster.
    """
    return _gemm("gemm-rs", A, B, world, out, stream, config)


def gemm_ar(A: Array, B: object, world: World, *, out: Array | None = None, stream: object = None,
            config: ConfigLike = None) -> Array:
    """The whole sum over ranks of ``A @ B.T``, on every rank, without a plan of one's own, as
    ``gemm_rs``."""
    return _gemm("gemm-ar", A, B, world, out, stream, config)


def ag_gemm(A: Array, B: object, world: World, *, num_rows: int | None = None,
            out: Array | None = None, gathered: Array | None = None, stream: object = None,
            config: ConfigLike = None) -> Array:
    """``Plan.ag_gemm`` without a plan of one's own, as ``gemm_rs``."""
    check_world(world)
    stream = stream_handle(stream)
    a, b = describe(A, "A", stream), describe(B, "B", stream)
    m = a.shape[0] * world.size if num_rows is None else count(num_rows, "num_rows", 0)
    return _plan_for(a, b, world, config, "ag-gemm", m)._run_gathering(a, b, m, out, gathered,
                                                                       stream)


def gemm_rs_layer(A: Array, B: object, world: World, *, bias: object = None,
                  residual: Array | None = None, norm_weight: object = None, eps: float = 1e-5,
                  out: Array | None = None, normed: Array | None = None, stream: object = None,
                  config: ConfigLike = None) -> Array:
    """``Plan.gemm_rs_layer`` without a plan of one's own, as ``gemm_rs``."""
    return _layer("gemm-rs", A, B, world, Layer(bias, residual, norm_weight, eps, out, normed),
                  stream, config)


def gemm_ar_layer(A: Array, B: object, world: World, *, bias: object = None,
                  residual: Array | None = None, residual_rows: str = "owned",
                  norm_weight: object = None, eps: float = 1e-5, out: Array | None = None,
                  normed: Array | None = None, stream: object = None, config: ConfigLike = None
                  ) -> Array:
    """``Plan.gemm_ar_layer`` without a plan of one's own, as ``gemm_rs``."""
    return _layer("gemm-ar", A, B, world,
                  Layer(bias, residual, norm_weight, eps, out, normed, residual_rows), stream,
                  config)
