"""The pass of entwine.torch.enable_compile_pass, on two ranks with torch.distributed (gloo): graphs
of functional collectives as traced, and a parallelize_module'd model compiled by Inductor.  And
what ranks find in Inductor's cache, which they share."""
import logging
import pathlib
import sys
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from entwine._world import find_world  # noqa: E402
from ranks import spawn  # noqa: E402
from test_torch import open_gloo  # noqa: E402
from test_torch_parallel import integers  # noqa: E402

RANKS, BATCH, LENGTH, WIDTH, HIDDEN = 2, 4, 6, 8, 16


def lines_of_the_log():
    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("entwine").addHandler(handler)
    logging.getLogger("entwine").setLevel("INFO")
    return lines


# ---- Graphs as traced ------------------------------------------------------------------------

def summed(y, how="sum"):
    import torch.distributed as dist
    collectives = torch.ops._c10d_functional
    return collectives.wait_tensor(collectives.all_reduce(y, how, dist.group.WORLD.group_name))


def scattered(y, dim=0):
    import torch.distributed as dist
    collectives = torch.ops._c10d_functional
    if dim:
        y = torch.cat(torch.chunk(y, RANKS, dim))
    return collectives.wait_tensor(collectives.reduce_scatter_tensor(
        y, "sum", RANKS, dist.group.WORLD.group_name))


def gathered(x, dim=0):
    import torch.distributed as dist
    collectives = torch.ops._c10d_functional
    whole = collectives.wait_tensor(collectives.all_gather_into_tensor(
        x, RANKS, dist.group.WORLD.group_name))
    return torch.cat(torch.split(whole, x.shape[0]), dim) if dim else whole


def product(x, w):
    return torch.mm(x.reshape(-1, x.shape[-1]), w.t()).view(*x.shape[:-1], w.shape[0])


