"""config invariant=S: the same bits on any number of ranks that divides S."""
import numpy as np
import pytest

import entwine
from matrices import DTYPES, bits

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
    import torch
    A, B = (torch.from_numpy(matrix) for matrix in cut(world, "float32"))
    return bits(entwine.gemm_ar(A, B, world, config=config).numpy())


def test_tensors_of_torch():
    pytest.importorskip("torch", reason="torch is not installed: NO TORCH TEST WAS RUN")
    want = entwine.spawn(2, torch_sums, {"invariant": S}, timeout=100)
    assert want == [want[0]] * 2
    assert entwine.spawn(1, torch_sums, {"invariant": S}, timeout=100) == want[:1]


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
