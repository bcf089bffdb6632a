"""entwine.torch.RowwiseParallel in parallelize_module, DTensors, and outputs scattered along any
dimension, on two ranks with torch.distributed (gloo), against one process and torch's own style."""
import copy

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")

import entwine  # noqa: E402
import entwine.torch as et  # noqa: E402
from ranks import spawn  # noqa: E402
from test_torch import open_gloo  # noqa: E402

RANKS, BATCH, LENGTH, WIDTH, HIDDEN = 2, 3, 4, 6, 8


def integers(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-2, 3, shape, generator=generator).float()


def mlp():
    """Small integers, so that no sum rounds."""
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, HIDDEN), torch.nn.ReLU(),
                                torch.nn.Linear(HIDDEN, WIDTH))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=number))
    return model


def step(model, x, grad):
    """Output, gradient of x, and whole gradients by parameter."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(grad)
    return y.detach(), x.grad, {
        name: one.grad.full_tensor() if hasattr(one.grad, "full_tensor") else one.grad
        for name, one in model.named_parameters()}


def check_style(mesh, rank, dim):
    """dim: scattered along it; None: replicated."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    layout = Replicate() if dim is None else Shard(dim)

    def mine(tensor):
        return tensor if dim is None else tensor.chunk(RANKS, dim)[rank].contiguous()

    shape = (BATCH + 1, LENGTH, WIDTH)
    x, grad = integers(*shape, seed=5), integers(*shape, seed=6)
    y, x_grad, grads = step(mlp(), x, grad)
    model = parallelize_module(mlp(), mesh, {
        "0": ColwiseParallel(input_layouts=layout), "2": et.RowwiseParallel(output_layouts=layout)})
    got, got_x_grad, got_grads = step(model, mine(x), mine(grad))
    assert torch.equal(got, mine(y)) and torch.equal(got_x_grad, mine(x_grad))
    assert got_grads.keys() == grads.keys()
    assert all(torch.equal(got_grads[name], grads[name]) for name in grads)
    # The same parameters as with torch's own style, so the same state dicts.
    state = model.state_dict()
    assert isinstance(state["2.weight"], DTensor) and state["2.weight"].placements == (Shard(1),)
    other = parallelize_module(mlp(), mesh, {
        "0": ColwiseParallel(input_layouts=layout), "2": et.RowwiseParallel(output_layouts=layout)})
    with torch.no_grad():
        for one in other.parameters():
            one.zero_()
        other(mine(x))
        other.load_state_dict(state)
        for _ in range(3):  # the weight is packed by the third call
            assert torch.equal(other(mine(x)), mine(y))


def check_dtensors(mesh, rank):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import parallelize_module
    whole = mlp()[2]
    x = integers(5, HIDDEN, seed=7)
    for layout in (Shard(1), Replicate()):
        layer = parallelize_module(mlp()[2], mesh, et.RowwiseParallel(
            input_layouts=layout, use_local_output=False))
        y = layer(distribute_tensor(x, mesh, [layout]))
        assert isinstance(y, DTensor) and torch.equal(y.full_tensor(), whole(x))
    layer = et.RowParallelLinear.from_linear(whole, group=mesh.get_group(), output="replicated")
    with pytest.raises(entwine.ArgumentTypeError, match="x is a DTensor.*\n.*to_local"):
        layer(distribute_tensor(x, mesh, [Shard(1)]))
    rows, weight = (distribute_tensor(one, mesh, [Shard(1)]) for one in (x, whole.weight.detach()))
    for operator in (et.gemm_ar, et.gemm_rs):
        with pytest.raises(entwine.ArgumentTypeError, match="a is a DTensor.*\n.*to_local"):
            operator(rows, weight, layer.world)


