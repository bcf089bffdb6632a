#!/usr/bin/env python3
"""Opens a page of `entwine report` in headless Chromium: on a screen in light and dark, on a
phone, and on paper.

    test_report_page.py ENTWINE [FOLDER]    pictures of the page go to FOLDER, if given

Exit status 77: there is no Chromium here.
"""
import os
import subprocess
import sys
import tempfile

import headless_browser

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(os.path.dirname(HERE), "bench/results/eval-nvidia-h200")
VIEWS = {"light": (1200, False), "dark": (1200, True), "phone": (390, False),
         "phone-dark": (390, True)}

# What is wrong with the page as it stands, as a list of texts.
LOOK = """(() => {
    const wrong = [];
    const room = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth > room)
        wrong.push(`the page is ${document.documentElement.scrollWidth} wide, there is ${room}`);
    const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map(
            (v) => v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (a, b) => {
        const [x, y] = [light(a), light(b)];
        return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    };
    const paper = getComputedStyle(document.querySelector("figure")).backgroundColor;
    for (const part of document.querySelectorAll("figure, .plot, svg, table, h1, h2, h3, h4")) {
        const box = part.getBoundingClientRect();
        if (box.width < 50 || box.height < 10)
            wrong.push(`${part.tagName} of ${box.width} x ${box.height}`);
        if (part.tagName == "FIGURE" && box.right > room + 1)
            wrong.push(`a figure ends at ${box.right}`);
    }
    for (const part of document.querySelectorAll("svg text, figcaption, td, th, .badge")) {
        const style = getComputedStyle(part);
        const ink = part.tagName == "text" ? style.fill : style.color;
        if (contrast(ink, paper) < 4.5)
            wrong.push(`${part.tagName} in ${ink} on ${paper}: ${part.textContent.slice(0, 40)}`);
    }
    for (const bar of document.querySelectorAll("svg polygon, svg path[fill^=var]"))
        if (contrast(getComputedStyle(bar).fill, paper) < 1.4)
            wrong.push(`a bar in ${getComputedStyle(bar).fill} on ${paper}`);
    return wrong.slice(0, 8);
})()"""

COUNT = """[document.querySelectorAll("figure").length,
            document.querySelectorAll("svg").length,
            getComputedStyle(document.body).backgroundColor]"""


def make_page(entwine, folder):
    """A page with every kind of figure, and a long name."""
    files = []
    for name, options in (
            ("suite", ["names=" + ",".join(f"a-rather-long-workload-{n}" for n in range(18))]),
            ("link", ["link=46", "gpu=1", "ranks=2,4,8", "depths=256,512,1024",
                      "budgets=1,2,4"]),
            ("model", ["simulated=1", "depths=256,512,1024"])):
        files.append(os.path.join(folder, name + ".json"))
        with open(files[-1], "w") as file:
            subprocess.run([sys.executable, f"{HERE}/cli/make_results.py", *options],
                           stdout=file, check=True, timeout=60)
    files.append(os.path.join(folder, "trace.json"))
    subprocess.run([entwine, "trace", "-W", "4", "-m", "512", "-N", "512", "-k", "64", "-n", "2",
                    "-q", "-o", files[-1]], stdout=subprocess.DEVNULL, check=True, timeout=60)
    page = os.path.join(folder, "report.html")
    subprocess.run([entwine, "report", *files, "-o", page], stdout=subprocess.DEVNULL, check=True,
                   timeout=120)
    return page


def make_odd_pages(entwine, folder):
    """One method and nothing to set it beside; one number of ranks where an axis has them."""
    for name in ("required", "scaling-2"):
        subprocess.run([entwine, "report", f"{RESULTS}/{name}.json", "-o", f"{folder}/{name}.html"],
                       stdout=subprocess.DEVNULL, check=True, timeout=120)


def main():
    chromium = headless_browser.find()
    if not chromium:
        print("SKIPPED: there is no Chromium, so nobody has looked at the page\n"
              "  fix: apt-get install chromium (scripts/setup test does it where it may)")
        return 77
    failed, papers = [], set()
    with tempfile.TemporaryDirectory() as folder:
        page = make_page(os.path.abspath(sys.argv[1]), folder)
        make_odd_pages(os.path.abspath(sys.argv[1]), folder)
        shots = sys.argv[2] if len(sys.argv) > 2 else folder
        with headless_browser.Browser(chromium) as browser:
            for view, (width, dark) in VIEWS.items():
                browser.open(page, width, dark)
                figures, pictures, paper = browser.evaluate(COUNT)
                papers.add((dark, paper))
                found = browser.evaluate(LOOK) + browser.complaints()
                if figures < 15 or pictures < 25:
                    found.append(f"{figures} figures and {pictures} pictures")
                failed += [f"{view}: {text}" for text in found]
                browser.screenshot(os.path.join(shots, view + ".png"))
            browser.pdf(os.path.join(shots, "paper.pdf"))
            if os.path.getsize(os.path.join(shots, "paper.pdf")) < 20000:
                failed.append("paper: nothing was printed")
    if len(papers) != 2:
        failed.append(f"light and dark do not differ: {papers}")
    print("\n".join(failed) or f"{figures} figures and {pictures} pictures, seen {len(VIEWS)} ways")
    return 1 if failed else 0


sys.exit(main())
