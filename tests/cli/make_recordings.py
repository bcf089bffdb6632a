"""Flight recordings for the tests of `entwine trace --merge`, in the current folder.

odd.json     rank 2 came with another m to operation 3
early.json   all ranks are together; late.json: later, rank 1 has ended and behind
gone.json    rank 1 was stopped, the ranks blame it, and rank 2 has ended since
other.json   of another job
--damage     also damaged-NNN.json: odd.json with one value replaced by nonsense
"""
import copy
import json
import random
import sys


def deed(sequence, m=8, state="done"):
    return {"sequence": sequence, "kind": "call", "state": state, "status": "EW_OK", "m": m, "n": 512,
            "k": 64, "plan": 1, "config": "000000aa", "begin_ns": 1000 * sequence,
            "end_ns": 0 if state == "running" else 1000 * sequence + 500, "steps": 4}


def lane(rank, deeds, process="alive", waits_for=None):
    return {"rank": rank, "pid": 100 + rank, "process": process, "left": False,
            "sequence": deeds[-1]["sequence"], "meetings": 4,
            "last_step": {"kind": "tile", "position": 3}, "waits_for": waits_for, "records": deeds}


def recording(lanes, started=1000, now=9000):
    return {"schema": "entwine-recording/1", "version": "0.1.0", "num_ranks": len(lanes),
            "ranks_as": "processes", "started_unix": 0, "started_ns": started, "now_ns": now,
            "fault": None, "ranks": lanes}


def write(name, document):
    with open(name, "w") as file:
        json.dump(document, file)


def places(value, path=()):
    """Every place in a document at which something stands."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield path + (key,)
        yield from places(inner, path + (key,))


def damage(document, chance):
    damaged = copy.deepcopy(document)
    *path, last = chance.choice(list(places(document)))
    at = damaged
    for key in path:
        at = at[key]
    at[last] = chance.choice([None, True, -1, 2**63 - 1, -(2**63), 1e300, "", "x" * 100, "\u00e9", [], {}, [[]],
                              256, 257, [{}] * 2000])
    return damaged


together = [lane(rank, [deed(n) for n in (1, 2, 3)]) for rank in range(3)]
odd = copy.deepcopy(together)
odd[2]["records"][2]["m"] = 7
late = [lane(rank, [deed(n) for n in (1, 2, 3)] + ([] if rank == 1 else [deed(4, state="running")]),
             process="ended" if rank == 1 else "alive") for rank in range(3)]
write("odd.json", recording(odd))
write("early.json", recording(together))
write("late.json", recording(late, now=9500))
gone = [lane(rank, [deed(n) for n in (1, 2)] + [deed(3, state="running")],
             process=process) for rank, process in enumerate(("alive", "stopped", "ended"))]
write("gone.json", recording(gone) | {"fault": {"status": "EW_ERR_TIMEOUT", "culprit": 1, "reporter": 0}})
write("other.json", recording(together, started=2000))
if "--damage" in sys.argv:
    dice = random.Random(1)
    for number in range(300):
        write(f"damaged-{number:03}.json", damage(recording(odd), dice))
