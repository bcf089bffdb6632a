"""Entwine in models of Transformers: their tensor parallelism, with GEMM and AllReduce in one call.

    import entwine.transformers
    entwine.transformers.enable()

After this, models that ``from_pretrained`` loads with a ``DistributedConfig(tp_plan="auto")`` use
Entwine in their row-parallel layers.  ``parallelize`` splits a model that every rank has loaded
whole.
"""
from __future__ import annotations

import collections
import functools
import itertools
import logging
import re
import types
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.nn.modules.module import _has_any_global_hook

from ._adapters import counted, why_not, with_reasons
from ._errors import ArgumentError, ShapeError, UnsupportedError
from ._torch_block import activation_of
from ._torch_linear import why_not_plain
from ._torch_parallel import (Forward, activated_forward, column_forward, embedding_forward,
                              gathered_column_forward, row_forward)
from ._torch_world import world_of
from ._world import World

try:
    import transformers
    from transformers.distributed import DistributedConfig, mixin
    from transformers.distributed.tensor_parallel import (ALL_PARALLEL_STYLES, ColwiseParallel,
                                                          EmbeddingParallel, RowwiseParallel)
    from transformers.distributed.utils import TransformersDeviceMesh
    _apply = mixin.apply_tensor_parallelism
except (ImportError, AttributeError) as error:
    raise UnsupportedError(f"Transformers has no tensor parallelism that Entwine knows ({error})\n"
                           f"  fix: pip install 'transformers>=5.22' accelerate, or put "
                           f"entwine.torch.RowParallelLinear into the model") from error

if TYPE_CHECKING:
    Model = TypeVar("Model", bound=transformers.PreTrainedModel)

__all__ = ["enable", "parallelize"]

_log = logging.getLogger("entwine")

# Transformers' style: ours, in its registry.
_OURS = {"rowwise": "entwine_rowwise", "colwise": "entwine_colwise",
         "colwise_gather_output": "entwine_colwise_gather_output",
         "embedding_rowwise": "entwine_embedding_rowwise"}

# Of a model that has no plan of its own, by the last part of a module's name.
_PLAN_BY_NAME = {**dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), "colwise"),
                 **dict.fromkeys(("o_proj", "down_proj"), "rowwise")}


# ---- The styles ------------------------------------------------------------------------------

def _generic(name: str) -> str:
    """As a plan names it: layers.*.mlp for layers.3.mlp."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _group_of(mesh: DeviceMesh) -> dist.ProcessGroup:
    return mesh.get_group() if mesh.ndim == 1 else mesh.get_group("tp")


def _why_not(module: torch.nn.Module, mesh: DeviceMesh, style: _Entwines) -> str | None:
    """Why Entwine cannot run this layer; None if it can."""
    size = _group_of(mesh).size()
    why = why_not_plain(module, style.kind)
    if why is not None:
        return why
    if getattr(module, "max_norm", None) is not None:
        return "has max_norm, which changes its weight"
    why = why_not(module.weight, mesh.device_type)  # type: ignore[arg-type]
    if why is not None:
        return why
    count = getattr(module, style.split)
    return f"has {style.split}={count}, not a multiple of {size} ranks" if count % size else None


def _replaced(module: Any, install: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    """The forward of Transformers' for this module, in the place of the one it was copied with."""
    ours = module.__dict__.pop("forward")
    try:
        theirs: Callable[..., Any] = install(module, mesh).forward
    finally:
        module.forward = ours
    module._entwine_theirs = id(module), theirs
    return theirs


# A function that wraps one of these (functools.wraps) has its attributes, but is none of them.
_forwards: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


class _Entwines:
    """A style of Transformers' with another forward where Entwine can run the layer."""
    kind: type[torch.nn.Module] = torch.nn.Linear
    split: str  # which number of the layer is divided among the ranks
    forward_of: Callable[[World], Forward]

    def install_forward(self, module: torch.nn.Module, mesh: DeviceMesh) -> torch.nn.Module:
        install_theirs = super().install_forward  # type: ignore[misc]
        why = _why_not(module, mesh, self)
        module = install_theirs(module, mesh)
        if why is not None:
            return module
        ours = self.forward_of(world_of(_group_of(mesh)))

        def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
            is_split = type(x) is not torch.Tensor and isinstance(x, DTensor)
            y = None if is_split else ours(module, x)
            if y is not None:
                return y
            owner, theirs = module._entwine_theirs
            if owner != id(module):  # a copy: theirs is a function that uses the original
                theirs = _replaced(module, install_theirs, mesh)
            return theirs(x)

        module._entwine_theirs = id(module), module.forward
        _forwards.add(forward)
        module.forward = types.MethodType(forward, module)
        return module


