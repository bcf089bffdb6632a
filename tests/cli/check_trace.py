#!/usr/bin/env python3
"""Checks a trace file of `entwine trace` against its own params, and prints a summary.

    check_trace.py FILE [EXPRESSION]    - is stdin; EXPRESSION sees otherData as d
"""
import json
import sys


def div_up(a, b):
    return -(-a // b)


def is_inside(ts, piece):
    # in whole nanoseconds: the file has three digits behind the point
    return round(piece["ts"] * 1e3) <= round(ts * 1e3) <= round((piece["ts"] + piece["dur"]) * 1e3)


def own_rows(m, ranks, rank):
    """Rows of tiles of the whole output in which the rank has rows."""
    first, count = m // ranks * rank + min(rank, m % ranks), m // ranks + (rank < m % ranks)
    return range(first // 128, div_up(first + count, 128) if count else first // 128)


def block_name(op, parts, block):
    of = "" if parts == 1 else " of rank {dst}'s rows" if op == "ag-gemm" else " -> rank {dst}"
    return ("block p={position}" + of).format(**block)


def check_slices(slices, ranks, parts, op, m, n, block_rows, block_cols):
    """Every rank computes every block once, reduces its own tiles once, and where the output is one
    part copies the others once, if it gets them."""
    cols = div_up(n, 128)
    rows = [div_up(m // parts + (r < m % parts), 128) for r in range(parts)]
    blocks = {(dst, row, col) for dst in range(parts) for row in range(0, rows[dst], block_rows)
              for col in range(0, cols, block_cols)}
    for rank in range(ranks):
        mine = [s for s in slices if s["pid"] == rank + 1]
        made = [s["args"] for s in mine if s["cat"] == "block"]
        assert sorted(a["position"] for a in made) == list(range(len(blocks))), "positions"
        assert {(a["dst"], a["row"], a["col"]) for a in made} == blocks, "blocks"
        assert all(s["name"] == block_name(op, parts, s["args"]) for s in mine if s["cat"] == "block"), "names"
        done = [(s["args"]["row"], s["args"]["col"]) for s in mine if s["cat"] != "block"]
        own = range(0) if op == "ag-gemm" else own_rows(m, ranks, rank) if op == "gemm-rs" and parts == 1 \
            else range(rows[rank % parts])
        assert sorted(done) == [(r, c) for r in own for c in range(cols)], "tiles"
        assert all(s["args"]["dst"] != rank for s in mine if s["cat"] == "collect"), "copies its own"
        assert all(s["args"]["dst"] == rank for s in mine if s["cat"] == "reduce"), "owner"
    return len(blocks), sum(rows) * cols


def check_results(events, slices):
    """One arrow from every result to each of its copies, forward in time."""
    starts = {e["id"]: e for e in events if e["ph"] == "s" and e["cat"] == "result"}
    ends = {e["id"]: e for e in events if e["ph"] == "f" and e["cat"] == "result"}
    copies = [s for s in slices if s["cat"] == "collect"]
    assert starts.keys() == ends.keys() and len(ends) == len(copies), "result arrows"
    for key, end in ends.items():
        copy = [s for s in copies if (s["pid"], s["tid"], s["ts"]) == (end["pid"], end["tid"], end["ts"])]
        assert len(copy) == 1 and starts[key]["pid"] == copy[0]["args"]["dst"] + 1, "result's owner"
        assert starts[key]["ts"] < end["ts"], "a result was copied before it was there"
    return len(copies)


def check_flows(events, slices, parts, num_readers, block_rows, block_cols):
    """One arrow from every rank's contribution to every reader of a tile, forward in time."""
    events = [e for e in events if e.get("cat") == "contribution"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) == num_readers, "flow ends"
    assert len([e for e in events if e["ph"] in "sf"]) == 2 * len(starts), "flow ids"
    seen = set()
    for key, start in starts.items():
        end = ends[key]
        assert start["ts"] < end["ts"] and end["bp"] == "e", "flow goes back in time"
        tile = [s for s in slices if s["cat"] == "reduce" and s["pid"] == end["pid"]
                and s["tid"] == end["tid"] and s["ts"] == end["ts"]]
        assert len(tile) == 1, "flow ends at no reduction"
        tile = tile[0]["args"]
        first = (tile["dst"] % parts, tile["row"] // block_rows * block_rows,
                 tile["col"] // block_cols * block_cols)
        assert any((b["args"]["dst"], b["args"]["row"], b["args"]["col"]) == first
                   for b in slices if b["cat"] == "block" and b["pid"] == start["pid"]
                   and b["tid"] == start["tid"] and is_inside(start["ts"], b)), "flow's block"
        seen.add((start["pid"], tile["dst"], tile["row"], tile["col"]))
    assert len(seen) == len(starts), "a contribution has two arrows"


def main():
    with (sys.stdin if sys.argv[1] == "-" else open(sys.argv[1])) as file:
        document = json.load(file)
    events, d = document["traceEvents"], document["otherData"]
    p, config = d["params"], dict(pair.split("=") for pair in d["config"].split(","))
    block_rows, block_cols = (int(x) // 128 for x in config["block"].split("x"))
    slices = [e for e in events if e["ph"] == "X"]
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert d["schema"] == "entwine-trace/1" and (p.get("simulated") or d["wrong"] == 0)
    assert names == [f"rank {r}" for r in range(p["ranks"])], names
    assert all((s["pid"], s["tid"]) in threads and s["ts"] >= 0 and s["dur"] >= 0 for s in slices)
    assert all(0 <= value for value in d["numbers"].values())
    one_part = p["op"] == "gemm-ar" or p["m"] > 1 and not any(
        s["args"]["dst"] for s in slices if s["cat"] == "block")
    parts = 1 if one_part else p["ranks"]
    if p["m"] <= (208 if one_part else 1) and p["op"] != "ag-gemm" and config.get("kernel") == "sm90":
        block_cols = 1  # the GEMM of few rows
    blocks, tiles = check_slices(slices, p["ranks"], parts, p["op"], p["m"], p["n"], block_rows, block_cols)
    sums = len([s for s in slices if s["cat"] == "reduce"])
    check_flows(events, slices, parts, sums * p["ranks"], block_rows, block_cols)
    copies = check_results(events, slices)
    print(f"W={p['ranks']} {blocks} blocks {tiles} tiles" + (f" {sums} sums {copies} copies" if p["op"] == "gemm-ar" else ""))
    if len(sys.argv) > 2:
        print(eval(sys.argv[2], {"d": d, "slices": slices, "threads": threads}))


main()
