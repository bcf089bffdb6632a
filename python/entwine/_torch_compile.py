"""A pass over the graphs of torch.compile: products that a functional collective sums over the
ranks become Entwine's operators.

    mm -> all_reduce -> wait                          gemm_ar
    mm -> reduce_scatter_tensor -> wait               gemm_rs

Between product and collective there may be views, and the split and cat by which torch scatters
another dimension than the first.  What does not match stays as it is.
"""
from __future__ import annotations

import collections
import logging
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.custom_graph_pass import (CustomInferenceAwareGraphPass,
                                               get_hash_for_files)
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from ._torch_operators import _NAMES, gemm_ar_operator, gemm_rs_operator

_log = logging.getLogger("entwine")
_aten, _collectives = torch.ops.aten, torch.ops._c10d_functional
_VIEWS = (_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default)
_ALL_REDUCE = _collectives.all_reduce.default
_REDUCE_SCATTER = _collectives.reduce_scatter_tensor.default


class _Left(Exception):
    """Why a collective stays as it is."""


def _only_user(node: Node) -> Node:
    if len(node.users) != 1:
        raise _Left("its product is used elsewhere, too")
    return next(iter(node.users))


def _added(graph: Graph, target: Callable[..., Any], *arguments: Any) -> Node:
    """A new node, with the value that later passes look at."""
    node = graph.call_function(target, arguments)
    with torch.no_grad():
        node.meta["val"] = target(*map_arg(arguments, lambda one: one.meta["val"]))
    return node


# ---- What is summed --------------------------------------------------------------------------

class _Product:
    """The mm that a collective sums, the sizes it was given by views, and the split along another
    dimension than the first, if any."""

    def __init__(self, summed: Node):
        self.sizes: list[Any] | None = None
        self.chunk: Any = None
        self.dim = 0
        node = self._before_cat(summed) if summed.target is _aten.cat.default else summed
        while node.target in _VIEWS:
            _only_user(node)
            self.sizes = self.sizes or list(node.args[1])
            node = node.args[0]
        if node.target in (_aten.addmm.default, _aten.baddbmm.default):
            raise _Left("a bias is part of the sum")
        if node.target is not _aten.mm.default:
            raise _Left("what is summed is not a product")
        _only_user(node)
        self.mm, (self.a, self.b) = node, node.args
        value = node.meta["val"]
        if value.dtype not in _NAMES:
            raise _Left(f"its element type is {value.dtype}")
        if value.device.type != "cpu":
            raise _Left(f"it is on {value.device.type}; the pass is for CPUs")

    def _before_cat(self, cat: Node) -> Node:
        """Of cat(split(x, chunk, dim)), which reorders x for a scatter along dim: x."""
        parts, along = cat.args[0], (*cat.args, 0)[1]
        splits = {part.args[0] for part in parts if part.target is operator.getitem}
        split = splits.pop() if len(splits) == 1 else None
        if (along != 0 or split is None or split.target is not _aten.split.Tensor
                or [part.args[1:] for part in parts] != [(i,) for i in range(len(parts))]
                or len(split.users) != len(parts) or any(len(part.users) != 1 for part in parts)):
            raise _Left("what is summed is not a product")
        _only_user(cat)
        whole, self.chunk, self.dim = (*split.args, 0)[:3]
        self.dim %= whole.meta["val"].dim()
        if self.dim == whole.meta["val"].dim() - 1:
            raise _Left("its last dimension is scattered")
        _only_user(whole)
        return whole

    def weight(self, graph: Graph) -> Node:
        """[n, k], as Entwine wants it."""
        if self.b.target is _aten.permute.default and list(self.b.args[1]) == [1, 0]:
            return self.b.args[0]
        return _added(graph, _aten.permute.default, self.b, [1, 0])

    def rows(self, graph: Graph, ranks: int) -> Node:
        """[m, k], in the order of the ranks that own them."""
        if self.chunk is None:
            return self.a
        depth = self.a.meta["val"].shape[1]
        sizes = self.sizes or [*self.mm.meta["val"].shape]
        if not isinstance(depth, int):
            raise _Left("its depth is not known yet")
        x = _added(graph, _aten.reshape.default, self.a, [*sizes[:-1], depth])
        split = _added(graph, _aten.split.Tensor, x, self.chunk, self.dim)
        parts = [_added(graph, operator.getitem, split, part) for part in range(ranks)]
        return _added(graph, _aten.reshape.default, _added(graph, _aten.cat.default, parts),
                      [-1, depth])


