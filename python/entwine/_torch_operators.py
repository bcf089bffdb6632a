"""The operators of entwine.torch: torch.ops.entwine.* and the functions around them."""
import functools
import operator

import torch
from torch.autograd import forward_ad

from . import _plan, _torch_rows
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._world import check_world, find_world

_DEVICES = ["cpu", "cuda"]
_library = torch.library.Library("entwine", "DEF")
for _schema in ("gemm_rs(Tensor a, Tensor b, str world, bool frozen=False) -> Tensor",
                "gemm_rs_layer(Tensor a, Tensor b, Tensor(residual!) residual, Tensor norm_weight, "
                "str world, Tensor? bias=None, float eps=1e-5, bool frozen=False) -> Tensor",
                "all_gather_rows(Tensor rows, SymInt num_rows, str world, bool replicated=False) "
                "-> Tensor",
                "reduce_scatter_rows(Tensor rows, str world, bool replicated=False) -> Tensor",
                "replicate(Tensor parameter, str world) -> Tensor"):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


# ---- Autograd --------------------------------------------------------------------------------

_identity = getattr(torch._C.DispatchKeySet, "raw_repr", str)  # older torch has only the text


def _keys(*names):
    keys = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return _identity(functools.reduce(operator.or_, keys))


# Of dense tensors without a mode, a transform or a lazy negation in between.
_NOTHING_BUT_AUTOGRAD = {_keys("CPU", "AutogradCPU"), _keys("CUDA", "AutogradCUDA")}


def _below_autograd(name, *arguments):
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(torch.ops.entwine, name).default(*arguments)


def _differentiable(name, function, kernel):
    """What torch.library.register_autograd would make, except that the usual call without
    gradients does not go through the dispatcher, from C++ to Python, a second time, and that
    forward-mode derivatives are refused (by torch, as `function` has no jvp) and not lost."""
    def autograd(keys, *arguments):
        if forward_ad._current_level >= 0 or torch.is_grad_enabled() and any(
                one.requires_grad for one in arguments if isinstance(one, torch.Tensor)):
            return function.apply(*arguments)
        if _identity(keys) in _NOTHING_BUT_AUTOGRAD:
            return kernel(*arguments)
        return _below_autograd(name, *arguments)

    torch.library.impl(f"entwine::{name}", _DEVICES, kernel)
    _library.impl(name, autograd, "Autograd", with_keyset=True)


# ---- gemm_rs ---------------------------------------------------------------------------------

def _check_dimensions(a, b):
    if a.dim() != 2 or b.dim() != 2:
        raise ShapeError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected two "
                         f"dimensions each")


def _check_operands(a, b):
    _check_dimensions(a, b)
    if a.dtype != b.dtype:
        raise ArgumentTypeError(f"a has element type {a.dtype} and b {b.dtype}; expected the same")
    if a.device != b.device:
        raise ArgumentError(f"a is on {a.device} and b on {b.device}; expected the same device")


def _plain(tensor):
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.contiguous()


def _frozen_plan(world, a, b):
    """A plan that has packed b.  It keeps b, so that no other tensor can get its address."""
    _check_dimensions(a, b)
    bucket = _plan._bucket(a.shape[0])
    key = (b.data_ptr(), b.shape, b.stride(), b.dtype, bucket)
    kept = world._frozen.get(key)
    if kept is None:
        _check_operands(a, b)
        b = b.detach()
        layout = "nk" if b.is_contiguous() else "kn"
        if layout == "kn" and not b.t().is_contiguous():
            raise ArgumentError(f"b has strides {b.stride()}; a frozen weight must be contiguous, "
                                f"or the transpose of what is")
        plan = _plan.Plan(world, bucket, *b.shape, b.dtype, backend="cpu" if a.is_cpu else "cuda",
                          layout=layout)
        plan.set_weight(b)
        kept = world._frozen[key] = (plan, b)
    return kept[0]


def _prepare(a, b, world, frozen):
    """(the world, a, b or None, the plan that has packed b or None)."""
    world = find_world(world)
    if frozen:
        return world, _plain(a), None, _frozen_plan(world, a, b)
    _check_operands(a, b)
    return world, _plain(a), b.detach() if b.t().is_contiguous() else _plain(b), None


def _gemm_rs(a, b, world, frozen=False):
    if frozen:
        rows = _frozen_plan(find_world(world), a, b)._run_plain(a, None)
        if rows is not None:
            return rows
    world, a, b, plan = _prepare(a, b, world, frozen)
    return plan.gemm_rs(a) if plan else _plan.gemm_rs(a, b, world)


def _fake_rows(a, b, world):
    _check_operands(a, b)
    torch._check(a.shape[1] == b.shape[1], lambda: f"a has shape {tuple(a.shape)} and b "
                 f"{tuple(b.shape)}; expected the same depth k")
    return a.new_empty((find_world(world)._share(a.shape[0]), b.shape[0]))


@torch.library.register_fake("entwine::gemm_rs")
def _(a, b, world, frozen=False):
    return _fake_rows(a, b, world)


class _GemmRS(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b, world, frozen=False):
        ctx.save_for_backward(a, b)
        ctx.world = world
        return _below_autograd("gemm_rs", a, b, world, frozen)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        # Every rank's rows count for this rank's operands.
        grad = torch.ops.entwine.all_gather_rows(grad, a.shape[0], ctx.world)
        return (grad @ b if ctx.needs_input_grad[0] else None,
                grad.t() @ a if ctx.needs_input_grad[1] else None, None, None)


_differentiable("gemm_rs", _GemmRS, _gemm_rs)


