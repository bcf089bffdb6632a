#!/usr/bin/env python3
"""Changes tuning entries as nobody should by hand: edit_entries.py FOLDER EXPRESSION.

EXPRESSION sees an entry as e and changes it.  The entry is written anew, under the name of its key
and with its sum, as src/plan/tuning.c does.
"""
import json
import os
import sys
from pathlib import Path


def fnv1a(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


for path in sorted(Path(sys.argv[1]).glob("*.json")):
    e = json.loads(path.read_text())
    del e["sum"]
    exec(sys.argv[2])
    lines = [f' "{key}": {json.dumps(value)}' for key, value in e.items()]
    body = "{\n" + ",\n".join(lines)
    os.remove(path)
    path.with_name(f"{fnv1a(e['key']):016x}.json").write_text(
        body + f',\n "sum": "{fnv1a(body):016x}"\n}}\n')
