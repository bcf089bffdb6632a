#!/usr/bin/env python3
"""Times PyTorch's Async-TP operators, a training step of them (--op training), or a product and
its AllReduces in symmetric memory (--op gemm-ar), with several ranks on one GPU.

Every rank is a process with a slice of the GPU's SMs of its own, as the ranks of
`entwine bench --backend cuda --ranks-as processes` are.  See README.md beside this file."""
import argparse
import importlib.util
import json
import math
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import block_document  # noqa: E402
import document as doc  # noqa: E402
import keeper  # noqa: E402
import meeting  # noqa: E402
import rank as rank_process  # noqa: E402
from problems import (DTYPES, MOST_RANKS, OPERATORS, Problem, Training, Usage,  # noqa: E402
                      read_suite, why_not)

EXIT = {"ok": 0, "wrong": 1, "usage": 2, "died": 3, "environment": 5, "skipped": 77,
        "interrupted": 130}
FAREWELL_S = 3.0


class Ended(Exception):
    """The run is over before its end: exit status and why."""

    def __init__(self, status, why):
        super().__init__(why)
        self.status = status


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("-W", "--ranks", type=int, default=8, help="ranks that share the GPU; default 8")
    add("--op", default="gemm-rs", choices=list(OPERATORS), help="gemm-rs, the default, and "
        "ag-gemm: Async-TP; gemm-ar: torch.mm, then the one-shot and the two-shot AllReduce; "
        "training: all GEMMs of four projections, as block_bench --case training")
    add("--suite", help="problems from a suite file; its W is replaced by -W")
    add("-m", "--rows", type=int, help="rows of A and of the output, without --suite")
    add("-N", "--cols", type=int, help="columns of the output; of ag-gemm those of one rank")
    add("-k", "--depth", type=int, help="depth of one rank's GEMM")
    add("-d", "--datatype", default="fp16", choices=list(DTYPES))
    for name, size, what in (("hidden", 8192, "size"), ("inner", 28672, "size"),
                             ("qkv", 10240, "columns"), ("attention", 8192, "columns")):
        add(f"--{name}", type=int, default=size, help=f"{what} of the model whose training step "
            f"is measured; default {size}.  It is of bf16, and of 8192 rows without -m")
    add("--rounds", type=int, default=5, help="of training steps in a row; default 5")
    add("--calls", type=int, default=20, help="steps of a round; default 20")
    add("-n", "--iters", type=int, default=11, help="timed calls at least; default 11")
    add("-w", "--warmup", type=int, default=3, help="calls before timing; default 3")
    add("--budget", type=float, default=0.3, help="seconds of samples per problem and method "
        "while there are more than -n of them; default 0.3")
    add("--idle", type=float, default=1.0, help="rest after each sample, in units of its time")
    add("--seed", type=int, default=1, help="of the inputs; default 1")
    add("--slices", default="green", choices=["green", "mps"], help="green: SMs of its own for "
        "every rank; mps: as many SMs, but not necessarily different ones")
    add("-T", "--timeout", type=float, default=60.0, help="seconds without progress; default 60")
    add("-J", "--json", help="writes the document here, renewed after every problem")
    add("--self-test", action="store_true", help="checks what needs no GPU, and ends")
    hidden = argparse.SUPPRESS
    for name in ("--rank", "--report", "--parent"):
        add(name, type=int, help=hidden)
    for name in ("--folder", "--pretend"):
        add(name, help=hidden)
    return parser.parse_args(arguments)


def problems_of(options):
    if not 1 <= options.ranks <= MOST_RANKS:
        raise Usage(f"W={options.ranks}\n  fix: use 1 to {MOST_RANKS} ranks")
    for name in ("iters", "timeout", "budget", "rounds", "calls"):
        if getattr(options, name) <= 0:
            raise Usage(f"--{name} {getattr(options, name)}\n  fix: give a number above 0")
    if options.warmup < 0 or options.idle < 0 or options.seed < 0:
        raise Usage("--warmup, --idle or --seed is negative\n  fix: give 0 or more")
    if options.op == "training":
        return [training_of(options)]
    if options.suite:
        return read_suite(options.suite)
    sizes = options.rows, options.cols, options.depth
    if not all(size and size > 0 for size in sizes):
        raise Usage("no problem is given\n  fix: add --suite FILE, or -m, -N and -k above 0")
    return [Problem(None, *sizes, options.datatype)]


def training_of(options):
    if options.suite or options.cols or options.depth:
        raise Usage("--suite, -N and -k are not for --op training\n"
                    "  fix: give --hidden, --inner, --qkv and --attention")
    problem = Training(options.rows or 8192, options.hidden, options.inner, options.qkv,
                       options.attention)
    if min(problem.m, problem.hidden, problem.inner, problem.qkv, problem.attention) < 1:
        raise Usage("a size is not above 0\n  fix: give counts")
    why = why_not(problem, options.op, options.ranks)
    if why:
        raise Usage(f"{why}\n  fix: give other sizes, or another -W")
    return problem


