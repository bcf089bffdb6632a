#!/usr/bin/env python3
"""Every error message of the command-line tool stands in a golden test.

Reads the calls of cli_fail_usage and cli_fail below cli/ and looks for a case line (err, out and
their -has) that holds the fixed parts of the message's first line in their order.  Messages that
consist of what somebody else says have no fixed part and are left out.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# No test can provoke these on every machine.
CANNOT = {
    "no memory": "malloc does not fail where memory is promised and not had",
    "ended abnormally": "a child would have to be killed at the right moment",
    "cannot remove '": "root, whom tests may run as, may remove everything",
    "entries cannot be stored in": "root may write everywhere",
    "methods and variants": "needs every MPI method beside 24 variants",
    "no room for a chart": "a full /tmp",
}
STRING = r'"(?:\\.|[^"\\])*"'
HOLE = re.compile(r"%[-+0 #]*[\d.*]*(?:hh|h|ll|l|z|j)?[a-zA-Z%]")


def arguments(text, start):
    """The arguments of the call whose parenthesis opens just before `start`."""
    depth, at, begin, found = 1, start, start, []
    while depth:
        string = re.compile(STRING).match(text, at)
        if string:
            at = string.end()
            continue
        if text[at] in "([{":
            depth += 1
        elif text[at] in ")]}":
            depth -= 1
        if (text[at] == "," and depth == 1) or depth == 0:
            found.append(text[begin:at])
            begin = at + 1
        at += 1
    return found


def messages(path):
    """(line, message) of each call; the message follows the fix."""
    text = path.read_text()
    for call in re.finditer(r"\b(cli_fail_usage|cli_fail)\(", text):
        given = arguments(text, call.end())
        place = 1 if call.group(1) == "cli_fail_usage" else 2
        literals = re.findall(STRING, given[place]) if len(given) > place else []
        if literals:
            message = "".join(each[1:-1] for each in literals).replace('\\"', '"')
            yield text.count("\n", 0, call.start()) + 1, message.split("\\n")[0]


def main():
    cases = [line.split(" ", 1)[1] for path in sorted((ROOT / "tests/cli/cases").glob("*.case"))
             for line in path.read_text().splitlines()
             if line.startswith(("err ", "err-has ", "out ", "out-has "))]
    seen, missing = 0, []
    for path in sorted((ROOT / "cli").rglob("*.c")):
        for line, message in messages(path):
            parts = [part.strip() for part in HOLE.split(message) if len(part.strip()) > 4]
            if not parts or any(each in message for each in CANNOT):
                continue
            wanted = re.compile(".*".join(re.escape(part) for part in parts))
            if any(wanted.search(case) for case in cases):
                seen += 1
            else:
                missing.append(f"{path.name}:{line}: no case in tests/cli/cases has: {message}")
    print("\n".join(missing) or f"{seen} messages, each in a golden test")
    return bool(missing) or seen < 50


if __name__ == "__main__":
    sys.exit(main())
