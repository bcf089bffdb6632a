"""The operators with several weights on one gather: ag_gemm_multi, and ag_gemm_act with the
activation of an MLP after it.  Their gradient for the rows is one gemm_rs for all weights."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from . import _torch_weights
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._products import activation_code
from ._shared_plans import plan_of_shape
from ._torch_operators import _check_operands, _plain, gemm_rs_operator, may_pack
from ._torch_registration import _NAMES, _autocast, _differentiable, _fake, _library, _to
from ._world import World, check_world, find_world

for _schema in ("ag_gemm_multi(Tensor a, Tensor[] b, SymInt num_rows, str world, "
                "bool frozen=False, bool gather=False, bool pack=True) -> Tensor[]",
                "ag_gemm_act(Tensor a, Tensor gate, Tensor? up, SymInt num_rows, str world, "
                "str activation=\"silu\", bool frozen=False, bool gather=False, bool keep=False, "
                "bool pack=True) -> (Tensor, Tensor, Tensor, Tensor)"):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


# ---- Operands --------------------------------------------------------------------------------

def _check_weights(a, weights):
    if not weights:
        raise ArgumentError("b is empty; expected at least one weight")
    for b in weights:
        _check_operands(a, b)
        if b.shape[1] != a.shape[1]:
            raise ShapeError(f"a has shape {tuple(a.shape)} and a weight {tuple(b.shape)}; "
                             f"expected the same depth k\n  fix: weights on one gather have the "
                             f"depth of the rows")
    if a.dtype not in _NAMES:
        raise ArgumentTypeError(f"a has element type {a.dtype}; expected float32, float16 or "
                                f"bfloat16\n  fix: convert it first")


def _prepare(world, a, weights, num_rows, frozen, pack, config=""):
    """(the plan, what it takes for each weight: packed before, or to be packed in the call)."""
    _check_weights(a, weights)
    layouts = [_torch_weights.layout_of(b) for b in weights]
    layout = "kn" if set(layouts) == {"kn"} else "nk"
    plan = plan_of_shape(world, num_rows, (sum(b.shape[0] for b in weights), a.shape[1]),
                         _NAMES[a.dtype], layout, a.is_cpu, config or None, "ag-gemm")
    given = []
    for b, its in zip(weights, layouts):
        weight = (_torch_weights.packed(world, b, layout, frozen, pack, config) if its == layout
                  else None)
        given.append(weight or (b.detach() if its == layout else _plain(b)))
    return plan, given


def _check_fake(a, weights, num_rows, world):
    _check_weights(a, weights)
    share = find_world(world)._share(num_rows)
    torch._check(a.shape[0] == share, lambda: f"a has shape {tuple(a.shape)}; expected {share} "
                 f"rows, this rank's of num_rows={num_rows}")


def _cast(dtype, a, weights, frozen, pack):
    """For autocast: a weight that is cast is new in every call."""
    same = all(b.dtype == dtype or b.dtype not in _NAMES for b in weights)
    return _to(dtype, a), [_to(dtype, b) for b in weights], frozen and same, pack and same


def _gradients(grads, a_wants, weights, wants, gathered, grad_gathered, world):
    """Of a and of each weight, from those of the products, some of which may be None."""
    there = [at for at, grad in enumerate(grads) if grad is not None]
    grad_a = None
    if a_wants and there:
        # One call for all: what is summed over the products is summed before it crosses.
        wide = torch.cat([grads[at] for at in there], 1)
        grad_a = gemm_rs_operator(wide, torch.cat([weights[at] for at in there]).t(), world, False,
                                  False)
    if a_wants and grad_gathered is not None:
        rows = torch.ops.entwine.reduce_scatter_rows(grad_gathered, world)
        grad_a = rows if grad_a is None else grad_a + rows
    return grad_a, [grad.t() @ gathered if wanted and grad is not None else None
                    for grad, wanted in zip(grads, wants)]


# ---- ag_gemm_multi ---------------------------------------------------------------------------

def _multi(a, b, num_rows, world, frozen=False, gather=False, pack=True):
    plan, weights = _prepare(find_world(world), a, b, num_rows, frozen, pack)
    gathered = a.new_empty((num_rows if gather else 0, a.shape[1]))
    return [*plan.ag_gemm_multi(_plain(a), weights, num_rows,
                                gathered=gathered if gather else None), gathered]


@_fake("entwine::ag_gemm_multi")
def _(a, b, num_rows, world, frozen=False, gather=False, pack=True):
    _check_fake(a, b, num_rows, world)
    return [*(a.new_empty((num_rows, weight.shape[0])) for weight in b),
            a.new_empty((num_rows if gather else 0, a.shape[1]))]


class _Multi(torch.autograd.Function):
    """Of single tensors, as autograd wants them."""

    @staticmethod
    def forward(ctx, run, num_rows, world, frozen, gather, pack, a, *b):
        *products, gathered = run(a, list(b), num_rows, world, frozen,
                                  gather or any(ctx.needs_input_grad[7:]), pack)
        ctx.save_for_backward(gathered, *b)
        ctx.world = world
        ctx.set_materialize_grads(False)
        return *products, gathered

    @staticmethod
    def backward(ctx, *grads):
        gathered, *b = ctx.saved_tensors
        *grads, grad_gathered = grads
        grad_a, grads_b = _gradients(grads, ctx.needs_input_grad[6], b, ctx.needs_input_grad[7:],
                                     gathered, grad_gathered, ctx.world)
        return None, None, None, None, None, None, grad_a, *grads_b


class _MultiOfList:
    @staticmethod
    def apply(run, a, b, num_rows, world, frozen=False, gather=False, pack=True):
        return list(_Multi.apply(run, num_rows, world, frozen, gather, pack, a, *b))


def _cast_multi(dtype, arguments):
    a, b, num_rows, world, *rest = arguments
    frozen, gather, pack = (*rest, *(False, False, True)[len(rest):])
    a, b, frozen, pack = _cast(dtype, a, b, frozen, pack)
    return a, b, num_rows, world, frozen, gather, pack


_differentiable("ag_gemm_multi", _MultiOfList, _multi, pack=6)
_autocast("ag_gemm_multi", _cast_multi)


def ag_gemm_multi(a: torch.Tensor, b: Sequence[torch.Tensor], world: World,
                  num_rows: int | None = None, frozen: bool = False) -> list[torch.Tensor]:
    """``ag_gemm`` with several weights, such as those of q, k and v, in one call that gathers the
    rows once, with gradients: a list of [num_rows, n] for each.  The backward pass is one
    ``gemm_rs`` for all of them."""
    if num_rows is None:
        num_rows = a.shape[0] * check_world(world).size
    products: list[torch.Tensor] = torch.ops.entwine.ag_gemm_multi(
        a, list(b), num_rows, check_world(world).name, frozen, False, all(map(may_pack, b)))
    return products[:-1]


# ---- ag_gemm_act -----------------------------------------------------------------------------

def _act(a, gate, up, num_rows, world, activation="silu", frozen=False, gather=False, keep=False,
         pack=True):
    weights = [gate] if up is None else [gate, up]
    plan, given = _prepare(find_world(world), a, weights, num_rows, frozen, pack)
    n = gate.shape[0]
    gathered = a.new_empty((num_rows if gather else 0, a.shape[1]))
    kept = [a.new_empty((num_rows if keep and at < len(weights) else 0, n)) for at in range(2)]
    h = plan.ag_gemm_act(_plain(a), given, activation, num_rows,
                         products=kept[:len(weights)] if keep else None,
                         gathered=gathered if gather else None)
    return h, gathered, *kept


def activated(a, gate, up, activation, world, frozen, config):
    """(ag_gemm_act without gradients or the dispatcher, what the plan took for each weight).  For a
    world of one rank."""
    plan, given = _prepare(world, a, [gate, up], a.shape[0], frozen, True, config)
    return plan.ag_gemm_act(_plain(a), given, activation), given


@_fake("entwine::ag_gemm_act")
def _(a, gate, up, num_rows, world, activation="silu", frozen=False, gather=False, keep=False,
      pack=True):
    weights = [gate] if up is None else [gate, up]
    _check_fake(a, weights, num_rows, world)
    n = gate.shape[0]
    return (a.new_empty((num_rows, n)), a.new_empty((num_rows if gather else 0, a.shape[1])),
            a.new_empty((num_rows if keep else 0, n)),
            a.new_empty((num_rows if keep and up is not None else 0, n)))


def _activate(activation, x):
    """(act(x), its derivative)."""
    if activation == "none":
        return x, torch.ones_like(x)
    if activation == "silu":
        s = torch.sigmoid(x)
        return x * s, s * (1 + x * (1 - s))
    factor = 2 * math.sqrt(2 / math.pi)
    s = torch.sigmoid(factor * (x + 0.044715 * x ** 3))
    return x * s, s + x * s * (1 - s) * factor * (1 + 3 * 0.044715 * x * x)


def _add(x, y):
    return y if x is None else x if y is None else x + y


class _Act(torch.autograd.Function):
    """gate and up are results, so that what is computed from them has derivatives, too."""

    @staticmethod
    def forward(ctx, run, a, gate, up, num_rows, world, activation="silu", frozen=False,
                gather=False, keep=False, pack=True):
        results = run(a, gate, up, num_rows, world, activation, frozen,
                      gather or any(ctx.needs_input_grad[2:4]), True, pack)
        ctx.save_for_backward(gate, up, *results[1:])
        ctx.world, ctx.activation = world, activation
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    def backward(ctx, grad, grad_gathered, *grads):
        gate, up, gathered, *products = ctx.saved_tensors  # read once: it may be recomputed
        has_up = up is not None
        grads = list(grads) if has_up else [grads[0]]
        if grad is not None:  # in fp32, rounded once
            act, slope = _activate(ctx.activation, products[0].float())
            wide = grad.float()
            if has_up:
                grads[1] = _add(grads[1], (wide * act).to(grad.dtype))
                wide = wide * products[1].float()
            grads[0] = _add(grads[0], (wide * slope).to(grad.dtype))
        grad_a, grads_b = _gradients(grads, ctx.needs_input_grad[1], (gate, up),
                                     ctx.needs_input_grad[2:4], gathered, grad_gathered, ctx.world)
        return (None, grad_a, grads_b[0], grads_b[1] if has_up else None,
                None, None, None, None, None, None, None)


def _cast_act(dtype, arguments):
    a, gate, up, num_rows, world, *rest = arguments
    activation, frozen, gather, keep, pack = (
        *rest, *("silu", False, False, False, True)[len(rest):])
    weights = [gate] if up is None else [gate, up]
    a, weights, frozen, pack = _cast(dtype, a, weights, frozen, pack)
    return (a, weights[0], weights[1] if up is not None else None, num_rows, world, activation,
            frozen, gather, keep, pack)


_differentiable("ag_gemm_act", _Act, _act, pack=9)
_autocast("ag_gemm_act", _cast_act)


def ag_gemm_act(a: torch.Tensor, gate: torch.Tensor, up: torch.Tensor | None, world: World,
                num_rows: int | None = None, activation: str = "silu", frozen: bool = False
                ) -> torch.Tensor:
    """``act(x @ gate.T) * (x @ up.T)`` of the rows x of all ranks, or without the second factor
    where ``up`` is None, with gradients: [num_rows, n].  ``activation`` is "silu" (SwiGLU),
    "gelu-tanh" or "none".

    Both products are rounded first, then the activation is fp32 and rounded once.  Where a
    gradient is wanted both are kept for it, as are the gathered rows where a weight wants one.
    """
    activation_code(activation)
    if num_rows is None:
        num_rows = a.shape[0] * check_world(world).size
    pack = may_pack(gate) and (up is None or may_pack(up))
    h: torch.Tensor = torch.ops.entwine.ag_gemm_act(a, gate, up, num_rows, check_world(world).name,
                                                    activation, frozen, False, False, pack)[0]
    return h
