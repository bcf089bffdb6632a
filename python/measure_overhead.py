"""What Python adds to a call: python3 python/measure_overhead.py

One rank, an 8 x 32 x 64 product on a CPU: the time of a call as Python sees it, less what the
library measures of itself in the same call.  Medians over calls, the kinds of input in turns.
"""
import statistics
import sys
import time

import numpy as np

import entwine

ROUNDS, CALLS = 15, 2000
M, N, K = 8, 32, 64


def one_round(plan, A):
    """(microseconds outside the library, inside) of every call."""
    samples = []
    for _ in range(CALLS):
        started = time.perf_counter_ns()
        plan.gemm_rs(A)
        spent_ns = time.perf_counter_ns() - started
        timing = plan.timing
        inside_ns = timing.end_ns - timing.start_ns
        samples.append(((spent_ns - inside_ns) / 1e3, inside_ns / 1e3))
    return samples


def main():
    inputs = {"numpy": np.ones((M, K), np.float32)}
    if "--torch" in sys.argv:
        import torch
        inputs["torch"] = torch.ones(M, K)
    rounds = {kind: [] for kind in inputs}
    with entwine.World() as world:
        plan = entwine.Plan(world, M, N, K, "float32", "workers=1")
        plan.set_weight(np.ones((N, K), np.float32))
        for _ in range(ROUNDS):
            for kind, A in inputs.items():
                rounds[kind] += one_round(plan, A)
    for kind, samples in rounds.items():
        added, inside = (statistics.median(part) for part in zip(*samples))
        print(f"{kind}: Python adds {added:.1f} us to the {inside:.1f} us of the call")


if __name__ == "__main__":
    main()
