"""The operators of entwine.torch: torch.ops.entwine.* and the functions around them."""
from __future__ import annotations

import torch
from torch.autograd import forward_ad

from . import _torch_rows, _torch_weights
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._layer import Layer
from ._problem import ConfigLike, config_text
from ._shared_plans import plan_of_shape
from ._torch_registration import (_DEVICES, _NAMES, _autocast, _below_autograd, _differentiable,
                                  _fake, _library, _to)
from ._world import World, check_world, find_world

for _schema in ("gemm_rs(Tensor a, Tensor b, str world, bool frozen=False, bool pack=True, "
                "str config=\"\") -> Tensor",
                "gemm_rs_layer(Tensor a, Tensor b, Tensor(residual!) residual, Tensor norm_weight, "
                "str world, Tensor? bias=None, float eps=1e-5, bool frozen=False, bool pack=True) "
                "-> Tensor",
                "gemm_ar(Tensor a, Tensor b, str world, bool frozen=False, bool pack=True, "
                "str config=\"\") -> Tensor",
                "ag_gemm(Tensor a, Tensor b, SymInt num_rows, str world, bool frozen=False, "
                "bool gather=False, bool pack=True) -> (Tensor, Tensor)",
                "gemm_ar_layer(Tensor a, Tensor b, Tensor(residual!) residual, Tensor norm_weight, "
                "str world, Tensor? bias=None, float eps=1e-5, bool frozen=False, bool pack=True, "
                "str residual_rows=\"owned\") -> Tensor",
                "all_gather_rows(Tensor rows, SymInt num_rows, str world, bool? replicated=None) "
                "-> Tensor",
                "reduce_scatter_rows(Tensor rows, str world, bool? replicated=False) -> Tensor",
                "replicate(Tensor parameter, str world) -> Tensor"):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

# The overloads themselves: the packets of torch.ops look for them in every call.
gemm_rs_operator = torch.ops.entwine.gemm_rs.default
gemm_ar_operator = torch.ops.entwine.gemm_ar.default
ag_gemm_operator = torch.ops.entwine.ag_gemm.default


# ---- Autocast --------------------------------------------------------------------------------

# frozen and pack of a weight that is cast: it is new in every call, and in a compiled graph the
# next one takes its place in memory.
_UNKEPT = False, False


def _cast_operands(dtype, arguments):
    a, b, world, *rest = arguments
    if b.dtype == dtype or b.dtype not in _NAMES:
        return _to(dtype, a), b, world, *rest
    return _to(dtype, a), _to(dtype, b), world, *_UNKEPT, *rest[2:]


def _cast_layer(dtype, arguments):
    """To the type of the residual, which is written and so cannot be cast."""
    a, b, residual, norm_weight, world, *rest = arguments
    bias, eps, frozen, pack, *residual_rows = (*rest, *(None, 1e-5, False, True)[len(rest):])
    dtype = residual.dtype
    if b.dtype != dtype:
        frozen, pack = _UNKEPT
    return (_to(dtype, a), _to(dtype, b), residual, _to(dtype, norm_weight), world,
            _to(dtype, bias), eps, frozen, pack, *residual_rows)


for _name in ("gemm_rs", "gemm_ar"):
    _autocast(_name, _cast_operands)
    _autocast(f"{_name}_layer", _cast_layer)


# ---- gemm_rs and gemm_ar ---------------------------------------------------------------------

def _check_operands(a, b, is_matrix=True):
    if b.dim() != 2 or (a.dim() != 2 if is_matrix else a.dim() == 0):
        raise ShapeError(f"a has shape {tuple(a.shape)} and b {tuple(b.shape)}; expected two "
                         f"dimensions{' each' if is_matrix else ' of b, and one or more of a'}")
    if a.dtype is not b.dtype:
        raise ArgumentTypeError(f"a has element type {a.dtype} and b {b.dtype}; expected the same")
    if a.device != b.device:
        raise ArgumentError(f"a is on {a.device} and b on {b.device}; expected the same device")


def _plain(tensor):
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.contiguous()


