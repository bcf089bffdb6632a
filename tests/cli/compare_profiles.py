#!/usr/bin/env python3
"""compare_profiles.py WANT FOUND TOLERANCE [KEY...]: the numbers of two profiles, but for those
that no call can tell and the KEYs that the machine at hand cannot."""
import re
import sys


def read(path):
    numbers = {}
    for line in open(path):
        found = re.match(r"(\w+)\s*=\s*([^#]*?)\s*#", line)
        if found and found[1] not in ("kind", "device"):
            for point in found[2].split():
                x, _, y = point.rpartition(":")
                numbers[found[1] + (":" + x if x else "")] = float(y)
    return numbers


def main():
    want, found = read(sys.argv[1]), read(sys.argv[2])
    tolerance, left_out = float(sys.argv[3]), {"jitter", *sys.argv[4:]}
    count = 0
    for key, value in want.items():
        if key in left_out or value == 0 and found[key] == 0:
            continue
        if abs(found[key] - value) > tolerance * abs(value):
            print(f"{key}: {found[key]} instead of {value}")
        else:
            count += 1
    print(f"{count} numbers within {100 * tolerance:g} %")


if __name__ == "__main__":
    main()
