"""Every operator and every module of entwine.torch: right first and second derivatives of every
input, or a refusal.  One without a case here fails."""
import functools
import inspect
import itertools

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from ranks import spawn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

RANKS, M, N, K, EPS = 3, 7, 5, 4, 1e-3


class Case:
    """`call(world, *inputs)` on this rank against `reference(inputs of all ranks)`, which is the
    list of all ranks' outputs.  Inputs and outputs named in `shared` are the same on all ranks
    and count once."""

    def __init__(self, inputs, call, reference, shared=()):
        self.inputs, self.call, self.reference, self.shared = inputs, call, reference, shared

    def tensors(self, rank):
        return [random_tensor(name, 0 if name in self.shared else rank, shape(rank))
                for name, shape in self.inputs.items()]


def random_tensor(name, rank, shape):
    generator = torch.Generator().manual_seed(1000 * rank + sum(name.encode()))
    return torch.randn(shape, generator=generator, dtype=torch.float64).float().double()


def share(rank):
    return entwine.owned_rows(M, RANKS, rank)[1]


def scattered(whole):
    return list(whole.split([share(rank) for rank in range(RANKS)]))


def whole_gemm(a, b):
    return sum(one @ other.t() for one, other in zip(a, b))


def whole_norm(h, weight):
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * weight