def _prepare(op, world, a, b, frozen, pack, num_rows=None, config=""):
    """(the plan, b if it is to be packed in the call, else None and the plan bound to it)."""
    _check_operands(a, b, op != "gemm-ar")
    shape, weight_shape = a.shape, b.shape
    if shape[-1] != weight_shape[1]:
        raise ShapeError(f"a has shape {tuple(shape)} and b {tuple(weight_shape)}; expected the "
                         f"same depth k")
    layout = _torch_weights.layout_of(b)
    dtype = _NAMES.get(a.dtype)
    if dtype is None:
        raise ArgumentTypeError(f"a has element type {a.dtype}; expected float32, float16 or "
                                f"bfloat16\n  fix: convert it first")
    plan = plan_of_shape(world, shape[0] if num_rows is None else num_rows, weight_shape, dtype,
                         layout or "nk", a.is_cpu, config or None, op)
    weight = _torch_weights.packed(world, b, layout, frozen, pack, config)
    if weight is None:
        return plan, b.detach() if layout else _plain(b)
    plan._bind_again(weight)
    return plan, None


def _gemm(op, a, b, world, frozen, pack, config):
    plan, b = _prepare(op, find_world(world), a, b, frozen, pack, None, config)
    if b is None:
        rows = plan._run_plain(a, None)
        if rows is not None:
            return rows
    return plan._gemm(_plain(a), b, None, None)


def _gemm_rs(a, b, world, frozen=False, pack=True, config=""):
    return _gemm("gemm-rs", a, b, world, frozen, pack, config)


def _gemm_ar(a, b, world, frozen=False, pack=True, config=""):
    if a.dim() == 2:
        return _gemm("gemm-ar", a, b, world, frozen, pack, config)
    shape, n = a.shape, b.shape[0]
    plan, b = _prepare("gemm-ar", find_world(world), a, b, frozen, pack, shape[:-1].numel(), config)
    if b is None:
        y = plan._run_plain(a, None, shape[:-1])
        if y is not None:
            return y
    return plan._gemm(_plain(a).view(-1, shape[-1]), b, None, None).view(*shape[:-1], n)


def _check_fake(a, b, is_matrix=True):
    _check_operands(a, b, is_matrix)
    torch._check(a.shape[-1] == b.shape[1], lambda: f"a has shape {tuple(a.shape)} and b "
                 f"{tuple(b.shape)}; expected the same depth k")


def _fake_rows(a, b, world):
    _check_fake(a, b)
    return a.new_empty((find_world(world)._share(a.shape[0]), b.shape[0]))


def _fake_whole(a, b, world, is_matrix=True):
    _check_fake(a, b, is_matrix)
    find_world(world)
    return a.new_empty((*a.shape[:-1], b.shape[0]))


@_fake("entwine::gemm_rs")
def _(a, b, world, frozen=False, pack=True, config=""):
    return _fake_rows(a, b, world)


@_fake("entwine::gemm_ar")
def _(a, b, world, frozen=False, pack=True, config=""):
    return _fake_whole(a, b, world, is_matrix=False)


def _as_matrix(x):
    return x if x.dim() == 2 else x.reshape(-1, x.shape[-1])


class _Gemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, a, b, world, frozen=False, pack=True, config=""):
        ctx.save_for_backward(a, b)
        ctx.world = world
        return run(a, b, world, frozen, pack, config)

    @classmethod
    def backward(cls, ctx, grad):
        a, b = ctx.saved_tensors
        grad = cls.whole_gradient(grad, a.shape[0], ctx.world)
        return (None, grad @ b if ctx.needs_input_grad[1] else None,
                _as_matrix(grad).t() @ _as_matrix(a) if ctx.needs_input_grad[2] else None, None,
                None, None, None)


class _GemmRS(_Gemm):
    @classmethod
    def backward(cls, ctx, grad):
        a, b = ctx.saved_tensors
        if not ctx.needs_input_grad[1] or not can_gather(grad, ctx.world):
            return super().backward(ctx, grad)
        grad_a, whole = ag_gemm_operator(grad, b.t(), a.shape[0], ctx.world, False,
                                         ctx.needs_input_grad[2], False)
        return (None, grad_a, whole.t() @ a if ctx.needs_input_grad[2] else None, None, None,
                None, None)

    @staticmethod
    def whole_gradient(grad, num_rows, world):
        """Every rank's rows count for this rank's operands."""
        return torch.ops.entwine.all_gather_rows(grad, num_rows, world, False)


class _GemmAR(_Gemm):
    @staticmethod
    def whole_gradient(grad, num_rows, world):
        """Every rank has it already, and uses it for operands of its own."""
        return _replicated(grad, world)


