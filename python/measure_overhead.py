"""What Python adds to a call, and what importing takes: python3 python/measure_overhead.py

One rank on one core, an 8 x 32 x 64 product (of one row through a module): the time of a call as
Python sees it, less what the library measures of itself in the same call.  Medians over calls, the
kinds of call in turns; those with torch where it is installed, and on a GPU where there is one.
"""
import importlib.util
import os
import statistics
import subprocess
import sys
import time

import numpy as np

import entwine

ROUNDS, CALLS, IMPORTS = 15, 1000, 5
M, N, K = 8, 32, 64
GPU_N, GPU_K, IN_A_ROW = 1024, 1024, 50


def numpy_calls(plan):
    A, out, row = np.ones((M, K), "f4"), np.empty((M, N), "f4"), np.ones(N, "f4")
    residual, normed = np.ones((M, N), "f4"), np.empty((M, N), "f4")
    yield "numpy", plan, lambda: plan.gemm_rs(A)
    yield "numpy, out=", plan, lambda: plan.gemm_rs(A, out=out)
    yield "numpy, layer", plan, lambda: plan.gemm_rs_layer(A, residual=residual, norm_weight=row,
                                                           normed=normed)


def torch_calls(plan, world):
    import torch
    import entwine.torch  # noqa: F401 defines the operators
    A, B = torch.ones(M, K), torch.ones(N, K)
    out = torch.empty(M, N)
    operator = torch.ops.entwine.gemm_rs.default
    operator(A, B, world.name, True)
    (frozen,) = world._cache.values()
    yield "torch", plan, lambda: plan.gemm_rs(A)
    yield "torch, out=", plan, lambda: plan.gemm_rs(A, out=out)
    residual, row, normed = torch.ones(M, N), torch.ones(N), torch.empty(M, N)
    yield "torch, layer", plan, lambda: plan.gemm_rs_layer(A, residual=residual, norm_weight=row,
                                                           normed=normed)
    yield "torch.ops", frozen, lambda: operator(A, B, world.name, True)
    yield from module_calls(torch, world)
    idle = idle_operator(torch)
    yield "torch.ops, an operator that does nothing", None, lambda: idle(A, B, world.name, True)


def module_calls(torch, world):
    """Of one row, as in decoding: the layers as they are, without a promise about the weight."""
    for output, x in (("scattered", torch.ones(1, K)), ("replicated", torch.ones(1, 1, K))):
        layer = entwine.torch.RowParallelLinear(K * world.size, N, bias=False, output=output,
                                                world=world)
        layer.requires_grad_(False)
        known = set(world._cache.values())
        layer(x)
        plan, = set(world._cache.values()) - known
        yield f"module, {output}, one row", plan, lambda layer=layer, x=x: layer(x)


def idle_operator(torch):
    """One that only makes its output, declared as gemm_rs is: torch's own share."""
    library = torch.library.Library("entwine_idle", "DEF")
    library.define("gemm_rs(Tensor a, Tensor b, str world, bool frozen=False) -> Tensor")
    library.impl("gemm_rs", lambda keys, a, b, world, frozen: a.new_empty(M, N), "Autograd",
                 with_keyset=True)
    idle_operator.library = library  # it ends with this object
    return torch.ops.entwine_idle.gemm_rs.default


def one_round(plan, call):
    """(microseconds outside the library, inside) of every call."""
    samples = []
    for _ in range(CALLS):
        started = time.perf_counter_ns()
        call()
        spent_ns = time.perf_counter_ns() - started
        inside_ns = plan.timing.total_us * 1e3 if plan else 0
        samples.append(((spent_ns - inside_ns) / 1e3, inside_ns / 1e3))
    return samples


def gpu_round(torch, layer, x):
    """(microseconds outside the library, inside) of the host, of every call of a layer on a GPU:
    calls are enqueued in a row."""
    inside_ns, samples = [], []

    def timed(function):
        def call(*arguments):
            started = time.perf_counter_ns()
            status = function(*arguments)
            inside_ns.append(time.perf_counter_ns() - started)
            return status
        return call

    plan = next(reversed(layer.world._cache.values()))
    function = plan._function
    plan._function = timed(function)
    for _ in range(CALLS // IN_A_ROW):
        for _ in range(IN_A_ROW):
            started = time.perf_counter_ns()
            layer(x)
            spent_ns = time.perf_counter_ns() - started
            samples.append(((spent_ns - inside_ns[-1]) / 1e3, inside_ns[-1] / 1e3))
        torch.cuda.synchronize()
    plan._function = function
    return samples


def gpu_rounds(world):
    """By kind of layer, of one row, as in decoding."""
    import torch
    import entwine.torch
    samples = {}
    for output in ("scattered", "replicated"):
        layer = entwine.torch.RowParallelLinear(GPU_K * world.size, GPU_N, bias=False, output=output,
                                                world=world, dtype=torch.bfloat16, device="cuda")
        layer.requires_grad_(False)
        x = torch.ones(1, GPU_K, dtype=torch.bfloat16, device="cuda")
        layer(x), layer(x)
        for _ in range(ROUNDS):
            samples.setdefault(f"module on a GPU, {output}, one row", []).extend(
                gpu_round(torch, layer, x))
    return samples


def import_seconds(module):
    command = [sys.executable, "-c", f"import {module}"]
    seconds = []
    for _ in range(IMPORTS):
        started = time.perf_counter()
        subprocess.run(command, check=True)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def has_gpu():
    if not importlib.util.find_spec("torch"):
        return False
    import torch
    return torch.cuda.is_available()


def main():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with entwine.World() as world:
        plan = entwine.Plan(world, M, N, K, "float32")
        plan.set_weight(np.ones((N, K), np.float32))
        calls = list(numpy_calls(plan))
        if importlib.util.find_spec("torch"):
            calls += torch_calls(plan, world)
        rounds = {name: [] for name, *_ in calls}
        for _ in range(ROUNDS):
            for name, owner, call in calls:
                rounds[name] += one_round(owner, call)
        if has_gpu():
            rounds.update(gpu_rounds(world))
    for name, samples in rounds.items():
        added, inside = (statistics.median(part) for part in zip(*samples))
        print(f"{name}: Python adds {added:.1f} us" +
              (f" to the {inside:.1f} us of the call" if inside else ""))
    print(f"import entwine: {import_seconds('entwine'):.2f} s with the interpreter's start, "
          f"import numpy alone: {import_seconds('numpy'):.2f} s")


if __name__ == "__main__":
    main()
