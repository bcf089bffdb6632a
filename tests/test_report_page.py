#!/usr/bin/env python3
"""Opens pages of `entwine report` in headless Chromium: on a screen in light and dark, on a
phone, on paper and without scripts; points at them, walks them by keyboard, clicks them.

    test_report_page.py ENTWINE [FOLDER]    pictures of the page go to FOLDER, if given

Exit status 77: there is no Chromium here.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import headless_browser

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = os.path.join(os.path.dirname(HERE), "bench/results")
VIEWS = {"light": (1300, False), "dark": (1300, True), "phone": (390, False),
         "phone-dark": (390, True)}
TITLES = ["Speedup over sequential", "Where the time goes", "Overlap efficiency",
          "Speedup against the depth K", "Speedup against the number of waves", "Budget sweep",
          "Required and achieved bandwidth", "Scaling with the number of ranks",
          "trace.json: one call in interleaved order, M=512, N=512, K=64 per rank, W=4, fp32"]

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
    const paper = getComputedStyle(document.body).backgroundColor;
    for (const part of document.querySelectorAll("figure, .plot, .plot > svg, table, h1, h2, h3, h4")) {
        const box = part.getBoundingClientRect();
        if (box.width < 50 || box.height < 10)
            wrong.push(`${part.tagName} of ${box.width} x ${box.height}: ${part.textContent.slice(0, 40)}`);
        if (box.right > room + 1 && !part.closest(".scroll"))
            wrong.push(`a ${part.tagName} ends at ${box.right}`);
    }
    for (const part of document.querySelectorAll(".plot text, figcaption, td, th, .badge, button, li")) {
        const style = getComputedStyle(part);
        const ink = part.tagName == "text" ? style.fill : style.color;
        if (contrast(ink, paper) < 4.5)
            wrong.push(`${part.tagName} in ${ink} on ${paper}: ${part.textContent.slice(0, 40)}`);
    }
    for (const bar of document.querySelectorAll(".bar, .mark"))
        if (contrast(getComputedStyle(bar).fill, paper) < 1.4)
            wrong.push(`a bar in ${getComputedStyle(bar).fill} on ${paper}`);
    for (const svg of document.querySelectorAll(".plot > svg")) {
        const inside = svg.getBoundingClientRect();
        const boxes = [...svg.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
        boxes.forEach(([text, a], at) => {
            if (a.left < inside.left - 2 || a.right > inside.right + 2)
                wrong.push(`cut off: ${text.textContent} in ${svg.getAttribute("aria-label")}`);
            for (const [other, b] of boxes.slice(at + 1))
                if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
                    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 5)
                    wrong.push(`${text.textContent} and ${other.textContent} collide in ${svg.getAttribute("aria-label")}`);
        });
    }
    return wrong.slice(0, 8);
})()"""

COUNT = """[document.querySelectorAll("figure").length,
            document.querySelectorAll(".plot > svg").length,
            getComputedStyle(document.body).backgroundColor]"""
OPEN_TABLES = """(() => { for (const one of document.querySelectorAll("details")) one.open = true; })()"""
WIDE_TABLES = """[...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth)
    .map((box) => `a table is ${box.scrollWidth} wide in ${box.clientWidth}`).slice(0, 3)"""
# The middle of the first mark, bar or button that the expression names, scrolled into view.
MIDDLE = """(() => {
    const part = %s;
    part.scrollIntoView({ block: "center" });
    const box = part.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
})()"""
TIP = """document.getElementById("tip").hidden ? "" : document.getElementById("tip").innerText"""


def made(folder, name, *options):
    path = os.path.join(folder, name)
    with open(path, "w") as file:
        subprocess.run([sys.executable, f"{HERE}/cli/make_results.py", *options], stdout=file,
                       check=True, timeout=60)
    return path


def report(entwine, folder, name, *files):
    path = os.path.join(folder, name)
    subprocess.run([entwine, "report", *files, "-o", path], stdout=subprocess.DEVNULL, check=True,
                   timeout=120)
    return path