ACTIVATIONS = {"silu": torch.nn.functional.silu, "none": lambda x: x,
               "gelu-tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
OPERANDS = {"a": lambda rank: (M, K), "b": lambda rank: (N, K)}
MY_ROWS, ALL_ROWS = {"rows": lambda rank: (share(rank), N)}, {"rows": lambda rank: (M, N)}
GATHERED = {"a": lambda rank: (share(rank), K), "b": lambda rank: (N, K)}
OPERATORS = {
    "gemm_rs": [
        Case(OPERANDS, lambda world, a, b: torch.ops.entwine.gemm_rs(a, b, world.name),
             lambda a, b: scattered(whole_gemm(a, b))),
        Case(OPERANDS, lambda world, a, b: torch.ops.entwine.gemm_rs(a, b, world.name, True),
             lambda a, b: scattered(whole_gemm(a, b)))],
    "gemm_ar": [
        Case(OPERANDS, lambda world, a, b: torch.ops.entwine.gemm_ar(a, b, world.name),
             lambda a, b: [whole_gemm(a, b)] * RANKS, shared=("output",)),
        Case(OPERANDS, lambda world, a, b: torch.ops.entwine.gemm_ar(a, b, world.name, True),
             lambda a, b: [whole_gemm(a, b)] * RANKS, shared=("output",))],
    "ag_gemm": [
        Case(GATHERED, lambda world, a, b: torch.ops.entwine.ag_gemm(a, b, M, world.name)[0],
             lambda a, b: [torch.cat(a) @ one.t() for one in b]),
        Case(GATHERED, lambda world, a, b: torch.cat(
            torch.ops.entwine.ag_gemm(a, b, M, world.name, False, True), 1),
             lambda a, b: [torch.cat((torch.cat(a) @ one.t(), torch.cat(a)), 1) for one in b])],
    "ag_gemm_multi": [
        Case({**GATHERED, "c": lambda rank: (2, K)},
             lambda world, a, b, c: torch.cat(
                 torch.ops.entwine.ag_gemm_multi(a, [b, c], M, world.name)[:-1], 1),
             lambda a, b, c: [torch.cat(a) @ torch.cat(both).t() for both in zip(b, c)]),
        Case({**GATHERED, "c": lambda rank: (2, K)},
             lambda world, a, b, c: torch.cat(
                 torch.ops.entwine.ag_gemm_multi(a, [b, c], M, world.name, False, True), 1),
             lambda a, b, c: [torch.cat((torch.cat(a) @ torch.cat(both).t(), torch.cat(a)), 1)
                              for both in zip(b, c)])],
    "ag_gemm_act": [
        *(Case({**GATHERED, "up": lambda rank: (N, K)},
               lambda world, a, b, up, act=act: torch.ops.entwine.ag_gemm_act(
                   a, b, up, M, world.name, act)[0],
               lambda a, b, up, act=act: [ACTIVATIONS[act](torch.cat(a) @ one.t()) *
                                          (torch.cat(a) @ other.t()) for one, other in zip(b, up)])
          for act in ("silu", "gelu-tanh", "none")),
        Case(GATHERED, lambda world, a, b: torch.ops.entwine.ag_gemm_act(
            a, b, None, M, world.name)[0],
             lambda a, b: [ACTIVATIONS["silu"](torch.cat(a) @ one.t()) for one in b]),
        Case({**GATHERED, "up": lambda rank: (N, K)},  # and what else it returns
             lambda world, a, b, up: torch.cat(torch.ops.entwine.ag_gemm_act(
                 a, b, up, M, world.name, "silu", False, True, True), 1),
             lambda a, b, up: [torch.cat((
                 ACTIVATIONS["silu"](torch.cat(a) @ one.t()) * (torch.cat(a) @ other.t()),
                 torch.cat(a), torch.cat(a) @ one.t(), torch.cat(a) @ other.t()), 1)
                 for one, other in zip(b, up)])],
    "all_gather_rows": [
        Case(MY_ROWS, lambda world, rows: torch.ops.entwine.all_gather_rows(rows, M, world.name),
             lambda rows: [torch.cat(rows)] * RANKS),
        Case(MY_ROWS,
             lambda world, rows: torch.ops.entwine.all_gather_rows(rows, M, world.name, False),
             lambda rows: [torch.cat(rows)] * RANKS),
        Case(MY_ROWS,
             lambda world, rows: torch.ops.entwine.all_gather_rows(rows, M, world.name, True),
             lambda rows: [torch.cat(rows)] * RANKS, shared=("output",))],
    "reduce_scatter_rows": [
        Case(ALL_ROWS,
             lambda world, rows: torch.ops.entwine.reduce_scatter_rows(rows, world.name, None),
             lambda rows: scattered(sum(rows))),
        Case(ALL_ROWS, lambda world, rows: torch.ops.entwine.reduce_scatter_rows(rows, world.name),
             lambda rows: scattered(sum(rows))),
        Case(ALL_ROWS,
             lambda world, rows: torch.ops.entwine.reduce_scatter_rows(rows, world.name, True),
             lambda rows: scattered(rows[0]), shared=("rows",))],
    "replicate": [
        Case({"parameter": lambda rank: (N,)},
             lambda world, parameter: torch.ops.entwine.replicate(parameter, world.name),
             lambda parameter: list(parameter), shared=("parameter",))],
    "gemm_rs_layer": [],  # refuses
    "gemm_ar_layer": [],
}


def linear(world, x, weight, bias):
    layer = et.RowParallelLinear(RANKS * K, N, world=world)
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))


def linear_norm(world, x, weight, residual, bias, norm_weight):
    layer = et.RowParallelLinearNorm(RANKS * K, N, bias=True, eps=EPS, world=world)
    parameters = {"weight": weight, "bias": bias, "norm_weight": norm_weight}
    return torch.cat(torch.func.functional_call(layer, parameters, (x, residual)))


def whole_linear(world, x, weight, bias):
    layer = et.RowParallelLinear(RANKS * K, N, output="replicated", world=world)
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))


def normed_of(residual_rows):
    """The normed rows of the norm layer without sequence parallelism."""
    def call(world, x, weight, residual, bias, norm_weight):
        layer = et.RowParallelLinearNorm(RANKS * K, N, bias=True, eps=EPS, world=world,
                                         output="replicated", residual_rows=residual_rows)
        parameters = {"weight": weight, "bias": bias, "norm_weight": norm_weight}
        return torch.func.functional_call(layer, parameters, (x, residual))[0]
    return call


