"""What the scripts that measure share: running commands once, picking results out of them,
judging ratios against targets, printing and writing the outcome."""
import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import time


class Skip(Exception):
    """A figure that cannot be measured here, and why."""


def cpu_model():
    for line in subprocess.run(["lscpu"], stdout=subprocess.PIPE, text=True).stdout.splitlines():
        if line.startswith("Model name:"):
            return line.split(":", 1)[1].strip()
    return os.uname().machine


def slug(name):
    """As part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def claim_stdout():
    """Standard output for the caller alone, as a stream.  Whatever else prints there from now on,
    as gloo of torch 2.8 does below Python, prints to standard error."""
    claimed = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return claimed


class Runs:
    """Runs each command once per repetition and keeps what it said."""

    def __init__(self, env=None):
        self.env = {**os.environ, **(env or {})}
        self.done = {}

    def json_of(self, command, read_file=None, repetition=0):
        key = command, repetition
        if key not in self.done:
            print(f"  $ {command}", file=sys.stderr, flush=True)
            process = subprocess.run(shlex.split(command), env=self.env, stdout=subprocess.PIPE,
                                     text=True)
            if process.returncode:
                self.done[key] = Skip(f"exit status {process.returncode} of {command}")
            else:
                text = open(read_file).read() if read_file else process.stdout
                self.done[key] = json.loads(text)
        if isinstance(self.done[key], Skip):
            raise self.done[key]
        return command, self.done[key]

    def raw(self):
        """The outputs without the machine's name, which is nobody's business."""
        for (command, _), output in self.done.items():
            if not isinstance(output, Skip):
                output.get("context", {}).pop("host", None)
                yield {"command": command, "output": output}


def pick(output, method, config="", **params):
    """The result of a method, or of the variant whose config has the text, for the problem
    with these parameters."""
    for result in output["results"]:
        if (result["method"].split("[")[0] == method and config in (result.get("config") or "")
                and all(result["params"].get(key) == value for key, value in params.items())):
            if not result.get("time_us"):
                raise Skip(f"{method}: {result.get('error') or 'skipped'}".splitlines()[0])
            if result["check"]["wrong"]:
                sys.exit(f"{method} gave {result['check']['wrong']} wrong values")
            return result
    raise Skip(f"{method} {config} is not among the results")


def at_least(target):
    return f">= {target:.2f}", lambda measured: measured >= target


def at_most(target):
    return f"<= {target:.2f}", lambda measured: measured <= target


def between(low, high):
    return f"{low:.2f} to {high:.2f}", lambda measured: low <= measured <= high


def no_target():
    return "-", None


def measure(name, target, function, runs):
    """`function` returns (command, ratio or one per repetition, what it was made of)."""
    figure = {"name": name, "target": target[0], "measured": None, "verdict": "SKIP"}
    try:
        figure["command"], ratios, parts = function(runs)
        if isinstance(ratios, list):
            figure["repetitions"] = [round(ratio, 4) for ratio in ratios]
            ratios = statistics.median(ratios)
        figure["measured"] = round(ratios, 4)
        figure["verdict"] = "INFO"
        if target[1]:
            figure["verdict"] = "PASS" if target[1](ratios) else "MISS"
        # The noise of the medians; their ratio is no better than that.
        figure["cv"] = [round(part["cv"], 4) for part in parts if part.get("cv") is not None]
        figure["discarded"] = sum(part.get("discarded") or 0 for part in parts)
    except Skip as reason:
        figure["reason"] = str(reason)
    return figure


def measure_all(figures, runs):
    """All figures, and whether none is missing: Ctrl-C or SIGTERM ends the list early."""
    def stop(*_):
        raise KeyboardInterrupt
    signal.signal(signal.SIGTERM, stop)
    done = []
    try:
        for name, target, function in figures:
            done.append(measure(name, target, function, runs))
    except KeyboardInterrupt:
        print("interrupted: what was measured follows", file=sys.stderr)
        return done, False
    return done, True


def print_table(figures):
    print(f"{'figure':<60} {'target':>12} {'measured':>9}  verdict")
    for f in figures:
        measured = "-" if f["measured"] is None else f"{f['measured']:.3f}"
        noise = f"  (cv {max(f['cv']):.1%})" if f.get("cv") else ""
        if f.get("repetitions"):
            noise += f"  ({min(f['repetitions']):.3f} to {max(f['repetitions']):.3f})"
        reason = f"  ({f['reason']})" if f.get("reason") else ""
        print(f"{f['name']:<60} {f['target']:>12} {measured:>9}  {f['verdict']}{noise}{reason}")
    counts = {verdict: sum(f["verdict"] == verdict for f in figures)
              for verdict in ("PASS", "MISS", "SKIP")}
    print(f"# {counts['PASS']} pass, {counts['MISS']} miss, {counts['SKIP']} skipped")


def commit(runs):
    """What was measured was built from, as it says itself, or else the tool beside it does."""
    for output in runs.done.values():
        if not isinstance(output, Skip) and output.get("context", {}).get("commit"):
            return output["context"]["commit"]
    try:
        text = subprocess.run(["build/release/entwine", "--version"], stdout=subprocess.PIPE,
                              text=True).stdout
    except OSError:
        text = ""
    found = re.search(r"commit (\S+)\)", text)
    return found.group(1) if found else "unknown"


def write(path, schema, machine, figures, runs, complete=True):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".tmp", "w") as file:
        json.dump({"schema": schema, **machine, "complete": complete, "commit": commit(runs),
                   "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                   "figures": figures, "runs": list(runs.raw())}, file, indent=1)
        file.write("\n")
    os.replace(path + ".tmp", path)
    print(f"# written: {path}")