X, W, MATRIX = (BATCH, LENGTH, WIDTH), (HIDDEN, WIDTH), (LENGTH, WIDTH)
REPLACED = {
    "all_reduce of a matrix": (lambda x, w: summed(torch.mm(x, w.t())), MATRIX, W, "1 gemm_ar"),
    "a weight that is not transposed": (
        lambda x, w: summed(torch.mm(x, w)), MATRIX, (WIDTH, HIDDEN), "1 gemm_ar"),
    "all_reduce of more dimensions": (lambda x, w: summed(product(x, w)), X, W, "1 gemm_ar"),
    "reduce_scatter of a matrix": (
        lambda x, w: scattered(torch.mm(x, w.t())), MATRIX, W, "1 gemm_rs"),
    "reduce_scatter along 0": (lambda x, w: scattered(product(x, w)), X, W, "1 gemm_rs"),
    "reduce_scatter along 1": (lambda x, w: scattered(product(x, w), 1), X, W, "1 gemm_rs"),
    "both": (lambda x, w: summed(product(x, w)).sum() + scattered(product(x, w)), X, W,
             "1 gemm_ar, 1 gemm_rs"),
    "all_gather of a matrix": (
        lambda x, w: torch.mm(gathered(x), w.t()), MATRIX, W, "1 ag_gemm"),
    "all_gather along 0": (lambda x, w: product(gathered(x), w), X, W, "1 ag_gemm"),
    "all_gather along 1": (lambda x, w: product(gathered(x, 1), w), X, W, "1 ag_gemm"),
    "all_gather and a bias": (
        lambda x, w: torch.addmm(w[:, 0], gathered(x), w.t()), MATRIX, W, "1 ag_gemm"),
    "one all_gather for two products": (
        lambda x, w: (lambda rows: torch.mm(rows, w.t()) + torch.mm(rows, w.t() + 1))(gathered(x)),
        MATRIX, W, "1 ag_gemm"),
    "gathered rows that are used before their product": (
        lambda x, w: (lambda rows: rows.sum() + product(rows, w))(gathered(x, 1)), X, W,
        "1 ag_gemm"),
    "rows that are added to their product": (
        lambda x, w: (lambda rows: torch.addmm(rows, rows, w.t()))(gathered(x)),
        MATRIX, (WIDTH, WIDTH), "1 ag_gemm"),
    "rows in another order that are added to their product": (
        lambda x, w: (lambda rows: torch.addmm(rows, rows, w.t()))(gathered(x, 1).view(-1, WIDTH)),
        X, (WIDTH, WIDTH), "1 ag_gemm"),
    "an extent that torch finds": (
        lambda x, w: scattered(torch.mm(x, w.t()).view(2, -1, HIDDEN)), MATRIX, W, "1 gemm_rs"),
    "a view that takes rows apart, not those of a rank": (
        lambda x, w: scattered(torch.mm(x, w.t()).view(-1)), MATRIX, W, "1 gemm_rs"),
    "all_gather, then reduce_scatter": (
        lambda x, w: scattered(product(product(gathered(x, 1), w), w.t()), 1), X, W,
        "1 ag_gemm, 1 gemm_rs"),
}
LEFT = {
    "an average": (lambda x, w: summed(torch.mm(x, w.t()), "avg"), "not a sum but avg"),
    "a product that is used elsewhere": (
        lambda x, w: (lambda y: summed(y) + y)(torch.mm(x, w.t())), "used elsewhere"),
    "no product": (lambda x, w: summed(torch.relu(x)), "not a product"),
    "a bias": (lambda x, w: summed(torch.addmm(w[:, 0], x, w.t())), "a bias is part"),
    "the last dimension": (
        lambda x, w: scattered(torch.mm(x, w.t()), 1), "its last dimension is scattered"),
    "no product of what is gathered": (
        lambda x, w: gathered(x) + 1, "not the first operand of a product"),
    "a weight that is gathered": (
        lambda x, w: torch.mm(x, gathered(w).t()), "not the first operand of a product"),
    "the last dimension, gathered": (
        lambda x, w: torch.mm(gathered(x, 1), torch.cat((w, w), 1).t()),
        "its last dimension is gathered"),
    "a weight that depends on the rows": (
        lambda x, w: (lambda rows: torch.mm(rows, rows.t()))(gathered(x)), "its weight depends on"),
    "a product that is scaled": (
        lambda x, w: torch.addmm(w[:, 0], gathered(x), w.t(), alpha=2), "its product is scaled"),
    "another type, gathered": (
        lambda x, w: torch.mm(gathered(x).double(), w.t().double()), "not the first operand"),
    "a vector, gathered": (
        lambda x, w: torch.mm(gathered(x[0]).view(1, -1), torch.cat((w, w), 1).t()),
        "its last dimension is gathered"),
    "a view that halves a row": (
        lambda x, w: scattered(torch.mm(x[:3], w.t()).view(LENGTH, -1)), "takes rows of its"),
    "a dimension that is part of a row": (
        lambda x, w: scattered(torch.mm(x, w.t()).view(LENGTH, 2, -1), 1), "takes rows of its"),
    "more parts than ranks": (
        lambda x, w: scattered(torch.cat(torch.mm(x, w.t()).view(2, 3, -1).split(1, 1))),
        "split into 3 parts for 2 ranks"),
    "rows in another order, all of them": (
        lambda x, w: summed(torch.cat(torch.mm(x, w.t()).view(3, 2, -1).split(1, 1))),
        "not a product"),
    "a product without depth": (lambda x, w: summed(torch.mm(x[:, :0], w[:, :0].t())), "no depth"),
    "another type": (lambda x, w: summed(torch.mm(x.double(), w.t().double())), "torch.float64"),
}


def traced(function, x, w, mode="fake"):
    from torch.fx.experimental.proxy_tensor import make_fx
    with torch.no_grad():
        return make_fx(function, tracing_mode=mode, decomposition_table={
            torch.ops.aten.t.default: lambda one: one.permute(1, 0)})(x, w)


def collectives_in(module):
    return [node.target.name() for node in module.graph.nodes if node.op == "call_function"
            and getattr(node.target, "namespace", None) == "_c10d_functional"]


def check_replaced(rewrite, lines, rank):
    for name, (function, x_shape, w_shape, said) in REPLACED.items():
        x, w = integers(*x_shape, seed=rank), integers(*w_shape, seed=rank + 5)
        module = traced(function, x, w)
        right = module(x, w)
        del lines[:]
        rewrite(module.graph, True)
        module.graph.lint()
        module.recompile()
        assert lines == [f"entwine: compiled graph: {said}; left alone: nothing"], (name, lines)
        assert not collectives_in(module), name
        got = module(x, w)
        assert got.shape == right.shape and torch.equal(got, right), name


