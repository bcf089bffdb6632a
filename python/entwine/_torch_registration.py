"""How functions become operators, torch.ops.entwine.*: what compiled graphs, autograd and autocast
need to know of them."""
from __future__ import annotations

import functools
import sys

import torch
from torch.autograd import forward_ad

from ._errors import ArgumentTypeError
from ._torch_dispatch import NOTHING_BUT_AUTOGRAD, identity

_DEVICES = ["cpu", "cuda"]
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_library = torch.library.Library("entwine", "DEF")


# ---- In compiled graphs ----------------------------------------------------------------------

def _keep_order():
    """All ranks make the same calls in the same order.  Inductor moves calls that do not depend on
    each other where that saves memory; by how much depends on the rows of a rank."""
    config = sys.modules.get("torch._inductor.config")
    if getattr(config, "reorder_for_peak_memory", False):
        config.reorder_for_peak_memory = False


def _fake(name):
    """torch.library.register_fake, which runs when a graph is traced."""
    def register(function):
        @functools.wraps(function)
        def traced(*arguments, **options):
            _keep_order()
            return function(*arguments, **options)
        return torch.library.register_fake(name)(traced)
    return register


# ---- Autograd --------------------------------------------------------------------------------

def _below_autograd(name, *arguments):
    if hasattr(arguments[0], "device_mesh"):
        raise ArgumentTypeError("a is a DTensor; expected this rank's part as a plain tensor\n"
                                "  fix: pass to_local() of it, or use parallelize_module with "
                                "entwine.torch.RowwiseParallel, which takes DTensors")
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.entwine, name).default(*arguments)


def _wants_gradient(argument):
    if isinstance(argument, torch.Tensor):
        return argument.requires_grad
    return isinstance(argument, (list, tuple)) and any(map(_wants_gradient, argument))


def _wants_function(arguments):
    """Reverse mode, or forward mode, which torch then refuses, as no function has a jvp."""
    return forward_ad._current_level >= 0 or torch.is_grad_enabled() and any(
        map(_wants_gradient, arguments))


def _in_training(run, pack):
    """A weight that is trained changes before it is used often: it is packed in the call, also by a
    graph that is compiled for training.  `pack`: which argument says so, if there is one."""
    if pack is None:
        return run
    return lambda *arguments: run(*arguments[:pack], False, *arguments[pack + 1:])


def _differentiable(name, function, kernel, pack=None):
    """What torch.library.register_autograd would make, except that the usual call does not go
    through the dispatcher, from C++ to Python, a second time, and that forward-mode derivatives
    are refused and not lost.  `function` gets as its first argument what to call."""
    below = functools.partial(_below_autograd, name)
    in_training = _in_training(kernel, pack), _in_training(below, pack)

    def autograd(keys, *arguments):
        is_plain = identity(keys) in NOTHING_BUT_AUTOGRAD
        if _wants_function(arguments):
            return function.apply(in_training[0 if is_plain else 1], *arguments)
        return kernel(*arguments) if is_plain else below(*arguments)

    torch.library.impl(f"entwine::{name}", _DEVICES, kernel)
    _library.impl(name, autograd, "Autograd", with_keyset=True)


# ---- Autocast --------------------------------------------------------------------------------

def _autocast(name, cast):
    """Registers the kernels for autocast regions: `cast(dtype, arguments)` gives the arguments of
    the call that follows, outside of autocast.  (torch.library.register_autocast casts to one
    type, whatever the region's.)"""
    for device in _DEVICES:
        key = f"Autocast{device.upper()}"
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))

        def kernel(*arguments, device=device, keys=keys):
            with torch._C._ExcludeDispatchKeyGuard(keys):
                return getattr(torch.ops.entwine, name).default(
                    *cast(torch.get_autocast_dtype(device), arguments))

        _library.impl(name, kernel, key)


def _to(dtype, tensor):
    return tensor.to(dtype) if tensor is not None and tensor.dtype in _NAMES else tensor