def trace(entwine, folder, name, *options):
    path = os.path.join(folder, name)
    subprocess.run([entwine, "trace", *options, "-n", "2", "-q", "-o", path],
                   stdout=subprocess.DEVNULL, check=True, timeout=60)
    return path


def every_figure(entwine, folder):
    """A page with every kind of figure, and long names."""
    return report(
        entwine, folder, "all.html",
        made(folder, "suite.json", "names=" + ",".join(f"a-rather-long-workload-{n}" for n in range(18))),
        made(folder, "link.json", "link=46", "gpu=1", "ranks=2,4,8", "depths=256,512,1024,1536,2048",
             "budgets=1,2,4"),
        made(folder, "model.json", "simulated=1", "depths=256,512,1024"),
        trace(entwine, folder, "trace.json", "-W", "4", "-m", "512", "-N", "512", "-k", "64"))


def look_every_way(browser, page, shots):
    failed, papers = [], set()
    for view, (width, dark) in VIEWS.items():
        browser.open(page, width, dark)
        browser.evaluate(OPEN_TABLES)
        browser.settle()
        figures, pictures, paper = browser.evaluate(COUNT)
        papers.add((dark, paper))
        found = browser.evaluate(LOOK) + browser.complaints()
        if width == 1300:
            found += browser.evaluate(WIDE_TABLES)
        if figures < 15 or pictures < 25:
            found.append(f"{figures} figures and {pictures} pictures")
        failed += [f"{view}: {text}" for text in found]
        browser.screenshot(os.path.join(shots, view + ".png"))
    if len(papers) != 2:
        failed.append(f"light and dark do not differ: {papers}")
    titles = browser.evaluate("[...document.querySelectorAll('h4')].map((one) => one.textContent)")
    failed += [f"no figure '{title}'" for title in TITLES if title not in titles]
    bare = browser.evaluate("""[...document.querySelectorAll("figure")].filter((one) =>
        !/EMULATED link: 46|SIMULATED on test-8/.test(one.textContent) || (/46 Gb/.test(one.textContent) &&
        !/VIRTUAL NODE: ranks share GPUs, 64 SMs each at W=2/.test(one.textContent))).length""")
    plain = browser.evaluate("""[...document.querySelectorAll("h3")].filter((one) =>
        /suite.json|Timelines/.test(one.textContent)).length""")
    if bare != 7 or plain != 2:  # the six of the suite, and the timeline
        failed.append(f"{bare} figures without a badge")
    links = browser.evaluate("[...document.querySelectorAll('nav a')].map((one) => "
                             "document.getElementById(one.hash.slice(1)) != null)")
    if len(links) < figures or not all(links):
        failed.append(f"{len(links)} links in the contents")
    return failed