def gemm_rs(a, b, world, frozen=False):
    """This rank's rows of the sum over ranks of ``a @ b.T``, with gradients.  Collective, and so
    is its backward pass.

    ``frozen`` promises that b will not change: it is then packed once and kept with the world.
    """
    return torch.ops.entwine.gemm_rs(a, b, check_world(world).name, frozen)


# ---- gemm_rs_layer ---------------------------------------------------------------------------

@torch.library.impl("entwine::gemm_rs_layer", _DEVICES)
def _gemm_rs_layer(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False):
    world, a, b, plan = _prepare(a, b, world, frozen)
    parts = {"residual": residual.detach(), "norm_weight": _plain(norm_weight),
             "bias": None if bias is None else _plain(bias), "eps": eps}
    normed = plan.gemm_rs_layer(a, **parts) if plan else _plan.gemm_rs_layer(a, b, world, **parts)
    if not residual.is_inference():
        torch.autograd.graph.increment_version(residual)  # as every operator that writes
    return normed


@torch.library.register_fake("entwine::gemm_rs_layer")
def _(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False):
    normed = _fake_rows(a, b, world)
    torch._check(residual.shape == normed.shape, lambda: f"residual has shape "
                 f"{tuple(residual.shape)}; expected {tuple(normed.shape)}")
    return normed


def _refuse_gradients(**tensors):
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(f"{name} requires grad, which this call would ignore\n"
                                f"  fix: call it under torch.no_grad(), or use "
                                f"RowParallelLinearNorm, which has gradients")
        if forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None:
            raise ArgumentError(f"{name} has a forward-mode tangent, which this call would ignore\n"
                                f"  fix: use RowParallelLinearNorm and reverse mode")


def _gemm_rs_layer_autograd(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False):
    _refuse_gradients(a=a, b=b, residual=residual, norm_weight=norm_weight, bias=bias)
    return _below_autograd("gemm_rs_layer", a, b, residual, norm_weight, world, bias, eps, frozen)


_library.impl("gemm_rs_layer", _gemm_rs_layer_autograd, "Autograd")


def gemm_rs_layer(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False):
    """``gemm_rs``, then bias, residual and RMSNorm of this rank's rows, in one call for
    inference: returns the normed rows; ``residual`` holds its sum with them afterwards.
    ``Plan.gemm_rs_layer`` says how each step is rounded.  Collective, without gradients: refuses
    tensors that want one."""
    return torch.ops.entwine.gemm_rs_layer(a, b, residual, norm_weight, check_world(world).name,
                                           bias, eps, frozen)


# ---- all_gather_rows and reduce_scatter_rows, each the gradient of the other ------------------

def _all_gather_rows(rows, num_rows, world, replicated=False):
    return _torch_rows.gather(rows, num_rows, world)


@torch.library.register_fake("entwine::all_gather_rows")
def _(rows, num_rows, world, replicated=False):
    find_world(world)
    return rows.new_empty((num_rows, rows.shape[1]))


class _AllGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, num_rows, world, replicated=False):
        ctx.world, ctx.replicated = world, replicated
        return _below_autograd("all_gather_rows", rows, num_rows, world, replicated)

    @staticmethod
    def backward(ctx, grad):
        return (torch.ops.entwine.reduce_scatter_rows(grad, ctx.world, ctx.replicated),
                None, None, None)


_differentiable("all_gather_rows", _AllGatherRows, _all_gather_rows)


def all_gather_rows(rows, num_rows, world, replicated=False):
    """All num_rows rows of what gemm_rs scattered: the other half of sequence parallelism.
    Collective, and so is its backward pass.

    Its gradient is the sum over the ranks, which is right where the ranks go on with different
    things, such as their parts of a column-parallel layer.  Where every rank goes on with the
    same computation and the same loss, as after an AllReduce, every rank's gradient is already
    the whole one: then say ``replicated=True``, and each takes its rows of it.
    """
    return torch.ops.entwine.all_gather_rows(rows, num_rows, check_world(world).name, replicated)


@torch.library.register_fake("entwine::reduce_scatter_rows")
def _(rows, world, replicated=False):
    return rows.new_empty((find_world(world)._share(rows.shape[0]), rows.shape[1]))


class _ReduceScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, world, replicated=False):
        ctx.num_rows, ctx.world, ctx.replicated = rows.shape[0], world, replicated
        return _below_autograd("reduce_scatter_rows", rows, world, replicated)

    @staticmethod
    def backward(ctx, grad):
        return (torch.ops.entwine.all_gather_rows(grad, ctx.num_rows, ctx.world, ctx.replicated),
                None, None)


_differentiable("reduce_scatter_rows", _ReduceScatterRows, _torch_rows.reduce_scatter)


def reduce_scatter_rows(rows, world, replicated=False):
    """This rank's rows of the sum over ranks of ``rows``, added in rank order (in fp32 where the
    element type is narrower) and rounded once.  Collective, and so is its backward pass.

    ``replicated=True``: all ranks hold the same rows, so nothing is summed and each takes its
    own.
    """
    return torch.ops.entwine.reduce_scatter_rows(rows, check_world(world).name, replicated)


# ---- replicate: a parameter that is equal on all ranks ---------------------------------------

def _replicate(parameter, world):
    find_world(world)
    return parameter.detach().clone()


@torch.library.register_fake("entwine::replicate")
def _(parameter, world):
    find_world(world)
    return torch.empty_like(parameter)


class _Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parameter, world):
        ctx.world = world
        return _below_autograd("replicate", parameter, world)

    @staticmethod
    def backward(ctx, grad):
        # The sum is again the same on all ranks.
        parts = torch.ops.entwine.all_gather_rows(grad.reshape(1, -1), find_world(ctx.world).size,
                                                  ctx.world, True)
        return parts.sum(0).view_as(grad), None


_differentiable("replicate", _Replicate, _replicate)
