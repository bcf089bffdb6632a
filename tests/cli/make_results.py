#!/usr/bin/env python3
"""Prints a result document of `entwine bench` with made-up numbers, for tests of `report`.

    make_results.py [key=value...]    cpu=NAME commit=TEXT link=GBS ranks=2,4 depths=256,512
                                      names=a,b methods=a,b budgets=1,2 gpu=1 op=gemm-ar
                                      simulated=1 profile=NAME complete=0 samples=7
"""
import json
import sys

CONFIG = "backend=cpu,producer=own,block=128x256,order=interleaved,x=%s,workers=1"


def result(option, name, m, k, ranks, method, time_us, base_us, config):
    link = float(option["link"])
    params = {"name": name, "op": option["op"], "m": m, "n": 1024, "k": k, "ranks": ranks, "dtype": "fp32",
              "weight": "nk", "ranks_as": "processes",
              "link": f"EMULATED {link:g} GB/s per rank and direction, 5 us" if link else "none",
              "link_gbs": link, "link_latency_us": 5.0 if link else 0.0, "seed": 1,
              "iters": 7, "warmup": 3, "gate_ms": 0.0, "idle": 0.0}
    if option["gpu"]:
        params.update(virtual_node=True, sms_per_rank=132 // ranks // 8 * 8)
    if option["simulated"]:
        params.update(simulated=True, profile=option["profile"])
    gemm_us = min(time_us, 0.8 * base_us)
    return {"params": params, "method": method, "config": config, "status": "EW_OK",
            "samples_us": [time_us] * int(option["samples"]), "time_us": time_us,
            "gemm_us": gemm_us, "tail_us": time_us - gemm_us, "enqueue_us": 0.0, "cv": 0.01,
            "discarded": 0, "gflops": 2e-3 * m * 1024 * k / time_us,
            "algbw_gbs": m * 4.096 / time_us,
            "breq_gbs": m * 4.096 / gemm_us * (ranks - 1) / ranks, "speedup": base_us / time_us,
            "check": None if option["simulated"] else {"wrong": 0, "max_abs_err": 0.0}}


def results(option):
    names = option["names"].split(",") if option["names"] else [None]
    speeds = {"sequential": 1.0, "entwine": 0.7, "blas": 1.25}
    for number, name in enumerate(names):
        for ranks in map(int, option["ranks"].split(",")):
            for k in map(int, option["depths"].split(",")):
                base_us, m = 4.0 * k * (1 + number), 1024 * (1 + number)
                for method in option["methods"].split(","):
                    time_us = base_us * speeds.get(method, 0.9)
                    config = "" if method == "blas" else CONFIG % 1
                    yield result(option, name, m, k, ranks, method, time_us, base_us, config)
                for budget in filter(None, option["budgets"].split(",")):
                    yield result(option, name, m, k, ranks, f"entwine[x={budget}]",
                                 base_us * (0.7 + 0.01 * int(budget)), base_us, CONFIG % budget)


def main():
    option = {"cpu": "Test-CPU", "commit": "aaaa", "link": 0, "ranks": "2", "depths": "256",
              "names": "", "methods": "entwine,sequential,blas", "budgets": "", "gpu": "",
              "simulated": "", "profile": "test-8", "op": "gemm-rs", "complete": "1", "samples": 7}
    option.update(word.split("=", 1) for word in sys.argv[1:])
    context = {"time": "2026-11-01T00:00:00Z", "version": "0.1.0", "commit": option["commit"],
               "host": "host", "cpu": option["cpu"], "arch": "aarch64", "kernel": "Linux 6",
               "cores_usable": 2, "memory_bytes": 4e9,
               "micro_kernels": {"fp32": "a", "bf16": "b", "fp16": None}, "blas": None,
               "launcher": None, "argv": ["entwine", "bench", "--suite", "it's"],
               "env": {"ENTWINE_TUNING": "off"}}
    document = {"schema": "entwine-bench/1", "context": context,
                "complete": option["complete"] == "1", "results": list(results(option))}
    if option["gpu"]:
        context["gpus"] = [{"name": "Test GPU", "uuid": "u", "sms": 132, "arch": 90,
                            "clock_mhz": 1980, "driver": "580.95.05", "driver_version": 13000,
                            "runtime_version": 13000, "memory_bytes": 1, "mig": False,
                            "exclusive": False}]
        document["clocks"] = {"query": "clocks.sm,power.draw", "before": ["1980 MHz, 90 W"],
                              "after": ["1755 MHz, 690 W"]}
    json.dump(document, sys.stdout)


main()
