"""A pass over the graphs of torch.compile: products that a functional collective sums over the
ranks, or whose rows one gathers, become Entwine's operators.

    mm -> all_reduce -> wait                          gemm_ar
    mm -> reduce_scatter_tensor -> wait               gemm_rs
    all_gather_into_tensor -> wait -> mm or addmm     ag_gemm

Between product and collective there may be views, and the split and cat by which torch scatters or
gathers another dimension than the first.  What does not match stays as it is.
"""
from __future__ import annotations

import collections
import logging
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.aot_autograd import get_aot_compilation_context
from torch._inductor import config, custom_graph_pass
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from ._torch_operators import ag_gemm_operator, gemm_ar_operator, gemm_rs_operator
from ._torch_registration import _NAMES
from ._world import World

_log = logging.getLogger("entwine")
_aten, _collectives = torch.ops.aten, torch.ops._c10d_functional
_VIEWS = (_aten.reshape.default, _aten.view.default, _aten._unsafe_view.default)
_ALL_REDUCE = _collectives.all_reduce.default
_REDUCE_SCATTER = _collectives.reduce_scatter_tensor.default
_ALL_GATHER = _collectives.all_gather_into_tensor.default
_PRODUCTS = (_aten.mm.default, _aten.addmm.default)

# A collective: what the log calls it, and the operator that takes its place.
_REPLACED = {_ALL_REDUCE: ("all_reduce", "gemm_ar"), _REDUCE_SCATTER: ("reduce_scatter", "gemm_rs"),
             _ALL_GATHER: ("all_gather", "ag_gemm")}


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


def _erase_unused(graph: Graph, node: Node) -> None:
    """With what only it uses."""
    pending = [node]
    while pending:
        one = pending.pop()
        if (one.op == "call_function" and not one._erased and not one.users
                and not one.is_impure()):
            inputs = one.all_input_nodes
            graph.erase_node(one)
            pending.extend(inputs)


def _is_known(truth: Any) -> bool:
    """Whether it holds for all extents that the graph is for."""
    return truth is True or isinstance(truth, torch.SymBool) and statically_known_true(truth)


def _check_product(a: Node, product: Node) -> None:
    value = product.meta["val"]
    if any(_is_known(extent == 0) for extent in (a.meta["val"].shape[1], value.shape[1])):
        raise _Left("its product has no depth or no columns")
    if value.dtype not in _NAMES:
        raise _Left(f"its element type is {value.dtype}")
    if value.device.type != "cpu":
        raise _Left(f"it is on {value.device.type}; the pass is for CPUs")


def _weight(graph: Graph, b: Node, pack: bool) -> tuple[Node, bool]:
    """[n, k], as Entwine wants it, of the second operand of a product, and whether to pack it: not
    one that the graph computes, for Inductor writes the next one into its memory."""
    is_transposed = b.target is _aten.permute.default and list(b.args[1]) == [1, 0]
    source = b.args[0] if is_transposed else b
    weight = source if is_transposed else _added(graph, _aten.permute.default, b, [1, 0])
    return weight, pack and source.op == "placeholder"


# ---- What is summed --------------------------------------------------------------------------

class _Product:
    """The mm that a collective sums, the sizes it was given by views, and the split along another
    dimension than the first, if any."""

    def __init__(self, summed: Node):
        self.sizes: list[Any] | None = None
        self.shape: torch.Size | None = None  # of the sizes, with a number for a -1
        self.chunk: Any = None
        self.dim, self.parts = 0, 0
        node = self._before_cat(summed) if summed.target is _aten.cat.default else summed
        while node.target in _VIEWS:
            _only_user(node)
            if self.sizes is None:
                self.sizes, self.shape = list(node.args[1]), node.meta["val"].shape
            node = node.args[0]
        if node.target in (_aten.addmm.default, _aten.baddbmm.default):
            raise _Left("a bias is part of the sum")
        if node.target is not _aten.mm.default:
            raise _Left("what is summed is not a product")
        _only_user(node)
        self.mm, (self.a, self.b) = node, node.args
        _check_product(self.a, node)

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
        self.parts = len(parts)
        whole, self.chunk, self.dim = (*split.args, 0)[:3]
        self.dim %= whole.meta["val"].dim()
        if self.dim == whole.meta["val"].dim() - 1:
            raise _Left("its last dimension is scattered")
        _only_user(whole)
        return whole

    def check_scatter(self, ranks: int) -> None:
        """Every rank's part is whole rows of the product, as many on all ranks."""
        m, n = self.mm.meta["val"].shape
        if self.parts not in (0, ranks):
            raise _Left(f"what is summed is split into {self.parts} parts for {ranks} ranks")
        if self.shape is None:
            return
        keeps_rows = len(self.shape) > 1 and _is_known(self.shape[-1] == n)
        if not keeps_rows and (self.parts or not _is_known(m % ranks == 0)):
            raise _Left("a view takes rows of its product apart")

    def scattered_sizes(self, ranks: int) -> list[Any] | None:
        """Of a rank's part; one extent may be left to torch."""
        if self.sizes is None or self.shape is None:
            return None
        sizes = [extent if isinstance(extent, int) else size
                 for size, extent in zip(self.sizes, self.shape)]
        extent = self.shape[self.dim]
        sizes[self.dim] = extent // ranks if isinstance(extent, int) else -1
        if sizes.count(-1) > 1:
            raise _Left("two of its extents are not known yet")
        return sizes

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


