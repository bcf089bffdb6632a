"""One rank: checks every problem, times it, and tells the parent.  What computes is an engine:
TorchEngine, or the stand-in of the self-test."""
import ctypes
import json
import os
import random
import signal
import statistics
import time
import traceback

from meeting import GaveUp, Meeting
from problems import OPERATORS, PRODUCT, SUMMED, Lacking, iterations, tolerance, why_not

SAMPLES_CHECKED = 64  # elements of each rank's output
TRIALS = 3
LEAST_FOR_ORIENTATION = 7  # samples of the plain product
MOST_RETAKES = 8
LEAST_HOLD_US = 150.0
PR_SET_PDEATHSIG = 1


def end_with(parent):
    """No rank outlives the parent, whatever ends it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def positions_of(problem, op, ranks, seed):
    """Per rank, elements that it checks: (row of the whole output, column)."""
    choose = random.Random(f"{seed} {problem}")
    first, count = rows_of(problem, op, ranks)
    return [[(owner * first + choose.randrange(count), choose.randrange(problem.n))
             for _ in range(SAMPLES_CHECKED)] for owner in range(ranks)]


def rows_of(problem, op, ranks):
    """Of the output, (rows from one rank's first to the next one's, rows of each): all of them,
    or a part."""
    return (problem.m // ranks,) * 2 if op == "gemm-rs" else (0, problem.m)


class Measurement:
    """One problem on this rank; every rank comes to the same decisions."""

    def __init__(self, engine, meeting, problem, options):
        self.engine, self.meeting = engine, meeting
        self.problem, self.options = problem, options
        self.gemms = problem.gemms(options.op, meeting.ranks)
        self.hold_us = LEAST_HOLD_US * len(self.gemms)
        self.queueing_us = 0.0  # host time of the last call, on the slowest rank
        self.retaken = 0

    def check(self, method):
        """(wrong elements, largest error) of one call on this rank's rows."""
        self.engine.call(method)
        found = [self.check_gemm(at, *gemm) for at, gemm in enumerate(self.gemms)]
        return sum(wrong for wrong, _ in found), max(error for _, error in found)

    def check_gemm(self, at, op, problem):
        meeting = self.meeting
        first = meeting.rank * rows_of(problem, op, meeting.ranks)[0]
        positions = positions_of(problem, op, meeting.ranks, self.options.seed)
        mine = positions[meeting.rank]
        if op in SUMMED:
            shown = meeting.gather(self.engine.contributions(at, sum(positions, [])))
            place = slice(meeting.rank * SAMPLES_CHECKED, (meeting.rank + 1) * SAMPLES_CHECKED)
            parts = list(zip(*(values[place] for values in shown)))
        else:
            parts = [(value,) for value in self.engine.contributions(at, mine)]
        results = self.engine.results(at, [(row - first, column) for row, column in mine])
        errors = [abs(value - sum(part)) for value, part in zip(results, parts)]
        wrong = sum(not error <= tolerance(part, problem.dtype)
                    for error, part in zip(errors, parts))
        return wrong, max(errors)

    def sample(self, method):
        """(this rank's time, its host time, the slowest rank's time), in us.  A sample whose
        gate opened before all ranks had queued their work is taken again, with a longer hold."""
        for _ in range(MOST_RETAKES):
            self.meeting.barrier()
            time_us, host_us, early = self.engine.timed(method, self.hold_us)
            shown = self.meeting.gather([time_us, host_us, early])
            slowest_us = max(values[0] for values in shown)
            self.queueing_us = max(values[1] for values in shown)
            time.sleep(self.options.idle * slowest_us / 1e6)
            if not any(values[2] for values in shown):
                return time_us, host_us, slowest_us
            self.retaken += 1
            self.hold_us *= 2
        raise RuntimeError(f"a call of {method} is not queued within {self.hold_us / 2e3:.1f} ms")

    def try_target(self, method, sms):
        self.engine.plan_for(sms)
        self.sample(method)
        queueing_us, times_us = [], []
        for _ in range(TRIALS):
            times_us.append(self.sample(method)[2])
            queueing_us.append(self.queueing_us)
        self.hold_us = LEAST_HOLD_US + 1.5 * statistics.median(queueing_us)
        return statistics.median(times_us)

    def choose_target(self, method):
        """What cuBLAS plans for: all SMs as torch leaves it, or the slice's; the faster."""
        times = {sms: self.try_target(method, sms) for sms in (0, self.engine.sms)}
        best = min(times, key=times.get)
        self.engine.plan_for(best)
        return best, times[best]

    def run(self, method, least):
        target, estimate_us = self.choose_target(method)
        for _ in range(self.options.warmup):
            self.sample(method)
        count = iterations(estimate_us, least, self.options.idle, self.options.budget)
        self.retaken = 0
        samples = [self.sample(method) for _ in range(count)]
        return {"method": method, "sm_target": target, "retaken": self.retaken,
                "samples_us": [one[0] for one in samples],
                "host_us": statistics.median(one[1] for one in samples)}


