"""Calls that are made again, in inference on a CPU: with a weight that is packed, and an input of a
shape that has been there before.

One row is multiplied in less time than torch takes to dispatch an operator and Python to find out
about its operands, which in decoding are always the same but for the address of the input.  So what
was found out is kept with the packed weight.  A call that differs in anything goes the usual way,
which also says what is wrong with it.  Ranks need not agree on which way they go: both use the same
plans, in the same order.
"""
from __future__ import annotations

from collections.abc import Hashable

import torch
from torch.autograd import profiler

from ._torch_weights import key_of
from ._world import World

_MOST_SHAPES = 32  # of one weight


def call_again(what: Hashable, a: torch.Tensor, b: torch.Tensor, world: World, frozen: bool,
               config: str) -> torch.Tensor | None:
    """The result of a call that was remembered as ``what``; None, with nothing done, if none was or
    it has to be looked at again.  For operands with which the dispatcher has nothing to do."""
    if profiler._is_profiler_enabled or b.is_inference():
        return None  # a profiler shall see the operator
    kept = world._frozen.get(key_of(b, b.untyped_storage(), config))
    call = None if kept is None else kept.calls.get((what, config, a.dtype, a.shape))
    if call is None or not a.is_contiguous() or not kept.is_current(b._version, frozen):
        return None
    key, m, shape, item_bytes = call
    plans, address = world._cache, a.data_ptr()
    if key not in plans or address % item_bytes:
        return None
    plan = plans[key] = plans.pop(key)  # the last one is the most recently used
    plan._bind_again(kept.weight)
    y = a.new_empty(*shape)
    plan._call(plan._function, plan._check_open(), m, address, None, y.data_ptr(), None)
    return y


def remember(what: Hashable, a: torch.Tensor, b: torch.Tensor, world: World, config: str,
             y: torch.Tensor) -> None:
    """That the operator that was called just now returned y, without gaps, and so would again."""
    kept = world._frozen.get(key_of(b, b.untyped_storage(), config))
    if kept is None or kept.weight is None or b.is_inference() or a.numel() == 0:
        return
    if len(kept.calls) >= _MOST_SHAPES:
        kept.calls.clear()
    last_plan = next(reversed(world._cache))
    kept.calls[what, config, a.dtype, a.shape] = (last_plan, a.numel() // a.shape[-1],
                                                  tuple(y.shape), a.element_size())