# ---- What is gathered ------------------------------------------------------------------------

def _depends(node: Node, on: Node) -> bool:
    seen, pending = set(), [node]
    while pending:
        one = pending.pop()
        if one is on:
            return True
        if one not in seen:
            seen.add(one)
            pending.extend(one.all_input_nodes)
    return False


class _Rows:
    """The first product whose rows are what a collective gathers, and the cat that puts them into
    the order of another dimension than the first, if any."""

    def __init__(self, gather: Node):
        self.x, self.waited = gather.args[0], _only_user(gather)
        if self.waited.target is not _collectives.wait_tensor.default:
            raise _Left("its result is used before it is waited for")
        self.chunk: Any = None
        self.dim = 0
        self.path = {self.waited}  # from there to the product
        if self.x.meta["val"].dim() == 1:
            raise _Left("its last dimension is gathered")
        self.product = self._product_of(self.waited) or self._product_of_cat()
        *_, a, b = self.product.args
        if _depends(b, self.waited):
            raise _Left("its weight depends on what is gathered")
        if self.product.kwargs:
            raise _Left("its product is scaled")
        _check_product(a, self.product)

    def _product_of(self, rows: Node) -> Node | None:
        """Of rows, or of a view of them that keeps them apart."""
        for user in rows.users:
            if user.target in _PRODUCTS and user.args[-2] is rows:
                return user
            if (user.target in _VIEWS
                    and user.meta["val"].shape[-1] == self.waited.meta["val"].shape[-1]):
                product = self._product_of(user)
                if product is not None:
                    self.path.add(user)
                    return product
        return None

    def _product_of_cat(self) -> Node:
        for split in self.waited.users:
            if split.target is not _aten.split.Tensor or (*split.args, 0)[2] != 0:
                continue
            parts = list(split.users)
            users = {user for part in parts for user in part.users}
            cat = users.pop() if len(users) == 1 else split
            if (cat.target is not _aten.cat.default or cat.args[0] != parts
                    or [part.args[1] for part in parts] != list(range(len(parts)))):
                continue
            product = self._product_of(cat)
            if product is not None:
                self.path |= {split, *parts, cat}
                self.chunk, self.dim = split.args[1], (*cat.args, 0)[1]
                self.dim %= cat.meta["val"].dim()
                if self.dim == cat.meta["val"].dim() - 1:
                    raise _Left("its last dimension is gathered")
                return product
        raise _Left("what is gathered is not the first operand of a product")

    def is_used_elsewhere(self) -> bool:
        """Also by the product itself, which may add the rows."""
        *bias, _, _ = self.product.args
        return any(one in self.path for one in bias) or any(
            user not in self.path and user is not self.product
            for node in self.path for user in node.users)

    def sizes(self, graph: Graph, last: Any) -> list[Any]:
        """Of what is gathered, along the first dimension; with another last extent."""
        middle = range(1, self.x.meta["val"].dim() - 1)
        return [-1, *(_extent(graph, self.x, dim) for dim in middle), last]

    def in_order(self, graph: Graph, y: Node) -> Node:
        """Rows of the product in the order of the cat."""
        if self.chunk is None:
            return y
        n = _extent(graph, y, 1)
        parts = _added(graph, _aten.split.Tensor,
                       _added(graph, _aten.reshape.default, y, self.sizes(graph, n)), self.chunk)
        ordered = _added(graph, _aten.cat.default,
                         [_added(graph, operator.getitem, parts, part)
                          for part in range(len(parts.meta["val"]))], self.dim)
        return _added(graph, _aten.reshape.default, ordered, [-1, n])


def _extent(graph: Graph, node: Node, dim: int) -> Any:
    extent = node.meta["val"].shape[dim]
    return extent if isinstance(extent, int) else _added(graph, _aten.sym_size.int, node, dim)


# ---- The pass --------------------------------------------------------------------------------

# Older torch, such as 2.8, has only its base, which Inductor calls with the graph alone.
_InferenceAware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)
_GraphPass: Any = _InferenceAware or custom_graph_pass.CustomGraphPass


def _is_inference() -> bool:
    """Whether the graph that is being compiled is for inference, where Inductor does not say."""
    names, *_ = get_aot_compilation_context()  # "3_inference", "4_forward", "4_backward"
    return bool(names) and names[-1].endswith("_inference")