def whole_linear_norm(x, weight, residual, bias, norm_weight):
    h = whole_gemm(x, weight) + bias[0] + torch.cat(residual)
    return [torch.cat(pair) for pair in
            zip(scattered(whole_norm(h, norm_weight[0])), scattered(h))]


def column_linear(world, x, weight, bias):
    layer = et.ColumnParallelLinear(K, RANKS * N, world=world)
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x, M))


def whole_column_linear(world, x, weight, bias):
    layer = et.ColumnParallelLinear(K, RANKS * N, input="replicated", world=world)
    return torch.func.functional_call(layer, {"weight": weight, "bias": bias}, (x,))


def mlp(rows):
    def call(world, x, gate, up, down):
        layer = et.ParallelMLP(K, RANKS * N, rows=rows, world=world)
        parameters = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
        given = (x, M) if rows == "scattered" else (x,)
        return torch.func.functional_call(layer, parameters, given)
    return call


def whole_mlp(x, gate, up, down):
    return sum((torch.nn.functional.silu(x @ g.t()) * (x @ u.t())) @ d.t()
               for g, u, d in zip(gate, up, down))


def mix(q, k, v):
    """Something in place of attention, of one query head for each of the keys' and values'."""
    return torch.tanh(q) * k + v.cumsum(0)


def attention(world, x, q, k, v, o, bias):
    layer = et.ParallelAttentionProjections(K, 2 * RANKS, head_dim=3, world=world, bias=True)
    parameters = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": o,
                  "q_proj.bias": bias, "k_proj.bias": bias, "v_proj.bias": bias}
    return torch.func.functional_call(layer, parameters, (x, mix, M))


def whole_attention(x, q, k, v, o, bias):
    x = torch.cat(x)
    return scattered(sum(mix(*(x @ w.t() + b for w in (wq, wk, wv))) @ wo.t()
                         for wq, wk, wv, wo, b in zip(q, k, v, o, bias)))


MLP = {"gate": lambda rank: (N, K), "up": lambda rank: (N, K), "down": lambda rank: (K, N)}
HEADS = {name: lambda rank: (6, K) for name in "qkv"}
COLUMNS = {"weight": lambda rank: (N, K), "bias": lambda rank: (N,)}
LINEAR = {"x": lambda rank: (M, K), "weight": lambda rank: (N, K)}
MODULES = {
    "ColumnParallelLinear": [
        Case({"x": lambda rank: (share(rank), K), **COLUMNS}, column_linear,
             lambda x, weight, bias: [torch.cat(x) @ w.t() + b for w, b in zip(weight, bias)]),
        Case({"x": lambda rank: (M, K), **COLUMNS}, whole_column_linear,
             lambda x, weight, bias: [x[0] @ w.t() + b for w, b in zip(weight, bias)],
             shared=("x",))],
    "RowParallelLinear": [
        Case({**LINEAR, "bias": lambda rank: (N,)}, linear,
             lambda x, weight, bias: scattered(whole_gemm(x, weight) + bias[0]),
             shared=("bias",)),
        Case({**LINEAR, "bias": lambda rank: (N,)}, whole_linear,
             lambda x, weight, bias: [whole_gemm(x, weight) + bias[0]] * RANKS,
             shared=("bias", "output"))],
    "ParallelMLP": [
        Case({"x": lambda rank: (share(rank), K), **MLP}, mlp("scattered"),
             lambda x, gate, up, down: scattered(whole_mlp(torch.cat(x), gate, up, down))),
        Case({"x": lambda rank: (M, K), **MLP}, mlp("replicated"),
             lambda x, gate, up, down: [whole_mlp(x[0], gate, up, down)] * RANKS,
             shared=("x", "output"))],
    "ParallelAttentionProjections": [
        Case({"x": lambda rank: (share(rank), K), **HEADS, "o": lambda rank: (K, 6),
              "bias": lambda rank: (6,)}, attention, whole_attention)],
    "RowParallelLinearNorm": [
        Case({**LINEAR, "residual": lambda rank: (share(rank), N), "bias": lambda rank: (N,),
              "norm_weight": lambda rank: (N,)}, linear_norm, whole_linear_norm,
             shared=("bias", "norm_weight")),
        Case({**LINEAR, "residual": lambda rank: (share(rank), N), "bias": lambda rank: (N,),
              "norm_weight": lambda rank: (N,)}, normed_of("owned"),
             lambda x, weight, residual, bias, norm_weight: [whole_norm(
                 whole_gemm(x, weight) + bias[0] + torch.cat(residual), norm_weight[0])] * RANKS,
             shared=("bias", "norm_weight", "output")),
        Case({**LINEAR, "residual": lambda rank: (M, N), "bias": lambda rank: (N,),
              "norm_weight": lambda rank: (N,)}, normed_of("all"),
             lambda x, weight, residual, bias, norm_weight: [whole_norm(
                 whole_gemm(x, weight) + bias[0] + residual[0], norm_weight[0])] * RANKS,
             shared=("bias", "norm_weight", "residual", "output"))],
}
CASES = {f"{name}-{number}": case for name, cases in {**OPERATORS, **MODULES}.items()
         for number, case in enumerate(cases)}


