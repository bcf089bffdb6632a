"""Calls that are made again, in inference: with a weight and an input of a shape that have been
there before; on a CPU, with a weight that is packed.

One row is multiplied in less time than torch takes to dispatch an operator and Python to find out
about its operands, which in decoding are always the same but for the address of the input.  Worse,
a large weight leaves little of Python in the processor's caches, so that every line that runs and
every object that is asked costs several times what it does in a loop.  So what was found out is
kept, and found by the identity of the weight.  A call that differs in anything goes the usual way,
which also says what is wrong with it.  Ranks need not agree on which way they go: both use the same
plans, in the same order.
"""
from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch.autograd import profiler

from ._library import lib
from ._shared_plans import known_plan
from ._streams import LEGACY_STREAM
from ._torch_dispatch import has_nothing_else_to_do
from ._torch_weights import key_of
from ._world import World

_MOST_SHAPES = 32  # of one weight
_is_compiling = torch.compiler.is_dynamo_compiling
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of a torch for GPUs


class _Known:
    """A tensor that is used as a weight, and what _torch_weights keeps of it: as long as it lies
    where it did."""

    __slots__ = ("tensor", "kept", "place")

    def __init__(self, b, kept, forget):
        self.tensor, self.kept, self.place = weakref.ref(b, forget), kept, _place_of(b)


def _place_of(b):
    return b.untyped_storage()._cdata, b.data_ptr(), b.shape, b.stride(), b.dtype


class _InPlace:
    """In the place of a packed weight, where a GPU reads the tensor itself."""

    __slots__ = ("calls",)
    weight = None

    def __init__(self):
        self.calls = {}

    def is_current(self, version, promised):
        return True


def _kept_of(b, world, frozen, config):
    """What is kept of a weight that is as it was when it was packed; else None."""
    known = world._again.get((id(b), frozen, config))
    if known is None or known.tensor() is not b or _place_of(b) != known.place:
        return None
    return known.kept if known.kept.is_current(b._version, frozen) else None


def _meet(b, world, frozen, config):
    """What is kept of a weight whose product was computed just now; None: on a CPU, and it was not
    packed."""
    if b.is_inference():
        return None
    if b.is_cuda and not frozen:
        kept = _kept_of(b, world, frozen, config) or _InPlace()
    else:
        kept = world._frozen.get(key_of(b, b.untyped_storage(), config))
        if kept is None or kept.weight is None:
            return None
    key, known = (id(b), frozen, config), world._again
    known[key] = _Known(b, kept, lambda _: known.pop(key, None))
    return kept


def forget_tensor(b: torch.Tensor | None, world: World) -> None:
    """Has the next call with b look closely.  Nothing refers to b until then: torch exchanges a
    tensor for another (torch.utils.swap_tensors) only if nobody does, not even weakly."""
    for its in (world, world._own):
        if its is not None:
            for key in [key for key in its._again if key[0] == id(b)]:
                del its._again[key]


def _plan_of(call, world):
    """The plan of a call that was remembered; None if the call is not to be made again."""
    if profiler._is_profiler_enabled:
        return None  # a profiler shall see the operator
    return known_plan(world, call[0])


def _stream_of(a):
    return _raw_stream(a.get_device()) or LEGACY_STREAM


def _note(what, kept, a, world, config, shape, *more):
    if len(kept.calls) >= _MOST_SHAPES:
        kept.calls.clear()
    last_plan = next(reversed(world._cache))
    kept.calls[what, config, a.dtype, a.shape] = (last_plan, a.numel() // a.shape[-1], shape,
                                                  a.element_size(), *more)


# ---- One weight ------------------------------------------------------------------------------

def call_again(what: Hashable, a: torch.Tensor, b: torch.Tensor, world: World, frozen: bool,
               config: str) -> torch.Tensor | None:
    """The result of a call that was remembered as ``what``; None, with nothing done, if none was or
    it has to be looked at again, or the dispatcher has something to do with it."""
    if _is_compiling() or not has_nothing_else_to_do(a, b):
        return None
    kept = _kept_of(b, world, frozen, config)
    call = None if kept is None else kept.calls.get((what, config, a.dtype, a.shape))
    if call is None or not a.is_contiguous() or a.get_device() != b.get_device():
        return None
    plan, address = _plan_of(call, world), a.data_ptr()
    if plan is None or address % call[3]:
        return None
    weight = None
    if kept.weight is None:
        weight = b.data_ptr()
    else:
        plan._bind_again(kept.weight)
    y = a.new_empty(*call[2])
    plan._call(plan._function, plan._handle, call[1], address, weight, y.data_ptr(),
               _stream_of(a) if a.is_cuda else None)
    return y


def remember(what: Hashable, a: torch.Tensor, b: torch.Tensor, world: World, frozen: bool,
             config: str, y: torch.Tensor) -> None:
    """That the operator that was called just now returned y, without gaps, and so would again."""
    kept = None if a.numel() == 0 else _meet(b, world, frozen, config)
    if kept is not None:
        _note(what, kept, a, world, config, tuple(y.shape))


# ---- Gate and up -----------------------------------------------------------------------------

def activate_again(activation: int, a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor,
                   world: World, frozen: bool, config: str) -> torch.Tensor | None:
    """``call_again`` of a plan's ag_gemm_act with two weights."""
    if (_is_compiling() or not has_nothing_else_to_do(a, gate)
            or not has_nothing_else_to_do(a, up)):
        return None
    first = _kept_of(gate, world, frozen, config)
    second = None if first is None else _kept_of(up, world, frozen, config)
    if second is None:
        return None
    call = first.calls.get(((activation, id(second)), config, a.dtype, a.shape))
    if call is None or not a.is_contiguous():
        return None
    plan, address = _plan_of(call, world), a.data_ptr()
    if plan is None or address % call[3]:
        return None
    y = a.new_empty(*call[2])
    plan._call(lib.ew_ag_gemm_act, plan._handle, call[1], address, call[4], 2, activation,
               y.data_ptr(), None, None)
    return y


def remember_activation(activation: int, a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor,
                        world: World, frozen: bool, config: str, y: torch.Tensor, products: Any
                        ) -> None:
    """``remember``, of a call whose C array of two packed weights was ``products``."""
    first, second = (_meet(one, world, frozen, config) for one in (gate, up))
    if first is not None and second is not None and a.numel() > 0:
        # The call keeps the second, so that its identity remains its own.
        _note((activation, id(second)), first, a, world, config, tuple(y.shape), products, second)
