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
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple
from types import SimpleNamespace

from problems import (SUMMED, Lacking, Problem, Training, Usage, coefficient_of_variation,
                      iterations, operators_of, parse_line, read_suite, slice_sms, slowest,
                      tolerance, why_not)
from rank import SAMPLES_CHECKED, rows_of
from torch_engine import TorchEngine
from training_engine import TrainingEngine

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

    def timed(self, method, hold_us, calls=1):
        if self.mood == "slow":
            time.sleep(0.02)
        time_us = 100.0 + self.meeting.rank + (self.planned_for == 0)
        return calls * time_us, 180.0, hold_us < 200

    def ends_us(self):
        return [8.0 * (1 + at) + self.meeting.rank for at in range(12)]


class PretendEngine(PretendGpu):
    """Stands in for torch too."""

    def __init__(self, meeting, problems, options):
        self.meeting, self.mood, self.sign, self.loaded = meeting, options.pretend, 1, 0
        self.op = options.op
        if self.mood == "lacks":
            raise Lacking("torch 0.0 has no such operator\n  fix: use torch 2.11")

    def load(self, problem):
        self.sign, self.loaded = 1, self.loaded + 1
        self.gemms = problem.gemms(self.op, self.meeting.ranks)
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

    def part(self, whose, row, column):
        return self.sign * random.Random(f"{whose} {row} {column}").uniform(-4, 4)

    def contributions(self, at, positions):
        return [self.part(f"{at} {self.meeting.rank}", *place) for place in positions]

    def call(self, method):
        pass

    def results(self, at, positions):
        (kind, problem), rank, ranks = self.gemms[at], self.meeting.rank, self.meeting.ranks
        first = rank * rows_of(problem, kind, ranks)[0]
        present = list(range(ranks)) if kind in SUMMED else [rank]
        if self.mood == "wrong":
            present.pop()
        return [sum(self.part(f"{at} {rank}", first + row, column) for rank in present)
                for row, column in positions]