def check_left(rewrite, lines):
    x, w = integers(*MATRIX), integers(*W)
    for name, (function, why) in LEFT.items():
        module = traced(function, x, w)
        nodes = str(module.graph)
        del lines[:]
        rewrite(module.graph, False)
        assert "compiled graph: nothing; left alone: 1 " in lines[0] and why in lines[0], lines
        assert str(module.graph) == nodes, name


def check_symbols(rewrite, lines, rank):
    """A view has one extent that torch finds, and where that is another than the scattered one, this
    one has to be known."""
    from torch._dispatch.python import enable_python_dispatcher
    x, w = integers(2 * LENGTH, WIDTH, seed=rank), integers(*W, seed=rank + 5)
    for rows, said in {
            lambda x: 2: "1 gemm_rs; left alone: nothing",
            lambda x: x.shape[0] // 2: "nothing; left alone: 1 reduce_scatter (two of its extents "
                                       "are not known yet)"}.items():
        def function(x, w):
            return scattered(torch.mm(x, w.t()).view(rows(x), -1, w.shape[0]))

        module = traced(function, x, w, "symbolic")
        right = module(x, w)
        del lines[:]
        with enable_python_dispatcher():  # as Inductor does
            rewrite(module.graph, True)
        module.recompile()
        assert lines == [f"entwine: compiled graph: {said}"], lines
        assert torch.equal(module(x, w), right), said


def check_packs(rewrite):
    """In inference a weight that is given is packed, and one that the graph computes is not."""
    x, w = integers(*MATRIX), integers(*W)
    for name, (function, pack) in {
            "given": (lambda x, w: summed(torch.mm(x, w.t())), True),
            "given, gathered": (lambda x, w: torch.mm(gathered(x), w.t()), True),
            "given, not transposed": (lambda x, w: summed(torch.mm(w, x.t())), True),
            "computed": (lambda x, w: summed(torch.mm(x, (w + 1).t())), False),
            "computed, gathered": (lambda x, w: torch.mm(gathered(x), (w + 1).t()), False),
            "computed, not transposed": (lambda x, w: scattered(torch.mm(x, w.t() + 1)), False),
    }.items():
        for is_inference in (True, False):
            module = traced(function, x, w)
            rewrite(module.graph, is_inference)
            packs = [node.args[-1] for node in module.graph.nodes if node.op == "call_function"
                     and getattr(node.target, "namespace", None) == "entwine"]
            assert packs == [pack and is_inference], (name, is_inference, packs)


def check_groups(lines):
    """A group that was not given; a pass that was there before; what torch's cache compares."""
    from entwine._torch_compile import EntwinePass
    ran = []
    alone = EntwinePass(ran.append)
    module = traced(REPLACED["all_reduce of a matrix"][0], integers(*MATRIX), integers(*W))
    del lines[:]
    alone(module.graph, True)
    assert ran == [module.graph] and "was not given to enable_compile_pass" in lines[0]
    assert alone.uuid() is None  # the pass before has none
    one, other = EntwinePass(None), EntwinePass(None)
    other.worlds["0"] = "another", 2
    assert one.uuid() == EntwinePass(None).uuid() != other.uuid()


def graphs(spawned):
    from torch._inductor import config
    open_gloo(spawned)
    lines = lines_of_the_log()
    et.enable_compile_pass()
    et.enable_compile_pass()
    rewrite = config.post_grad_custom_post_pass
    assert rewrite.before is None and len(rewrite.worlds) == 1
    check_replaced(rewrite, lines, spawned.rank)
    check_left(rewrite, lines)
    check_symbols(rewrite, lines, spawned.rank)
    check_packs(rewrite)
    check_groups(lines)
    torch.distributed.destroy_process_group()
    return "right"


def test_older_torch_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch._inductor.custom_graph_pass", None)
    with pytest.raises(entwine.UnsupportedError, match=r"needs torch 2\.6 or later\n  fix: "):
        et.enable_compile_pass()