class EntwineRowwise(_Entwines, RowwiseParallel):
    split, forward_of = "in_features", staticmethod(row_forward)


class EntwineColwise(_Entwines, ColwiseParallel):
    split, forward_of = "out_features", staticmethod(column_forward)


class EntwineColwiseGathered(_Entwines, ColwiseParallel):
    split, forward_of = "out_features", staticmethod(gathered_column_forward)


class EntwineEmbedding(_Entwines, EmbeddingParallel):
    kind = torch.nn.Embedding
    split, forward_of = "num_embeddings", staticmethod(embedding_forward)


ALL_PARALLEL_STYLES.register("entwine_rowwise", EntwineRowwise())
ALL_PARALLEL_STYLES.register("entwine_colwise", EntwineColwise())
ALL_PARALLEL_STYLES.register("entwine_colwise_gather_output",
                             EntwineColwiseGathered(output_layouts=Replicate()))
ALL_PARALLEL_STYLES.register("entwine_embedding_rowwise", EntwineEmbedding(shard_dim=0))


# ---- Gated MLPs ------------------------------------------------------------------------------

def _gated(self: Any, x: Any) -> Any:
    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
    return down_proj


def _is_gated(module: torch.nn.Module) -> bool:
    """Whether its forward is the function above, as in most models: compiled to the same."""
    code, ours = getattr(type(module).forward, "__code__", None), _gated.__code__
    return (code is not None and "forward" not in module.__dict__
            and (code.co_code, code.co_names, code.co_argcount)
            == (ours.co_code, ours.co_names, ours.co_argcount))


def _is_untouched(layer: torch.nn.Module) -> bool:
    """Whether a call of it would be Entwine's product and nothing else."""
    return (getattr(layer.__dict__.get("forward"), "__func__", None) in _forwards
            and not layer._forward_hooks and not layer._forward_pre_hooks
            and layer._parameters.get("bias") is None)


def _join(mlp: Any, world: World) -> bool:
    """Has an MLP compute gate, up and the activation in one call, in inference on a CPU."""
    layers = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj")]
    if not _is_gated(mlp) or not all(map(_is_untouched, layers)):
        return False
    try:
        activated = activated_forward(world, activation_of(mlp))
    except ArgumentError:
        return False
    theirs, kind = type(mlp).forward, type(mlp.act_fn)

    def forward(mlp: Any, x: torch.Tensor) -> Any:
        if torch.compiler.is_compiling() or type(mlp).forward is not theirs:
            return type(mlp).forward(mlp, x)
        modules, h = mlp._modules, None
        gate, up, act = modules["gate_proj"], modules["up_proj"], modules.get("act_fn")
        if (_is_untouched(gate) and _is_untouched(up) and type(act) is kind
                and "forward" not in act.__dict__ and not act._forward_hooks
                and not act._forward_pre_hooks and not _has_any_global_hook()):
            h = activated(gate, up, x)
        return theirs(mlp, x) if h is None else modules["down_proj"](h)

    mlp.forward = types.MethodType(forward, mlp)
    return True


# ---- What was replaced -----------------------------------------------------------------------

def _layers_in(model: torch.nn.Module, plan: dict[str, str], mesh: DeviceMesh
               ) -> list[tuple[str, str, str | None]]:
    """(name, style, why it is left to Transformers, if it is) of each layer that is to be split."""
    layers = []
    for name, module in model.named_modules():
        style = plan.get(name, plan.get(_generic(name)))
        if style is not None:
            ours = style in _OURS.values()
            layers.append((name, style, _why_not(module, mesh, ALL_PARALLEL_STYLES[style])
                           if ours else style))
    return layers


def _report(model: torch.nn.Module, layers: list[tuple[str, str, str | None]], mesh: DeviceMesh,
            joined: list[str]) -> None:
    """One line on rank 0: a warning if a row-parallel layer is left to Transformers."""
    used: dict[str, list[str]] = {style: [] for style in _OURS.values()}
    left: dict[str, list[str]] = collections.defaultdict(list)
    level = logging.INFO
    for name, style, why in layers:
        if why is None:
            used[style].append(name)
            continue
        left[why].append(name)
        if style == "entwine_rowwise":
            level = logging.WARNING
    if _group_of(mesh).rank() == 0:
        rows, columns, *gathered = (used[style] for style in _OURS.values())
        _log.log(level, "entwine: %s on %d ranks: GEMM + AllReduce in %s; local columns in %s; "
                 "activated in one call in inference: %s; gathered in inference: %s; left to "
                 "Transformers: %s", type(model).__name__, _group_of(mesh).size(), counted(rows),
                 counted(columns), counted(joined), counted(itertools.chain(*gathered)),
                 with_reasons(left))