class StepMeasurement(Measurement):
    """A training step: also when each of its GEMMs ended, and steps in a row."""

    def sample(self, method):
        found = super().sample(method)
        self.ends_us.append(self.engine.ends_us())
        return found

    def run(self, method, least):
        self.ends_us = []
        found = super().run(method, least)
        of_samples = self.ends_us[-len(found["samples_us"]):]
        return {**found, "ends_us": list(map(statistics.median, zip(*of_samples))),
                "in_a_row_us": self.in_a_row(method)}

    def in_a_row(self, method):
        """A step's part of several, on the slowest rank, once a round; the first round warms up."""
        options, found = self.options, []
        for _ in range(1 + options.rounds):
            self.meeting.barrier()
            time_us = self.engine.timed(method, LEAST_HOLD_US, options.calls)[0]
            slowest_us = max(values[0] for values in self.meeting.gather([time_us]))
            time.sleep(options.idle * slowest_us / 1e6)
            found.append(slowest_us / options.calls)
        return found[1:]


def measure_all(engine, meeting, problems, options, tell):
    peers = list(OPERATORS[options.op])
    kind = StepMeasurement if options.op == "training" else Measurement
    for index, problem in enumerate(problems):
        if why_not(problem, options.op, meeting.ranks):
            continue
        meeting.barrier()
        engine.load(problem)
        measurement = kind(engine, meeting, problem, options)
        checks = {method: [measurement.check(method)] for method in peers}
        found = []
        for method in (*peers, PRODUCT):
            least = LEAST_FOR_ORIENTATION if method == PRODUCT else options.iters
            found.append(measurement.run(method, least))
            tell({"kind": "alive"})
        engine.negate()
        for method, one in zip(peers, found):
            checks[method].append(measurement.check(method))
            one["wrong"] = sum(wrong for wrong, _ in checks[method])
            one["error"] = max(error for _, error in checks[method])
        tell({"kind": "problem", "index": index, "found": found})


def main(options, problems, make_engine):
    """The rank's process.  Its last word is 'done', or 'failed' and why."""
    end_with(options.parent)
    report = os.fdopen(options.report, "w", buffering=1)

    def tell(message):
        report.write(json.dumps({"rank": options.rank, **message}) + "\n")

    meeting = Meeting(os.path.join(options.folder, "meeting"), options.rank, options.ranks,
                      options.timeout)
    try:
        able = [problem for problem in problems if not why_not(problem, options.op, options.ranks)]
        engine = make_engine(meeting, able, options)
        tell({"kind": "ready", "about": engine.describe()})
        measure_all(engine, meeting, problems, options, tell)
        tell({"kind": "done"})
        status = 0
    except BaseException as error:
        meeting.give_up()
        tell({"kind": "failed", "why": f"{type(error).__name__}: {error}",
              "status": "skipped" if isinstance(error, Lacking) else "died",
              "second_hand": isinstance(error, GaveUp)})
        traceback.print_exc()
        status = 1
    report.flush()
    os._exit(status)  # streams of a slice are no business of torch's destructors