# ---- The pass --------------------------------------------------------------------------------

class EntwinePass(CustomInferenceAwareGraphPass):
    """`worlds`: the names of worlds by those of torch's groups.  `before`: the pass that was
    installed, which runs first."""

    def __init__(self, before: Callable[..., None] | None):
        self.worlds: dict[str, tuple[str, int]] = {}
        self.before = before

    def uuid(self) -> Any:
        """All that the result depends on, for torch's cache of compiled graphs."""
        before = getattr(self.before, "uuid", lambda: None)()
        if self.before is not None and before is None:
            return None
        return get_hash_for_files((__file__,)), tuple(sorted(self.worlds.items())), before

    def __call__(self, graph: Graph, is_inference: bool) -> None:
        if isinstance(self.before, CustomInferenceAwareGraphPass):
            self.before(graph, is_inference)
        elif self.before is not None:
            self.before(graph)
        replaced: collections.Counter[str] = collections.Counter()
        left: collections.Counter[str] = collections.Counter()
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in (_ALL_REDUCE, _REDUCE_SCATTER):
                continue
            name = "all_reduce" if node.target is _ALL_REDUCE else "reduce_scatter"
            try:
                self._replace(graph, node, pack=is_inference)
                replaced["gemm_ar" if name == "all_reduce" else "gemm_rs"] += 1
            except _Left as why:
                left[f"{name} ({why})"] += 1
        if not replaced and not left:
            return
        graph.eliminate_dead_code()
        _log.info("entwine: compiled graph: %s; left alone: %s", *(
            ", ".join(f"{count} {what}" for what, count in counts.items()) or "nothing"
            for counts in (replaced, left)))

    def _replace(self, graph: Graph, collective: Node, pack: bool) -> None:
        """Weights are packed for inference alone: a graph does not see an optimizer's writes to a
        DTensor."""
        summed, kind, *_, group = collective.args
        if kind != "sum":
            raise _Left(f"it is not a sum but {kind}")
        if group not in self.worlds:
            raise _Left(f"group {group!r} was not given to enable_compile_pass")
        product, waited = _Product(summed), _only_user(collective)
        if waited.target is not _collectives.wait_tensor.default:
            raise _Left("its result is used before it is waited for")
        world, ranks = self.worlds[group]
        with graph.inserting_before(collective):
            if collective.target is _ALL_REDUCE:
                y = _added(graph, gemm_ar_operator, product.a, product.weight(graph), world, False,
                           pack)
                sizes = product.sizes
            else:
                y = _added(graph, gemm_rs_operator, product.rows(graph, ranks),
                           product.weight(graph), world, False, pack)
                sizes = product.sizes and [-1 if dim == product.dim else size
                                           for dim, size in enumerate(product.sizes)]
            if sizes is not None:
                y = _added(graph, _aten.reshape.default, y, sizes)
        waited.replace_all_uses_with(y)
        graph.erase_node(waited)  # dead code, but for torch a wait is an effect
        graph.erase_node(collective)


def install(group_name: str, world_name: str, ranks: int) -> None:
    """Has the pass run in every compilation from now on, for this group as well."""
    installed = config.post_grad_custom_post_pass
    if not isinstance(installed, EntwinePass):
        installed = EntwinePass(installed)
    installed.worlds[group_name] = world_name, ranks
    config.post_grad_custom_post_pass = installed
