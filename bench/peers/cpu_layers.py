#!/usr/bin/env python3
"""A tensor-parallel linear layer on CPU ranks: by Entwine, and as users of PyTorch write it.

    torchrun --standalone --nproc-per-node 2 bench/peers/cpu_layers.py --dtype bf16 \\
             --problem gemm-rs:2048x4096x1024 --problem gemm-ar:1x4096x2048

scripts/bench-cpu starts it.  All methods take turns, sample by sample, in one run, with equal
threads; a sample's time is that of the slowest rank.  Rank 0 prints one JSON document.

    entwine       a plan with a packed weight
    torch         F.linear (oneDNN), then gloo: reduce_scatter_tensor, or all_reduce; for ag-gemm
                  all_gather_into_tensor comes first, and nothing follows
    torch-packed  oneDNN's linear with a weight that it has packed, in the same place
    blas          cblas_sgemm of the BLAS that Entwine has found (fp32), in the same place
    read          no product: as many bytes as the weight has are merely read, by all threads

A rival is left out, and the document says why, where it has nothing for a type, or where oneDNN has
no more than its reference and a call would take longer than all the time there is.
"""
import argparse
import ctypes
import json
import mmap
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist

import entwine
import entwine._library
import entwine.torch

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from figures import claim_stdout  # noqa: E402

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2, "fp16": 4e-3}  # of the largest element
REST_S = 0.002
RESTS = 50      # at most, between two samples
PASSES = 4      # of reading by several threads, so that starting them does not count
PROBE_ROWS = 64  # by which a rival's time is foretold
LEAST_CALLS = 8  # of every method: the check, warm-up and the fewest samples


class Reader:
    """Reads a buffer as quickly as the C library can.  In each pass a thread has another part,
    so that none finds its part in its own cache."""

    def __init__(self, num_bytes, threads):
        self.memory = mmap.mmap(-1, num_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self.memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, num_bytes, mmap.PAGESIZE):
            self.memory[at] = 1
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.part, self.threads = num_bytes // threads, threads
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self.search = ctypes.CDLL(None).memchr
        self.search.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

    def read(self, thread):
        for turn in range(PASSES if self.pool else 1):
            part = (thread + turn) % self.threads
            self.search(self.address + part * self.part, 2, self.part)

    def seconds(self):
        started = time.perf_counter()
        if not self.pool:
            self.read(0)
            return time.perf_counter() - started
        list(self.pool.map(self.read, range(self.threads)))
        return (time.perf_counter() - started) / PASSES


def rest():
    """Until no thread spins for more work: OpenMP's do so for a few milliseconds, OpenBLAS's for
    some thirty, on cores that the next method needs."""
    for _ in range(RESTS):
        before = time.process_time()
        time.sleep(REST_S)
        if time.process_time() - before < REST_S / 4:
            return


