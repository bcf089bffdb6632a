"""What can be checked of this program where there is neither torch nor a GPU: its reading,
its arithmetic, and whole runs with a stand-in for the operator.  Where there is torch, what it is
given and what comes of it is checked on the CPU, by the operators' own substitutes for tests."""
import contextlib
import glob
import importlib.machinery
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from problems import (OPERATORS, Lacking, Problem, Usage, coefficient_of_variation, iterations,
                      parse_line, read_suite, slice_sms, slowest, tolerance, why_not)
from rank import rows_of
from torch_engine import TorchEngine

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_S = 300  # of anything here: only what hangs takes that long, also on a busy machine
HANG_S = 10  # in which the ranks that do not hang come, however busy the machine is


class PretendGpu:
    """Stands in for the GPU and the stopwatch; --pretend says how it behaves."""
    sms = 16

    def describe(self):
        return {"torch": "0.0", "commit": "unknown", "blas": "none", "sms_per_rank": self.sms,
                "notes": ["stand-in"],
                "gpu": {"name": "none", "sms": 132, "uuid": "none", "arch": 90, "clock_mhz": 1000,
                        "driver_version": 13000, "runtime_version": 13000, "memory_bytes": 0,
                        "mig": False, "exclusive": False}}

    def plan_for(self, sms):
        self.planned_for = sms

    def timed(self, method, hold_us):
        if self.mood == "slow":
            time.sleep(0.02)
        return 100.0 + self.meeting.rank + (self.planned_for == 0), 180.0, hold_us < 200


class PretendEngine(PretendGpu):
    """Stands in for torch too."""

    def __init__(self, meeting, problems, options):
        self.meeting, self.mood, self.sign, self.loaded = meeting, options.pretend, 1, 0
        self.op = options.op
        if self.mood == "lacks":
            raise Lacking("torch 0.0 has no such operator\n  fix: use torch 2.11")

    def load(self, problem):
        self.sign, self.loaded = 1, self.loaded + 1
        self.first = self.meeting.rank * rows_of(problem, self.op, self.meeting.ranks)[0]
        if self.loaded == 2 and self.mood == "hangs":
            self.meeting.timeout_s = HANG_S
        if self.loaded == 2 and self.meeting.rank == 1:
            if self.mood == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.mood == "hangs":
                time.sleep(1000)
            if self.mood == "fails":
                raise RuntimeError("out of memory")

    def negate(self):
        self.sign = -1

    def part(self, rank, row, column):
        return self.sign * random.Random(f"{rank} {row} {column}").uniform(-4, 4)

    def contributions(self, positions):
        return [self.part(self.meeting.rank, *at) for at in positions]

    def results(self, method, positions):
        present = range(self.meeting.ranks - (self.mood == "wrong"))
        return [sum(self.part(rank, self.first + row, column) for rank in present)
                for row, column in positions]