def test_there_is_a_case_for_everything():
    registered = {name.split("::")[1].split(".")[0]
                  for name in torch._C._dispatch_get_all_op_names() if name.startswith("entwine::")}
    assert registered == set(OPERATORS)
    modules = {name for name, thing in vars(et).items()
               if inspect.isclass(thing) and issubclass(thing, torch.nn.Module)}
    assert modules == set(MODULES)


# ---- Against one process ---------------------------------------------------------------------

def derivatives(inputs, output, cotangent, directions):
    """First derivatives of <cotangent, output>, and of their products with the directions."""
    first = torch.autograd.grad(output, inputs, cotangent, create_graph=True)
    inner = sum((direction * grad).sum() for direction, grad in zip(directions, first))
    second = torch.autograd.grad(inner, [*inputs, *(c for c in cotangent if c.requires_grad)],
                                 allow_unused=True, materialize_grads=True)
    return first, second


def wanted(case, wants):
    """By rank: (output, first, second derivatives), in float64 and one process."""
    by_rank = [case.tensors(rank) for rank in range(RANKS)]
    names = list(case.inputs)
    columns = []  # of each input, one tensor per rank; a shared one is one tensor
    for index, name in enumerate(names):
        column = [tensors[index].requires_grad_(name in wants) for tensors in by_rank]
        columns.append(column[:1] * RANKS if name in case.shared else column)
    outputs = case.reference(*columns)
    once = "output" in case.shared
    cotangents = [random_tensor("cotangent", 0 if once else rank, output.shape).requires_grad_()
                  for rank, output in enumerate(outputs)]
    if once:
        outputs, cotangents = outputs[:1], cotangents[:1]
    leaves = [(index, rank) for index, name in enumerate(names) if name in wants
              for rank in range(1 if name in case.shared else RANKS)]
    inputs = [columns[index][rank] for index, rank in leaves]
    directions = [random_tensor("direction", rank, one.shape)
                  for (_, rank), one in zip(leaves, inputs)]
    first, second = derivatives(inputs, outputs, cotangents, directions)
    result = []
    for rank in range(RANKS):
        mine = [place for place, (index, its) in enumerate(leaves)
                if its == (0 if names[index] in case.shared else rank)]
        spot = 0 if once else rank
        result.append(([outputs[spot]], [first[place] for place in mine],
                       [second[place] for place in mine] + [second[len(leaves) + spot]]))
    return result


