"""What torch's dispatcher does with a call, and when that is nothing but to find the kernel."""
from __future__ import annotations

import functools
import operator

import torch
from torch.autograd import forward_ad

identity = getattr(torch._C.DispatchKeySet, "raw_repr", str)  # older torch has only the text


def _keys(*names):
    keys = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return identity(functools.reduce(operator.or_, keys))


# Of a call with dense tensors, without a mode, a transform or a lazy negation in between.
NOTHING_BUT_AUTOGRAD = {_keys("CPU", "AutogradCPU"), _keys("CUDA", "AutogradCUDA")}

# Of a dense tensor, made outside or inside of inference mode.
_ON_CPU = {_keys("CPU", "AutocastCPU", "ADInplaceOrView", "AutogradCPU"),
           _keys("CPU", "AutocastCPU")}
_DENSE = _ON_CPU | {_keys("CUDA", "AutocastCUDA", "ADInplaceOrView", "AutogradCUDA"),
                    _keys("CUDA", "AutocastCUDA")}

# Of a thread, outside or inside of inference mode, without a mode, a transform or a trace.
_UNDISTURBED = {_keys("BackendSelect", "ADInplaceOrView"), _keys("BackendSelect")}

_TENSORS = (torch.Tensor, torch.nn.Parameter)

# Bound here because this is asked in every call, and takes a tenth of its time.
_is_compiling, _is_grad_enabled = torch.compiler.is_dynamo_compiling, torch.is_grad_enabled
_is_autocast_enabled = torch._C._is_any_autocast_enabled
_has_function_mode = torch._C._has_torch_function_variadic
_keys_of, _keys_of_thread = torch._C._dispatch_keys, torch._C._dispatch_tls_local_include_set


def has_nothing_to_do(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the dispatcher would go straight from these operands to a kernel, so that one can as
    well be called without it: no gradient is wanted, and nothing traces, compiles, casts, maps or
    counts what is called."""
    return (not _is_compiling() and type(b) in _TENSORS and identity(_keys_of(b)) in _DENSE
            and not _has_function_mode(b) and has_nothing_else_to_do(a, b))


def has_nothing_to_do_on_cpu(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same, where the kernel is one for the CPU."""
    # First of all whether this is traced, since nobody can trace what follows.
    return not _is_compiling() and identity(_keys_of(a)) in _ON_CPU and has_nothing_to_do(a, b)


def has_nothing_else_to_do(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same, of a b with which it had nothing to do before."""
    return not (_is_grad_enabled() and (a.requires_grad or b.requires_grad)
                or type(a) is not torch.Tensor or _has_function_mode(a) or _is_autocast_enabled()
                or forward_ad._current_level >= 0
                or identity(_keys_of_thread()) not in _UNDISTURBED
                or identity(_keys_of(a)) not in _DENSE)