class CpuEngine(PretendGpu, TorchEngine):
    """TorchEngine's inputs, calls and checks, on the CPU."""
    device = "cpu"

    def __init__(self, meeting, problems, options):
        self._open_torch(meeting, options)
        self.mood, self.group = options.pretend, self._open_group(options)
        self.on_cpu = self.torch.library.Library("symm_mem", "IMPL")
        for name in OPERATORS[self.op].values():
            self.on_cpu.impl(name, getattr(self.symm_mem, f"_{name}_fallback"), "CPU")

    def _on_slice(self):
        return contextlib.nullcontext()

    def _finish(self):
        pass

    def _call(self, method):
        out = super()._call(method)
        if self.mood == "torch-wrong":
            out[len(out) // 2:] = 0
        return out


def engine_for(mood):
    return CpuEngine if mood.startswith("torch") else PretendEngine


# ---- Parts ---------------------------------------------------------------------------------

def check_reading():
    assert parse_line("  # only a comment", "x") is None
    assert parse_line("a 8 16 32 8 fp16 # b", "x") == Problem("a", 8, 16, 32, "fp16")
    for bad in ("a 8 16 32 8", "a 0 16 32 8 fp16", "a x 16 32 8 fp16", "a 8 16 32 8 fp32"):
        try:
            parse_line(bad, "x")
        except Usage as error:
            assert "fix:" in str(error)
        else:
            raise AssertionError(f"'{bad}' was taken")
    paper = read_suite(os.path.join(ROOT, "bench/suites/paper.suite"))
    assert len(paper) == 40 and not any(why_not(p, "gemm-rs", w) for p in paper
                                       for w in (4, 8))
    for op in ("gemm-rs", "ag-gemm"):
        assert why_not(Problem(None, 100, 8, 8, "fp16"), op, 8)
    assert why_not(Problem(None, 128, 8, 8, "fp16"), "gemm-ar", 8)
    assert why_not(Problem(None, 1, 8, 8, "bf16"), "gemm-ar", 8)
    assert not why_not(Problem(None, 100, 64, 8, "bf16"), "gemm-ar", 8)


def check_arithmetic():
    assert (slice_sms(132, 8), slice_sms(132, 4), slice_sms(132, 1)) == (16, 32, 132)
    assert iterations(1e6, 11, 1, 0.3) == 11 and iterations(1, 11, 1, 0.3) == 44
    assert iterations(1e4, 11, 1, 0.3) == 15
    assert slowest([[1, 9, 2], [3, 3, 3]]) == [3, 3, 3]
    assert abs(coefficient_of_variation([1.0, 3.0]) - 2 ** 0.5 / 2) < 1e-12
    parts = [random.Random(7).uniform(-4, 4) for _ in range(8)]
    assert max(map(abs, parts)) > tolerance(parts, "fp16") > 2 ** -11 * abs(sum(parts))
    assert not float("nan") <= tolerance(parts, "fp16")


class RecordedRuns:
    """In place of runs on a GPU: a program takes 100 us in the first round, and 1 us more in
    each, PyTorch twice that."""

    def __init__(self, names):
        self.names, self.asked = names, []

    def json_of(self, command, read_file, repetition):
        theirs = "async_tp.py" in command
        if (repetition, theirs) not in self.asked:
            self.asked.append((repetition, theirs))
        result = {"method": "torch-async-tp" if theirs else "entwine", "check": {"wrong": 0},
                  "time_us": (100 + repetition) * (1 + theirs), "cv": 0.0}
        return command, {"results": [{**result, "params": {"name": name}} for name in self.names]}


def check_comparison():
    """The two programs take turns, and each is the first in every other round."""
    path = os.path.join(ROOT, "scripts/bench-peers")
    loader = importlib.machinery.SourceFileLoader("bench_peers", path)
    peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_peers", loader))
    loader.exec_module(peers)
    names = [f"llama70b-{what}-{m}" for what in ("qkv", "gate-up") for m in (512, 2048, 4096, 8192)]
    runs = RecordedRuns(names)
    with tempfile.TemporaryDirectory() as peers.FOLDER:
        (figures,) = peers.compare(peers.parse(["--op", "ag-gemm"]), 4, runs)  # one part
        problems = read_suite(os.path.join(peers.FOLDER, "ag-gemm-w4-llama70b.suite"))
    assert {(p.n, p.k, p.dtype) for p in problems} == {(1280, 8192, "bf16"), (7168, 8192, "bf16")}
    assert not any(why_not(p, "ag-gemm", w) for p in problems for w in (2, 4, 8))
    assert [p.name for p in problems] == names and len(figures) == len(names)
    assert all(figure["repetitions"] == [2.0] * 3 for figure in figures), figures
    assert runs.asked == [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True)]


# ---- Whole runs ----------------------------------------------------------------------------

def folders():
    return set(glob.glob("/tmp/entwine-peers.*"))


def start(folder, mood, *more, env=None):
    arguments = ["-W", "3", "--suite", os.path.join(folder, "s.suite"), "-n", "5",
                 "-T", str(LIMIT_S / 3), "-J", os.path.join(folder, "out.json"),
                 "--pretend", mood, *more]
    return subprocess.Popen([sys.executable, os.path.join(HERE, "async_tp.py"), *arguments],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env={**os.environ, **(env or {})})


def finish(process, status):
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()  # its ranks and its keeper hear of that
        out, err = process.communicate()
    assert process.returncode == status, f"exit {process.returncode}, not {status}\n{out}{err}"
    return out, err