def form_of(op):
    """What writes the results: as `entwine bench` has them, or as block_bench."""
    return block_document if op == "training" else doc


# ---- Folder and MPS ------------------------------------------------------------------------

class Place:
    """The run's folder, the MPS daemon and their keeper."""

    def __init__(self, with_mps):
        named = os.environ.get(keeper.PIPES)
        running = keeper.answers(named or "/tmp/nvidia-mps")
        private = with_mps and not running and not named and bool(shutil.which(keeper.CONTROL))
        self._keeper = subprocess.Popen(
            [sys.executable, os.path.join(HERE, "keeper.py"), *(["daemon"] if private else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
        self.folder = self._keeper.stdout.readline().strip()
        if not self.folder:
            raise Ended("environment", "no folder can be made in /tmp\n  fix: make room there")
        self.environment = dict(os.environ)
        if private:
            os.environ[keeper.PIPES] = self.folder
            self.environment.update({keeper.PIPES: self.folder, keeper.LOGS: self.folder})
            private = self._daemon_answers()
        self.mps = "running" if running else "private" if private else "none"

    def _daemon_answers(self):
        end = time.monotonic() + keeper.START_S
        while time.monotonic() < end and self._keeper.poll() is None:
            if keeper.answers(self.folder):
                return True
            time.sleep(0.05)
        return False

    def close(self):
        self._keeper.stdin.close()
        try:
            self._keeper.wait(keeper.ASK_S + keeper.QUIT_S + 2 * keeper.END_S + 5)
        except subprocess.TimeoutExpired:
            self._keeper.kill()  # its daemon hears of that
            self._keeper.wait()


# ---- Ranks ---------------------------------------------------------------------------------

def rank_environment(place, options):
    env = dict(place.environment)
    # Sockets that pass handles around lie in the run's folder; multicast objects cannot have
    # one GPU twice; two streams must not share a queue, and MPS gives few unless asked.
    env.update({"TMPDIR": place.folder, "TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES": "1",
                "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "TORCH_SYMMMEM": "CUDA",
                "GLOO_SOCKET_IFNAME": "lo", "CUDA_DEVICE_MAX_CONNECTIONS": "4",
                "PYTHONDONTWRITEBYTECODE": "1"})
    env.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None)  # it would override the slices
    # A GEMM that may wait on all SMs of the slice for copies that need SMs there too.
    env.pop("TORCH_SYMM_MEM_ENABLE_NATIVE_ASYNC_TP", None)
    if options.slices == "mps":
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(math.ceil(100 / options.ranks))
    return env


class Rank:
    def __init__(self, number, place, options):
        self.number = number
        self.done = False
        reading, writing = os.pipe()
        self.log = os.path.join(place.folder, f"rank-{number}.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--rank", str(number),
                 "--report", str(writing), "--folder", place.folder, "--parent", str(os.getpid())],
                env=rank_environment(place, options), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, pass_fds=[writing], start_new_session=True)
        os.close(writing)
        os.set_blocking(reading, False)
        self.report, self._text = reading, b""

    def read(self):
        """Messages that have come; None at the end of the report."""
        data = os.read(self.report, 1 << 20)
        self._text += data
        *lines, self._text = self._text.split(b"\n")
        return [json.loads(line) for line in lines] if data or lines else None

    def last_words(self):
        with open(self.log, errors="replace") as log:
            return "".join(f"    {line}" for line in log.readlines()[-12:])

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.report)