def check_compiled_training(mesh):
    """A write to a DTensor between two calls, where none of the sampled elements is."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import parallelize_module
    change, rank = torch.zeros(64, 176), mesh.get_local_rank()
    change[7, 3] = change[9, 99] = 50.0
    for layout in (Replicate(), Shard(0)):
        linear = torch.nn.Linear(176, 64, bias=False)
        with torch.no_grad():
            linear.weight.copy_(integers(64, 176))
        x = integers(4, 176)
        want = linear(x) + x @ change.t()
        whole_grad = torch.ones(4, 64) @ (linear.weight.detach() + change)
        layer = parallelize_module(linear, mesh, et.RowwiseParallel(output_layouts=layout))
        share = x.chunk(RANKS, 1)[rank].requires_grad_()
        call = torch.compile(layer, backend="aot_eager")
        for _ in range(3):
            call(share).sum().backward()
        with torch.no_grad():
            layer.weight.add_(distribute_tensor(change, mesh, layer.weight.placements))
        share.grad = None
        y = call(share)
        y.sum().backward()
        assert torch.equal(y, want if layout == Replicate() else want.chunk(RANKS)[rank])
        assert torch.equal(share.grad, whole_grad.chunk(RANKS, 1)[rank])


def check_copies(mesh, rank):
    """A copy has weights of its own, in inference and in training."""
    from torch.distributed.tensor.parallel import parallelize_module
    x = integers(5, HIDDEN, seed=7)
    share = x.chunk(RANKS, 1)[rank]
    layer = parallelize_module(mlp()[2], mesh, et.RowwiseParallel())
    y = layer(share)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.mul_(2)
        for _ in range(3):
            assert torch.equal(layer(share), y)
            assert torch.equal(other(share) - other.bias.to_local(), 2 * (y - layer.bias.to_local()))
    other(share).sum().backward()
    assert other.weight.grad is not None and layer.weight.grad is None


def check_written_between(mesh):
    """A write to a weight after the forward pass, where the gradient needs the old values."""
    from entwine._torch_parallel import column_forward
    from torch.distributed.tensor import Replicate, Shard, distribute_module
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    columns = distribute_module(mlp()[0], mesh, ColwiseParallel()._partition_linear_fn)
    forward = column_forward(et.world_of(mesh.get_group()))
    columns.forward = lambda x: forward(columns, x)
    for layer in (columns, *(parallelize_module(mlp()[2], mesh, et.RowwiseParallel(
            output_layouts=layout)) for layout in (Replicate(), Shard(0)))):
        share = layer.weight.to_local().shape[1]
        for is_trained in (True, False):
            layer.weight.requires_grad_(is_trained)
            x = integers(4, share).requires_grad_()
            y = layer(x)
            with torch.no_grad():
                layer.weight.add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation.*\n  fix: "):
                y.sum().backward()
            layer(x).sum().backward()
        layer.weight.requires_grad_()
        y = layer(integers(4, share))  # the gradient of the weight does not need it
        with torch.no_grad():
            layer.weight.add_(1)
        y.sum().backward()


def check_toggled(mesh):
    """A weight that stops wanting a gradient between two calls is not written by that."""
    from torch.distributed.tensor.parallel import parallelize_module
    layer = parallelize_module(mlp()[2], mesh, et.RowwiseParallel())
    x = integers(4, HIDDEN // RANKS).requires_grad_()
    first = layer(x)
    layer.requires_grad_(False)
    (first + layer(x)).sum().backward()
    assert torch.equal(x.grad, 2 * torch.ones(4, WIDTH) @ layer.weight.to_local())


def check_gathered_bias(mesh):
    """The one parameter of a model that is trained."""
    from entwine._torch_parallel import gathered_column_forward
    from torch.distributed.tensor import distribute_module
    from torch.distributed.tensor.parallel import ColwiseParallel
    columns = distribute_module(mlp()[0], mesh, ColwiseParallel()._partition_linear_fn)
    forward, x = gathered_column_forward(et.world_of(mesh.get_group())), integers(4, WIDTH)
    columns.weight.requires_grad_(False)
    assert forward(columns, x) is None
    columns.bias.requires_grad_(False)
    assert torch.equal(forward(columns, x), mlp()[0](x))


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def replaced():
    linear = torch.nn.Linear(4, 4)
    linear.forward = lambda x: x
    return linear


def check_refusals(mesh):
    from torch.distributed.tensor import Partial, Shard
    from torch.distributed.tensor.parallel import parallelize_module
    for module, style, text in (
            (torch.nn.Embedding(4, 4), et.RowwiseParallel(), "the module is a Embedding"),
            (Doubled(4, 4), et.RowwiseParallel(), "the module is a Doubled, whose forward"),
            (replaced(), et.RowwiseParallel(), "the module has a forward that was put in"),
            (torch.nn.Linear(5, 4), et.RowwiseParallel(), "in_features is 5"),
            (torch.nn.Linear(4, 4), et.RowwiseParallel(output_layouts=Shard(-1)), "output_layouts"),
            (torch.nn.Linear(4, 4), et.RowwiseParallel(output_layouts=Partial()),
             "output_layouts")):
        with pytest.raises(entwine.EntwineError, match=text):
            parallelize_module(module, mesh, style)


def check_dimensions(world):
    """RowParallelLinear of four dimensions, scattered along each that can be."""
    whole = mlp()[2]
    x, grad = integers(2, 3, 4, HIDDEN), integers(2, 3, 4, WIDTH, seed=8)
    share = slice(world.rank * HIDDEN // RANKS, (world.rank + 1) * HIDDEN // RANKS)
    y, x_grad, grads = step(whole, x, grad)
    for dim in (0, 2, -1, -3):
        layer = et.RowParallelLinear.from_linear(mlp()[2], world, scatter_dim=dim)

        def mine(tensor, along=dim if dim >= 0 else dim - 1):
            return tensor.chunk(RANKS, along)[world.rank]

        got, got_x_grad, got_grads = step(layer, x[..., share], mine(grad))
        assert torch.equal(got, mine(y)) and torch.equal(got_x_grad, x_grad[..., share])
        assert torch.equal(got_grads["weight"], grads["weight"][:, share])
        assert torch.equal(got_grads["bias"], grads["bias"])
    for dim, text in ((1, "extent 1, which is scattered"), (3, "scatter_dim is 3"),
                      (-4, "scatter_dim is -4")):
        layer = et.RowParallelLinear.from_linear(mlp()[2], world, scatter_dim=dim)
        with pytest.raises(entwine.ShapeError, match=text):
            layer(x[..., share])
    with pytest.raises(entwine.ArgumentError, match="output is 'whole'; expected 'scattered'"):
        et.RowParallelLinear(8, 8, output="whole", world=world)


def checked(spawned):
    from torch.distributed.device_mesh import init_device_mesh
    open_gloo(spawned)
    mesh = init_device_mesh("cpu", (RANKS,))
    for dim in (None, 0, 1):
        check_style(mesh, spawned.rank, dim)
    check_dtensors(mesh, spawned.rank)
    check_compiled_training(mesh)
    check_written_between(mesh)
    check_toggled(mesh)
    check_gathered_bias(mesh)
    check_copies(mesh, spawned.rank)
    check_refusals(mesh)
    check_dimensions(spawned)
    torch.distributed.destroy_process_group()
    return "right"


def test_on_two_ranks():
    assert spawn(RANKS, checked, timeout=400) == ["right"] * RANKS
