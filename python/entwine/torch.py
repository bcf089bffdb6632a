"""Entwine in PyTorch: layers, and operators with gradients that torch.compile can trace.

    torch.ops.entwine.gemm_rs(a, b, world.name)     # this rank's rows of the sum of a @ b.T
    torch.ops.entwine.gemm_ar(a, b, world.name)     # all rows of it
    entwine.torch.ag_gemm(a, b, world)              # all ranks' rows of a, @ b.T
    entwine.torch.ColumnParallelLinear(4096, 4096, world=world)
    entwine.torch.RowParallelLinear(4096, 4096, world=world)
    entwine.torch.RowParallelLinearNorm(4096, 4096, world=world)    # + residual, RMSNorm
    entwine.torch.ParallelMLP(4096, 14336, world=world)             # gate, up, SwiGLU, down
    entwine.torch.ParallelAttentionProjections(4096, 32, 8, world=world)    # q, k, v, o

All run on the CPU and, on the current CUDA stream, on a GPU.  Make one eager call of a new
shape before capturing a CUDA graph: it creates the plan, which all ranks do together.
"""
from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ._errors import UnsupportedError
from ._torch_block import ParallelAttentionProjections, ParallelMLP
from ._torch_column import ColumnParallelLinear
from ._torch_operators import (ag_gemm, all_gather_rows, gemm_ar, gemm_ar_layer, gemm_rs,
                               gemm_rs_layer, reduce_scatter_rows, replicate)
from ._torch_products import ag_gemm_act, ag_gemm_multi
from ._torch_row import RowParallelLinear, RowParallelLinearNorm
from ._torch_world import world_of

if TYPE_CHECKING:
    from ._torch_parallel import RowwiseParallel

__all__ = ["ColumnParallelLinear", "RowParallelLinear", "RowParallelLinearNorm", "ParallelMLP",
           "ParallelAttentionProjections", "RowwiseParallel", "ag_gemm", "ag_gemm_multi",
           "ag_gemm_act", "gemm_rs", "gemm_rs_layer", "gemm_ar", "gemm_ar_layer", "all_gather_rows",
           "reduce_scatter_rows", "replicate", "world_of", "enable_compile_pass"]


def enable_compile_pass(group: dist.ProcessGroup | None = None) -> None:
    """Has ``torch.compile`` use Entwine where a matrix product is summed over the ranks of the
    group (default: all processes), or its rows are gathered from them, by a functional collective
    of torch, as DTensors do it: ``mm`` and ``all_reduce`` become ``gemm_ar``, ``mm`` and
    ``reduce_scatter_tensor`` ``gemm_rs``, ``all_gather_into_tensor`` and ``mm`` ``ag_gemm``.
    Collective: all ranks call it, before they compile.

    The logger ``entwine`` has a line per graph: what was replaced, and what was left alone and why.
    It is for Inductor, torch's default backend; its
    ``torch._inductor.config.post_grad_custom_post_pass`` is set, and a pass that was there before
    runs first.  It needs torch 2.6 or later.
    """
    if importlib.util.find_spec("torch._inductor.custom_graph_pass") is None:
        raise UnsupportedError(f"torch {torch.__version__} has no passes that Inductor's cache "
                               f"knows; enable_compile_pass needs torch 2.6 or later\n"
                               f"  fix: use a newer torch, or entwine.torch.RowwiseParallel in "
                               f"parallelize_module")
    from . import _torch_compile
    world = world_of(group)
    _torch_compile.install(world.group.group_name, world)


def __getattr__(name: str) -> Any:
    """RowwiseParallel, when first asked for: torch takes long to import DTensors."""
    if name != "RowwiseParallel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._torch_parallel import RowwiseParallel
    return RowwiseParallel
