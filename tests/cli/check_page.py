#!/usr/bin/env python3
"""Checks a page of `entwine report` as it lies in its file: every element is closed, no name
occurs twice, nothing is fetched, and the one script and the stylesheet that may count are those
whose hashes the page's policy names.  Prints what its data holds.

    check_page.py FILE [TEXT...]    each TEXT must stand in its data or in its table
"""
import base64
import hashlib
import html.parser
import json
import re
import sys

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.text, self.policy = [], [], [], ""
        self.blocks = {"style": [], "script": [], "data": []}

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.ids += [attrs["id"]] if "id" in attrs else []
        for name, value in attrs.items():
            assert not name.startswith("on") and name != "style", f"attribute {name}"
            assert name not in ("src", "srcset", "action", "href", "xlink:href"), f"refers to {value}"
        assert tag not in ("img", "iframe", "object", "embed", "base", "form"), f"a {tag}"
        if attrs.get("http-equiv") == "Content-Security-Policy":
            self.policy = attrs["content"]
        if tag not in VOID:
            self.open.append("data" if attrs.get("type") == "application/json" else tag)

    def handle_endtag(self, tag):
        closed = self.open.pop() if self.open else None
        assert closed == tag or (closed, tag) == ("data", "script"), f"</{tag}> closes {closed}"

    def handle_data(self, text):
        self.blocks.get(self.open[-1] if self.open else "", self.text).append(text)


def texts(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def policy_hash(text):
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        source = file.read()
    page = Page()
    page.feed(source)
    page.close()
    assert not page.open, f"left open: {page.open}"
    assert len(page.ids) == len(set(page.ids)), "a name occurs twice"
    style, script, block = ("".join(page.blocks[name]) for name in ("style", "script", "data"))
    assert source.count("<script") == 2 and source.count("<style") == 1, "more than one script"
    assert page.policy.startswith("default-src 'none';") and "unsafe" not in page.policy
    assert policy_hash(script) in page.policy and policy_hash(style) in page.policy, "other hashes"
    assert "url(" not in style and "@import" not in style, "the stylesheet fetches"
    assert not re.search("[<>&\u2028\u2029]", block) and block.isascii(), "data is not escaped"
    data = json.loads(block)
    table = " ".join(" ".join(page.text).split())
    assert not re.search(r"\bnan\b|\binf\b", table), "a number is missing"
    held = list(texts(data))
    for wanted in sys.argv[2:]:
        assert wanted in table or any(wanted in text for text in held), f"the page lacks: {wanted}"
    results = sum(len(problem["rows"]) for group in data["groups"] for problem in group["problems"])
    print(f"{results} results in {len(data['groups'])} settings of "
          f"{len({source['section'] for source in data['sources']})} sections, "
          f"{len(data['scaling'])} over ranks, "
          f"{sum(source['trace'] is not None for source in data['sources'])} timelines")


main()