# ---- Enabling --------------------------------------------------------------------------------

@functools.wraps(_apply)
def _apply_with_entwine(model: Any, tp_mesh: DeviceMesh, tp_plan: dict[str, str] | None = None
                        ) -> Any:
    plan = {name: _OURS.get(style, style)
            for name, style in (model.tp_plan if tp_plan is None else tp_plan).items()}
    layers = _layers_in(model, plan, tp_mesh)
    model = _apply(model, tp_mesh, plan)
    world = world_of(_group_of(tp_mesh))
    _report(model, layers, tp_mesh,
            [name for name, module in model.named_modules() if _join(module, world)])
    return model


def enable() -> None:
    """Has Transformers' tensor parallelism use Entwine, for models that are loaded from now on:
    GEMM + AllReduce in layers of the style ``rowwise``, products with packed weights in those of
    ``colwise`` where no gradient is wanted, and in MLPs of the usual form ``act(gate) * up`` in one
    call; the gradients of both are summed through Entwine's shared memory.  In eager inference the
    outputs of ``colwise_gather_output`` and ``embedding_rowwise`` are gathered through it too.
    Parameters, checkpoints and everything else stay Transformers' own.

    What was replaced in a model, and what was not and why, is one line of the logger ``entwine``: a
    warning if a row-parallel layer was not replaced.
    """
    mixin.apply_tensor_parallelism = _apply_with_entwine


def _plan_of(model: Any) -> dict[str, str]:
    """The model's own plan, or one by the names of its layers."""
    if model.tp_plan:
        # Checkpoints have the two halves apart, and so are they split as they are loaded.
        return {name: "packed_colwise" if name.endswith(".experts.gate_up_proj")
                and style == "colwise" else style for name, style in model.tp_plan.items()}
    plan = {_generic(name): _PLAN_BY_NAME[name.rpartition(".")[2]]
            for name, module in model.named_modules()
            if name.rpartition(".")[2] in _PLAN_BY_NAME and isinstance(module, torch.nn.Linear)}
    if "rowwise" not in plan.values():
        raise ArgumentError(f"{type(model).__name__} has no tensor-parallel plan, and no linear "
                            f"layers named o_proj or down_proj\n  fix: set model.tp_plan")
    return plan


def _check_heads(model: Any, size: int) -> None:
    config = model.config.get_text_config()
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % size:
            raise ShapeError(f"{name} is {heads}; expected a multiple of the {size} ranks")


def _untie(model: torch.nn.Module) -> None:
    """Gives every module parameters of its own, in the same memory."""
    seen = set()
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter in seen:
                setattr(module, name, torch.nn.Parameter(parameter.detach(),
                                                         parameter.requires_grad))
            seen.add(parameter)


def parallelize(model: Model, group: dist.ProcessGroup | None = None) -> Model:
    """Splits a model of Transformers, which every rank of the group has loaded whole, over these
    ranks, in place: as ``from_pretrained`` with a ``DistributedConfig`` after ``enable``, which
    needs less memory while it loads.  Collective.

    The model's own plan says which layers are split; in a model without one, layers named
    ``q_proj``, ``k_proj``, ``v_proj``, ``gate_proj`` and ``up_proj`` by columns, ``o_proj`` and
    ``down_proj`` by rows.
    """
    if not isinstance(model, transformers.PreTrainedModel):
        raise ArgumentError(f"model is a {type(model).__name__}; expected a model of Transformers")
    if model._device_mesh is not None:
        raise ArgumentError("model is already distributed\n  fix: call entwine.transformers.enable"
                            "() before from_pretrained instead")
    world = world_of(group)
    _check_heads(model, world.size)
    mesh = DeviceMesh.from_group(world.group, next(model.parameters()).device.type,
                                 mesh_dim_names=("tp",))
    model._tp_plan = plan = _plan_of(model)
    model.config.distributed_config = DistributedConfig(tp_size=world.size)
    model._device_mesh, model._mesh_manager = mesh, TransformersDeviceMesh(mesh, mesh)
    model._tp_size, model._fsdp_size = world.size, 1
    # From 5.23 on a plan names every layer by its number when it is applied.
    by_number = getattr(model, "_expand_parallel_plan", dict)
    _untie(model)  # otherwise the second layer of a tied pair would not be split
    _apply_with_entwine(model, mesh, by_number(plan))
    model.tie_weights()
    return model
