"""The results as a document of the schema entwine-bench/1 and as a table."""
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys

from problems import (ELEMENT_BYTES, OPERATORS, PRODUCT, coefficient_of_variation, slowest,
                      why_not)

SCHEMA = "entwine-bench/1"
CLOCKS_QUERY = "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu,driver_version"
QUERY_S = 10


def clocks():
    """A line per GPU; None where nvidia-smi does not answer."""
    try:
        command = ["nvidia-smi", f"--query-gpu={CLOCKS_QUERY}", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=True)
        return found.stdout.strip().splitlines()
    except (OSError, subprocess.SubprocessError):
        return None


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def context(about, mps, before):
    """As `entwine bench` writes it; version and commit are torch's."""
    driver = before[0].split(",")[-1].strip() if before else ""
    return {"time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "version": f"torch {about['torch']}", "commit": about["commit"] or "unknown",
            "host": platform.node(), "cpu": cpu_name(), "arch": platform.machine(),
            "kernel": f"{platform.system()} {platform.release()}",
            "cores_usable": len(os.sched_getaffinity(0)),
            "memory_bytes": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            "micro_kernels": {"fp32": None, "bf16": None, "fp16": None}, "blas": about["blas"],
            "launcher": None, "gpus": [{**about["gpu"], "driver": driver}], "mps": mps,
            "argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
            "env": {name: value for name, value in os.environ.items()
                    if name.startswith("ENTWINE_")}}


def params(problem, options, sms, iters):
    return {"name": problem.name, "m": problem.m, "n": problem.n, "k": problem.k,
            "ranks": options.ranks, "dtype": problem.dtype, "op": options.op, "weight": "nk",
            "ranks_as": "processes", "link": "none", "link_gbs": 0.0, "link_latency_us": 0.0,
            "seed": options.seed, "iters": iters, "warmup": options.warmup, "gate_ms": 0.0,
            "idle": options.idle, "virtual_node": options.ranks > 1, "sms_per_rank": sms}


def config_text(options, about, first):
    return ",".join([f"slices={options.slices}", f"cublas_sms={first['sm_target'] or 'all'}",
                     *(note.replace(" ", "-") for note in about["notes"])])


def check(of_ranks, method):
    checked = method != PRODUCT
    return {"wrong": sum(one["wrong"] for one in of_ranks) if checked else 0,
            "max_abs_err": max(one["error"] for one in of_ranks) if checked else None}


def measured(problem, options, about, reports):
    """The results of a problem, one for each method, from what every rank reported."""
    results = []
    for of_ranks in zip(*(report["found"] for report in reports)):
        samples = slowest([one["samples_us"] for one in of_ranks])
        first, time_us = of_ranks[0], statistics.median(samples)
        results.append({
            "params": params(problem, options, about["sms_per_rank"], len(samples)),
            "method": first["method"], "config": config_text(options, about, first),
            "status": "EW_OK",
            "samples_us": samples, "time_us": time_us, "gemm_us": None, "tail_us": None,
            "enqueue_us": max(one["host_us"] for one in of_ranks),
            "cv": coefficient_of_variation(samples), "discarded": first["retaken"],
            "gflops": 2e-3 * problem.m * problem.n * problem.k / time_us,
            "algbw_gbs": 1e-3 * problem.m * problem.n * ELEMENT_BYTES / time_us,
            "breq_gbs": None, "speedup": None,
            "check": check(of_ranks, first["method"])})
    return results


def skipped(problem, options, sms):
    return {"params": params(problem, options, sms, options.iters),
            "method": next(iter(OPERATORS[options.op])), "config": "", "status": "EW_ERR_SHAPE",
            "error": why_not(problem, options.op, options.ranks)}


def write(path, document):
    """Whole or not at all."""
    beside = f"{path}.{os.getpid()}"
    try:
        with open(beside, "w") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise


def table_head(options, about, mps):
    gpu = about["gpu"]
    return (f"# torch {about['torch']}, {gpu['name']}, MPS: {mps}\n"
            f"# VIRTUAL NODE: {options.ranks} ranks share one GPU, {about['sms_per_rank']} SMs "
            f"each ({options.slices}); {', '.join(about['notes'])}\n"
            f"# {'problem':<22} {'M':>6} {'N':>6} {'K':>5} {'method':<15} {'time (us)':>10} "
            f"{'GFLOP/s':>9} {'cv (%)':>6} {'host (us)':>9} {'cuBLAS':>6} {'#wrong':>6}")


def table_line(result):
    p = result["params"]
    shape = f"  {p['name'] or '-':<22} {p['m']:>6} {p['n']:>6} {p['k']:>5} {result['method']:<15}"
    if result["status"] != "EW_OK":
        return f"{shape} skipped: {result['error']}"
    planned_for = dict(field.split("=") for field in result["config"].split(",") if "=" in field)
    return (f"{shape} {result['time_us']:>10.1f} {result['gflops']:>9.0f} "
            f"{100 * result['cv']:>6.1f} {result['enqueue_us']:>9.0f} "
            f"{planned_for['cublas_sms']:>6} {result['check']['wrong']:>6}")