_differentiable("gemm_rs", _GemmRS, _gemm_rs, pack=4)
_differentiable("gemm_ar", _GemmAR, _gemm_ar, pack=4)


def may_pack(b: torch.Tensor) -> bool:
    """Whether a packed copy of b may be kept for the next call.  Not of what a compiled graph
    computes: it writes the next one into the same memory, which no version shows."""
    return not torch.compiler.is_compiling() or isinstance(b, torch.nn.Parameter)


def gemm_rs(a: torch.Tensor, b: torch.Tensor, world: World, frozen: bool = False, *,
            config: ConfigLike = None) -> torch.Tensor:
    """This rank's rows of the sum over ranks of ``a @ b.T``, with gradients.  Collective, and so
    is its backward pass.

    Where no gradient is wanted, b is packed once for all calls and again when it has changed;
    ``frozen`` promises that it will not, except by writes that its version shows.  The packed
    weight is kept as long as the memory of b.

    ``config`` is that of the plans: text such as "invariant=8", for the same bits on 1, 2, 4 and 8
    ranks, or a mapping.  All ranks pass the same.
    """
    return gemm_rs_operator(a, b, check_world(world).name, frozen, may_pack(b),
                            config_text(config))


def gemm_ar(a: torch.Tensor, b: torch.Tensor, world: World, frozen: bool = False, *,
            config: ConfigLike = None) -> torch.Tensor:
    """The whole sum over ranks of ``a @ b.T``, on every rank, with gradients.  Collective.  ``a``
    is [..., k], and the result [..., n].

    Its gradient is taken to be the same on all ranks, as it is where all go on with the same
    computation and the same loss, and each rank multiplies its own operands with it: the backward
    pass exchanges nothing.  Before layers that differ by rank, such as parts of a column-parallel
    one, pass the result through ``replicate``.  The weight is kept as ``gemm_rs`` keeps it, one
    packed copy for both, and ``config`` is as there.
    """
    return gemm_ar_operator(a, b, check_world(world).name, frozen, may_pack(b),
                            config_text(config))


# ---- ag_gemm ---------------------------------------------------------------------------------

def can_gather(rows, world):
    """Whether ag_gemm runs for rows of that device and ranks."""
    return rows.is_cpu or (rows.is_cuda and not find_world(world)._spans_hosts())


def _ag_gemm(a, b, num_rows, world, frozen=False, gather=False, pack=True):
    plan, b = _prepare("ag-gemm", find_world(world), a, b, frozen, pack, num_rows)
    gathered = a.new_empty((num_rows if gather else 0, a.shape[1]))
    return plan.ag_gemm(_plain(a), b, num_rows, gathered=gathered if gather else None), gathered


@_fake("entwine::ag_gemm")
def _(a, b, num_rows, world, frozen=False, gather=False, pack=True):
    _check_fake(a, b)
    share = find_world(world)._share(num_rows)
    torch._check(a.shape[0] == share, lambda: f"a has shape {tuple(a.shape)}; expected {share} "
                 f"rows, this rank's of num_rows={num_rows}")
    return (a.new_empty((num_rows, b.shape[0])),
            a.new_empty((num_rows if gather else 0, a.shape[1])))


class _AgGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, a, b, num_rows, world, frozen=False, gather=False, pack=True):
        y, gathered = run(a, b, num_rows, world, frozen, gather or ctx.needs_input_grad[2], pack)
        ctx.save_for_backward(b, gathered)
        ctx.world = world
        ctx.set_materialize_grads(False)
        return y, gathered

    @staticmethod
    def backward(ctx, grad, grad_gathered):
        b, gathered = ctx.saved_tensors
        _, wants_a, wants_b, *_ = ctx.needs_input_grad
        grad_a = grad_b = None
        if wants_a and grad is not None:
            grad_a = gemm_rs_operator(grad, b.t(), ctx.world, False, False)
        if wants_a and grad_gathered is not None:
            rows = torch.ops.entwine.reduce_scatter_rows(grad_gathered, ctx.world)
            grad_a = rows if grad_a is None else grad_a + rows
        if wants_b and grad is not None:
            grad_b = grad.t() @ gathered
        return None, grad_a, grad_b, None, None, None, None, None


def _cast_gathering(dtype, arguments):
    a, b, num_rows, world, *rest = arguments
    frozen, gather, pack = (*rest, *(False, False, True)[len(rest):])
    a, b, _, frozen, pack = _cast_operands(dtype, (a, b, world, frozen, pack))
    return a, b, num_rows, world, frozen, gather, pack


