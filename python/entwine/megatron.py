"""Entwine in Megatron-Core: row-parallel layers with GEMM and AllReduce, or with sequence
parallelism GEMM and ReduceScatter, in one call; then column-parallel ones with AllGather and GEMM.

    spec = entwine.megatron.with_entwine(get_gpt_layer_local_spec())

Written for Megatron-Core 0.16, and tested against a stub of its interface.
"""
from __future__ import annotations

import collections
import copy
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import torch

from ._adapters import counted, why_not, with_reasons
from ._errors import ArgumentTypeError, UnsupportedError
from ._torch_operators import ag_gemm
from ._torch_sums import as_matrix, scattered_sum, whole_sum
from ._torch_world import world_of

try:
    from megatron.core.tensor_parallel import layers
    from megatron.core.tensor_parallel.mappings import scatter_to_tensor_model_parallel_region
    from megatron.core.transformer.spec_utils import ModuleSpec
except ImportError as error:
    raise UnsupportedError(f"there is no Megatron-Core that Entwine knows ({error})\n"
                           f"  fix: pip install 'megatron-core>=0.16'") from error

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "with_entwine"]

_log = logging.getLogger("entwine")


# ---- The layers ------------------------------------------------------------------------------

class _Entwines:
    """A layer of Megatron-Core's with another forward where Entwine can run it."""

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        why = self._why_not()
        self.entwine_world = world_of(self.tp_group) if why is None else None
        if why and (self.tp_group is None or self.tp_group.rank() == 0):
            _log.warning("entwine: %s of %d x %d is left to Megatron-Core: it %s",
                         options.get("tp_comm_buffer_name") or "a layer", self.output_size,
                         self.input_size, why)

    def _why_not(self: Any) -> str | None:
        if self.tp_group is None or self.tp_group.size() == 1:  # None: without torch.distributed
            return "is whole on one rank"
        if self.explicit_expert_comm:
            return "is an expert's, whose sum is taken elsewhere"
        if self.gradient_accumulation_fusion:
            return "adds to main_grad by itself (gradient_accumulation_fusion)"
        return why_not(self.weight)


class RowParallelLinear(_Entwines, layers.RowParallelLinear):  # type: ignore[misc]
    """Megatron-Core's layer of this name, with its arguments, parameters and checkpoints, and with
    Entwine's product and sum.  What Entwine cannot run stays Megatron's: a warning of the logger
    ``entwine`` says what and why."""

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self.entwine_world is None:
            return super().forward(input_)  # type: ignore[no-any-return]
        x = input_ if self.input_is_parallel else scatter_to_tensor_model_parallel_region(
            input_, group=self.tp_group)
        # Megatron sums the gradient of a bias of sequence-parallel layers over the ranks later.
        if self.sequence_parallel:
            y = scattered_sum(x, self.weight, None, self.entwine_world)
        else:
            y = whole_sum(x, self.weight, None, self.entwine_world)
        if self.skip_bias_add:
            return y, self.bias
        return y if self.bias is None else y + self.bias, None


class ColumnParallelLinear(_Entwines, layers.ColumnParallelLinear):  # type: ignore[misc]
    """Megatron-Core's layer of this name, with Entwine's AllGather and product where it is
    sequence-parallel.  Without, there is nothing to gather, and it is Megatron's as it is."""

    def _why_not(self) -> str | None:
        if not self.sequence_parallel:
            return ""  # not worth a warning
        if self.weight is None:
            return "has no weight of its own"
        if self.gather_output or self.config.defer_embedding_wgrad_compute:
            return "gathers its output or defers its gradient"
        return super()._why_not()

    def forward(self, input_: torch.Tensor, weight: torch.Tensor | None = None,
                runtime_gather_output: bool | None = None
                ) -> tuple[torch.Tensor, torch.Tensor | None]:
        world = self.entwine_world
        if world is None or weight is not None or runtime_gather_output:
            return super().forward(  # type: ignore[no-any-return]
                input_, weight, runtime_gather_output)
        y = ag_gemm(as_matrix(input_), self.weight, world)
        y = y.view(input_.shape[0] * world.size, *input_.shape[1:-1], y.shape[-1])
        if self.skip_bias_add:
            return y, self.bias
        return y if self.bias is None else y + self.bias, None


_OURS = {layers.RowParallelLinear: RowParallelLinear,
         layers.ColumnParallelLinear: ColumnParallelLinear}


# ---- The spec --------------------------------------------------------------------------------

def _parts(spec: Any) -> Iterator[tuple[Any, str, Any]]:
    """(what holds it, its name, the class or spec) of everything below a spec."""
    for holder in (spec, spec.submodules):
        if not dataclasses.is_dataclass(holder):
            continue
        for field in dataclasses.fields(holder):
            value = getattr(holder, field.name)
            if isinstance(value, type):
                yield holder, field.name, value
            for one in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(one, ModuleSpec):
                    yield from _parts(one)


def with_entwine(spec: Any) -> Any:
    """A copy of a layer spec, or of any other ``ModuleSpec`` of Megatron-Core, whose row- and
    column-parallel layers are Entwine's.

    The logger ``entwine`` has a line that says what was replaced, and what was not and why.
    """
    if not isinstance(spec, ModuleSpec):
        raise ArgumentTypeError(f"spec is a {type(spec).__name__}; expected a ModuleSpec of "
                                f"Megatron-Core, such as get_gpt_layer_local_spec()")
    spec = copy.deepcopy(spec)
    used: dict[type, list[str]] = {kind: [] for kind in _OURS.values()}
    left: dict[str, list[str]] = collections.defaultdict(list)
    for holder, name, kind in _parts(spec):
        if kind in _OURS:
            setattr(holder, name, _OURS[kind])
            used[_OURS[kind]].append(name)
        elif "ParallelLinear" in kind.__name__ and kind not in used:
            left[f"is a {kind.__name__}, not a layer of tensor_parallel"].append(name)
    rows, columns = used.values()
    _log.log(logging.INFO if rows and not left else logging.WARNING,
             "entwine: Megatron-Core's %s: GEMM + AllReduce or ReduceScatter in %s; with sequence "
             "parallelism AllGather + GEMM in %s; left to Megatron-Core: %s",
             getattr(spec.module, "__name__", spec.module), counted(rows), counted(columns),
             with_reasons(left))
    return spec