class Layer:
    """One problem, and every method's way to solve it."""

    def __init__(self, world, op, m, n, k, dtype, threads):
        self.world, self.op, self.dtype = world, op, dtype
        self.shape = {"op": op, "m": m, "n": n, "k": k}
        self.gathers = op == "ag-gemm"
        if self.gathers and m % world.size:
            sys.exit(f"m={m} of ag-gemm is not a multiple of the {world.size} ranks, as gloo needs it")
        generator = torch.Generator().manual_seed(1000 + world.rank)
        self.x, self.w = ((torch.rand(rows, k, generator=generator) - 0.5).to(DTYPES[dtype])
                          for rows in (m // world.size if self.gathers else m, n))
        self.plan = entwine.Plan(world, m, n, k, dtype, f"workers={threads}", op=op)
        self.plan.set_weight(self.w)
        self.run_plan = getattr(self.plan, op.replace("-", "_"))
        self.gathered = torch.empty(m, k, dtype=DTYPES[dtype])
        self.scattered = torch.empty(m // world.size, n, dtype=DTYPES[dtype])
        self.reader = Reader(self.w.nbytes, threads)
        self.left_out = {}  # why, by rival
        self.rivals = {"torch": lambda rows: torch.nn.functional.linear(rows, self.w)}
        try:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(self.w, m)
            self.rivals["torch-packed"] = self.packed_linear
        except RuntimeError as error:
            self.left_out["torch-packed"] = str(error).splitlines()[0]
        library = entwine._library.lib
        library.ew_blas_name.restype = ctypes.c_char_p
        if dtype == "fp32" and library.ew_blas_name():
            self.product, self.gemm = torch.empty(m, n), library.ew_blas_gemm
            self.rivals["blas"] = self.blas

    def rows(self):
        """What this rank multiplies."""
        if not self.gathers or self.world.size == 1:
            return self.x
        dist.all_gather_into_tensor(self.gathered, self.x)
        return self.gathered

    def packed_linear(self, rows):
        return torch.ops.mkldnn._linear_pointwise(rows, self.packed, None, "none", [], "")

    def blas(self, rows):
        m, n, k = (ctypes.c_int64(extent) for extent in (rows.shape[0], *self.w.shape))
        a, b, c = (ctypes.c_void_p(t.data_ptr()) for t in (rows, self.w, self.product))
        if self.gemm(1, m, n, k, a, b, c, n):
            raise RuntimeError("ew_blas_gemm failed")
        return self.product

    def reduce(self, y):
        if self.gathers or self.world.size == 1:
            return y
        if self.op == "gemm-rs" and self.shape["m"] % self.world.size == 0:
            dist.reduce_scatter_tensor(self.scattered, y)
            return self.scattered
        dist.all_reduce(y)
        return y

    def wrong(self, got):
        """Elements that are not those of the product, or of its sum over the ranks."""
        want = torch.nn.functional.linear(self.rows().float(), self.w.float())
        if self.world.size > 1 and not self.gathers:
            dist.all_reduce(want)
        if got.shape != want.shape:
            first, count = self.world.owned_rows(self.shape["m"])
            want = want[first:first + count]
        limit = TOLERANCE[self.dtype] * want.abs().max()
        return int(((got.float() - want).abs() > limit).sum())

    def seconds(self, method):
        rest()
        self.world.barrier()
        if method == "read":
            return self.reader.seconds()
        started = time.perf_counter()
        self.run(method)
        return time.perf_counter() - started

    def run(self, method):
        if method == "entwine":
            return self.run_plan(self.x)
        return self.reduce(self.rivals[method](self.rows()))

    def foretell(self, method):
        """Seconds of a rival's product, by that of its first rows."""
        rows = self.x[:PROBE_ROWS]
        started = time.perf_counter()
        self.rivals[method](rows)
        return (time.perf_counter() - started) * self.shape["m"] / rows.shape[0]

    def leave_out_slow_rivals(self, limit):
        """Those of which a call takes longer, on any rank.  Not for what a first call prepares."""
        for method in list(self.rivals):
            self.foretell(method)
            foretold = self.foretell(method)
            if any(part[0] for part in self.world.allgather(bytes([foretold > limit]))):
                self.left_out[method] = f"a call would take about {foretold:.0f} s"
                del self.rivals[method]

    def measure(self, samples, seconds):
        """Samples of each method, as many as the time allows, and the wrong values of each."""
        self.leave_out_slow_rivals(seconds / LEAST_CALLS)
        methods = ("entwine", *self.rivals)
        wrong = {method: self.wrong(self.run(method)) for method in methods}
        taken = {method: [] for method in (*methods, "read")}
        ends = time.perf_counter() + seconds
        for sample in range(-2, samples):
            for method in taken:
                elapsed = self.seconds(method)
                if sample >= 0:
                    taken[method].append(elapsed * 1e6)
            goes_on = self.world.allgather(bytes([sample < 3 or time.perf_counter() < ends]))
            if not all(part[0] for part in goes_on):
                break
        return taken, wrong


def slowest(of_ranks):
    """What a sample took on the slowest rank."""
    return [round(max(times), 2) for times in zip(*of_ranks)]


def results_of(layer, gathered, threads):
    params = {**layer.shape, "ranks": layer.world.size, "dtype": layer.dtype, "threads": threads}
    for method, why in layer.left_out.items():
        yield {"method": method, "config": "", "params": params, "error": f"left out: {why}"}
    for method in gathered[0][0]:
        samples = slowest([taken[method] for taken, _ in gathered])
        mean = statistics.mean(samples)
        yield {"method": method, "config": layer.plan.config if method == "entwine" else "",
               "params": params, "samples_us": samples, "time_us": statistics.median(samples),
               "cv": statistics.pstdev(samples) / mean,
               "check": {"wrong": sum(wrong.get(method, 0) for _, wrong in gathered)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=DTYPES, required=True)
    parser.add_argument("--problem", action="append", required=True, metavar="OP:MxNxK",
                        help="K, or of ag-gemm N, is a rank's own")
    parser.add_argument("--samples", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=30, help="for one problem, about")
    parser.add_argument("--threads", type=int, default=1, help="of each rank")
    options = parser.parse_args()
    output = claim_stdout()
    dist.init_process_group("gloo")
    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    world, results = entwine.torch.world_of(), []
    for problem in options.problem:
        op, shape = problem.split(":")
        layer = Layer(world, op, *map(int, shape.split("x")), options.dtype, options.threads)
        gathered = [None] * world.size
        dist.all_gather_object(gathered, layer.measure(options.samples, options.seconds))
        results += results_of(layer, gathered, options.threads)
        layer.plan.close()
    if world.rank == 0:
        print(json.dumps({"torch": torch.__version__, "results": results}), file=output, flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