_differentiable("ag_gemm", _AgGemm, _ag_gemm, pack=6)
_autocast("ag_gemm", _cast_gathering)


def ag_gemm(a: torch.Tensor, b: torch.Tensor, world: World, num_rows: int | None = None,
            frozen: bool = False) -> torch.Tensor:
    """The rows of all ranks' ``a``, multiplied with this rank's ``b``: [num_rows, n], with
    gradients.  Collective, and so is its backward pass, which for ``a`` is a ``gemm_rs``.

    ``a`` has this rank's rows of ``num_rows``; None: every rank has as many as this one.  Where
    the weight wants a gradient, the gathered rows are kept for it.  The weight is kept as
    ``gemm_rs`` keeps it.
    """
    if num_rows is None:
        num_rows = a.shape[0] * check_world(world).size
    y: torch.Tensor
    y, _ = ag_gemm_operator(a, b, num_rows, check_world(world).name, frozen, False, may_pack(b))
    return y


# ---- gemm_rs_layer and gemm_ar_layer ---------------------------------------------------------

def _layer(op, a, b, world, frozen, pack, residual, norm_weight, bias, eps, **how):
    plan, b = _prepare(op, find_world(world), a, b, frozen, pack)
    layer = Layer(None if bias is None else _plain(bias), residual.detach(), _plain(norm_weight),
                  eps, None, None, **how)
    return plan._layer(_plain(a), b, layer, None)


@torch.library.impl("entwine::gemm_rs_layer", _DEVICES)
def _gemm_rs_layer(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False,
                   pack=True):
    return _layer("gemm-rs", a, b, world, frozen, pack, residual, norm_weight, bias, eps)


@torch.library.impl("entwine::gemm_ar_layer", _DEVICES)
def _gemm_ar_layer(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False,
                   pack=True, residual_rows="owned"):
    return _layer("gemm-ar", a, b, world, frozen, pack, residual, norm_weight, bias, eps,
                  residual_rows=residual_rows)


def _check_fake_residual(residual, rows, n):
    torch._check(residual.shape == (rows, n), lambda: f"residual has shape "
                 f"{tuple(residual.shape)}; expected {(rows, n)}")


@_fake("entwine::gemm_rs_layer")
def _(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False, pack=True):
    normed = _fake_rows(a, b, world)
    _check_fake_residual(residual, *normed.shape)
    return normed


@_fake("entwine::gemm_ar_layer")
def _(a, b, residual, norm_weight, world, bias=None, eps=1e-5, frozen=False, pack=True,
      residual_rows="owned"):
    rows, n = a.shape[0], b.shape[0]
    _check_fake_residual(residual, rows if residual_rows == "all" else
                         find_world(world)._share(rows), n)
    return _fake_whole(a, b, world)


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


def _without_gradients(name):
    def autograd(a, b, residual, norm_weight, world, bias=None, *rest):
        _refuse_gradients(a=a, b=b, residual=residual, norm_weight=norm_weight, bias=bias)
        return _below_autograd(name, a, b, residual, norm_weight, world, bias, *rest)

    _library.impl(name, autograd, "Autograd")


_without_gradients("gemm_rs_layer")
_without_gradients("gemm_ar_layer")


def gemm_rs_layer(a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor,
                  norm_weight: torch.Tensor, world: World, bias: torch.Tensor | None = None,
                  eps: float = 1e-5, frozen: bool = False) -> torch.Tensor:
    """``gemm_rs``, then bias, residual and RMSNorm of this rank's rows, in one call for
    inference: returns the normed rows; ``residual`` holds the sum before the norm afterwards.
    ``Plan.gemm_rs_layer`` says how each step is rounded.  Collective, without gradients: refuses
    tensors that want one."""
    return torch.ops.entwine.gemm_rs_layer(a, b, residual, norm_weight, check_world(world).name,
                                           bias, eps, frozen, may_pack(b))


