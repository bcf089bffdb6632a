"""Weights of their own: shared by plans, renewed, and freed with their object."""
import copy
import gc
import os
import pickle
import threading
import time

import numpy as np
import pytest

import entwine
from matrices import DTYPES, bits, expected, operands

N, K = 40, 24


def product(m, value=1):
    """What a plan of one rank gives for `value` times the usual weight."""
    return bits(expected(1, m, N, K) * np.float32(value))


def use_in_plans(world, dtype, layout):
    A, B = operands(world.rank, 257, N, K, dtype)
    want = expected(world.size, 257, N, K, dtype)
    weight = entwine.Weight(world, B if layout == "nk" else np.ascontiguousarray(B.T).T)
    for m in (1, 5, 130, 257):
        plan = entwine.Plan(world, m, N, K, dtype, f"workers={1 + m % 2}", layout=layout)
        plan.bind(weight)
        first, count = world.owned_rows(m)
        assert bits(plan.gemm_rs(A[:m])) == bits(want[first:first + count])
    return weight.nbytes


@pytest.mark.parametrize("layout", ("nk", "kn"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_one_weight_in_plans_of_every_size(dtype, layout):
    sizes = entwine.spawn(2, use_in_plans, dtype, layout, timeout=100)
    assert sizes[0] == sizes[1] >= N * K * np.dtype(dtype).itemsize


def test_layers_share_a_plan(world):
    A, B = operands(0, 6, N, K)
    plan = entwine.Plan(world, 6, N, K, "float32")
    weights = [entwine.Weight(world, i * B) for i in range(1, 5)]
    for _ in range(3):
        for i, weight in enumerate(weights, 1):
            plan.bind(weight)
            assert bits(plan.gemm_rs(A)) == product(6, value=i)
    weights[3].update(7 * B)
    assert bits(plan.gemm_rs(A)) == product(6, value=7)
    assert weights[3].shape == (N, K) and weights[3].world is world


def test_set_bound_and_passed(world):
    A, B = operands(0, 6, N, K)
    plan = entwine.Plan(world, 6, N, K, "float32")
    with entwine.Weight(world, 2 * B) as weight:
        plan.bind(weight)
        assert bits(plan.gemm_rs(A, 3 * B)) == product(6, value=3)
        assert bits(plan.gemm_rs(A)) == product(6, value=2)
        plan.set_weight(5 * B)
        assert bits(plan.gemm_rs(A)) == product(6, value=5)
        plan.bind(weight)
        assert bits(plan.gemm_rs(A)) == product(6, value=2)
        plan.bind(None)
        with pytest.raises(entwine.ArgumentError, match="no weight is bound"):
            plan.gemm_rs(A)
        plan.bind(weight)
    with pytest.raises(entwine.ArgumentError, match="the plan has no weight"):
        plan.gemm_rs(A)
    plan.set_weight(B)
    assert bits(plan.gemm_rs(A)) == product(6)


def test_freed_with_its_object(world):
    A, B = operands(0, 6, N, K)
    plan = entwine.Plan(world, 6, N, K, "float32")
    weight = entwine.Weight(world, B)
    plan.bind(weight)
    del weight
    gc.collect()
    assert not world._weight_handles
    with pytest.raises(entwine.ArgumentError, match="the plan has no weight"):
        plan.gemm_rs(A)
    plan.bind(entwine.Weight(world, B))  # nobody keeps it
    with pytest.raises(entwine.ArgumentError, match="the plan has no weight"):
        plan.gemm_rs(A)


MADE = {"Weight": lambda w, B: entwine.Weight(w, B),
        "Plan": lambda w, B: entwine.Plan(w, 6, N, K, "float32"),
        "SymmetricMemory": lambda w, B: entwine.SymmetricMemory(w, 64, backend="cpu")}


@pytest.mark.parametrize("made", MADE)
def test_copies_are_the_same(world, made):
    """The end of one must not free what the other has."""
    one = MADE[made](world, operands(0, 6, N, K)[1])
    for other in (copy.copy(one), copy.deepcopy(one), copy.deepcopy({"in": [one]})["in"][0]):
        assert other is one
    with pytest.raises(entwine.ArgumentTypeError, match=f"entwine.{made} cannot be(.|\n)*fix: save"):
        pickle.dumps(one)


def test_the_collector_comes_while_a_call_is_running(world):
    weight = entwine.Weight(world, operands(0, 6, N, K)[1])
    ended = []

    def drop(held):
        held.clear()
        ended.append(len(world._weight_handles))

    with world._busy:  # as a call has it
        held, weight = [weight], None
        thread = threading.Thread(target=drop, args=(held,))
        thread.start()
        thread.join(30)
        assert ended == [1], "freed although a call may be reading it"
    world.barrier()
    assert not world._weight_handles and not world._forsaken


def test_a_call_waits_for_what_the_collector_frees_in_another_thread(world, monkeypatch):
    weight, began = entwine.Weight(world, operands(0, 6, N, K)[1]), threading.Event()
    destroy = entwine._weight.lib.ew_weight_destroy

    def destroy_slowly(handle):
        began.set()
        time.sleep(0.2)
        destroy(handle)

    monkeypatch.setattr(entwine._weight.lib, "ew_weight_destroy", destroy_slowly)
    held, weight = [weight], None
    thread = threading.Thread(target=held.clear)
    thread.start()
    assert began.wait(30)
    world.barrier()  # was refused, as if the program used the world from two threads
    assert not world._weight_handles
    thread.join()


def resident_mib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_the_memory_of_many(world):
    B = np.ones((2048, 2048), np.float32)  # 16 MiB
    plan = entwine.Plan(world, 4, 2048, 2048, "float32")
    A = np.ones((4, 2048), np.float32)
    before = resident_mib()
    for _ in range(20):
        weight = entwine.Weight(world, B)
        assert 16 <= weight.nbytes / 2**20 < 20
        plan.bind(weight)
        assert plan.gemm_rs(A)[0, 0] == 2048
        assert resident_mib() - before < 2.5 * 16  # the next one is there before the last is gone
    weight.close()
    weight.close()
    assert weight.nbytes == 0 and resident_mib() - before < 8


def test_gone_with_the_world():
    _, B = operands(0, 6, N, K)
    with entwine.World() as world:
        weight, other = entwine.Weight(world, B), entwine.Weight(world, B)
        plan = entwine.Plan(world, 6, N, K, "float32")
        plan.bind(weight)
        assert "nk" in repr(weight)
    assert weight.nbytes == 0 and "closed" in repr(weight)
    for use in (lambda: weight.update(B), weight.__enter__, lambda: entwine.Weight(world, B)):
        with pytest.raises(entwine.ArgumentError, match="the world was closed"):
            use()
    weight.close()
    del weight, other
    gc.collect()


def test_a_forked_child_leaves_it_alone(world):
    A, B = operands(0, 6, N, K)
    weight = entwine.Weight(world, B)
    plan = entwine.Plan(world, 6, N, K, "float32")
    plan.bind(weight)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            weight.update(2 * B)
        except entwine.ArgumentError as error:
            code = 0 if "forked" in str(error) and weight.nbytes == 0 else 2
            weight.close()
            del weight
            gc.collect()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bits(plan.gemm_rs(A)) == product(6)


REFUSED = {
    "B is None": (lambda w: entwine.Weight(w, None), "B is a NoneType"),
    "B is 1-D": (lambda w: entwine.Weight(w, np.ones(4, "f4")), "B has shape"),
    "B is int": (lambda w: entwine.Weight(w, np.ones((4, 4), int)), "B has element type"),
    "B is empty": (lambda w: entwine.Weight(w, np.ones((0, 4), "f4")), "n is 0"),
    "B has gaps": (lambda w: entwine.Weight(w, np.ones((4, 8), "f4")[:, ::2]), "B has strides"),
    "world is None": (lambda w: entwine.Weight(None, np.ones((4, 4), "f4")), "world is a"),
    "layout is odd": (lambda w: entwine.Weight(w, np.ones((4, 4), "f4"), layout="x"), "layout is"),
    "layout is other": (lambda w: entwine.Weight(w, np.ones((4, 8), "f4"), layout="kn"),
                        "create the weight with the other layout"),
    "another backend": (lambda w: entwine.Weight(w, np.ones((4, 4), "f4"), "backend=cuda"),
                        "backend"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(world, what):
    attempt, says = REFUSED[what]
    with pytest.raises(entwine.ArgumentError, match=says):
        attempt(world)
    assert not world._weight_handles


def test_a_weight_that_does_not_fit(world):
    A, B = operands(0, 6, N, K)
    plan = entwine.Plan(world, 6, N, K, "float32")
    fits = entwine.Weight(world, B)
    plan.bind(fits)
    with entwine.World() as other:
        for wrong, says in ((B, "weight is a ndarray"),
                            (entwine.Weight(world, B[:8]), r"N=8,K=24, the plan N=40,K=24"),
                            (entwine.Weight(world, B.astype(np.float16)), "type=fp16, the plan"),
                            (entwine.Weight(world, B.copy("F")), "layout=kn, the plan layout=nk"),
                            (entwine.Weight(other, B), "another world")):
            with pytest.raises(entwine.ArgumentError, match=says):
                plan.bind(wrong)
    for wrong, says in ((B[:8], "B has shape"), (B.astype(np.float16), "as the weight's"),
                        (B.copy("F"), "B has strides")):
        with pytest.raises(entwine.ArgumentError, match=says):
            fits.update(wrong)
    assert bits(plan.gemm_rs(A)) == product(6)