def measured(case, wants, world):
    names = list(case.inputs)
    tensors = [one.float().requires_grad_(name in wants)
               for name, one in zip(names, case.tensors(world.rank))]
    inputs = [one for one in tensors if one.requires_grad]
    output = case.call(world, *tensors)
    cotangent = random_tensor("cotangent", 0 if "output" in case.shared else world.rank,
                              output.shape).float().requires_grad_()
    directions = [random_tensor("direction", 0 if name in case.shared else world.rank,
                                one.shape).float() for name, one in zip(names, tensors)
                  if name in wants]
    first, second = derivatives(inputs, [output], [cotangent], directions)
    return [output], first, second


def compare(world, name):
    case = CASES[name]
    for wants in dict.fromkeys([*((one,) for one in case.inputs), tuple(case.inputs)]):
        right = wanted(case, wants)[world.rank]
        for what, ours, theirs in zip(("output", "first", "second"), measured(case, wants, world),
                                      right):
            assert len(ours) == len(theirs)
            for one, other in zip(ours, theirs):
                assert one.shape == other.shape
                assert torch.allclose(one.double(), other, rtol=2e-5, atol=2e-5), (
                    f"{what} of {name}, {wants}: {one} instead of {other}")


def compare_all(world, through_group):
    """What is wrong, by case.  All in one go: starting ranks takes the time."""
    torch.set_num_threads(1)
    if through_group:
        from test_torch import open_gloo
        open_gloo(world)
        world = et.world_of()
        world._hosts = 2  # as if: the ranks then meet in the group
    wrong = {}
    for name in CASES:
        try:
            compare(world, name)
        except AssertionError as error:
            wrong[name] = str(error)
    if through_group:
        torch.distributed.destroy_process_group()
    return wrong


@pytest.mark.parametrize("through_group", [False, True], ids=["own", "group"])
def test_derivatives(through_group):
    assert spawn(RANKS, compare_all, through_group, timeout=100) == [{}] * RANKS


# ---- Refusals --------------------------------------------------------------------------------

def layer_tensors():
    return {"a": torch.ones(M, K), "b": torch.ones(N, K), "residual": torch.ones(M, N),
            "norm_weight": torch.ones(N), "bias": torch.ones(N)}


@pytest.mark.parametrize("wanting", list(layer_tensors()))
def test_the_layer_operator_refuses_gradients(world, wanting):
    for call in (torch.ops.entwine.gemm_rs_layer, torch.ops.entwine.gemm_rs_layer.default,
                 torch.ops.entwine.gemm_ar_layer, torch.ops.entwine.gemm_ar_layer.default):
        given = layer_tensors()
        given[wanting].requires_grad_()
        with pytest.raises(entwine.ArgumentError, match=f"{wanting} requires grad"):
            call(given["a"], given["b"], given["residual"], given["norm_weight"], world.name,
                 given["bias"])
        with torch.no_grad():
            call(given["a"], given["b"], given["residual"], given["norm_weight"], world.name,
                 given["bias"])


def test_forward_mode_is_refused(world):
    from torch.autograd import forward_ad
    given = layer_tensors()
    calls = {
        "a": [lambda a: et.gemm_rs(a, given["b"], world),
              lambda a: et.gemm_rs_layer(a, given["b"], given["residual"], given["norm_weight"],
                                         world),
              lambda a: et.gemm_ar(a, given["b"], world),
              lambda a: et.ag_gemm(a, given["b"], world),
              lambda a: et.ag_gemm_multi(a, [given["b"]], world),
              lambda a: et.ag_gemm_act(a, given["b"], None, world),
              lambda a: et.gemm_ar_layer(a, given["b"], given["residual"], given["norm_weight"],
                                         world)],
        "residual": [lambda rows: et.all_gather_rows(rows, M, world),
                     lambda rows: et.reduce_scatter_rows(rows, world),
                     lambda rows: torch.ops.entwine.replicate(rows, world.name)]}
    for name, call in itertools.chain(*([(name, call) for call in some]
                                        for name, some in calls.items())):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(given[name], torch.ones_like(given[name]))
            with pytest.raises((entwine.ArgumentError, RuntimeError), match="tangent|jvp"):
                call(dual)
            call(given[name])