class EntwinePass(_GraphPass):
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
        files = custom_graph_pass.get_hash_for_files((__file__,))
        return files, tuple(sorted(self.worlds.items())), before

    def __call__(self, graph: Graph, is_inference: bool | None = None) -> None:
        if is_inference is None:
            is_inference = _is_inference()
        if _InferenceAware is not None and isinstance(self.before, _InferenceAware):
            self.before(graph, is_inference)
        elif self.before is not None:
            self.before(graph)
        replaced: collections.Counter[str] = collections.Counter()
        left: collections.Counter[str] = collections.Counter()
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in _REPLACED:
                continue
            name, ours = _REPLACED[node.target]
            try:
                self._replace(graph, node, pack=is_inference)
                replaced[ours] += 1
            except _Left as why:
                left[f"{name} ({why})"] += 1
        if not replaced and not left:
            return
        stable_topological_sort(graph)  # what uses gathered rows may stand before their product
        graph.eliminate_dead_code()
        _log.info("entwine: compiled graph: %s; left alone: %s", *(
            ", ".join(f"{count} {what}" for what, count in counts.items()) or "nothing"
            for counts in (replaced, left)))

    def _replace(self, graph: Graph, collective: Node, pack: bool) -> None:
        """Weights are packed for inference alone: a graph does not see an optimizer's writes to a
        DTensor."""
        group = collective.args[-1]
        if group not in self.worlds:
            raise _Left(f"group {group!r} was not given to enable_compile_pass")
        world, ranks = self.worlds[group]
        if collective.target is _ALL_GATHER:
            self._replace_gather(graph, collective, world, ranks, pack)
        else:
            self._replace_sum(graph, collective, world, ranks, pack)

    def _replace_sum(self, graph: Graph, collective: Node, world: str, ranks: int, pack: bool
                     ) -> None:
        summed, kind, *_ = collective.args
        if kind != "sum":
            raise _Left(f"it is not a sum but {kind}")
        product, waited = _Product(summed), _only_user(collective)
        if waited.target is not _collectives.wait_tensor.default:
            raise _Left("its result is used before it is waited for")
        scatters = collective.target is _REDUCE_SCATTER
        if scatters:
            product.check_scatter(ranks)
        elif product.parts:
            raise _Left("what is summed is not a product")
        sizes = product.scattered_sizes(ranks) if scatters else product.sizes
        with graph.inserting_before(collective):
            rows = product.rows(graph, ranks) if scatters else product.a
            weight, pack = _weight(graph, product.b, pack)
            y = _added(graph, gemm_rs_operator if scatters else gemm_ar_operator, rows, weight,
                       world, False, pack)
            if sizes is not None:
                y = _added(graph, _aten.reshape.default, y, sizes)
        waited.replace_all_uses_with(y)
        graph.erase_node(waited)  # dead code, but for torch a wait is an effect
        graph.erase_node(collective)
        _erase_unused(graph, summed)

    def _replace_gather(self, graph: Graph, collective: Node, world: str, ranks: int, pack: bool
                        ) -> None:
        """What else uses the gathered rows gets them from the operator, too."""
        rows = _Rows(collective)
        *bias, _, b = rows.product.args
        with graph.inserting_before(rows.product):
            a, gather = rows.x, rows.is_used_elsewhere()
            if a.meta["val"].dim() != 2:
                a = _added(graph, _aten.reshape.default, a, [-1, _extent(graph, a, -1)])
            count = _extent(graph, a, 0)
            count = (count * ranks if isinstance(count, int) else
                     _added(graph, operator.mul, count, ranks))
            weight, pack = _weight(graph, b, pack)
            both = _added(graph, ag_gemm_operator, a, weight, count, world, False, gather, pack)
            y = rows.in_order(graph, _added(graph, operator.getitem, both, 0))
            if bias:
                y = _added(graph, _aten.add.Tensor, y, bias[0])
            if gather:
                gathered = _added(graph, _aten.reshape.default,
                                  _added(graph, operator.getitem, both, 1),
                                  rows.sizes(graph, _extent(graph, rows.x, -1)))
        rows.product.replace_all_uses_with(y)
        _erase_unused(graph, rows.product)
        if gather:
            rows.waited.replace_all_uses_with(gathered)
        graph.erase_node(rows.waited)
        graph.erase_node(collective)


_worlds_of_graphs: dict[str, World] = {}  # by group: graphs know no more than their names


def install(group_name: str, world: World) -> None:
    """Has the pass run in every compilation from now on, for this group as well."""
    installed = config.post_grad_custom_post_pass
    if not isinstance(installed, EntwinePass):
        installed = EntwinePass(installed)
    installed.worlds[group_name] = world.name, world.size
    _worlds_of_graphs[group_name] = world
    config.post_grad_custom_post_pass = installed
