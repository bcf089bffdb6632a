#!/usr/bin/env python3
"""Checks a page of `entwine report`: every element is closed, every picture is XML, no name
occurs twice, nothing is fetched and nothing is run.  Prints what it holds.

    check_page.py FILE [TEXT...]    each TEXT must stand in the page, tags left out
"""
import html.parser
import re
import sys
import xml.etree.ElementTree as xml

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ids, self.tags, self.text = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        for name, value in attrs:
            assert not name.startswith("on"), f"handler {name}"
            assert name not in ("src", "srcset", "action"), f"fetches {value}"
            if name in ("href", "xlink:href"):
                assert value.startswith("#"), f"refers to {value}"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        source = file.read()
    page = Page()
    page.feed(source)
    page.close()
    assert not page.open, f"left open: {page.open}"
    assert len(page.ids) == len(set(page.ids)), "a name occurs twice"
    assert "script" not in page.tags, "a script"
    assert "url(" not in source and "@import" not in source, "the stylesheet fetches"
    pictures = re.findall(r"<svg.*?</svg>", source, re.DOTALL)
    for picture in pictures:
        xml.fromstring(picture)
    for reference in re.findall(r"href='#([^']*)'", source):
        assert reference in page.ids, f"{reference} is not there"
    text = " ".join("".join(page.text).split())
    assert not re.search(r"\bnan\b|\binf\b|ZQ\d", text), "a number or label is missing"
    for wanted in sys.argv[2:]:
        assert wanted in text, f"the page lacks: {wanted}"
    print(f"{page.tags.count('figure')} figures, {len(pictures)} pictures")


main()