def per_sample(call, samples, weight):
    """The result of torch.func.vmap, and the gradients of its inputs."""
    inputs = [samples.clone().requires_grad_(), weight.clone().requires_grad_()]
    y = torch.func.vmap(call, in_dims=(0, None))(*inputs)
    return y, *torch.autograd.grad(y.square().sum(), inputs, allow_unused=True)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("call, reference", [
    (lambda world, x, w: et.gemm_rs(x, w, world), torch.nn.functional.linear),
    (lambda world, x, w: et.gemm_ar(x, w, world), torch.nn.functional.linear),
    (lambda world, x, w: et.ag_gemm(x, w, world), torch.nn.functional.linear),
    (lambda world, x, w: et.all_gather_rows(x, M, world, replicated=False), lambda x, w: 1 * x),
    (lambda world, x, w: et.reduce_scatter_rows(x, world), lambda x, w: 1 * x),
    (lambda world, x, w: et.replicate(x, world), lambda x, w: 1 * x)],
    ids=["gemm_rs", "gemm_ar", "ag_gemm", "all_gather_rows", "reduce_scatter_rows", "replicate"])
def test_vmap(world, call, reference):
    samples, weight = random_tensor("x", 0, (3, M, K)).float(), random_tensor("w", 0, (N, K)).float()
    got = per_sample(lambda x, w: call(world, x, w), samples, weight)
    for mine, its in zip(got, per_sample(reference, samples, weight)):
        assert mine is its is None or torch.allclose(mine, its, atol=1e-4)


def test_vmap_of_several_weights_is_refused(world):
    with pytest.raises(RuntimeError, match="Batching rule not implemented"):
        torch.func.vmap(lambda x: et.ag_gemm_multi(x, [torch.ones(N, K)], world)[0])(
            torch.ones(3, M, K))


def test_a_written_residual_is_seen_by_autograd(world):
    given = layer_tensors()
    x = torch.ones(M, N, requires_grad=True)
    residual = x.detach()
    loss = (x * x).sum()
    et.gemm_rs_layer(given["a"], given["b"], residual, given["norm_weight"], world)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def written_by_plans(world):
    """(what is written, the call that writes it) for every output of a plan's."""
    def tensor(*shape):
        return torch.ones(shape)

    plans = {op: entwine.Plan(world, M, N, K, "float32", op=op)
             for op in ("gemm-rs", "gemm-ar", "ag-gemm")}
    a, b = tensor(M, K), tensor(N, K)
    for plan in plans.values():
        plan.set_weight(b)
    rs, ar, ag = plans.values()
    for call, run in ((rs.gemm_rs, rs.gemm_rs_layer),
                      (ar.gemm_ar, functools.partial(ar.gemm_ar_layer, residual_rows="all"))):
        yield (out := tensor(M, N)), functools.partial(call, a, out=out)
        yield (out := tensor(M, N)), functools.partial(call, a, b, out=out)
        yield (out := tensor(M, N)), functools.partial(run, a, out=out)
        yield (out := tensor(M, N)), functools.partial(run, a, residual=out)
        yield (out := tensor(M, N)), functools.partial(run, a, norm_weight=tensor(N), normed=out)
    yield (out := tensor(M, N)), functools.partial(ag.ag_gemm, a, out=out)
    yield (out := tensor(M, K)), functools.partial(ag.ag_gemm, a, gathered=out)
    yield (out := tensor(M, N)), functools.partial(ag.ag_gemm_multi, a, [b], outs=[out])
    yield (out := tensor(M, K)), functools.partial(ag.ag_gemm_multi, a, [b], gathered=out)
    yield (out := tensor(M, N)), functools.partial(ag.ag_gemm_act, a, [b], out=out)
    yield (out := tensor(M, N)), functools.partial(ag.ag_gemm_act, a, [b], products=[out])
    yield (out := tensor(M, K)), functools.partial(ag.ag_gemm_act, a, [b], gathered=out)
    yield (out := tensor(M, N)), functools.partial(entwine.gemm_rs, a, b, world, out=out)