class Run:
    """All ranks of one run, and what they have reported."""

    def __init__(self, place, problems, options):
        self.problems, self.options, self.place = problems, options, place
        meeting.create(os.path.join(place.folder, "meeting"), options.ranks)
        self.ranks = [Rank(number, place, options) for number in range(options.ranks)]
        self.about, self.results, self._reports = None, [], {}
        self.hearsay = None  # of a rank that ended because of another
        self._next = 0
        self.patience_s = 2 * options.timeout  # the ranks lose theirs first, and know why

    def listen(self):
        """Results as they become complete, in the order of the problems."""
        selector = selectors.DefaultSelector()
        for one in self.ranks:
            selector.register(one.report, selectors.EVENT_READ, one)
        heard = time.monotonic()
        while selector.get_map():
            ready = selector.select(timeout=0.2)
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > (FAREWELL_S if self.hearsay else self.patience_s):
                raise Ended("died", self.hearsay or f"no news for {self.patience_s:g} s")
            for key, _ in ready:
                try:
                    yield from self._hear(selector, key)
                except Ended:
                    yield from self._late_news(selector)
                    raise

    def _hear(self, selector, key):
        messages = key.data.read()
        if messages is None:
            selector.unregister(key.fd)
            self._farewell(key.data)
        for message in messages or []:
            yield from self._take(key.data, message)

    def _late_news(self, selector):
        """What was said before a rank failed, and not read before that."""
        for key, _ in selector.select(timeout=0):
            for message in key.data.read() or []:
                if message["kind"] == "problem":
                    yield from self._take(key.data, message)

    def _farewell(self, one):
        if not one.done:
            raise Ended("died", f"rank {one.number} died\n{one.last_words()}")

    def _take(self, one, message):
        if message["kind"] == "failed":
            if message["second_hand"]:  # the one that gave up first says why
                one.done = True
                self.hearsay = f"rank {one.number}: {message['why']}"
                return
            raise Ended(message["status"],
                        f"rank {one.number}: {message['why']}\n{one.last_words()}")
        if message["kind"] == "ready" and one.number == 0:
            self.about = message["about"]
        one.done = message["kind"] == "done"
        if message["kind"] == "problem":
            self._reports.setdefault(message["index"], []).append(message)
        yield from self._complete()

    def _complete(self):
        while self.about and self._next < len(self.problems):
            problem, reports = self.problems[self._next], self._reports.get(self._next, [])
            if why_not(problem, self.options.op, self.options.ranks):
                fresh = [doc.skipped(problem, self.options, self.about["sms_per_rank"])]
            elif len(reports) == self.options.ranks:
                form = form_of(self.options.op)
                fresh = form.measured(problem, self.options, self.about, reports)
            else:
                return
            self._next += 1
            self.results += fresh
            yield fresh

    def all_done(self):
        return self._next == len(self.problems)

    def end(self):
        for one in self.ranks:
            one.end()


# ---- The program ---------------------------------------------------------------------------

class Record:
    """The document, renewed as results come."""

    def __init__(self, run, options):
        self.run, self.path, self.schema = run, options.json, form_of(options.op).SCHEMA
        self.before, self.context = doc.clocks(), None

    def renew(self, complete):
        if not self.run.about or not self.path:
            return
        self.context = self.context or doc.context(self.run.about, self.run.place.mps, self.before)
        after = doc.clocks() if complete else None
        doc.write(self.path, {
            "schema": self.schema, "complete": complete, "context": self.context,
            "clocks": {"query": doc.CLOCKS_QUERY, "before": self.before, "after": after},
            "results": self.run.results})


def conduct(run, options):
    """Prints and writes results as they come."""
    record, form, told = Record(run, options), form_of(options.op), False
    try:
        for fresh in run.listen():
            if not told:
                print(form.table_head(options, run.about, run.place.mps))
                told = True
            for result in fresh:
                print(form.table_line(result), flush=True)
            record.renew(False)
        if not run.all_done():
            raise Ended("died", run.hearsay or "the ranks ended before the last problem")
        record.renew(True)
    except BaseException:
        record.renew(False)
        raise


def on_signal(number, frame):
    raise Ended("interrupted", f"interrupted by {signal.Signals(number).name}")


def measure(options, problems):
    if not options.pretend and not importlib.util.find_spec("torch"):
        raise Ended("skipped", f"{sys.executable} has no torch\n  fix: run this with one that has")
    place = run = None
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, on_signal)
        place = Place(with_mps=options.ranks > 1)
        if options.ranks > 1 and place.mps == "none" and not options.pretend:
            raise Ended("skipped", "MPS does not start here, and without it ranks take turns on "
                        "the GPU\n  fix: install nvidia-cuda-mps-control, unset " + keeper.PIPES)
        run = Run(place, problems, options)
        conduct(run, options)
        return EXIT["wrong" if any(r.get("check", {}).get("wrong") for r in run.results) else "ok"]
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # nothing may disturb the cleaning up
        if run:
            run.end()
        if place:
            place.close()


def main():
    options = parse(sys.argv[1:])
    if options.self_test:
        import self_test
        return self_test.main()
    try:
        problems = problems_of(options)
        if options.rank is not None:
            if options.pretend:
                from self_test import engine_for
                make_engine = engine_for(options.pretend, options.op)
            elif options.op == "training":
                from training_engine import TrainingEngine as make_engine
            else:
                from torch_engine import TorchEngine as make_engine
            rank_process.main(options, problems, make_engine)
        return measure(options, problems)
    except Usage as error:
        print(f"async_tp: {error}", file=sys.stderr)
        return EXIT["usage"]
    except Ended as error:
        print(f"async_tp: {error}", file=sys.stderr)
        return EXIT[error.status]


if __name__ == "__main__":
    sys.exit(main())
