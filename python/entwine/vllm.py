"""Entwine in vLLM: row-parallel layers with GEMM and AllReduce in one call.

``register`` is a plugin of vLLM (entry point ``vllm.general_plugins``), which vLLM calls in each of
its processes: nothing else is needed.  ``VLLM_PLUGINS`` names the plugins that vLLM loads, if not
all of them.

Written for vLLM 0.32, and tested against a stub of its interface, not inside a serving engine.
"""
from __future__ import annotations

import collections
import logging
from typing import Any

import torch

from ._adapters import counted, why_not, with_reasons
from ._torch_sums import whole_sum
from ._torch_world import world_of

__all__ = ["register"]

_log = logging.getLogger("entwine")
_THEIRS = "RowParallelLinear"


# ---- What was replaced -----------------------------------------------------------------------

class _Report:
    """One line when the last of the layers that were made has its weight."""

    def __init__(self) -> None:
        self.waiting = 0
        self.used: list[str] = []
        self.left: dict[str, list[str]] = collections.defaultdict(list)

    def expect(self) -> None:
        self.waiting += 1

    def note(self, layer: Any, why: str | None) -> None:
        self.waiting -= 1
        (self.used if why is None else self.left[why]).append(layer.prefix or _THEIRS)
        if self.waiting > 0:
            return
        if layer.tp_rank == 0:
            _log.log(logging.WARNING if self.left else logging.INFO,
                     "entwine: vLLM on %d ranks: GEMM + AllReduce in %s; left to vLLM: %s",
                     layer.tp_size, counted(self.used), with_reasons(self.left))
        self.__init__()  # type: ignore[misc]


# ---- The layer -------------------------------------------------------------------------------

def _why_not_made(layer: Any, unquantized: type) -> str | None:
    """Why Entwine cannot run a layer, as far as its arguments say."""
    if layer.tp_size == 1:
        return "is whole on one rank"
    if not layer.reduce_results:
        return "is not summed in the layer (reduce_results=False)"
    if type(layer.quant_method) is not unquantized:
        return f"is quantised ({type(layer.quant_method).__name__})"
    return None


def _count_write(param: torch.Tensor) -> None:
    """vLLM writes to ``.data``, which torch does not count; new values may differ in few elements."""
    if not param.is_inference():
        torch.autograd.graph.increment_version(param)


def _layer_class(theirs: Any, unquantized: Any, get_tp_group: Any) -> type:
    report = _Report()

    class KeepsWeight(unquantized):  # type: ignore[misc]
        """vLLM packs weights for its own product, on CPUs in place of the weight."""

        def process_weights_after_loading(self, layer: Any) -> None:
            why = why_not(layer.weight)
            if why is None:
                layer.entwine_world = world_of(get_tp_group().cpu_group)
            else:
                super().process_weights_after_loading(layer)
            report.note(layer, why)

    class EntwineRowParallelLinear(theirs):  # type: ignore[misc]
        entwine_world = None

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            report.expect()
            why = _why_not_made(self, unquantized)
            if why is None:
                self.quant_method = KeepsWeight()
            else:
                report.note(self, why)

        def weight_loader(self, param: Any, loaded_weight: torch.Tensor) -> None:
            super().weight_loader(param, loaded_weight)
            _count_write(param)

        def weight_loader_v2(self, param: Any, loaded_weight: torch.Tensor) -> None:
            super().weight_loader_v2(param, loaded_weight)
            _count_write(param)

        def forward(self, input_: torch.Tensor) -> Any:
            if self.entwine_world is None:
                return super().forward(input_)
            x = input_ if self.input_is_parallel else input_.chunk(self.tp_size, -1)[self.tp_rank]
            bias = None if self.skip_bias_add else self.bias
            y = whole_sum(x, self.weight, bias, self.entwine_world)
            if not self.return_bias:
                return y
            return y, self.bias if self.skip_bias_add else None

    return EntwineRowParallelLinear


# ---- The plugin ------------------------------------------------------------------------------

def register() -> None:
    """Has vLLM make row-parallel layers that use Entwine where it can run them: unquantised, on
    CPUs, summed over all tensor-parallel ranks.  The others stay vLLM's.  May be called again.

    The logger ``entwine`` has a line per model: what was replaced, and what was left to vLLM and
    why, as a warning if there are any.
    """
    try:
        from vllm.distributed import get_tp_group
        from vllm.model_executor.custom_op import op_registry_oot
        from vllm.model_executor.layers import linear
        theirs, unquantized = linear.RowParallelLinear, linear.UnquantizedLinearMethod
        plug_in = theirs.register_oot
    except (ImportError, AttributeError) as error:  # must not end vLLM
        _log.warning("entwine: nothing was replaced: this vLLM has no interface that Entwine knows "
                     "(%s); it was written for 0.32", error)
        return
    there = op_registry_oot.get(_THEIRS)
    if there is None:
        plug_in(_layer_class(theirs, unquantized, get_tp_group))
    elif there.__module__ != __name__:
        _log.warning("entwine: nothing was replaced: %s has replaced vLLM's %s already",
                     there.__module__, _THEIRS)