def test_what_a_plan_has_written_is_seen_by_autograd(world):
    for out, call in written_by_plans(world):
        x = torch.ones(out.shape, requires_grad=True)
        loss = (x * out).sum()
        call()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():  # where nothing has a version
        for _, call in written_by_plans(world):
            call()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("wants", [False, True], ids=["residual", "residual-wants-gradient"])
def test_a_checkpoint_begins_again_with_its_residual(world, wants, frozen, reentrant):
    """The first pass of a reentrant one has no gradients, and is followed by one that has."""
    torch.manual_seed(0)
    layer = et.RowParallelLinearNorm(K, N, world=world)
    if frozen:
        layer.freeze()
    given = torch.randn(M, K), torch.randn(M, N)
    grads = []
    for run in (lambda *inputs: layer(*inputs), lambda *inputs: checkpoint(
            layer, *inputs, use_reentrant=reentrant)):
        x, residual = (tensor.clone() for tensor in given)
        x.requires_grad_()
        residual.requires_grad_(wants)
        normed, h = run(x, residual)
        assert torch.equal(residual, given[1])
        loss = (normed * torch.arange(N)).sum() + h.square().sum()
        inputs = [x, *([residual] if wants else []), *(() if frozen else layer.parameters())]
        for tensor in inputs:
            tensor.grad = None
        loss.backward()
        grads.append([tensor.grad for tensor in inputs])
    for one, other in zip(*grads):
        torch.testing.assert_close(one, other)


def test_a_residual_that_wants_a_gradient_is_not_written(world):
    """Of a layer in evaluation mode, too."""
    layer = et.RowParallelLinearNorm(K, N, world=world).eval()
    residual = torch.zeros(M, N, requires_grad=True)
    with torch.no_grad():
        layer(torch.ones(M, K), residual)
    assert not residual.any()


def guess(world, num_rows):
    """Whether gradients that are the same on all ranks are refused on all of them."""
    rows = torch.ones(world.owned_rows(num_rows)[1], N, requires_grad=True)
    gathered = et.all_gather_rows(rows, num_rows, world)
    same = torch.randn(num_rows, N, generator=torch.Generator().manual_seed(1))
    for grad, refused in ((same, True), (torch.zeros(num_rows, N), False),
                          (same + world.rank * torch.eye(num_rows, N), False), (same, True)):
        if refused:
            with pytest.raises(entwine.ArgumentError, match="replicated=True"):
                gathered.backward(grad, retain_graph=True)
        else:
            gathered.backward(grad, retain_graph=True)
    for replicated, factor in ((True, 1), (False, world.size)):
        rows.grad = None
        et.all_gather_rows(rows, num_rows, world, replicated).backward(same)
        first, count = world.owned_rows(num_rows)
        assert torch.allclose(rows.grad, factor * same[first:first + count])


def sum_rows(world, dtypes):
    guess(world, 1)
    guess(world, M)
    for dtype in dtypes:
        rows = [torch.randn(M, N, generator=torch.Generator().manual_seed(rank)).to(dtype)
                for rank in range(world.size)]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        first, count = world.owned_rows(M)
        total = rows[0].to(wide) + rows[1] + rows[2]
        ours = et.reduce_scatter_rows(rows[world.rank], world)
        assert torch.equal(ours, total.to(dtype)[first:first + count])
    return "right"


def test_sums():
    assert spawn(RANKS, sum_rows, (torch.float64, torch.bfloat16),
                         timeout=100) == ["right"] * RANKS
