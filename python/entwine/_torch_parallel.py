"""Linear layers whose parameters are DTensors: the forward of a row-parallel one, whose product and
collective are one call of Entwine's, and of a column-parallel one, which exchanges nothing, or in
inference its results; an embedding's in inference; and the style that makes the first of a
torch.nn.Linear.  Each becomes a method of its layer, so that a copy of the layer has its own."""
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module
from torch.distributed.tensor import parallel

from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._torch_dispatch import has_nothing_to_do_on_cpu
from ._torch_linear import why_not_plain
from ._torch_rows import parts_of_all
from ._torch_sums import activated_columns, own_columns, scattered_sum, whole_sum
from ._torch_world import world_of
from ._world import World


def _part(parameter: torch.Tensor | None) -> torch.Tensor | None:
    """This rank's part of a parameter.

    torch counts a write to a DTensor in its own version and not in that of the local tensor, which
    is what packed weights are compared by; so it is passed on."""
    if parameter is None or not isinstance(parameter, DTensor):
        return parameter
    if _is_compiling():
        return parameter.to_local()
    local = parameter._local_tensor
    try:
        now, known = _seen_of(parameter), local._entwine_seen  # type: ignore[attr-defined]
    except (AttributeError, RuntimeError):  # the first time; an inference tensor has no version
        _note_version(parameter)
    else:
        if known != now:
            if known[:2] != now[:2]:
                torch.autograd.graph.increment_version(local)
            _note_version(parameter)
    return parameter.to_local() if _is_grad_enabled() else local


def _seen_of(parameter: DTensor) -> tuple[int, int, bool]:
    """What _torch_weights cannot find in the local tensor: also whether it is trained."""
    return id(parameter), parameter._version, parameter.requires_grad


def _note_version(parameter: DTensor) -> None:
    local = parameter._local_tensor
    if not (parameter.is_inference() or local.is_inference()):
        local._entwine_seen = _seen_of(parameter)  # type: ignore[attr-defined]


def _parameter(module: torch.nn.Module, name: str) -> Any:
    """module.weight, without the search that torch makes for it in every call."""
    parameters = module._parameters
    return parameters[name] if name in parameters else getattr(module, name)


def _refuse_whole(module: torch.nn.Linear, world: World) -> None:
    """A whole weight that was put in the place of a DTensor: every rank would multiply by all of it,
    and where all layers have one, the sums would count everything once per rank."""
    shape = tuple(module.weight.shape)
    if world.size > 1 and shape == (module.out_features, module.in_features):
        raise ArgumentTypeError(
            f"the weight is a plain tensor of the whole shape {shape}; expected a DTensor that is "
            f"split over the {world.size} ranks\n  fix: load it before the model is split, or pass "
            f"DTensors (torch.distributed.tensor.distribute_tensor) to load_state_dict")


