#!/usr/bin/env python3
"""Reads the tool's stdout from stdin, checks it, and prints what was asked for.

    check_output.py json SCHEMA [EXPRESSION]    EXPRESSION sees the document as d
    check_output.py csv [EXPRESSION]            d is the list of rows, as dicts
"""
import csv
import json
import sys

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool,
         "integer": int, "number": (int, float), "null": type(None)}


def is_type(value, name):
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])


def validate(value, schema, root, where="$"):
    """The part of JSON Schema that docs/schema.json uses; unknown keywords are errors."""
    if "$ref" in schema:
        return validate(value, root["definitions"][schema["$ref"].split("/")[-1]], root, where)
    for keyword, rule in schema.items():
        if keyword == "type":
            names = rule if isinstance(rule, list) else [rule]
            assert any(is_type(value, n) for n in names), f"{where}: {value!r} is no {rule}"
        elif keyword == "enum":
            assert value in rule, f"{where}: {value!r} not among {rule}"
        elif keyword == "const":
            assert value == rule, f"{where}: {value!r} is not {rule!r}"
        elif keyword == "minimum":
            assert value is None or value >= rule, f"{where}: {value} < {rule}"
        elif keyword == "required":
            for name in rule if isinstance(value, dict) else []:
                assert name in value, f"{where}: no {name}"
        elif keyword == "properties":
            for name, sub in rule.items():
                if name in value:
                    validate(value[name], sub, root, f"{where}.{name}")
        elif keyword == "additionalProperties":
            known = schema.get("properties", {})
            for name in value:
                if rule is False:
                    assert name in known, f"{where}: {name} is not in the schema"
                elif name not in known:
                    validate(value[name], rule, root, f"{where}.{name}")
        elif keyword == "items":
            for at, item in enumerate(value):
                validate(item, rule, root, f"{where}[{at}]")
        else:
            assert keyword in ("description", "title", "$schema", "$id", "definitions"), keyword


def strict(text):
    def refuse(word):
        raise ValueError(f"{word} is no JSON")
    return json.loads(text, parse_constant=refuse)


def main():
    kind, rest = sys.argv[1], sys.argv[2:]
    text = sys.stdin.read()
    if kind == "csv":
        d = list(csv.DictReader(text.splitlines(), strict=True))
        assert d and all(None not in row and None not in row.values() for row in d)
    else:
        schema = json.load(open(rest.pop(0)))
        d = strict(text)
        validate(d, schema, schema)
    for expression in rest:
        print(eval(expression, {"d": d}))


main()
