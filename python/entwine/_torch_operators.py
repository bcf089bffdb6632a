"""The operators of entwine.torch: torch.ops.entwine.* and the functions around them."""
import functools
import operator

import torch
import torch.distributed as dist

from . import _plan
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._library import lib
from ._world import check_world, find_world

_DEVICES = ["cpu", "cuda"]
_library = torch.library.Library("entwine", "DEF")
for _schema in ("gemm_rs(Tensor a, Tensor b, str world, bool frozen=False) -> Tensor",
                "gemm_rs_layer(Tensor a, Tensor b, Tensor(residual!) residual, Tensor norm_weight, "
                "str world, Tensor? bias=None, float eps=1e-5, bool frozen=False) -> Tensor",
                "all_gather_rows(Tensor rows, SymInt num_rows, str world) -> Tensor",
                "replicate(Tensor parameter, str world) -> Tensor"):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


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


torch.library.impl("entwine::gemm_rs", _DEVICES, _gemm_rs)


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
    def forward(ctx, a, b, world, frozen):
        ctx.save_for_backward(a, b)
        ctx.world = world
        return _below_autograd(a, b, world, frozen)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        # Every rank's rows count for this rank's operands.
        grad = torch.ops.entwine.all_gather_rows(grad, a.shape[0], ctx.world)
        return (grad @ b if ctx.needs_input_grad[0] else None,
                grad.t() @ a if ctx.needs_input_grad[1] else None, None, None)


def _below_autograd(a, b, world, frozen):
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.entwine.gemm_rs.default(a, b, world, frozen)


_identity = getattr(torch._C.DispatchKeySet, "raw_repr", str)  # older torch has only the text


def _keys(*names):
    keys = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return _identity(functools.reduce(operator.or_, keys))


# Of dense tensors without a mode, a transform or a lazy negation in between.
_NOTHING_BUT_AUTOGRAD = {_keys("CPU", "AutogradCPU"), _keys("CUDA", "AutogradCUDA")}


def _gemm_rs_autograd(keys, a, b, world, frozen=False):
    """What torch.library.register_autograd would make, except that the usual call without
    gradients does not go through the dispatcher, from C++ to Python, a second time."""
    if (a.requires_grad or b.requires_grad) and torch.is_grad_enabled():
        return _GemmRS.apply(a, b, world, frozen)
    if _identity(keys) in _NOTHING_BUT_AUTOGRAD:
        return _gemm_rs(a, b, world, frozen)
    return _below_autograd(a, b, world, frozen)


_library.impl("gemm_rs", _gemm_rs_autograd, "Autograd", with_keyset=True)


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
    return plan.gemm_rs_layer(a, **parts) if plan else _plan.gemm_rs_layer(a, b, world, **parts)


@torch.library.register_fake("entwine::gemm_rs_layer")
def _(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False):
    normed = _fake_rows(a, b, world)
    torch._check(residual.shape == normed.shape, lambda: f"residual has shape "
                 f"{tuple(residual.shape)}; expected {tuple(normed.shape)}")
    return normed


def _refuse_gradients(**tensors):
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad and torch.is_grad_enabled():
            raise ArgumentError(f"{name} requires grad, which this call would ignore\n"
                                f"  fix: call it under torch.no_grad(), or use "
                                f"RowParallelLinearNorm, which has gradients")


def gemm_rs_layer(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False):
    """``gemm_rs``, then bias, residual and RMSNorm of this rank's rows, in one call for
    inference: returns the normed rows; ``residual`` holds its sum with them afterwards.
    ``Plan.gemm_rs_layer`` says how each step is rounded.  Collective, without gradients."""
    _refuse_gradients(a=a, b=b, residual=residual, norm_weight=norm_weight, bias=bias)
    return torch.ops.entwine.gemm_rs_layer(a, b, residual, norm_weight, check_world(world).name,
                                           bias, eps, frozen)


# ---- all_gather_rows -------------------------------------------------------------------------

@torch.library.impl("entwine::all_gather_rows", _DEVICES)
def _all_gather_rows(rows, num_rows, world):
    world = find_world(world)
    size = world.size
    most = -(-num_rows // size)
    mine = rows.new_zeros((most, rows.shape[1]))
    mine[:rows.shape[0]] = rows.detach()
    everybody = rows.new_empty((size, most, rows.shape[1]))
    if mine.numel() > 0:
        _exchange(world, mine, everybody)
    if num_rows % size == 0:
        return everybody.view(num_rows, rows.shape[1])
    shares = [(num_rows + size - 1 - rank) // size for rank in range(size)]
    return torch.cat([everybody[rank, :share] for rank, share in enumerate(shares)])


def _exchange(world, mine, everybody):
    if world.group is not None:
        parts = list(everybody.view(torch.uint8).unbind(0))  # bytes: no backend minds the type
        dist.all_gather(parts, mine.view(torch.uint8), group=world.group)
        return
    here, there = mine.cpu(), everybody.cpu()
    world._call(lib.ew_world_allgather, world._check_open(), here.data_ptr(), there.data_ptr(),
                here.numel() * here.element_size())
    if not everybody.is_cpu:
        everybody.copy_(there)


@torch.library.register_fake("entwine::all_gather_rows")
def _(rows, num_rows, world):
    find_world(world)
    return rows.new_empty((num_rows, rows.shape[1]))


def all_gather_rows(rows, num_rows, world):
    """All num_rows rows of what gemm_rs scattered: the other half of sequence parallelism.
    Collective, without gradients."""
    return torch.ops.entwine.all_gather_rows(rows, num_rows, check_world(world).name)


# ---- replicate: a parameter that is equal on all ranks ---------------------------------------

@torch.library.impl("entwine::replicate", _DEVICES)
def _replicate(parameter, world):
    return parameter.detach().clone()


@torch.library.register_fake("entwine::replicate")
def _(parameter, world):
    return torch.empty_like(parameter)


def _replicate_backward(ctx, grad):
    parts = torch.ops.entwine.all_gather_rows(grad.reshape(1, -1), ctx.num_ranks, ctx.world)
    return parts.sum(0).view_as(grad), None


def _save_world(ctx, inputs, output):
    ctx.world = inputs[1]
    ctx.num_ranks = find_world(ctx.world).size


torch.library.register_autograd("entwine::replicate", _replicate_backward,
                                setup_context=_save_world)