def graphs_of_two_groups(spawned):
    """Of groups of one name, one after the other."""
    from torch._inductor import config
    names = []
    for _ in range(2):
        open_gloo(spawned)
        et.world_of().barrier()
        for name in names:
            find_world(name)  # a graph may still be called
        et.enable_compile_pass()
        names.append(next(iter(config.post_grad_custom_post_pass.worlds.values()))[0])
        spawned.barrier()
        torch.distributed.destroy_process_group()
    assert len(set(names)) == 2
    return "right"


def test_graphs_outlive_their_group():
    assert spawn(RANKS, graphs_of_two_groups, timeout=200) == ["right"] * RANKS


def test_graphs():
    assert spawn(RANKS, graphs, timeout=200) == ["right"] * RANKS


# ---- A model by Inductor ---------------------------------------------------------------------

class Block(torch.nn.Module):
    """Hidden states that are whole, then scattered along the sequence, then along the batch."""

    def __init__(self):
        super().__init__()
        for number in range(3):
            setattr(self, f"up{number}", torch.nn.Linear(WIDTH, HIDDEN, bias=False))
            setattr(self, f"down{number}", torch.nn.Linear(HIDDEN, WIDTH, bias=False))
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(integers(*parameter.shape, seed=number).sign())

    def forward(self, x):
        for number in range(3):
            x = getattr(self, f"down{number}")(torch.relu(getattr(self, f"up{number}")(x)))
        return x


