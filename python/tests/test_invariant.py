"""config invariant=S: the same bits on any number of ranks that divides S."""
import numpy as np
import pytest

import entwine
from matrices import DTYPES, bits
from ranks import spawn

S, M, N, K = 4, 37, 150, 4 * 42


def cut(world, dtype):
    """This rank's columns of one A and one B, whose sums round."""
    random = np.random.default_rng(7)
    A, B = (random.standard_normal((rows, K)).astype(dtype) for rows in (M, N))
    mine = slice(world.rank * K // world.size, (world.rank + 1) * K // world.size)
    return np.ascontiguousarray(A[:, mine]), np.ascontiguousarray(B[:, mine])


def whole(world, rows):
    return b"".join(world.allgather(bits(rows)))


def sums(world, dtype, config):
    """The bytes of all rows, by every way to ask for them."""
    A, B = cut(world, dtype)
    config = dict(config) if config else None
    plan, weight = entwine.Plan(world, M, N, A.shape[1], dtype, config), entwine.Weight(world, B, config)
    plan.bind(weight)
    found = whole(world, plan.gemm_rs(A))
    assert found == whole(world, entwine.gemm_rs(A, B, world, config=config))
    assert found == bits(entwine.gemm_ar(A, B, world, config=config))
    assert found == bits(entwine.Plan(world, M, N, A.shape[1], dtype, config, op="gemm-ar").gemm_ar(A, B))
    return found


def sums_of_every_type(world, config):
    return [sums(world, dtype, config) for dtype in DTYPES]


def test_any_number_of_ranks_gives_the_same_bits():
    want = entwine.spawn(S, sums_of_every_type, None, timeout=100)[0]
    for ranks in (1, 2):
        assert entwine.spawn(ranks, sums_of_every_type, {"invariant": S}, timeout=100) == [want] * ranks
    other = entwine.spawn(1, sums_of_every_type, None, timeout=100)[0]
    assert all(x != y for x, y in zip(other, want))  # so the inputs can tell


def torch_sums(world, config):
    """The bytes of all rows, by the functions, the operators and the modules of entwine.torch; in
    training, while the weight is not packed yet, and packed."""
    import torch
    import entwine.torch as et
    A, B = (torch.from_numpy(matrix) for matrix in cut(world, "float32"))
    text, found = ",".join(f"{key}={value}" for key, value in config.items()), set()
    layers = [et.RowParallelLinear(K, N, bias=False, output=output, world=world, config=config)
              for output in ("replicated", "scattered")]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(B)
    for grad in (True, False, False):
        with torch.set_grad_enabled(grad):
            found |= {bits(y.detach().numpy()) for y in (
                et.gemm_ar(A, B, world, config=config), layers[0](A), layers[0](A.view(1, M, -1)),
                torch.ops.entwine.gemm_ar(A, B, world.name, False, True, text))}
            found |= {whole(world, y.detach().numpy()) for y in (
                et.gemm_rs(A, B, world, config=config), layers[1](A))}
    with torch.no_grad():  # the same weight in both ways, in turns
        plain = bits(et.gemm_ar(A, B, world).numpy())
        found.add(bits(et.gemm_ar(A, B, world, config=config).numpy()))
        assert bits(et.gemm_ar(A, B, world).numpy()) == plain
    assert len(found) == 1
    return found.pop(), plain


def test_pytorch():
    pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")
    found = {ranks: spawn(ranks, torch_sums, {"invariant": S}, timeout=200)
             for ranks in (1, 2, S)}
    want, plain = found[S][0]
    assert all(one == want for rank in found.values() for one, _ in rank)
    assert plain == want and found[1][0][1] != want  # so the inputs can tell


def test_the_config_says_so(world):
    plan = entwine.Plan(world, M, N, K, "float32", {"invariant": S})
    assert plan.config.endswith("invariant=4")
    assert "invariant" not in entwine.Plan(world, M, N, K, "float32", {"invariant": 0}).config
    assert "8 pieces, 4 on each" in entwine.explain(M, N, K, "float32", 2, {"invariant": 8})


@pytest.mark.parametrize("k, ranks, config, word", [
    (K, 3, {"invariant": 8}, "W=3"),
    (K + 1, 2, {"invariant": 8}, "K=169"),
    (K, 2, {"invariant": 8, "producer": "blas"}, "producer=blas"),
])
def test_what_cannot_hold_is_refused(k, ranks, config, word):
    with pytest.raises(entwine.EntwineError, match=word):
        entwine.explain(M, N, k, "float32", ranks, config)


def test_a_weight_has_its_pieces(world):
    A, B = cut(world, "float32")
    plan = entwine.Plan(world, M, N, K, "float32", {"invariant": S})
    with pytest.raises(entwine.EntwineError, match="invariant=4"):
        plan.bind(entwine.Weight(world, B))
