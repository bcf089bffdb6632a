"""The results of a training step as block_bench has them: a document of the schema
entwine-block/1, and a table."""
import statistics

from document import check, config_text
from problems import coefficient_of_variation, slowest

SCHEMA = "entwine-block/1"


def measured(problem, options, about, reports):
    """The results, one for each method, from what every rank reported."""
    results = []
    for of_ranks in zip(*(report["found"] for report in reports)):
        samples, first = slowest([one["samples_us"] for one in of_ranks]), of_ranks[0]
        ends = [max(times) for times in zip(*(one["ends_us"] for one in of_ranks))]
        names = [gemm.name for _, gemm in problem.gemms(options.op, options.ranks)]
        results.append({
            "params": {"case": options.op, "ranks": options.ranks, "m": problem.m,
                       "hidden": problem.hidden, "inner": problem.inner, "qkv": problem.qkv,
                       "attention": problem.attention, "link_gbs": 0.0, "ranks_as": "processes",
                       "iters": len(samples), "warmup": options.warmup, "rounds": options.rounds,
                       "calls": options.calls, "idle": options.idle, "seed": options.seed,
                       "dtype": problem.dtype},
            "method": first["method"], "config": config_text(options, about, first),
            "in_graph": False, "time_us": statistics.median(samples),
            "cv": coefficient_of_variation(samples), "samples_us": samples,
            "discarded": first["retaken"], "graph_us": statistics.median(first["in_a_row_us"]),
            "graphs_us": first["in_a_row_us"],
            "enqueue_us": max(one["host_us"] for one in of_ranks),
            "check": check(of_ranks, first["method"]),
            "steps": [{"name": name, "begin_us": begin, "end_us": end}
                      for name, begin, end in zip(names, [0.0, *ends], ends)]})
    return results


def table_head(options, about, mps):
    return (f"# torch {about['torch']}, {about['gpu']['name']}, MPS: {mps}\n"
            f"# VIRTUAL NODE: {options.ranks} ranks share one GPU, {about['sms_per_rank']} SMs "
            f"each ({options.slices}); {', '.join(about['notes'])}\n"
            f"# {'method':<15} {'time ms':>9} {'cv (%)':>6} {'in a row':>9} {'host ms':>8} "
            f"{'#wrong':>6}  us of each GEMM")


def table_line(result):
    gemms = (f"{step['name']} {step['end_us'] - step['begin_us']:.0f}" for step in result["steps"])
    return (f"  {result['method']:<15} {result['time_us'] * 1e-3:>9.3f} {100 * result['cv']:>6.1f} "
            f"{result['graph_us'] * 1e-3:>9.3f} {result['enqueue_us'] * 1e-3:>8.2f} "
            f"{result['check']['wrong']:>6}  {', '.join(gemms)}")