class GatedMLP(torch.nn.Module):
    """Two layers with a bias share what is gathered."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(WIDTH, HIDDEN) for _ in range(2))
        self.down = torch.nn.Linear(HIDDEN, WIDTH, bias=False)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.copy_(integers(*parameter.shape, seed=number).sign())

    def forward(self, x):
        return self.down(torch.relu(self.gate(x)) * self.up(x))


def packs_of_graphs():
    """Of every graph from now on: whether its weights are packed."""
    from entwine._torch_compile import EntwinePass
    packs, replace = [], EntwinePass._replace

    def spying(self, graph, collective, pack):
        packs.append(pack)
        replace(self, graph, collective, pack)

    EntwinePass._replace = spying
    return packs


def check_sequence_parallel(lines, rank):
    """Sequences of several lengths by one graph, whose extents are symbols."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
                                                   RowwiseParallel, parallelize_module)
    plan = {"0": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate()),
            "0.gate": ColwiseParallel(), "0.up": ColwiseParallel(),
            "0.down": RowwiseParallel(output_layouts=Shard(1))}
    model = parallelize_module(torch.nn.Sequential(GatedMLP()),
                               init_device_mesh("cpu", (RANKS,)), plan)
    call, whole = torch.compile(model, dynamic=True), GatedMLP()
    del lines[:]
    with torch.no_grad():
        for batch, length in ((3, 4), (5, 10)):  # DTensors make another graph for even batches
            x = integers(batch, length, WIDTH)
            mine = slice(rank * length // RANKS, (rank + 1) * length // RANKS)
            assert torch.equal(call(x[:, mine].contiguous()), whole(x)[:, mine])
    assert lines == ["entwine: compiled graph: 1 ag_gemm, 1 gemm_rs; left alone: nothing"], lines


def compiled(spawned):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    open_gloo(spawned)
    lines, packs, rank = lines_of_the_log(), packs_of_graphs(), spawned.rank
    et.enable_compile_pass()
    torch._inductor.config.fx_graph_cache = torch._functorch.config.enable_autograd_cache = False
    layouts = (Replicate(), Replicate(), Shard(1), Shard(0))
    model = parallelize_module(Block(), init_device_mesh("cpu", (RANKS,)), {
        **{f"up{i}": ColwiseParallel(input_layouts=layouts[i]) for i in range(3)},
        **{f"down{i}": RowwiseParallel(output_layouts=layouts[i + 1]) for i in range(3)}})
    x, grad = integers(BATCH, LENGTH, WIDTH), integers(BATCH, LENGTH, WIDTH, seed=1)
    whole, mine = Block(), x.clone().requires_grad_()
    x.requires_grad_()
    y = whole(x)
    y.backward(grad)
    got = torch.compile(model)(mine)
    got.backward(grad.chunk(RANKS)[rank].contiguous())
    replaced = "1 gemm_ar, 2 gemm_rs, 1 ag_gemm", "2 ag_gemm, 1 gemm_rs, 2 gemm_ar"
    assert lines == [f"entwine: compiled graph: {ours}; left alone: nothing"
                     for ours in replaced], lines
    assert torch.equal(got, y.chunk(RANKS)[rank]) and torch.equal(mine.grad, x.grad)
    for name, parameter in whole.named_parameters():
        assert torch.equal(model.get_parameter(name).grad.full_tensor(), parameter.grad), name
    assert packs == [False] * 9, packs  # training, forward and backward
    del packs[:]
    check_sequence_parallel(lines, rank)
    assert packs == [True] * 2, packs
    torch.distributed.destroy_process_group()
    return "right"


def test_a_model_by_inductor():
    assert spawn(RANKS, compiled, timeout=400) == ["right"] * RANKS


# ---- The cache on disk -----------------------------------------------------------------------

def compiled_after_rank_0(world, cache):
    """Five rows, of which rank 0 owns three and rank 1 two, so that their graphs differ in nothing
    but the world."""
    from torch._inductor import config
    torch.set_num_threads(1)
    config.fx_graph_cache = True
    graphs = pathlib.Path(cache, "fxgraph")
    if world.rank == 1:  # rank 0 waits in its call, and its graph lies there
        give_up_at = time.monotonic() + 100
        while not (graphs.exists() and any(graphs.rglob("*"))) and time.monotonic() < give_up_at:
            time.sleep(0.1)
    x, weight = integers(5, WIDTH, seed=world.rank), integers(HIDDEN, WIDTH, seed=9)

    @torch.compile(dynamic=False)
    def call(x, weight):
        return et.gemm_rs(x, weight, world) * 2

    with torch.no_grad():
        y = call(x, weight)
    first, count = world.owned_rows(5)
    whole = 2 * sum(integers(5, WIDTH, seed=rank) for rank in range(RANKS)) @ weight.t()
    assert torch.equal(y, whole[first:first + count])
    return "right"


def test_ranks_share_inductors_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert spawn(RANKS, compiled_after_rank_0, str(tmp_path), timeout=300,
                         world_timeout=100) == ["right"] * RANKS


# ---- The order of calls ----------------------------------------------------------------------

def trained_with_uneven_rows(world):
    """Three rows: the ranks own two and one, by which Inductor would order calls differently."""
    torch.set_num_threads(1)
    torch.manual_seed(world.rank)
    row = et.RowParallelLinear(8 * RANKS, 8, world=world)
    mlp = et.ParallelMLP(8, 8 * RANKS, world=world)
    parameters = [*row.parameters(), *mlp.parameters()]
    with torch.no_grad():
        for parameter in parameters:
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
        row.bias.copy_(torch.arange(8.0))

    def call(x):
        return mlp(torch.relu(row(x)), 3) * 2

    gradients = []
    for run in (call, torch.compile(call, dynamic=False)):
        x = integers(3, 8, seed=world.rank).requires_grad_()
        run(x).sum().backward()
        gradients.append([x.grad, *(parameter.grad for parameter in parameters)])
        for parameter in parameters:
            parameter.grad = None
    for eager, compiled_one in zip(*gradients):
        assert torch.allclose(eager, compiled_one, rtol=1e-4, atol=1e-4)
    return "right"


def test_calls_keep_their_order_on_all_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert spawn(RANKS, trained_with_uneven_rows, timeout=300) == ["right"] * RANKS


def test_a_trace_asks_nothing_that_it_cannot_follow():
    """Layers that ask it, a head or an embedding of Transformers, are part of one graph."""
    from entwine._torch_dispatch import has_nothing_to_do_on_cpu

    def asked(x):
        return 2 * x if has_nothing_to_do_on_cpu(x, x) else x + 1

    x = torch.zeros(3)
    with torch.no_grad():
        assert torch.equal(torch.compile(asked, backend="eager", fullgraph=True)(x), x + 1)
        assert torch.equal(asked(x), x)