def gemm_ar_layer(a: torch.Tensor, b: torch.Tensor, residual: torch.Tensor,
                  norm_weight: torch.Tensor, world: World, bias: torch.Tensor | None = None,
                  eps: float = 1e-5, frozen: bool = False, residual_rows: str = "owned"
                  ) -> torch.Tensor:
    """``gemm_ar``, then bias, residual and RMSNorm, in one call for inference: returns all normed
    rows on every rank.  ``residual`` holds this rank's rows, or with ``residual_rows="all"`` all
    of them, and the sum before the norm afterwards.  Collective, without gradients, as ``gemm_rs_layer``."""
    return torch.ops.entwine.gemm_ar_layer(a, b, residual, norm_weight, check_world(world).name,
                                           bias, eps, frozen, may_pack(b), residual_rows)


# ---- all_gather_rows and reduce_scatter_rows, each the gradient of the other ------------------

def _all_gather_rows(rows, num_rows, world, replicated=None):
    return _torch_rows.gather(rows, num_rows, world)


@_fake("entwine::all_gather_rows")
def _(rows, num_rows, world, replicated=None):
    find_world(world)
    return rows.new_empty((num_rows, rows.shape[1]))


class _AllGatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, rows, num_rows, world, replicated=None):
        ctx.world, ctx.replicated = world, replicated
        return run(rows, num_rows, world, replicated)

    @staticmethod
    def backward(ctx, grad):
        return (None, torch.ops.entwine.reduce_scatter_rows(grad, ctx.world, ctx.replicated),
                None, None, None)


_differentiable("all_gather_rows", _AllGatherRows, _all_gather_rows)


def all_gather_rows(rows: torch.Tensor, num_rows: int, world: World,
                    replicated: bool | None = None) -> torch.Tensor:
    """All num_rows rows of what gemm_rs scattered: the other half of sequence parallelism.
    Collective, and so is its backward pass.

    Its gradient is the sum over the ranks, which is right where the ranks go on with different
    things, such as their parts of a column-parallel layer.  Where every rank goes on with the
    same computation and the same loss, as after an AllReduce, every rank's gradient is already
    the whole one: then say ``replicated=True``, and each takes its rows of it.  Unless either is
    said, gradients that are the same on all ranks are refused.
    """
    return torch.ops.entwine.all_gather_rows(rows, num_rows, check_world(world).name, replicated)


@_fake("entwine::reduce_scatter_rows")
def _(rows, world, replicated=False):
    return rows.new_empty((find_world(world)._share(rows.shape[0]), rows.shape[1]))


class _ReduceScatterRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, rows, world, replicated=False):
        ctx.num_rows, ctx.world, ctx.replicated = rows.shape[0], world, replicated
        return run(rows, world, replicated)

    @staticmethod
    def backward(ctx, grad):
        return (None, torch.ops.entwine.all_gather_rows(grad, ctx.num_rows, ctx.world,
                                                        ctx.replicated), None, None)


_differentiable("reduce_scatter_rows", _ReduceScatterRows, _torch_rows.reduce_scatter)


def reduce_scatter_rows(rows: torch.Tensor, world: World,
                        replicated: bool | None = False) -> torch.Tensor:
    """This rank's rows of the sum over ranks of ``rows``, added in rank order (in fp32 where the
    element type is narrower) and rounded once.  Collective, and so is its backward pass.

    ``replicated=True``: all ranks hold the same rows, so nothing is summed and each takes its
    own.
    """
    return torch.ops.entwine.reduce_scatter_rows(rows, check_world(world).name, replicated)


# ---- replicate: what is equal on all ranks ---------------------------------------------------

def _replicate(parameter, world):
    find_world(world)
    return parameter.detach().clone()


@_fake("entwine::replicate")
def _(parameter, world):
    find_world(world)
    return torch.empty_like(parameter)


class _Replicate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, parameter, world):
        ctx.world = world
        return run(parameter, world)

    @staticmethod
    def backward(ctx, grad):
        # The sum is again the same on all ranks.
        parts = torch.ops.entwine.all_gather_rows(grad.reshape(1, -1), find_world(ctx.world).size,
                                                  ctx.world, True)
        return None, parts.sum(0).view_as(grad), None


_differentiable("replicate", _Replicate, _replicate)


def replicate(tensor: torch.Tensor, world: World) -> torch.Tensor:
    """The tensor itself, which is equal on all ranks and used differently by them: its gradient
    is the sum over the ranks.  For what goes into column-parallel layers, and for parameters that
    every rank holds whole.  The backward pass is collective."""
    return _replicated(tensor, check_world(world).name)


def _replicated(tensor, world):
    if torch.is_grad_enabled() and tensor.requires_grad:
        return torch.ops.entwine.replicate(tensor, world)
    return tensor
