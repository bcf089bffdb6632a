"""Entwine in PyTorch: operators with gradients that torch.compile sees through, and a layer.

    torch.ops.entwine.gemm_rs(a, b, world.name)     # this rank's rows of the sum of a @ b.T
    entwine.torch.RowParallelLinear(4096, 4096, world=world)
    entwine.torch.RowParallelLinearNorm(4096, 4096, world=world)    # + residual, RMSNorm

All run on the CPU and, on the current CUDA stream, on a GPU.  Make one eager call of a new
shape before capturing a CUDA graph: it creates the plan, which all ranks do together.
"""
import math

import torch
import torch.distributed as dist

from . import _plan
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._library import lib
from ._world import World, check_world, find_world

__all__ = ["RowParallelLinear", "RowParallelLinearNorm", "gemm_rs", "gemm_rs_layer",
           "all_gather_rows", "world_of"]

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
    return tensor.detach() if tensor.requires_grad else tensor


def _frozen_plan(world, a, b):
    """A plan that has packed b.  It keeps b, so that no other tensor can get its address."""
    bucket = _plan._bucket(a.shape[0])
    key = (b.data_ptr(), b.shape, b.stride(), b.dtype, bucket)
    kept = world._frozen.get(key)
    if kept is None:
        _check_operands(a, b)
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
    _check_dimensions(a, b)
    world = find_world(world)
    a, b = _plain(a), _plain(b)
    if not a.is_contiguous():
        a = a.contiguous()
    if frozen:
        return world, a, None, _frozen_plan(world, a, b)
    _check_operands(a, b)
    if not (b.is_contiguous() or b.t().is_contiguous()):
        b = b.contiguous()
    return world, a, b, None


@torch.library.impl("entwine::gemm_rs", _DEVICES)
def _gemm_rs(a, b, world, frozen=False):
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


def _save_operands(ctx, inputs, output):
    a, b, ctx.world, _ = inputs
    ctx.save_for_backward(a, b)


def _gemm_rs_backward(ctx, grad):
    a, b = ctx.saved_tensors
    # Every rank's rows count for this rank's operands.
    grad = torch.ops.entwine.all_gather_rows(grad, a.shape[0], ctx.world)
    return (grad @ b if ctx.needs_input_grad[0] else None,
            grad.t() @ a if ctx.needs_input_grad[1] else None, None, None)


torch.library.register_autograd("entwine::gemm_rs", _gemm_rs_backward,
                                setup_context=_save_operands)


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
    parts = {"residual": _plain(residual), "norm_weight": _plain(norm_weight).contiguous(),
             "bias": None if bias is None else _plain(bias).contiguous(), "eps": eps}
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


# ---- The world of a group --------------------------------------------------------------------

_by_group = {}


def world_of(group=None):
    """The world of a torch.distributed group (default: all processes), made when first asked
    for.  Collective then."""
    group = group if group is not None else dist.group.WORLD
    world = _by_group.get(group)
    if world is None or world._handle is None:
        world = _by_group[group] = World.from_torch(group)
    return world


# ---- The layer -------------------------------------------------------------------------------