class OnCpu(PretendGpu):
    """An engine's inputs, calls and checks, on the CPU."""
    device = "cpu"

    def __init__(self, meeting, problems, options):
        self._open_torch(meeting, options)
        self.mood, self.group = options.pretend, self._open_group(options)
        self.on_cpu = self.torch.library.Library("symm_mem", "IMPL")
        for name in operators_of(self.op):
            self.on_cpu.impl(name, getattr(self.symm_mem, f"_{name}_fallback"), "CPU")

    def _on_slice(self):
        return contextlib.nullcontext()

    def _finish(self):
        pass

    def _mark(self, at):
        pass

    def _call(self, method):
        outs = super()._call(method)
        if self.mood == "torch-wrong":
            for out in outs:
                out[len(out) // 2:] = 0
        return outs


class CpuEngine(OnCpu, TorchEngine):
    pass


class CpuTrainingEngine(OnCpu, TrainingEngine):
    pass


def engine_for(mood, op):
    if not mood.startswith("torch"):
        return PretendEngine
    return CpuTrainingEngine if op == "training" else CpuEngine


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


class Matrix(namedtuple("Matrix", "rows columns")):
    """The shape of one."""

    def t(self):
        return Matrix(self.columns, self.rows)


class ShapesEngine(TrainingEngine):
    """TrainingEngine's step, without numbers."""
    torch = SimpleNamespace(bfloat16=None)

    def __init__(self, ranks):
        self.meeting = SimpleNamespace(ranks=ranks)

    def _on_slice(self):
        return contextlib.nullcontext()

    def _finish(self):
        pass

    def _drawn(self, rows, columns, dtype, index, is_everyones=False):
        return Matrix(rows, columns)


def check_step():
    """The GEMMs of a training step are those of block_bench, and what is said of their shapes is
    what they have."""
    problem, engine = Training(8192, 8192, 28672, 10240, 8192), ShapesEngine(4)
    engine.load(problem)

    def gemm(kind):
        def run(a, b):
            assert a.columns == b.rows, (kind, a, b)
            return kind, (a.rows, b.columns, a.columns)
        return run

    step = engine._step(lambda rows, weight: (rows, gemm("ag-gemm")(rows, weight)),
                        gemm("gemm-rs"), gemm("gradient"))
    described = problem.gemms("training", 4)
    assert list(step) == [(kind, (p.m, p.n, p.k)) for kind, p in described]
    assert [(len(left), len(right)) for left, right in engine.operands] == [(2, 2)] * 12
    assert all((left.rows, right.rows, left.columns) == (p.m, p.n, p.k) and right.columns == p.k
               for (left, right), (_, p) in zip(engine.operands, described))
    with open(os.path.join(ROOT, "bench/block/cases.c")) as file:
        case = file.read().split("static void build_training(")[1].split("\n}")[0]
    assert [p.name for _, p in described] == re.findall('"(.*?)"', case)
    assert problem.workspace_bytes("training", 4) == 2 * 2048 * 8192 * 2
    assert why_not(problem, "training", 3) and not why_not(problem, "training", 2)


class RecordedRuns:
    """In place of runs on a GPU: a program takes 100 us in the first round, and 1 us more in
    each, PyTorch twice that, and in a row three times."""

    def __init__(self, params):
        self.params, self.asked = params, []

    def json_of(self, command, read_file, repetition):
        theirs = "async_tp.py" in command
        if (repetition, theirs) not in self.asked:
            self.asked.append((repetition, theirs))
        time_us = 100 + repetition
        result = {"method": "torch-async-tp" if theirs else "entwine", "check": {"wrong": 0},
                  "time_us": time_us * (1 + theirs), "graph_us": time_us * (1 + 2 * theirs),
                  "cv": 0.0}
        return command, {"results": [{**result, "params": one} for one in self.params]}


def check_comparison():
    """The two programs take turns, and each is the first in every other round."""
    path = os.path.join(ROOT, "scripts/bench-peers")
    loader = importlib.machinery.SourceFileLoader("bench_peers", path)
    peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_peers", loader))
    loader.exec_module(peers)
    names = [f"llama70b-{what}-{m}" for what in ("qkv", "gate-up") for m in (512, 2048, 4096, 8192)]
    runs = RecordedRuns([{"name": name} for name in names])
    with tempfile.TemporaryDirectory() as peers.FOLDER:
        (figures,) = peers.compare(peers.parse(["--op", "ag-gemm"]), 4, runs)  # one part
        problems = read_suite(os.path.join(peers.FOLDER, "ag-gemm-w4-llama70b.suite"))
    assert {(p.n, p.k, p.dtype) for p in problems} == {(1280, 8192, "bf16"), (7168, 8192, "bf16")}
    assert not any(why_not(p, "ag-gemm", w) for p in problems for w in (2, 4, 8))
    assert [p.name for p in problems] == names and len(figures) == len(names)
    assert all(figure["repetitions"] == [2.0] * 3 for figure in figures), figures
    turns = [(0, False), (0, True), (1, True), (1, False), (2, False), (2, True)]
    assert runs.asked == turns
    runs = RecordedRuns([{"case": "training"}])
    (figures,) = peers.compare(peers.parse(["--op", "training"]), 2, runs)
    assert [figure["measured"] for figure in figures] == [2.0, 3.0], figures
    assert runs.asked == turns


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


def document_of(folder):
    with open(os.path.join(folder, "out.json")) as file:
        return json.load(file)


def written(folder):
    """The document, after the test of the tool's own documents."""
    with open(os.path.join(folder, "out.json")) as file:
        subprocess.run([sys.executable, os.path.join(ROOT, "tests/cli/check_output.py"), "json",
                        os.path.join(ROOT, "docs/schema.json")], stdin=file, check=True,
                       stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    return document_of(folder)


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


TRAINING = ("--op", "training", "--suite", "", "-m", "24", "--hidden", "16", "--inner", "48",
            "--qkv", "24", "--attention", "24", "--rounds", "2", "--calls", "3")


def check_training(folder):
    """Every GEMM of a step is checked, and the document is one that block_bench could have
    written."""
    out, _ = finish(start(folder, "well", *TRAINING), 0)
    document = document_of(folder)
    first = document["results"][0]
    assert document["schema"] == "entwine-block/1" and document["complete"]
    assert [r["method"] for r in document["results"]] == ["torch-async-tp", "torch-matmul"]
    assert (first["time_us"], first["graph_us"]) == (102.0, 102.0) and first["check"]["wrong"] == 0
    assert len(first["samples_us"]) >= 5 and first["graphs_us"] == [102.0] * 2
    assert (first["params"]["case"], first["params"]["inner"]) == ("training", 48)
    assert first["steps"][1] == {"name": "o", "begin_us": 10.0, "end_us": 18.0}
    assert len(first["steps"]) == 12 and len(out.splitlines()) == 3 + 2
    finish(start(folder, "wrong", *TRAINING), 1)
    checked = 2 * 3 * 12 * SAMPLES_CHECKED  # before and after timing, on each rank
    assert document_of(folder)["results"][0]["check"]["wrong"] > 0.9 * checked
    for bad in (("--inner", "40"), ("-m", "25"), ("-N", "8"), ("--hidden", "0")):
        _, err = finish(start(folder, "well", *TRAINING, *bad), 2)
        assert "fix:" in err, err


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
    finish(start(folder, "torch", *TRAINING), 0)
    assert document_of(folder)["results"][0]["check"]["max_abs_err"] > 0
    finish(start(folder, "torch-wrong", *TRAINING), 1)


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
    check_step()
    check_comparison()
    before = folders()
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "s.suite"), "w") as file:
            file.write("a 12 8 8 8 fp16\nodd 13 8 8 8 fp16\nb 24 8 8 8 bf16\n")
        checks = [check_whole, check_allreduce, check_training, check_bad_ends, check_interrupt,
                  check_daemon]
        if importlib.util.find_spec("torch"):
            checks.append(check_torch)
        for check in checks:
            check(folder)
            print(f"ok  {check.__name__}", flush=True)
    assert folders() <= before, f"left behind: {folders() - before}"
    print("async_tp: all of the self-test passed")
    return 0