def touch(browser, page):
    """Pointer, keyboard and legend."""
    failed = []
    browser.open(page, 1300, False)
    chart = "document.querySelector('#figure-2 svg[role=img]')"
    browser.point(*browser.evaluate(MIDDLE % f"{chart}.querySelector('.bar')"))
    tip = browser.evaluate(TIP)
    if not all(text in tip for text in ("a-rather-long-workload-0", "time (µs)", "716.8", "1.429",
                                        "7 samples", "backend=cpu")):
        failed.append(f"a pointer shows {tip!r}")
    browser.point(5, 5)
    if browser.evaluate(TIP):
        failed.append("the tip stays when the pointer has left")
    browser.evaluate(f"{chart}.focus()")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        browser.press(key)
        seen.append(browser.evaluate(TIP).split("\n")[0])
    browser.press("Escape")
    if len(set(seen)) != 2 or seen[0] != seen[2] or not all(seen) or browser.evaluate(TIP):
        failed.append(f"the arrow keys show {seen}")
    count = "document.querySelectorAll('#figure-2 .bar').length"
    button = "[...document.querySelectorAll('#figure-2 button')].find((one) => one.textContent == 'blas')"
    before = browser.evaluate(count)
    browser.point(*browser.evaluate(MIDDLE % button), click=True)
    off, pressed = browser.evaluate(count), browser.evaluate(f"{button}.getAttribute('aria-pressed')")
    other = browser.evaluate("[...document.querySelectorAll('#figure-3 button')].find((one) => "
                             "one.textContent == 'blas').getAttribute('aria-pressed')")
    browser.point(*browser.evaluate(MIDDLE % button), click=True)
    after = browser.evaluate(count)
    if not (before == after and off == before * 2 // 3 and pressed == other == "false"):
        failed.append(f"bars {before}, {off}, {after}; pressed {pressed}, {other}")
    return failed + browser.complaints()


def print_and_do_without(browser, page, shots):
    failed = []
    browser.open(page, 1300, True)
    browser.pdf(os.path.join(shots, "paper.pdf"))
    with open(os.path.join(shots, "paper.pdf"), "rb") as file:
        paper = file.read()
    pages = len(re.findall(rb"/Type ?/Page\b", paper))
    if len(paper) < 40000 or pages < 5 or not browser.evaluate(
            "[...document.querySelectorAll('details')].every((one) => one.open && one.querySelector('td'))"):
        failed.append(f"paper: {pages} pages in {len(paper)} bytes")
    browser.open(page, 1300, False, scripts=False)
    # Runtime.evaluate is off with the page's scripts, so the picture must do.
    browser.screenshot(os.path.join(shots, "noscript.png"))
    text = " ".join(node.get("name", {}).get("value", "") for node in
                    browser.call("Accessibility.getFullAXTree")["nodes"])
    if "Scripts are off" not in text or "716.8" not in text or "overlap efficiency" not in text or \
            "Entwine: results" not in text or "fp32, gemm-rs" not in text:
        failed.append("without scripts: no table")
    return failed


def hostile(entwine, browser, folder):
    """Texts of a file are never markup, in any place that shows them."""
    evil = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
    page = report(entwine, folder, "evil.html", made(
        folder, "evil<img src=x>.json", f"names={evil}\u2028,b", f"methods=entwine,sequential,{evil}",
        f"cpu={evil}", f"commit={evil}"))
    browser.open(page, 1300, False)
    browser.evaluate(OPEN_TABLES)
    browser.settle()
    failed = browser.complaints()
    bad = browser.evaluate("[window.pwned, document.querySelectorAll('img').length, "
                           "document.querySelectorAll('script').length]")
    if bad != [None, 0, 2] or evil not in browser.evaluate("document.body.textContent"):
        failed.append(f"a file's text is markup: {bad}")
    browser.evaluate("""document.body.append(Object.assign(document.createElement("script"),
                        { textContent: "window.pwned = 1" }))""")
    if browser.evaluate("window.pwned"):
        failed.append("the policy lets another script run")
    return failed


def odd_values(entwine, browser, folder):
    """What the tool lets through without looking at it must not stop the script."""
    with open(made(folder, "good.json", "names=a,b")) as file:
        good = file.read()
    files = []
    for at, change in enumerate((
            {"figure": {"name": 1, "columns": [2], "derived": [3, {"x": []}, None]}},
            {"figure": {"name": "f", "columns": ["a"], "derived": [{"series": "p", "x": 1, "a": 1e300},
                                                                  {"series": "p", "x": 2, "a": None}]}},
            {"figure": 7, "clocks": "x"}, {"clocks": {"before": 5, "after": None}})):
        document = {**json.loads(good), **change}
        document["context"].update(argv=at, env=[1], micro_kernels="k", memory_bytes="m")
        document["results"][0]["config"] = 5
        document["results"][1]["tail_us"] = None
        document["results"][2]["speedup"] = -1
        files.append(os.path.join(folder, f"odd-{at}.json"))
        with open(files[-1], "w") as file:
            json.dump(document, file)
    browser.open(report(entwine, folder, "odd.html", *files), 1300, False)
    browser.evaluate(OPEN_TABLES)
    browser.settle()
    figures, pictures, _ = browser.evaluate(COUNT)
    return browser.complaints() + ([] if figures > 11 else [f"odd values: {figures} figures"])


def odd_drawings(entwine, browser, folder):
    """Values below zero, all alike or far apart, and more or longer names than there is room for, are
    drawn inside their charts; what is not known is not shown as a word of the script."""
    files = [made(folder, "methods.json", "names=a,b", "budgets=" + ",".join(map(str, range(1, 70)))),
             made(folder, "names.json", f"names={'x' * 300},{'W' * 90}{'i' * 90}"),
             made(folder, "apart.json", "names=" + ",".join("abcdefgh")), made(folder, "sms.json", "gpu=1"),
             made(folder, "numbers.json"), made(folder, "texts.json"), made(folder, "bare.json")]
    documents = []
    for name in files:
        with open(name) as file:
            documents.append(json.load(file))
    for at, result in enumerate(documents[2]["results"]):
        for key in ("time_us", "gemm_us", "tail_us"):
            result[key] *= 10.0 ** (at // 3)
        result["breq_gbs"] /= 10.0 ** (at // 3)
    for result in documents[3]["results"]:
        del result["params"]["sms_per_rank"]
    for at, places in ((4, (1, 2, 3)), (5, ("here", "there"))):
        documents[at]["figure"] = {"name": "f", "axis": "x", "columns": ["below", "zero"], "derived": [
            {"series": "p", "x": x, "ranks": 2, "below": -0.5 * number, "zero": 0}
            for number, x in enumerate(places, 1)]}
    documents[6]["context"] = {key: documents[6]["context"][key] for key in ("time", "commit", "cpu")}
    for name, document in zip(files, documents):
        with open(name, "w") as file:
            json.dump(document, file)
    page, failed = report(entwine, folder, "drawings.html", *files), []
    for width in (1300, 390):
        browser.open(page, width, False)
        browser.evaluate(OPEN_TABLES)
        browser.settle()
        failed += browser.evaluate(LOOK) + browser.complaints() + browser.evaluate("""(() => {
            const wrong = document.getElementById("main").textContent.match(/.{0,30}(undefined|null SMs|NaN).{0,30}/g) ?? [];
            for (const mark of document.querySelectorAll(".plot > svg .mark, .plot > svg .bar")) {
                const [a, b] = [mark, mark.closest("svg")].map((one) => one.getBoundingClientRect());
                if (!(a.left > b.left - 2 && a.right < b.right + 2 && a.top > b.top - 2 && a.bottom < b.bottom + 2))
                    wrong.push(`outside of ${mark.closest("svg").getAttribute("aria-label")}`);
            }
            return wrong.slice(0, 8);
        })()""")
    return failed


def story(entwine, browser, folder):
    """The page opens with the link's cost where both orders of one problem were traced, and only
    there: a trace of another problem, of another link or of a simulation is no part of it."""
    bench = os.path.join(folder, "bench.json")
    shape = ["-W", "2", "-m", "512", "-N", "512", "-k", "128"]
    link, other_order = ["--link", "2"], ["--config", "order=contiguous"]
    subprocess.run([entwine, "bench", *shape, *link, "-n", "3", "--method", "entwine,sequential", "-q", "-J",
                    bench], stdout=subprocess.DEVNULL, check=True, timeout=60)
    after = trace(entwine, folder, "interleaved.json", *shape, *link)
    before = trace(entwine, folder, "contiguous.json", *shape, *link, *other_order)
    others = [trace(entwine, folder, f"other-{at}.json", *shape, *options, *other_order) for at, options in
              enumerate((["-m", "256", *link], ["-N", "256", *link], ["-k", "64", *link], ["-W", "3", *link],
                         ["-d", "bf16", *link], ["--op", "gemm-ar", *link], ["--link", "3"], [],
                         ["--profile", "cpu", *link]))]
    failed = []
    for width, files, is_told in ((390, (*others, bench, before, after), True),
                                  (1300, (*others, bench, after), False)):
        browser.open(report(entwine, folder, "story.html", *files), width, False)
        failed += browser.evaluate(LOOK) + browser.complaints()
        first = browser.evaluate("[...document.querySelectorAll('#story h3, #story h4')].map((one) => "
                                 "one.textContent)")
        if first != (["What the link cost, before and after", "Time of one call", "Before: contiguous order",
                      "After: interleaved order"] if is_told else []):
            failed.append(f"it opens with {first}")
        rest = browser.evaluate("[...document.querySelectorAll('main h4')].map((one) => "
                                "one.textContent.split(':')[0]).filter((one) => /leaved|contig/.test(one))")
        if rest != ([] if is_told else ["interleaved.json"]):
            failed.append(f"the story leaves {rest}")
    subprocess.run([entwine, "demo", "-m", "512", "-N", "512", "-k", "256", "-n", "2"], cwd=folder,
                   stdout=subprocess.DEVNULL, check=True, timeout=60)
    browser.open(os.path.join(folder, "entwine-demo.html"), 1300, False)
    if browser.evaluate("document.querySelectorAll('#story figure').length") != 3:
        failed.append("a demo's page has no story")
    return failed


def owners_of_blocks(entwine, browser, folder):
    """A legend names a rank only where a block is of one rank."""
    shape = ["-W", "2", "-m", "300", "-N", "256", "-k", "64"]
    cases = {"own": (shape, ["block for rank 0", "block for rank 1"]),
             "rows": (["--op", "ag-gemm", *shape], ["block of rank 0's rows", "block of rank 1's rows"]),
             "all": (["--op", "gemm-ar", *shape], ["block"]),
             "several": (["--profile", "h200-8", *shape], ["block"]),
             "several-rows": (["--op", "ag-gemm", "--profile", "h200-8", *shape], ["block"])}
    failed = []
    for name, (options, expected) in cases.items():
        page = report(entwine, folder, f"{name}.html", trace(entwine, folder, f"{name}.json", *options))
        browser.open(page, 1300, False)
        found = browser.evaluate("[...document.querySelectorAll('.legend span')].map((one) => "
                                 "one.textContent.trim()).filter((one) => one.startsWith('block'))")
        if found != expected:
            failed.append(f"{name}: the legend says {found}")
        browser.evaluate("document.querySelector('svg[role=img]').focus()")
        tips = set()
        for _ in range(8):
            browser.press("ArrowRight")
            tips.add(browser.evaluate(TIP).split("\n")[0])
        blocks = tips - {"a reduction", "a copied result"}
        if not blocks or not blocks <= {f"a {one}" for one in expected}:
            failed.append(f"{name}: the tips say {tips}")
        failed += browser.complaints()
    return failed


def timelines(entwine, browser, folder):
    """Each says what it lacks, and what its own operation does."""
    files = [trace(entwine, folder, f"{m}.json", "--profile", "cpu", "-W", "2", "-m", m, "-N", "16K",
                   "-k", "64") for m in ("16K", "32K")]
    files.append(trace(entwine, folder, "wide.json", "--profile", "h200-8", "-m", "1K"))
    files.append(trace(entwine, folder, "gather.json", "--op", "ag-gemm", "-m", "256"))
    files.append(trace(entwine, folder, "all.json", "--op", "gemm-ar", "-m", "256", "--config", "shots=2"))
    browser.open(report(entwine, folder, "timelines.html", *files), 1300, False)
    failed = browser.evaluate(LOOK) + browser.complaints()
    seen = browser.evaluate("[...document.querySelectorAll('figure')].map((one) => one.textContent)")
    wanted = (["Only the first of 2 ranks is shown. Config"],
              ["Only the first of 2 ranks is shown. Of rank 0 only the first 20000 of 32768 blocks and"],
              ["Of rank 0 only 32 of ", "exposed tail (shaded)", "block for rank 1", "K=512 per rank"],
              ["one call of ag-gemm", "N=1024 per rank, K=512", "block of rank 1's rows"],
              ["one call of gemm-ar", "reduction or copied result (lower row)"])
    for texts, figure in zip(wanted, seen, strict=True):
        failed += [f"no '{text}' in {figure[:200]}" for text in texts if text not in figure]
    if "lower row" in seen[3] or "shaded" in seen[3]:
        failed.append("a timeline of ag-gemm has reductions")
    for at, dst, wanted in ((3, 1, "a block of rank 1's rows"), (4, 0, "a block"), (4, -1, "a reduction"),
                            (4, -2, "a copied result")):
        place = (f"document.querySelectorAll('figure')[{at}].querySelectorAll('.bar')"
                 f"[data.sources[{at}].trace.slices.findIndex((one) => one[4] === {dst})]")
        browser.point(*browser.evaluate(MIDDLE % place))
        if browser.evaluate(TIP).split("\n")[0] != wanted:
            failed.append(f"pointing at {wanted} shows {browser.evaluate(TIP)!r}")
    return failed


def titles(entwine, browser, folder):
    """A page is titled after what it holds."""
    ops = {"gemm-rs": "GEMM + ReduceScatter", "gemm-ar": "GEMM + AllReduce", "ag-gemm": "AllGather + GEMM"}
    files = {op: made(folder, op + ".json", f"op={op}") for op in ops}
    simulated = made(folder, "simulated.json", "op=gemm-ar", "simulated=1")
    old, empty = os.path.join(folder, "old.json"), os.path.join(folder, "empty.json")
    with open(files["gemm-rs"]) as file:
        document = json.load(file)
    for result in document["results"]:
        del result["params"]["op"]
    for path, results in ((old, document["results"]), (empty, [])):
        with open(path, "w") as file:
            json.dump({**document, "results": results}, file)
    traced = trace(entwine, folder, "traced.json", "--profile", "cpu", "--op", "ag-gemm", "-m", "256")
    cases = [*(((files[op],), f"{name}, measured") for op, name in ops.items()),
             ((simulated,), "GEMM + AllReduce, simulated"),
             ((files["ag-gemm"], simulated, files["gemm-rs"]),
              "GEMM + ReduceScatter, GEMM + AllReduce and AllGather + GEMM, measured and simulated"),
             ((traced,), "AllGather + GEMM, simulated"), ((old,), "GEMM + ReduceScatter, measured"),
             ((empty,), "No results")]
    failed = []
    for inputs, wanted in cases:
        browser.open(report(entwine, folder, "titled.html", *inputs), 1300, False)
        seen = browser.evaluate("[document.title, document.querySelector('h1').textContent]")
        if seen != [f"Entwine: {wanted}", wanted]:
            failed.append(f"a page of {wanted} is titled {seen}")
        failed += browser.complaints()
    return failed


def scaled_link(entwine, browser, folder):
    """A curve over W of links that are scaled as 1/W: it names the link and the SMs of each."""
    files = [made(folder, f"scaled-{ranks}.json", f"ranks={ranks}", f"link={368 // ranks}", "gpu=1")
             for ranks in (2, 4)]
    browser.open(report(entwine, folder, "scaled.html", *files), 1300, False)
    seen = browser.evaluate("""[...document.querySelectorAll("figure")].filter((one) =>
        /Scaling/.test(one.textContent)).map((one) => one.querySelector(".badges").textContent)""")
    wanted = ("184 GB/s", "92 GB/s", "64 SMs each at W=2", "32 SMs each at W=4")
    if len(seen) != 1 or not all(text in seen[0] for text in wanted):
        return [f"badges of a scaled link: {seen}"]
    return browser.complaints()


def many_panels(entwine, browser, folder):
    """A figure that lacks panels says so."""
    names = ",".join(f"shape-{number}" for number in range(13))
    path = made(folder, "many.json", f"names={names}", "depths=256,512,1024")
    browser.open(report(entwine, folder, "many.html", path), 1300, False)
    if not browser.evaluate("/Only the first 12 of 13 panels are drawn/.test(document.body.textContent)"):
        return ["a figure that lacks panels does not say so"]
    return browser.complaints()


def committed(entwine, browser, folder):
    """Pages of what is in the repository: nothing collides, nothing is cut off."""
    evaluation = [f"{RESULTS}/eval-nvidia-h200/{name}" for name in
                  sorted(os.listdir(f"{RESULTS}/eval-nvidia-h200"))]
    failed = []
    for name, files in (("evaluation", evaluation), ("required", [f"{RESULTS}/eval-nvidia-h200/required.json"]),
                        ("runs", [f"{RESULTS}/gpu-nvidia-h200.json", f"{RESULTS}/mpi-neoverse-v1-2c.json"])):
        page = report(entwine, folder, name + ".html", *files)
        for width in (1300, 390):
            browser.open(page, width, False)
            failed += [f"{name}, {width}: {text}" for text in browser.evaluate(LOOK) + browser.complaints()]
    if not browser.evaluate("/EMULATED network: 2 hosts, 4 Gb.s/.test(document.body.textContent)"):
        failed.append("emulated hosts have no badge")
    browser.open(report(entwine, folder, "link.html", f"{RESULTS}/eval-nvidia-h200/link.json"), 1300, False)
    parts = browser.evaluate("[...document.querySelectorAll('#contents li > a:first-child')].map((one) => one.textContent)")
    if len(parts) != 15 or len(set(parts)) != len(parts):
        failed.append(f"parts of runs over 15 links are called {parts[:3]}")
    if not browser.evaluate("/first 24 of its 36 series/.test(document.querySelector('figure').textContent)"):
        failed.append("a figure that lacks series does not say so")
    browser.open(os.path.join(folder, "required.html"), 1300, False)
    if browser.evaluate("/all, W=/.test(document.querySelector('figure .legend').textContent)"):
        failed.append("the legend has series of which nothing is drawn")
    badges = browser.evaluate("document.querySelector('figure .badges').textContent")
    if "46 GB/s" not in badges or "92 GB/s" not in badges:
        failed.append(f"a figure over links of 46 and 92 GB/s says {badges}")
    return failed


def main():
    chromium = headless_browser.find()
    if not chromium:
        print("SKIPPED: there is no Chromium, so nobody has looked at the page\n"
              "  fix: apt-get install chromium (scripts/setup test does it where it may)")
        return 77
    entwine, failed = os.path.abspath(sys.argv[1]), []
    with tempfile.TemporaryDirectory() as folder:
        shots = sys.argv[2] if len(sys.argv) > 2 else folder
        page = every_figure(entwine, folder)
        with headless_browser.Browser(chromium) as browser:
            failed += look_every_way(browser, page, shots)
            failed += touch(browser, page)
            failed += print_and_do_without(browser, page, shots)
            failed += hostile(entwine, browser, folder)
            failed += odd_values(entwine, browser, folder)
            failed += odd_drawings(entwine, browser, folder)
            failed += story(entwine, browser, folder)
            failed += owners_of_blocks(entwine, browser, folder)
            failed += timelines(entwine, browser, folder)
            failed += titles(entwine, browser, folder)
            failed += scaled_link(entwine, browser, folder)
            failed += many_panels(entwine, browser, folder)
            failed += committed(entwine, browser, folder)
    print("\n".join(failed) or f"seen {len(VIEWS)} ways, touched, printed, and read without scripts")
    return 1 if failed else 0


sys.exit(main())