def written(folder):
    """The document, after the test of the tool's own documents."""
    path = os.path.join(folder, "out.json")
    with open(path) as file:
        subprocess.run([sys.executable, os.path.join(ROOT, "tests/cli/check_output.py"), "json",
                        os.path.join(ROOT, "docs/schema.json")], stdin=file, check=True,
                       stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    with open(path) as file:
        return json.load(file)


def check_whole(folder):
    out, _ = finish(start(folder, "well"), 0)
    document = written(folder)
    results = document["results"]
    assert document["complete"] and [r["method"] for r in results] == [
        "torch-async-tp", "torch-matmul", "torch-async-tp", "torch-async-tp", "torch-matmul"]
    first = results[0]
    assert first["time_us"] == 102.0 and first["check"]["wrong"] == 0  # the slowest of 3 ranks
    assert "cublas_sms=16" in first["config"] and len(first["samples_us"]) >= 5
    assert results[2]["status"] == "EW_ERR_SHAPE" and "multiple" in results[2]["error"]
    assert len(out.splitlines()) == 3 + len(results)


def check_allreduce(folder):
    finish(start(folder, "well", "--op", "gemm-ar"), 0)
    results = written(folder)["results"]
    assert [r["method"] for r in results] == ["torch-one-shot"] * 3 + ["torch-two-shot",
                                                                      "torch-matmul"]
    assert [r["status"] for r in results] == ["EW_ERR_SHAPE"] * 2 + ["EW_OK"] * 3
    assert results[3]["check"]["wrong"] == 0
    finish(start(folder, "wrong", "--op", "gemm-ar"), 1)
    assert all(r["check"]["wrong"] > 0 for r in written(folder)["results"][2:4])


def check_torch(folder):
    """Three ranks that hold rows, or summands, of their own: what torch returns is what the
    check expects of it, and what it does not return is missed."""
    for op in ("ag-gemm", "gemm-rs"):
        finish(start(folder, "torch", "--op", op), 0)
        results = written(folder)["results"]
        assert [r["status"] == "EW_OK" for r in results] == [True, True, False, True, True]
        assert {r["params"]["op"] for r in results} == {op}
        assert results[0]["method"] == "torch-async-tp" and results[0]["check"]["max_abs_err"] > 0
        finish(start(folder, "torch-wrong", "--op", op), 1)
        assert all(written(folder)["results"][at]["check"]["wrong"] > 0 for at in (0, 3))


def check_bad_ends(folder):
    _, err = finish(start(folder, "lacks"), 77)
    assert "no such operator" in err and "fix:" in err, err
    finish(start(folder, "wrong"), 1)
    assert written(folder)["results"][0]["check"]["wrong"] > 0
    for mood, word in (("dies", "rank 1 died"), ("hangs", "rank 1 did not come"),
                       ("fails", "out of memory")):
        _, err = finish(start(folder, mood), 3)
        document = written(folder)
        assert word in err, err
        assert not document["complete"] and len(document["results"]) == 3, mood
    _, err = finish(start(folder, "well", "--iters", "0"), 2)
    assert "fix:" in err


def check_interrupt(folder):
    process = start(folder, "slow", "--idle", "0")
    while not process.stdout.readline().strip().endswith("0"):  # the first result
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    finish(process, 130)
    document = written(folder)
    assert not document["complete"] and document["results"]


def check_daemon(folder):
    """A private daemon, here a stand-in, ends with the run, even a killed one."""
    path = os.path.join(ROOT, "tests/cli/fake_bin") + os.pathsep + os.environ["PATH"]
    env = {"PATH": path}
    out, _ = finish(start(folder, "well", env=env), 0)
    assert "MPS: private" in out, out
    before = folders()
    process = start(folder, "slow", env=env)
    process.stdout.readline()
    mine = folders() - before
    process.kill()
    process.communicate(timeout=LIMIT_S)
    end = time.monotonic() + LIMIT_S
    while mine & folders():
        assert time.monotonic() < end, "the folder of a killed run is still there"
        time.sleep(0.05)


def main():
    os.environ.pop("CUDA_MPS_PIPE_DIRECTORY", None)
    check_reading()
    check_arithmetic()
    check_comparison()
    before = folders()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "s.suite"), "w") as file:
            file.write("a 12 8 8 8 fp16\nodd 13 8 8 8 fp16\nb 24 8 8 8 bf16\n")
        checks = [check_whole, check_allreduce, check_bad_ends, check_interrupt, check_daemon]
        if importlib.util.find_spec("torch"):
            checks.append(check_torch)
        for check in checks:
            check(folder)
            print(f"ok  {check.__name__}", flush=True)
    assert folders() <= before, f"left behind: {folders() - before}"
    print("async_tp: all of the self-test passed")
    return 0