class RowParallelLinear(torch.nn.Module):
    """A linear layer whose input features are split over the ranks and whose output rows are
    scattered over them (sequence parallelism).

    ``x`` holds this rank's ``in_features / W`` features: [m, in_features / W] gives
    [owned rows, out_features]; with more dimensions the first is scattered and W must divide
    it.  The weight is [out_features, in_features / W]; the bias is whole on every rank and is
    added once, to the owned rows.  Its gradient is summed over the ranks.

    ``world`` is an entwine.World; without one it is ``world_of(group)``.
    ``freeze()`` packs the weight once, for inference.
    """

    def __init__(self, in_features, out_features, bias=True, *, world=None, group=None,
                 device=None, dtype=None):
        super().__init__()
        self.world = world = check_world(world if world is not None else world_of(group))
        if in_features % world.size:
            raise ShapeError(f"in_features is {in_features}; expected a multiple of the "
                             f"{world.size} ranks")
        self.in_features, self.out_features = in_features, out_features
        self.frozen = False
        self._world_name = world.name
        place = {"device": device, "dtype": dtype}
        self.weight = torch.nn.Parameter(
            torch.empty(out_features, in_features // world.size, **place))
        self.bias = torch.nn.Parameter(torch.empty(out_features, **place)) if bias else None
        self.reset_parameters()

    def reset_parameters(self):
        """As torch.nn.Linear of the whole size; the bias must be equal on all ranks, so it
        starts at zero."""
        bound = 1 / math.sqrt(self.in_features)
        torch.nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    @classmethod
    def from_linear(cls, linear, world):
        """This rank's part of a torch.nn.Linear that all ranks hold."""
        layer = cls(linear.in_features, linear.out_features, linear.bias is not None, world=world,
                    device=linear.weight.device, dtype=linear.weight.dtype)
        share = linear.in_features // world.size
        with torch.no_grad():
            layer.weight.copy_(linear.weight[:, world.rank * share:(world.rank + 1) * share])
            if linear.bias is not None:
                layer.bias.copy_(linear.bias)
        return layer

    def freeze(self):
        """Promises that the weight will not change, so that it is packed once."""
        self.frozen = True
        self.requires_grad_(False)
        return self

    def _rows(self, x):
        """x as a matrix, and the shape of the result."""
        share = self.weight.shape[1]
        if x.dim() < 2 or x.shape[-1] != share:
            raise ShapeError(f"x has shape {tuple(x.shape)}; expected [..., {share}], this rank's "
                             f"features")
        if x.dim() > 2 and x.shape[0] % self.world.size:
            raise ShapeError(f"x has shape {tuple(x.shape)}; expected a first extent that is a "
                             f"multiple of the {self.world.size} ranks, or two dimensions")
        count = x.shape[0] // self.world.size if x.dim() > 2 else self.world._share(x.shape[0])
        return x.reshape(-1, share), (count, *x.shape[1:-1], self.out_features)

    def forward(self, x):
        rows, shape = self._rows(x)
        y = torch.ops.entwine.gemm_rs(rows, self.weight, self._world_name, self.frozen)
        if self.bias is not None:
            y = y + torch.ops.entwine.replicate(self.bias, self._world_name)
        return y.view(shape)

    def extra_repr(self):
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, ranks={self.world.size}")


class RowParallelLinearNorm(RowParallelLinear):
    """RowParallelLinear with what follows it in a Llama-style block, in one call: the residual
    is added and the sum normed (RMSNorm, fp32 statistics).

        normed, residual = layer(x, residual)

    ``residual`` holds this rank's rows.  Where no gradient is wanted the sum takes the place of
    the residual that was passed, so go on with the one returned.  With gradients, the steps are
    torch's own; the last bit of ``normed`` may then differ.

    ``norm_weight`` is whole on every rank, as the bias; its gradient is summed over the ranks.
    """

    def __init__(self, in_features, out_features, bias=False, *, eps=1e-5, world=None, group=None,
                 device=None, dtype=None):
        super().__init__(in_features, out_features, bias, world=world, group=group, device=device,
                         dtype=dtype)
        self.eps = eps
        self.norm_weight = torch.nn.Parameter(
            torch.ones(out_features, device=device, dtype=dtype))

    @classmethod
    def from_linear(cls, linear, world, norm_weight=None, eps=1e-5):
        """This rank's part of a torch.nn.Linear, and the weight of the norm behind it, both
        whole on all ranks."""
        layer = super().from_linear(linear, world)
        layer.eps = eps
        if norm_weight is not None:
            with torch.no_grad():
                layer.norm_weight.copy_(norm_weight)
        return layer

    def forward(self, x, residual):
        rows, shape = self._rows(x)
        if tuple(residual.shape) != shape:
            raise ShapeError(f"residual has shape {tuple(residual.shape)}; expected {shape}, this "
                             f"rank's rows")
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in
                                           (x, residual, *self.parameters())):
            return self._with_gradients(x, residual)
        residual = residual.contiguous()
        normed = torch.ops.entwine.gemm_rs_layer(
            rows, self.weight, residual.view(-1, self.out_features), self.norm_weight,
            self._world_name, self.bias, self.eps, self.frozen)
        return normed.view(shape), residual

    def _with_gradients(self, x, residual):
        h = super().forward(x) + residual
        scale = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + self.eps)
        weight = torch.ops.entwine.replicate(self.norm_weight, self._world_name)
        return (h.float() * scale).to(h.dtype) * weight, h

    def extra_repr(self):
        return f"{super().extra_repr()}, eps={self.eps}"