def _watched(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """y, whose gradient for x needs the weight as it is now.  torch would see a write to what it
    has saved, but that is the local tensor, whose version a write to the DTensor leaves."""
    if not (y.requires_grad and x.requires_grad and isinstance(weight, DTensor)
            and not torch.compiler.is_compiling()):
        return y
    version = weight._version

    def check(grad: torch.Tensor) -> None:
        if weight._version != version:
            raise ArgumentError(
                f"a weight needed for gradient computation has been modified by an inplace "
                f"operation: it is at version {weight._version}; expected version {version}\n"
                f"  fix: call backward() before the optimizer's step, or run the forward pass again")

    y.register_hook(check)
    return y


_is_compiling, _is_grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled

Forward = Callable[[Any, torch.Tensor], Any]  # of a layer and its input


def row_forward(world: World, scatter_dim: int | None = None) -> Forward:
    """Of this rank's features: the whole sum, or this rank's part along scatter_dim."""
    def forward(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        whole, bias = _parameter(module, "weight"), _parameter(module, "bias")
        if not isinstance(whole, DTensor):
            _refuse_whole(module, world)
        weight, bias = _part(whole), _part(bias)
        # A compiled call sees the local tensor alone, whose version an optimizer's step leaves.
        pack = not (torch.compiler.is_compiling() and torch.is_grad_enabled())
        if scatter_dim is None:
            y = whole_sum(x, weight, bias, world, pack=pack)
        else:
            y = scattered_sum(x, weight, bias, world, dim=scatter_dim, pack=pack)
        return _watched(y, x, whole)

    return forward


def column_forward(world: World) -> Forward:
    """This rank's columns, of an input that is whole on every rank.  The gradient of the input is
    summed over the ranks."""
    def forward(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        weight, bias = _parameter(module, "weight"), _parameter(module, "bias")
        if not isinstance(weight, DTensor):
            _refuse_whole(module, world)
        y = own_columns(x, _part(weight), _part(bias), world)
        return _watched(y, x, weight)

    return forward


def activated_forward(world: World, activation: str) -> Callable[..., torch.Tensor | None]:
    """``act(gate(x)) * up(x)`` of this rank's columns, of two column-parallel layers without a bias
    and an input that is whole on every rank, in one call.  None, with nothing done, unless this is
    inference on a CPU."""
    def forward(gate: torch.nn.Module, up: torch.nn.Module, x: torch.Tensor
                ) -> torch.Tensor | None:
        first, second = _parameter(gate, "weight"), _parameter(up, "weight")
        if not isinstance(first, DTensor) or not isinstance(second, DTensor):
            return None
        return activated_columns(x, _part(first), _part(second), activation, world)

    return forward


def gathered_column_forward(world: World) -> Forward:
    """All columns, on every rank, of an input that is whole on every rank.  None, with nothing
    done, where a gradient is wanted or torch has to see what is called."""
    def forward(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor | None:
        if not isinstance(module.weight, DTensor) and not isinstance(module.bias, DTensor):
            # Tied to one that is not split, after this layer was.
            return torch.nn.functional.linear(x, module.weight, module.bias)
        weight, bias = _part(module.weight), _part(module.bias)
        if not has_nothing_to_do_on_cpu(x, weight) or not (
                bias is None or has_nothing_to_do_on_cpu(x, bias)):
            return None
        parts = parts_of_all(own_columns(x, weight, bias, world), world)
        return parts.movedim(0, -2).flatten(-2)

    return forward


def embedding_forward(world: World) -> Forward:
    """Of an embedding whose rows are split over the ranks: the rows of these numbers, which are the
    same on every rank.  None as in gathered_column_forward."""
    lookup = torch.nn.functional.embedding

    def forward(module: torch.nn.Embedding, numbers: torch.Tensor) -> torch.Tensor | None:
        weight = _part(module.weight)
        if not has_nothing_to_do_on_cpu(numbers, weight):
            return None
        share = weight.shape[0]
        # Every rank has a row for every number, and one of them has the right one.
        rows = parts_of_all(lookup(numbers % share, weight), world).flatten(0, -2)
        places = torch.arange(numbers.numel()).view(numbers.shape)
        return lookup(numbers // share * numbers.numel() + places, rows)

    return forward


class RowwiseParallel(parallel.RowwiseParallel):
    """torch's style of this name for ``parallelize_module``, with GEMM + AllReduce or ReduceScatter
    in one call:

        parallelize_module(model, mesh, {"mlp.down": entwine.torch.RowwiseParallel()})

    Arguments, parameters (DTensors) and state dicts are torch's.  ``output_layouts`` is
    ``Replicate()`` or ``Shard(dim)`` with a dimension before the last.  For ``torch.nn.Linear``.
    """

    def _scatter_dim(self) -> int | None:
        layout, = self.output_layouts
        if isinstance(layout, Replicate):
            return None
        if not isinstance(layout, Shard) or layout.dim < 0:
            raise ArgumentError(f"output_layouts is {layout}; expected Replicate() or Shard(dim) "
                                f"with dim from 0")
        return layout.dim

    def _apply(self, module: torch.nn.Module, device_mesh: DeviceMesh) -> torch.nn.Module:
        why = why_not_plain(module)
        if why is not None:
            raise ArgumentTypeError(f"the module {why}; expected a plain torch.nn.Linear\n"
                                    f"  fix: use torch's RowwiseParallel for it")
        assert isinstance(module, torch.nn.Linear)
        scatter_dim, world = self._scatter_dim(), world_of(device_mesh.get_group())
        if module.in_features % world.size:
            raise ShapeError(f"in_features is {module.in_features}; expected a multiple of the "
                             f"{world.size} ranks")
        module = distribute_module(module, device_mesh, self._partition_linear_fn)
        forward = row_forward(world, scatter_dim)

        def on_layouts(module: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = forward(module, self._features(x, device_mesh))
            if self.use_local_output:
                return y
            return DTensor.from_local(y, device_mesh, self.output_layouts, run_check=False)

        module.forward = types.MethodType(on_layouts, module)  # type: ignore[method-assign]
        return module

    def _features(self, x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        """This rank's features of x, a DTensor or a local tensor of input_layouts."""
        if not isinstance(x, DTensor):
            if self.input_layouts in ((Shard(-1),), (Shard(x.dim() - 1),)):
                return x
            x = DTensor.from_local(x, mesh, self.input_layouts, run_check=False)
        return x.redistribute(placements=(Shard(-1),)).to_local()
