#!/usr/bin/env python3
"""check_intervals.py DOCUMENT PAGE: every interval of a bench document, and of the report made of
it, against a bootstrap of its own; prints how entwine stands against each other method."""
import json
import re
import statistics
import sys

MASK = (1 << 64) - 1


def draws():
    state = 1
    while True:
        state = (state + 0x9e3779b97f4a7c15) & MASK
        z = ((state ^ (state >> 30)) * 0xbf58476d1ce4e5b9) & MASK
        z = ((z ^ (z >> 27)) * 0x94d049bb133111eb) & MASK
        yield (z ^ (z >> 31)) >> 32


def interval(over, under):
    random, count, ratios = draws(), len(over), []
    for _ in range(2000):
        rounds = [next(random) * count >> 32 for _ in range(count)]
        ratios.append(statistics.median(over[at] for at in rounds) /
                      statistics.median(under[at] for at in rounds))
    ratios.sort()
    return [ratios[50], ratios[1949]]


def same(a, b, digits=12):
    return all(abs(x - y) < 10 ** (1 - digits) * y for x, y in zip(a, b)) and len(a) == len(b) == 2


def main():
    document = json.load(open(sys.argv[1]))
    page = json.loads(re.search(r'id="data">\s*(\{.*?\})\s*</script>', open(sys.argv[2]).read(),
                                re.S).group(1))
    results = document["results"]
    rows = {page["texts"][row[0]]: row for group in page["groups"] for problem in group["problems"]
            for row in problem["rows"]}
    base = next(one for one in results if one["speedup"] == 1)
    ours = next(one for one in results if one["method"] == "entwine")
    words, checked = [], 0
    for one in results:
        if one is not base:
            wanted = interval(base["samples_us"], one["samples_us"])
            assert same(one["speedup_interval"], wanted), (one["method"], wanted)
            assert same(rows[one["method"]][-2:], wanted, digits=5), (rows[one["method"]], wanted)
            checked += 1
        if one is not ours:
            low, high = interval(one["samples_us"], ours["samples_us"])
            lead = one["over_entwine"]
            assert same(lead["interval"], [low, high]), (one["method"], low, high)
            word = "ahead" if low > 1 else "behind" if high < 1 else "level"
            assert lead["entwine_is"] == word, (lead, word)
            words.append(f"{word} {'with' if word == 'level' else 'of'} {one['method']}")
            checked += one is base
    print(f"entwine is {', '.join(sorted(words))}; {checked} intervals agree, the page's too")


main()
