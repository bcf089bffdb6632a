// Draws the page from its data.  Numbers are drawn as they come: what is derived, the tool has
// derived.  Every text becomes a text node or an attribute, so none of it is ever markup.
"use strict";
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);

// ---- Elements and texts ----

function make(tag, properties, ...children) {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children.flat().filter((child) => child != null));
    return element;
}

function shape(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes))
        element.setAttribute(name, value);
    element.append(...children);
    return element;
}

const ruler = document.createElement("canvas").getContext("2d");
ruler.font = "12px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
const widthOf = (text) => ruler.measureText(text).width;
const widest = (texts) => Math.max(0, ...texts.map(widthOf));
function cut(text, width) {
    let end = widthOf(text) <= width ? text.length :
        Math.max(1, Math.floor(text.length * width / widthOf(text)));
    while (end > 1 && end < text.length && widthOf(`${text.slice(0, end)}…`) > width)
        end--;
    return end < text.length ? `${text.slice(0, end)}…` : text;
}

const isNumber = (value) => typeof value === "number";
const list = (value) => (Array.isArray(value) ? value : []);
const fixed = (value, digits) => (isNumber(value) ? value.toFixed(digits) : "–");
const short = (value) => (isNumber(value) ? String(Number(value.toPrecision(4))) : "–");
const duration = (us) => us >= 1e6 ? `${short(us / 1e6)} s` :
    us >= 1000 ? `${short(us / 1000)} ms` : `${short(us)} µs`;
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const distinct = (values) => [...new Set(values)];

function groupBy(items, key) {
    const groups = new Map();
    for (const item of items)
        groups.set(key(item), [...(groups.get(key(item)) ?? []), item]);
    return [...groups.values()];
}

// ---- The data as objects ----

const VALUES = ["time", "gemm", "tail", "cv", "speedup", "efficiency", "required", "achieved",
                "relative", "relativeGemm", "low", "high"];
const COLUMNS = ["time (µs)", "GEMM (µs)", "tail (µs)", "cv", "speedup", "overlap efficiency",
                 "required (GB/s)", "achieved (GB/s)", "95 % of speedup"];
const TRAITS = { op: (p) => p.op, m: (p) => `M=${p.m}`, n: (p) => `N=${p.n}`, k: (p) => `K=${p.k}`,
                 w: (p) => `W=${p.w}`, dtype: (p) => p.dtype, weight: (p) => `weight ${p.weight}` };
const tracesOf = (sources) => sources.flatMap(({ trace }) => (trace ? [trace] : []));
const ops = distinct([...data.groups.flatMap((group) => group.problems.map((p) => p.op)),
                      ...tracesOf(data.sources).map((trace) => trace.op)]);
const severalOps = ops.length > 1;
const traits = (problem, keys) => keys.filter((key) => key === "op" ? severalOps :
    key !== "weight" || problem.weight === "kn")
    .map((key) => TRAITS[key](problem)).join(", ");
const interval = ({ low, high }) => isNumber(low) ? `${fixed(low, 3)} to ${fixed(high, 3)}` : "–";
const cells = (row) => [...COLUMNS.slice(0, -1).map((_, at) => fixed(row[VALUES[at]], at < 3 ? 1 : 3)),
                        interval(row)];

// A problem's label says what tells it apart; what all have in common is said once.
function nameProblems(group) {
    const { problems } = group, keys = Object.keys(TRAITS);
    const varies = keys.filter((key) => distinct(problems.map((p) => p[key])).length > 1);
    const sizes = varies.filter((key) => "mnk".includes(key)).length;
    const rest = sizes > 1 ? varies.filter((key) => !"mnk".includes(key)) : varies;
    for (const p of problems) {
        const size = sizes > 1 || !varies.length ? `${p.m}x${p.n}x${p.k}` : "";
        const named = [p.name, varies.includes("w") ? TRAITS.w(p) : ""];
        p.label = (p.name ? named : [size, traits(p, rest)]).filter(Boolean).join(", ");
    }
    for (const same of groupBy(problems, (p) => p.label).filter((set) => set.length > 1))
        same.forEach((p, at) => { p.label += `, no. ${at + 1}`; });
    group.common = traits(problems[0], keys.filter((key) => !varies.includes(key)));
}

const KNOWN = ["sequential", "entwine", "blas", "wavegroup", "chunked", "fused-push", "static"];
const NUM_COLOURS = 12, MOST_LANES = 32;

function readGroup(group) {
    Object.assign(group, { off: new Set(), redraw: [] });
    for (const problem of group.problems)
        problem.rows = problem.rows.map(([method, config, error, samples, count, ...values]) => ({
            problem, method: data.texts[method], config: data.texts[config], error, samples, count,
            ...Object.fromEntries(VALUES.map((name, at) => [name, values[at]])) }));
    nameProblems(group);
    group.rows = group.problems.flatMap((p) => p.rows).filter((row) => row.error == null);
    group.methods = distinct(group.rows.map((row) => row.method));
    const others = group.methods.filter((method) => !KNOWN.includes(method));
    group.colour = (method) => KNOWN.includes(method) ? KNOWN.indexOf(method) :
        2 + (others.indexOf(method) + 5) % (NUM_COLOURS - 2);
}

const baseName = (name) => name.split("/").pop() || name;

function titleOf({ name }) {
    const names = distinct(data.sources.map((source) => source.name));
    const taken = names.filter((other) => baseName(other) === baseName(name));
    return taken.length > 1 ? name : baseName(name);
}

function commandOf({ context }) {
    const quote = (word) => /^[\w=.,/:+@%-]+$/.test(word) ? word :
        `'${String(word).replaceAll("'", "'\\''")}'`;
    return [...Object.entries(context?.env ?? {}).map(([name, value]) => `${name}=${quote(value)}`),
            ...list(context?.argv).map(quote)].join(" ");
}

// ---- What a pointer or the arrow keys show ----

const tip = byId("tip");
let follow; // shows the tip again where its mark is now

function sampleStrip(samples, count) {
    const least = samples[0], most = samples.at(-1);
    const dot = (us) => shape("circle", { cx: 5 + 190 * (us - least) / (most - least || 1), cy: 7,
                                          r: 3, fill: "var(--s1)", "fill-opacity": .5 });
    return [shape("svg", { viewBox: "0 0 200 14" }, ...samples.map(dot)),
            `${plural(count, "sample")}, ${duration(least)} to ${duration(most)}`];
}

function showTip(box, { title, sub, pairs, samples, count, config }) {
    tip.replaceChildren(make("b", {}, title), sub ?? "",
        make("dl", {}, pairs.filter(([, value]) => value !== "–").map(([name, value]) =>
            [make("dt", {}, name), make("dd", {}, value)]).flat()),
        ...(samples?.length > 1 ? sampleStrip(samples, count) : []),
        make("code", {}, (config ?? "").replaceAll(",", ", ")));
    tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const below = box.bottom + 10 + height < innerHeight || box.top < height + 18;
    tip.style.left = `${Math.max(4, Math.min(box.left, innerWidth - width - 8))}px`;
    tip.style.top = `${below ? box.bottom + 10 : box.top - height - 10}px`;
}

const tipOf = (row) => ({ ...row, title: row.method, sub: row.problem.label,
                          pairs: cells(row).map((text, at) => [COLUMNS[at], text]) });

// ---- Charts ----

const MARKS = [(r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
               (r) => `M${-r} ${-r}h${2 * r}v${2 * r}h${-2 * r}z`,
               (r) => `M0 ${-1.3 * r}L${1.2 * r} ${r}H${-1.2 * r}z`,
               (r) => `M0 ${-1.4 * r}L${1.4 * r} 0L0 ${1.4 * r}L${-1.4 * r} 0z`,
               (r) => `M0 ${1.3 * r}L${1.2 * r} ${-r}H${-1.2 * r}z`,
               (r) => `M${-1.3 * r} ${-.4 * r}h${2.6 * r}v${.8 * r}h${-2.6 * r}z`,
               (r) => `M${-.4 * r} ${-1.3 * r}h${.8 * r}v${2.6 * r}h${-.8 * r}z`];
const markOf = (colour, r) => MARKS[isNumber(colour) ? colour % MARKS.length : 0](r);
const paintOf = (colour) => (isNumber(colour) ? `var(--s${colour})` : `var(--${colour})`);

// What a chart is drawn with, and the places that show something when they are pointed at.
class Pen {
    nodes = [];
    targets = [];
    add(tag, attributes, ...children) { this.nodes.push(shape(tag, attributes, ...children)); }
    text(x, y, text, anchor = "start", name = "muted") {
        this.add("text", { x, y, "text-anchor": anchor, class: name }, text);
    }
    line(name, x1, y1, x2, y2) { this.add("path", { class: name, d: `M${x1} ${y1}L${x2} ${y2}` }); }
    box(x, y, width, height, colour, rest) {
        this.add("rect", { x: x.toFixed(1), y, width: Math.max(0, width).toFixed(1), height,
                           fill: paintOf(colour), class: "bar", ...rest });
    }
    mark(x, y, colour, r, about) {
        this.add("path", { d: markOf(colour, r), transform: `translate(${x} ${y})`,
                           fill: paintOf(colour), class: "mark" });
        this.target(x - 5, y - 5, 10, 10, about);
    }
    target(x, y, width, height, about) { this.targets.push({ x, y, width, height, about }); }
}

// Follows the width of its place; returns what draws it again.
function plot(parent, label, draw) {
    const svg = shape("svg", { role: "img", tabindex: 0, "aria-label": label });
    const ring = shape("rect", { class: "ring", rx: 3 });
    const place = parent.appendChild(make("div", { className: "plot" }, svg));
    let targets = [], now = -1, drawn = 0;
    const leave = () => {
        tip.hidden = true;
        ring.remove();
        now = -1;
    };
    const show = (at) => {
        const { x, y, width, height, about } = targets[now = at];
        const from = svg.getBoundingClientRect(), scale = from.width / drawn;
        const frame = { x: x - 2, y: y - 2, width: width + 4, height: height + 4 };
        Object.entries(frame).forEach(([name, value]) => ring.setAttribute(name, value));
        svg.append(ring);
        follow = () => show(at);
        showTip({ left: from.left + x * scale, top: from.top + y * scale,
                  bottom: from.top + (y + height) * scale }, about);
    };
    const point = (event) => {
        const from = svg.getBoundingClientRect(), scale = drawn / from.width;
        const x = (event.clientX - from.left) * scale, y = (event.clientY - from.top) * scale;
        const far = targets.map((t) => Math.hypot(Math.max(t.x - x, 0, x - t.x - t.width),
                                                  Math.max(t.y - y, 0, y - t.y - t.height)));
        const best = far.reduce((least, value, at) => (value < far[least] ? at : least), 0);
        if (!(far[best] < 16))
            leave();
        else if (best !== now)
            show(best);
    };
    const step = (event) => {
        const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (event.key === "Escape")
            leave();
        if (!by || !targets.length)
            return;
        event.preventDefault();
        show((Math.max(now, by < 0 ? 0 : -1) + by + targets.length) % targets.length);
    };
    const paint = () => {
        const pen = new Pen(), width = Math.round(place.clientWidth) || drawn || 600;
        const height = draw(pen, width);
        [drawn, targets] = [width, pen.targets];
        leave();
        svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
        svg.replaceChildren(...pen.nodes);
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("focus", () => targets.length && svg.matches(":focus-visible") && show(0));
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", step);
    new ResizeObserver(() => Math.round(place.clientWidth) !== drawn && paint()).observe(place);
    return paint;
}

// About `count` round values from least to most.
function roundTicks(least, most, count) {
    const rough = (most - least) / count, power = 10 ** Math.floor(Math.log10(rough));
    const by = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * .99);
    const ticks = [];
    for (let at = Math.ceil(least / by); at * by <= most; at++)
        ticks.push(Number((at * by).toPrecision(12)));
    return ticks;
}

function logTicks(least, most) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(least)); 10 ** power <= most; power++)
        ticks.push(...[1, 2, 5].map((factor) => factor * 10 ** power));
    return ticks.filter((tick) => tick >= least && tick <= most);
}

// Rows of bars, a block for each item, or marks on one line where there would be too many bars.
// Names stand at the left, or above where there is no room, so that they never collide.
function drawBars(pen, width, { items, most, unit, rule, stacked, dots }) {
    const above = width < 560, left = above ? 2 : Math.min(.36 * width,
        widest(items.map((item) => item.label)) + 14);
    const numBars = items.flatMap((item) => item.bars).length, right = dots ? 40 : 62;
    const many = numBars > Math.max(24, items.length);
    const thick = many ? 8 : 14, gap = dots ? 6 : many ? 9 : 12, top = 20;
    const high = (item) => Math.max(14, dots ? 14 : item.bars.length * (thick + 2));
    const bottom = items.reduce((y, item) => y + high(item) + gap + (above ? 18 : 0), top);
    const X = (value) => left + (width - left - right) * value / most;
    for (const tick of roundTicks(0, most, Math.max(2, (width - left - right) / 90))) {
        pen.line("grid", X(tick), top - 4, X(tick), bottom);
        pen.text(X(tick), bottom + 16, short(tick), "middle");
    }
    if (rule)
        pen.line("rule", X(rule), top - 4, X(rule), bottom);
    pen.text(left, 10, unit);
    let y = top;
    for (const item of items) {
        y += above ? 18 : 0;
        const middle = y + high(item) / 2, name = item.strong ? "" : "muted";
        if (above)
            pen.text(left, y - 5, cut(item.label, width), "start", name);
        else
            pen.text(left - 10, middle + 4, cut(item.label, left - 10), "end", name);
        if (dots)
            pen.line("axis", left, middle, width - right, middle);
        item.bars.forEach(({ value, lower, colour, shown, about }, at) => {
            const x = X(Math.max(0, value)), from = y + at * (thick + 2), text = shown ?? fixed(value, 2);
            if (dots) {
                pen.mark(x, middle, colour, 4.5, about);
                if (about.title === "entwine")
                    pen.text(width, middle + 4, text, "end", "");
                return;
            }
            pen.box(left, from, x - left, thick, stacked ? "tail" : colour);
            if (stacked)
                pen.box(left, from, X(lower) - left, thick, colour);
            if (!many)
                pen.text(x + 5, from + 11, text, "start", "");
            pen.target(left, from, Math.max(x - left, 3), thick, about);
        });
        y += high(item) + gap;
    }
    return bottom + 22;
}

// A scale from values to places.  It begins at 0, or below where there are such values; `wide`
// leaves a margin at both ends instead.
function scaleOf(values, log, wide, low, high) {
    const least = Math.min(...values), most = Math.max(...values);
    const pad = .05 * (most - least || Math.abs(most));
    const [from, end] = log ? [least / 1.12, most * 1.12] : wide ? [least - pad, most + pad] :
        [least < 0 ? least - pad : 0, Math.max(0, most + pad)];
    const to = end > from ? end : from + 1;
    const part = (value) => log ? Math.log(value / from) / Math.log(to / from) :
        (value - from) / (to - from);
    const scale = (value) => low + (high - low) * part(value);
    scale.ticks = (count) => (log ? logTicks(from, to) : roundTicks(from, to, count));
    return scale;
}

// Points and lines.  A tick whose name would touch the one before it has none.
function drawCurves(pen, width, chart) {
    const { series, xTitle, yTitle, logX, logY, rule, diagonal, tall } = chart;
    const points = series.flatMap((one) => one.points), lines = series.filter((one) => one.joined);
    if (!points.length)
        return 40;
    const direct = width > 520 && lines.length <= 8;
    const right = direct ? 16 + Math.min(130, widest(lines.map((one) => one.name))) : 12;
    const height = Math.round(Math.min(tall ? 400 : 320, Math.max(210, .62 * width)));
    const top = 22, bottom = height - 40, ys = points.map((p) => p.y), xs = points.map((p) => p.x);
    const both = diagonal ? [...xs, ...ys] : [];
    const Y = scaleOf([...ys, ...both, ...(rule ? [rule] : [])], logY, false, bottom, top);
    const left = Math.max(46, 8 + widest(Y.ticks(5).map(short)));
    const X = scaleOf([...xs, ...both], logX, !diagonal, left, width - right);
    let above = Infinity;
    for (const tick of Y.ticks(5)) {
        pen.line("grid", left, Y(tick), width - right, Y(tick));
        if (Y(tick) + 14 > above)
            continue;
        pen.text(left - 6, Y(tick) + 4, short(tick), "end");
        above = Y(tick);
    }
    let free = 0;
    for (const tick of chart.ticks ?? X.ticks(width / 90)) {
        const name = chart.ticks ? String(tick) : short(tick), half = widthOf(name) / 2 + 4;
        pen.line("axis", X(tick), bottom, X(tick), bottom + 4);
        if (X(tick) - half < free || X(tick) + half > width)
            continue;
        pen.text(X(tick), bottom + 17, name, "middle");
        free = X(tick) + half;
    }
    pen.line("axis", left, bottom, width - right, bottom);
    pen.text((left + width - right) / 2, height - 4, xTitle, "middle");
    pen.text(0, 11, yTitle);
    if (rule)
        pen.line("rule", left, Y(rule), width - right, Y(rule));
    if (diagonal)
        pen.line("rule", X(Math.min(...both)), Y(Math.min(...both)), X(Math.max(...both)),
                 Y(Math.max(...both)));
    for (const { colour, dash, points: own } of lines)
        pen.add("path", { fill: "none", stroke: paintOf(colour), "stroke-width": 2,
            "stroke-dasharray": dash ?? "none", d: `M${own.map((p) => `${X(p.x)} ${Y(p.y)}`).join("L")}` });
    for (const { colour, joined, points: own } of series)
        own.forEach((p) => pen.mark(X(p.x), Y(p.y), colour, joined ? 3.5 : 4.5, p.about));
    let lowest = 0;
    const ends = lines.map((one) => ({ ...one.points.at(-1), name: one.name }));
    for (const { x, y, name } of direct ? ends.sort((a, b) => b.y - a.y) : []) {
        lowest = Math.max(lowest + 13, Y(y));
        pen.text(X(x) + 9, lowest + 4, cut(name, right - 10), "start", "");
    }
    return height;
}

// A cell for each M and K: gains in blue, losses in yellow, the stronger the farther from 1.
function drawMap(pen, width, problems) {
    const sorted = (key) => distinct(problems.map((p) => p[key])).sort((a, b) => a - b);
    const rows = sorted("m"), cols = sorted("k");
    const left = 58, top = 34, high = 28, cell = Math.min(90, (width - left) / cols.length);
    const strength = ({ gain }) => Math.abs(Math.log(gain));
    const most = Math.max(...problems.map(strength)) || 1;
    pen.text(0, 12, "M ↓   K →");
    cols.filter((_, at) => at % Math.ceil(38 / cell) === 0).forEach((k) =>
        pen.text(left + (cols.indexOf(k) + .5) * cell, top - 6, String(k), "middle"));
    rows.forEach((m, at) => pen.text(left - 8, top + at * high + 18, String(m), "end"));
    for (const p of problems) {
        const x = left + cols.indexOf(p.k) * cell, y = top + rows.indexOf(p.m) * high;
        pen.box(x, y, cell - 2, high - 2, p.gain >= 1 ? 1 : 5,
                { "fill-opacity": .06 + .5 * strength(p) / most, class: "cell" });
        if (cell > 34)
            pen.text(x + cell / 2 - 1, y + 17, fixed(p.gain, 2), "middle", "");
        pen.target(x, y, cell - 2, high - 2, { title: `${fixed(p.gain, 3)} times as fast`, sub: p.label,
            pairs: p.rows.filter((row) => row.error == null).map((row) => [row.method, duration(row.time)]) });
    }
    return top + rows.length * high + 6;
}

// Whole ranks, as many as there is room for: { rank, workers, numWorkers, ... , first } (lane).
function lanesOf({ lanes }) {
    const placed = [];
    for (const [rank, [numWorkers, numSlices, kept, gemmEnd, end]] of lanes.entries()) {
        const workers = Math.min(MOST_LANES, Math.max(1, numWorkers));
        const first = placed.length ? placed.at(-1).first + placed.at(-1).workers : 0;
        if (first + workers > MOST_LANES)
            break;
        placed.push({ rank, workers, numWorkers, numSlices, kept, gemmEnd, end, first });
    }
    return placed;
}

function drawTimeline(pen, width, trace, longest) {
    const { lanes, slices } = trace, { block } = timelineOf(trace);
    const narrow = width < 560, high = 40;
    const names = lanes.flatMap(({ rank, workers }) => Array.from({ length: workers }, (_, worker) =>
        workers < 2 ? `rank ${rank}` : narrow ? `${rank}.${worker}` : `rank ${rank}, worker ${worker}`));
    const left = widest(names) + 12, bottom = names.length * high;
    const X = (us) => left + (width - left - 8) * us / longest;
    for (const tick of roundTicks(0, longest, Math.max(2, width / 110))) {
        pen.line("grid", X(tick), 0, X(tick), bottom);
        pen.text(Math.min(X(tick), width - 26), bottom + 15, tick ? duration(tick) : "0", "middle");
    }
    for (const { first, workers, gemmEnd, end } of lanes)
        pen.box(X(gemmEnd), first * high, X(end) - X(gemmEnd), workers * high - 6, "tail",
                { "fill-opacity": .2, class: "tail" });
    names.forEach((name, at) => pen.text(left - 8, at * high + 15, name, "end"));
    const firsts = new Map(lanes.map(({ rank, first }) => [rank, first]));
    for (const [rank, worker, begin, length, dst] of slices) {
        const lane = firsts.get(rank) + worker;
        if (!(lane < names.length))
            continue;
        const isBlock = dst >= 0, x = X(begin), y = lane * high + (isBlock ? 0 : 24);
        const wide = Math.max(isBlock ? .5 : 1.2, X(begin + length) - x - (isBlock ? .8 : 0));
        pen.box(x, y, wide, isBlock ? 22 : 9, isBlock ? 1 + dst % (NUM_COLOURS - 1) : "ink");
        pen.target(x, y, wide, isBlock ? 22 : 9, { sub: names[lane],
            title: isBlock ? `a ${block(dst)}` : dst === -1 ? "a reduction" : "a copied result",
            pairs: [["begins at", duration(begin)], ["takes", duration(length)]] });
    }
    return bottom + 22;
}

// ---- Figures ----

const contents = []; // of parts: { title, id, figures: [{ title, id } ...] }
let numFigures = 0;

function badgeTexts({ link, virtual, simulated, profile, network, sources, problems }) {
    const texts = [];
    if (link !== "none" && !simulated)
        texts.push(`EMULATED link: ${link.replace(/^EMULATED /, "")}`);
    if (network)
        texts.push(`EMULATED network: ${network.hosts} hosts, ${network.nic_gbps} Gb/s` +
                   (network.shared ? ", one medium" : " each"));
    if (virtual)
        texts.push(...problems.map((p) => "VIRTUAL NODE: ranks share GPUs" +
            (isNumber(p.sms) ? `, ${p.sms} SMs each at W=${p.w}` : "")));
    if (simulated)
        texts.push(`SIMULATED${profile ? ` on ${profile}` : ""}, not measured`);
    if (list(sources).some((at) => !data.sources[at].complete))
        texts.push("INCOMPLETE: a run ended early");
    return texts;
}

// Of a group, or of the parts that a figure has from several.
function badges(group) {
    const badge = (text) => make("span", { className: "badge" }, text);
    return make("p", { className: "badges" },
                distinct((group.parts ?? [group]).flatMap(badgeTexts)).map(badge));
}

const swatch = (colour, marked) => shape("svg", { viewBox: "-7 -7 14 14", class: "swatch" },
    shape("path", { d: marked ? markOf(colour, 4.5) : "M-5.5-5.5h11v11h-11z", fill: paintOf(colour) }));

// Buttons that switch methods off in every figure of the group.
function legend(group, names, marked, extra) {
    const buttons = names.map((name) =>
        make("button", { type: "button" }, swatch(group.colour(name), marked), name));
    const update = () => buttons.forEach((button, at) =>
        button.setAttribute("aria-pressed", String(!group.off.has(names[at]))));
    buttons.forEach((button, at) => button.addEventListener("click", () => {
        if (!group.off.delete(names[at]))
            group.off.add(names[at]);
        group.redraw.forEach((redraw) => redraw());
    }));
    update();
    group.redraw.push(update);
    return make("div", { className: "legend" }, buttons,
                extra.map(([name, colour]) => make("span", {}, swatch(colour, marked), name)));
}

// Charts side by side, of which each draws itself again when a method is switched off.
function figure(parent, group, { title, caption, names = [], marked, extra = [], panels, wide }) {
    const id = `figure-${++numFigures}`;
    const grid = make("div", { className: `panels ${wide ? "wide" : ""}` });
    contents.at(-1).figures.push({ title, id });
    parent.append(make("figure", { id }, make("h4", {}, title), badges(group),
        legend(group, names, marked, extra), grid, make("figcaption", {}, caption)));
    for (const { title: name, draw } of panels) {
        const head = name ? make("h5", {}, name) : null;
        const place = grid.appendChild(make("div", { className: "plot" }, head));
        group.redraw.push(plot(place, name ? `${title}: ${name}` : title, draw));
    }
}

const shown = (group, names) => names.filter((name) => !group.off.has(name))
    .sort((a, b) => (a === "entwine") - (b === "entwine")); // ours on top

// Bars of what is switched on, to one scale with the rest of `all`; ours are drawn last, on top.
const bars = (group, items, all, options) => (pen, width) => {
    const visible = ({ bars: of }) => of.filter((bar) => !group.off.has(bar.about.title));
    const most = Math.max(0, options.rule ?? 0, ...all.flatMap(visible).map((bar) => bar.value)) || 1;
    const isOurs = (bar) => bar.about.title === "entwine";
    return drawBars(pen, width, { ...options, most: 1.04 * most, items: items.map((item) => ({ ...item,
        bars: options.dots ? visible(item).sort((a, b) => isOurs(a) - isOurs(b)) : visible(item) })) });
};

// A value of every method and workload, with the geomean behind.
function overview(parent, group, { title, caption, value, mean, lower, unit, rule, without }) {
    const names = group.methods.filter((name) => name !== without &&
        group.rows.some((row) => row.method === name && isNumber(row[value])));
    const bar = (row) => ({ value: row[value], lower: row[lower], about: tipOf(row),
                            colour: group.colour(row.method) });
    const meanBar = (name) => ({ value: group.means[name]?.[mean], colour: group.colour(name),
        about: { title: name, sub: "geomean", pairs: [[title, fixed(group.means[name]?.[mean], 3)]] } });
    const items = group.problems.map((p) => ({ label: p.label, bars: p.rows.map(bar)
        .filter((one) => names.includes(one.about.method) && isNumber(one.value)) }));
    const numBars = items.length * names.length, dots = !lower && numBars > 24;
    if (mean != null && items.length > 1)
        items.push({ label: "geomean", strong: true,
                     bars: names.map(meanBar).filter((one) => isNumber(one.value)) });
    const half = Math.ceil(items.length / (numBars > 36 && !dots ? 2 : 1));
    const parts = [items.slice(0, half), items.slice(half)].filter((part) => part.length);
    if (names.length)
        figure(parent, group, { title, names, marked: dots, wide: true,
            extra: lower ? [["exposed tail", "tail"]] : [],
            caption: `${caption} All with ${group.common}.`,
            panels: parts.map((part) => ({
                draw: bars(group, part, items, { unit, rule, stacked: lower, dots }) })) });
}

function curves(parent, group, { panels, ...rest }) {
    const draw = (panel) => (pen, width) => drawCurves(pen, width, { ...panel,
        series: panel.series().filter((one) => one.points.length) });
    if (panels.length)
        figure(parent, group, { marked: true, wide: panels.length === 1, ...rest,
            panels: panels.slice(0, 12).map((panel) => ({ title: panel.title, draw: draw(panel) })) });
}

const isSpread = (values) => Math.min(...values) > 0 && Math.max(...values) > 8 * Math.min(...values);

// A line or cloud for each method that is on.
function methodSeries(group, names, rows, x, y, joined) {
    return () => shown(group, names).map((name) => ({ name, joined, colour: group.colour(name),
        points: rows.filter((row) => row.method === name && isNumber(x(row)) && isNumber(y(row)))
            .map((row) => ({ x: x(row), y: y(row), about: tipOf(row) })) }));
}

function sizeFigures(parent, group, names) {
    const words = { k: "depth K", m: "rows M", n: "columns N" };
    for (const [key, word] of Object.entries(words)) {
        const rest = Object.keys(TRAITS).filter((other) => other !== key);
        const sets = groupBy(group.problems, (p) => rest.map((other) => p[other]).join())
            .map((set) => [...set].sort((a, b) => a[key] - b[key]))
            .filter((set) => distinct(set.map((p) => p[key])).length > 2);
        const panel = (set) => ({ title: traits(set[0], rest), xTitle: key.toUpperCase(),
            yTitle: "speedup", logX: true, rule: 1, ticks: distinct(set.map((p) => p[key])),
            series: methodSeries(group, names, set.flatMap((p) => p.rows), (row) => row.problem[key],
                                 (row) => row.speedup, true) });
        curves(parent, group, { title: `Speedup against the ${word}`, names, panels: sets.map(panel),
            caption: `Speedup over ${group.baseline}; the line at 1 is the baseline.` });
    }
}

function waveFigure(parent, group, names) {
    const waves = group.problems.map((p) => p.waves).filter(isNumber);
    if (waves.length > 2 && Math.max(...waves) > 1.01 * Math.min(...waves))
        curves(parent, group, { title: "Speedup against the number of waves", names,
            caption: "A wave is one block on each SM of a rank, or on each of its workers. Few waves " +
                "leave little computation to hide the communication behind.",
            panels: [{ xTitle: "waves of blocks per rank", yTitle: "speedup", rule: 1,
                       logX: isSpread(waves), series: methodSeries(group, names, group.rows,
                           (row) => row.problem.waves, (row) => row.speedup) }] });
}

function mapFigures(parent, group) {
    const others = ["op", "n", "w", "dtype", "weight"];
    const key = (p, names) => names.map((name) => p[name]).join();
    const count = (set, name) => distinct(set.map((p) => p[name])).length;
    const once = groupBy(group.problems.filter((p) => p.gain > 0), (p) => key(p, ["m", "k", ...others]))
        .map(([p]) => p);
    for (const set of groupBy(once, (p) => key(p, others)))
        if (count(set, "m") > 2 && count(set, "k") > 2)
            figure(parent, group, { title: "Speedup over M and K", wide: true,
                caption: "Time of the fastest other method over the time of entwine, for each shape; the " +
                    `stronger the colour, the farther from 1. All with ${traits(set[0], others)}.`,
                panels: [{ draw: (pen, width) => drawMap(pen, width, set) }] });
}

// Results of one problem whose configs differ in x alone, the most of them that there are.
function budgetFigure(parent, group) {
    const x = (row) => Number(/(?:^|,)x=(\d+)/.exec(row.config)?.[1]);
    const longest = (problem) => {
        const rows = problem.rows.filter((row) => row.error == null && x(row) > 0);
        const sets = groupBy(rows, (row) => row.config.replace(/(^|,)x=\d+/, ""))
            .map((set) => [...new Map(set.map((row) => [x(row), row])).values()]);
        const best = sets.reduce((most, set) => (set.length > most.length ? set : most), []);
        return best.sort((a, b) => x(a) - x(b));
    };
    const line = (rows, name, key, colour, dash) => ({ name, colour, dash, joined: true,
        points: rows.filter((row) => isNumber(row[key]))
            .map((row) => ({ x: x(row), y: row[key] / 1000, about: tipOf(row) })) });
    const panel = (rows) => ({ title: rows[0].problem.label, xTitle: "budget x", yTitle: "ms",
        ticks: rows.map(x), logX: x(rows.at(-1)) > 4 * x(rows[0]),
        series: () => [line(rows, "GEMM window", "gemm", 0, "6 4"), line(rows, "whole call", "time", 1),
                       line(rows, "exposed tail", "tail", "tail", "2 3")] });
    curves(parent, group, { title: "Budget sweep",
        extra: [["whole call", 1], ["GEMM window", 0], ["exposed tail", "tail"]],
        caption: "The same config with another x, how many workers (on a GPU: CTAs) may reduce at once. " +
            "A small one leaves a tail, a large one slows the GEMM.",
        panels: group.problems.map(longest).filter((rows) => rows.length > 1).map(panel) });
}

function bandwidthFigure(parent, group) {
    const rows = group.rows.filter((row) => row.required > 0 && row.achieved > 0);
    const log = isSpread(rows.flatMap((row) => [row.required, row.achieved]));
    const names = distinct(rows.map((row) => row.method));
    if (rows.length)
        curves(parent, group, { title: "Required and achieved bandwidth", names,
            caption: "Required: Eq. 4 at the rate of the call's own GEMM window. Achieved: bytes over the " +
                "time of the call. A point on the diagonal has no tail" +
                (group.link_gbs > 0 ? "; the horizontal line is the emulated link." : "."),
            panels: [{ xTitle: "required to hide all (GB/s per rank)", yTitle: "achieved (GB/s per rank)",
                tall: true, diagonal: true, logX: log, logY: log, rule: group.link_gbs,
                series: methodSeries(group, names, rows, (row) => row.required, (row) => row.achieved) }] });
}

// What --figure derived from all of a source.
function derivedFigure(parent, group, at) {
    const { name, shows = "", axis = "", columns: heads, derived } = data.sources[at].figure;
    const columns = list(heads).map(String), rows = list(derived).map((row) => [`${row?.series}`,
        isNumber(row?.x) ? row.x : `${row?.x}`, row?.ranks, ...columns.map((one) => row?.[one])]);
    const numeric = rows.some((row) => isNumber(row[1]));
    const all = distinct(rows.filter((row) => isNumber(row[1]) === numeric).map((row) => row[0]));
    const names = all.slice(0, 24);
    const view = { ...group, off: new Set(), redraw: [],
                   parts: data.groups.filter(({ sources }) => sources.includes(at)),
                   colour: (one) => 1 + names.indexOf(one) % (NUM_COLOURS - 1) };
    const about = (row) => ({ title: row[0], sub: `${axis} ${numeric ? short(row[1]) : row[1]}`,
                              pairs: columns.map((column, at) => [column, short(row[3 + at])]) });
    const drawn = columns.slice(0, 3).map((title, at) => ({ title, at, seen: rows.filter((row) =>
        isNumber(row[3 + at]) && isNumber(row[1]) === numeric && names.includes(row[0])) }))
        .filter(({ seen }) => distinct(seen.map((row) => row[1])).length > (numeric ? 1 : 0));
    const line = (one, seen, at) => {
        const points = seen.filter((row) => row[0] === one)
            .map((row) => ({ x: row[1], y: row[3 + at], about: about(row) }));
        const joined = points.every((p, next) => !next || p.x > points[next - 1].x);
        return { name: one, colour: view.colour(one), points, joined };
    };
    const linePanel = ({ title, at, seen }) => ({ title, xTitle: axis, yTitle: "",
        logX: isSpread(seen.map((row) => row[1])),
        series: () => shown(view, names).map((one) => line(one, seen, at)) });
    const barPanel = ({ title, at, seen }) => {
        const items = groupBy(seen, (row) => row[1]).map((set) => ({ label: set[0][1],
            bars: set.map((row) => ({ value: row[3 + at], shown: short(row[3 + at]),
                                      colour: view.colour(row[0]), about: about(row) })) }));
        return { title, draw: bars(view, items, items, { unit: "" }) };
    };
    if (!drawn.length)
        return;
    const rest = names.length < all.length ? `. Only the first ${names.length} of its ${all.length} series are ` +
        "drawn; the values below are of all." : "";
    const frame = { title: `Figure: ${name}`, caption: `${shows}${rest}`, names };
    if (numeric)
        curves(parent, view, { ...frame, panels: drawn.map(linePanel) });
    else
        figure(parent, view, { ...frame, panels: drawn.map(barPanel) });
    table(parent, "The values of this figure", ["<series", `<${axis}`, "W", ...columns], () =>
        rows.map(([series, x, ranks, ...values]) => [series, isNumber(x) ? short(x) : x, short(ranks),
                                                     ...values.map((value) => fixed(value, 3))]));
}

function scalingFigure(parent, { groups, workloads, points }) {
    const parts = groups.map((at) => data.groups[at]), group = { ...parts[0], parts };
    const names = Object.keys(points[0][1]);
    const words = ["speedup", "overlap efficiency"];
    const about = (title, ranks, means) => ({ title, sub: `W=${ranks}`,
                                              pairs: words.map((word, one) => [word, fixed(means[one], 3)]) });
    const line = (name, which) => ({ name, joined: true, colour: group.colour(name),
        points: points.filter(([, means]) => isNumber(means[name]?.[which])).map(([ranks, means]) =>
            ({ x: ranks, y: means[name][which], about: about(name, ranks, means[name]) })) });
    curves(parent, group, { title: "Scaling with the number of ranks", names,
        caption: `Geomean over the ${plural(workloads, "workload")} that ran on every number of ranks ` +
            `here; M, N and the depth K of one rank are the same. Speedup over ${group.baseline}.`,
        panels: words.map((title, which) => ({ title, xTitle: "ranks W", yTitle: "", logX: true, rule: 1,
            ticks: points.map(([ranks]) => ranks),
            series: () => shown(group, names).map((name) => line(name, which)) })) });
}

const orderOf = (trace) => /(?:^|,)order=([^,]*)/.exec(trace.config)?.[1];

// What the timeline of an operation shows.  Blocks have the colour of a rank, or all the same.
const TIMELINES = {
    "gemm-rs": { block: (rank) => `block for rank ${rank}`, colour: "the rank that owns its tiles",
        below: ["reduction (lower row)", "ink"], rest: "Below are the reductions of its own tiles. Reductions " +
            "beside blocks are hidden; what comes after a rank's last block is its tail." },
    "gemm-ar": { block: () => "block", // every rank gets all, so blocks are for nobody alone
        below: ["reduction or copied result (lower row)", "ink"], rest: "Below are reductions and results " +
            "copied from other ranks. What lies beside blocks is hidden; what comes after a rank's last " +
            "block is its tail." },
    "ag-gemm": { block: (rank) => `block of rank ${rank}'s rows`, colour: "the rank whose rows it multiplies",
        rest: "Nothing is reduced: a block waits until its rows have come, and what comes before a rank's " +
            "first block is its tail." },
};

// Where tiles have rows of several ranks, blocks are of nobody alone.
function timelineOf({ op, slices }) {
    const timeline = TIMELINES[Object.hasOwn(TIMELINES, op) ? op : "gemm-rs"];
    return slices.some(([, , , , dst]) => dst > 0) ? timeline :
        { ...timeline, block: () => "block", colour: "" };
}

// What a page leaves out of a timeline.
function omitted({ lanes, params }) {
    const number = lanes.length, cut = lanes.filter(({ kept, numSlices }) => kept < numSlices);
    const crowded = lanes.filter(({ workers, numWorkers }) => workers < numWorkers);
    return [number >= params.ranks ? "" : number === 1 ? `Only the first of ${params.ranks} ranks is shown.` :
                `Only the first ${number} of ${params.ranks} ranks are shown.`,
            ...crowded.map(({ rank, workers, numWorkers }) =>
                `Of rank ${rank} only ${workers} of ${numWorkers} workers are shown.`),
            ...cut.map(({ rank, kept, numSlices }) => `Of rank ${rank} only the first ${kept} of ` +
                `${numSlices} blocks and reductions are shown; after them it was not idle.`)];
}

function timeline(parent, source, longest, title) {
    const { trace, trace: { params, config, numbers: n } } = source, order = orderOf(trace);
    const view = { link: String(params.link ?? "none"), simulated: params.simulated === true,
                   profile: params.profile, off: new Set(), redraw: [] };
    const { block, colour, below, rest } = timelineOf(trace);
    const blocks = Array.from({ length: colour ? Math.min(params.ranks, NUM_COLOURS - 1) : 1 },
        (_, rank) => [block(rank), 1 + rank]);
    const meaning = `Every block that a worker computes${colour ? `, in the colour of ${colour}` : ""}. ${rest}`;
    const facts = [`the call ${duration(n?.time_us)}`, `its GEMM window ${duration(n?.gemm_us)}`,
        `exposed tail ${duration(n?.tail_us)}`, `GEMM alone ${duration(n?.gemm_alone_us)}`,
        `overlap efficiency ${fixed(n?.overlap_efficiency, 3)}`,
        `required ${fixed(n?.breq_gbs, 3)} GB/s per rank`, `achieved ${fixed(n?.achieved_gbs, 3)}`];
    const size = trace.op === "ag-gemm" ? `N=${params.n} per rank, K=${params.k}` :
        `N=${params.n}, K=${params.k} per rank`;
    figure(parent, view, { wide: true,
        title: title ?? `${titleOf(source)}: one call${severalOps ? ` of ${trace.op}` : ""}` +
            `${order ? ` in ${order} order` : ""}, M=${params.m}, ${size}, W=${params.ranks}, ${params.dtype}`,
        extra: [...blocks, ...(below ? [below, ["exposed tail (shaded)", "tail"]] : [])],
        panels: [{ draw: (pen, width) => drawTimeline(pen, width, trace, longest) }],
        caption: [`${facts.join(" · ")}.`, title ? "" : meaning, ...omitted(trace),
            `Config: ${config.replaceAll(",", ", ")}.`].filter(Boolean).join(" ") });
}

// ---- Tables, filled when they are opened or printed ----

const tables = [];

function table(parent, title, heads, rows, isOpen) {
    const box = parent.appendChild(make("details", {}, make("summary", {}, title)));
    const cell = (tag) => (text, at) => text instanceof Node ? text : make(tag,
        { className: heads[at][0] === "<" ? "text" : "" }, tag === "th" ? text.replace("<", "") : text);
    const line = (tag) => (row) => make("tr", {}, row.map(cell(tag)));
    const fill = () => box.children.length < 2 && box.append(make("div", { className: "scroll" },
        make("table", {}, make("thead", {}, line("th")(heads)), make("tbody", {}, rows().map(line("td"))))));
    const open = () => {
        fill();
        box.open = true;
    };
    box.addEventListener("toggle", fill);
    tables.push(open);
    if (isOpen)
        open();
}

// A config has a line of its own below its results: it is long, and often the same as before.
function valueTable(parent, group) {
    const rows = group.problems.flatMap((p) => p.rows), wide = (count, name, text) =>
        make("td", { colSpan: count, className: `text ${name}` }, text);
    const values = (row) => row.error == null ? cells(row) :
        [wide(COLUMNS.length, "", `skipped: ${row.error.split("\n")[0]}`)];
    table(parent, `All values: ${plural(rows.length, "result")}`, ["<workload", "<method", ...COLUMNS],
        () => rows.flatMap((row, at) => [[row.problem.label, row.method, ...values(row)],
            ...(row.config && row.config !== rows[at + 1]?.config ?
                [[wide(COLUMNS.length + 2, "config", row.config.replaceAll(",", ", "))]] : [])]));
}

function factTable(parent, { context }) {
    const c = context ?? {}, gpu = (one) => `${one?.name}, ${one?.sms} SMs, at most ${one?.clock_mhz} MHz, ` +
        `driver ${one?.driver || "unknown"}`;
    const rows = [...list(c.gpus).map((one) => ["GPU", gpu(one)]), ["CPU", c.cpu],
        ["cores", c.cores_usable > 0 ? `${c.cores_usable} usable` : null],
        ["memory", c.memory_bytes > 0 ? `${fixed(c.memory_bytes / 2 ** 30, 1)} GiB` : null],
        ["host", c.host], ["system", c.kernel],
        ["kernels", Object.entries(c.micro_kernels ?? {}).map((pair) => pair.join(": ")).join(", ")],
        ["BLAS", c.blas], ["MPS", c.mps]].filter(([, text]) => text);
    if (rows.length)
        table(parent, "The machine", ["<", "<"], () => rows.map(([name, text]) => [name, String(text)]));
}

function fileTables(parent, sources) {
    const clocks = (c) => ["before", "after"].map((when) =>
        ` ${when}: ${list(c[when]).join("; ") || "unknown"}`).join(";");
    const line = (source) => [titleOf(source) + (source.run ? `, run ${source.run}` : ""),
        String(source.context?.time ?? "unknown"), (source.trace ? "a timeline" : plural(source.results, "result")) +
        (source.complete ? "" : ", INCOMPLETE"), make("td", { className: "text" },
            make("code", {}, commandOf(source)), source.clocks ? clocks(source.clocks) : "")];
    const target = (t) => [String(t?.name), String(t?.target), short(t?.measured), make("td",
        { className: t?.verdict === "MISS" ? "text bad" : "text" }, String(t?.verdict))];
    table(parent, `Files and commands that make them again (${sources.length})`,
          ["<file", "<measured at (UTC)", "<holds", "<command"], () => sources.map(line));
    for (const source of sources.filter(({ targets }) => list(targets).length)) {
        heading(parent, `${titleOf(source)}: what it was measured for`);
        table(parent, "Targets", ["<figure", "<target", "measured", "<verdict"],
              () => source.targets.map(target), true);
    }
}

// ---- The page ----

function heading(parent, title) {
    const id = `part-${contents.length + 1}`;
    contents.push({ title, id, figures: [] });
    parent.append(make("h3", { id }, title));
}

function glance(parent, { methods, baseline, means, problems, rows, simulated, cv }) {
    const cards = [], mean = problems.length > 1 ? ", geomean" : "";
    const ours = methods.includes("entwine") ? "entwine" : methods.find((name) => name !== baseline);
    const [speedup, efficiency] = means[ours] ?? [];
    if (baseline && ours !== baseline && isNumber(speedup))
        cards.push([`${fixed(speedup, 2)}×`, `speedup of ${ours} over ${baseline}${mean}`]);
    if (isNumber(efficiency))
        cards.push([fixed(efficiency, 3), `overlap efficiency of ${ours}${mean}`]);
    const stands = (word) => problems.filter(({ lead }) => lead === word).length;
    const judged = problems.filter(({ lead }) => lead).length;
    if (judged)
        cards.push([`${stands("ahead")} of ${judged}`, "ahead of every other method: the 95 % interval " +
                    `is above 1; level with the best on ${stands("level")}, behind on ${stands("behind")}`]);
    cards.push([String(problems.length), `workload${problems.length === 1 ? "" : "s"}, ` +
                plural(rows.length, "result") + (simulated ? "" : ", 0 wrong values")],
               [`${fixed(100 * cv, 1)} %`, `noise: the worst cv of a result${cv > .05 ? ", NOISY" : ""}`]);
    parent.append(make("ul", { className: "numbers" },
                       cards.map(([value, text]) => make("li", {}, make("b", {}, value), text))));
}

function groupPart(parent, group, figures) {
    const names = group.methods.filter((name) => name !== group.baseline);
    const link = group.link.replace(/^EMULATED | per rank and direction/g, "");
    heading(parent, `${titleOf(data.sources[group.sources[0]])}: ${group.simulated ? "in the simulator" :
        group.link !== "none" ? `over an emulated link, ${link}` : group.network ? "between emulated hosts" :
        group.virtual ? "ranks that share a GPU, without a link" : "as the machine is"}`);
    glance(parent, group);
    figures.forEach((one) => derivedFigure(parent, group, one));
    if (group.baseline && names.length)
        overview(parent, group, { title: `Speedup over ${group.baseline}`, unit: "times as fast",
            value: "speedup", mean: 0, rule: 1, without: group.baseline, caption: "Time of the baseline " +
                "over time of the method, same problem, same run; more is better." });
    overview(parent, group, { title: "Where the time goes", unit: "time, baseline = 1",
        value: "relative", lower: "relativeGemm", caption: "A bar is the time of a call over that of the " +
            "baseline. Its first part ends with the GEMM window; the tail after it is communication that " +
            "was not hidden. Times are medians of the slowest rank, the GEMM window in the table is the " +
            "longest of any rank." });
    overview(parent, group, { title: "Overlap efficiency", unit: "GEMM alone / time", value: "efficiency",
        mean: 1, rule: 1, caption: "Time of the method's own GEMM with nothing beside it over the time of " +
            "its call: 1 when all communication is hidden and costs the GEMM nothing." });
    if (group.baseline && names.length) {
        sizeFigures(parent, group, names);
        waveFigure(parent, group, names);
    }
    mapFigures(parent, group);
    budgetFigure(parent, group);
    bandwidthFigure(parent, group);
    valueTable(parent, group);
}

const endOf = ({ trace }) => Math.max(1e-3, ...trace.lanes.map((lane) => lane.end));

function section(which) {
    const sources = data.sources.filter((source) => source.section === which), drawn = new Set();
    const isHere = (at) => data.sources[at].section === which, { machine, version, commit } = sources[0];
    const box = byId("main").appendChild(make("section", {}, make("h2", {}, machine),
        make("p", { className: "small" }, `entwine ${version}, commit ${commit}`)));
    factTable(box, sources[0]);
    fileTables(box, sources);
    for (const group of data.groups.filter((one) => isHere(one.sources[0]))) {
        const figures = group.sources.filter((at) => data.sources[at].figure && !drawn.has(at));
        figures.forEach((one) => drawn.add(one));
        groupPart(box, group, figures);
    }
    const scaling = data.scaling.filter(({ groups, points }) =>
        isHere(data.groups[groups[0]].sources[0]) && Object.keys(points[0][1]).length > 1);
    if (scaling.length)
        heading(box, "Several numbers of ranks");
    scaling.forEach((one) => scalingFigure(box, one));
    const traces = sources.filter((source) => source.trace && !source.told);
    if (traces.length)
        heading(box, "Timelines");
    traces.forEach((source) => timeline(box, source, endOf(source)));
}

// One problem that was measured over an emulated link, and traced in both orders there: { group,
// plain, ours, before, after }.  Only GEMM + ReduceScatter has an order that the link feels.
function findStory() {
    const key = (section, link, p) => JSON.stringify([section, link, p.m, p.n, p.k, p.w, p.dtype, p.weight]);
    const traced = (wanted) => data.sources.filter(({ trace }) => trace && orderOf(trace) === wanted &&
        trace.op === "gemm-rs" && trace.params.simulated !== true).map((source) => [key(source.section,
            source.trace.params.link, { ...source.trace.params, w: source.trace.params.ranks }), source]);
    const [contiguous, interleaved] = [traced("contiguous"), new Map(traced("interleaved"))];
    const linked = data.groups.filter(({ link, simulated, network }) => link.startsWith("EMULATED") &&
        !simulated && !network);
    for (const group of linked)
        for (const problem of group.problems.filter(({ op }) => op === "gemm-rs")) {
            const its = key(data.sources[group.sources[0]].section, group.link, problem);
            const [plain, ours] = ["sequential", "entwine"].map((method) => problem.rows.find((row) =>
                row.method === method && row.error == null && isNumber(row.tail)));
            const before = contiguous.find(([one]) => one === its)?.[1], after = interleaved.get(its);
            if (plain && ours && before && after)
                return { group, plain, ours, before, after };
        }
    return null;
}

// The page opens with what the link cost before and after.
function story() {
    const found = findStory();
    if (!found)
        return;
    const { group, plain, ours, before, after } = found;
    const box = byId("story"), longest = Math.max(endOf(before), endOf(after));
    const lead = (text) => box.append(make("p", { className: "lead" }, text));
    const bar = (label, row) => ({ label, strong: true, bars: [{ value: row.time / 1000,
        lower: (row.time - row.tail) / 1000, shown: duration(row.time), colour: group.colour(row.method),
        about: tipOf(row) }] });
    const items = [bar("before: sequential", plain), bar("after: entwine", ours)];
    heading(box, "What the link cost, before and after");
    lead(`Over an emulated link of ${group.link.replace("EMULATED ", "")}, one call of ${ours.problem.op} took ` +
        `${duration(plain.time)} when the sum waited for the GEMM; for ${duration(plain.tail)} of it only ` +
        "the link was at work. Reduced tile by tile while the GEMM runs, it took " +
        `${duration(ours.time)}, of which ${duration(ours.tail)} were not hidden.`);
    figure(box, group, { title: "Time of one call", wide: true,
        extra: [["GEMM window of sequential", 0], ["of entwine", 1], ["exposed tail", "tail"]],
        caption: "Both methods alternated in one run and computed the same values. All with " +
            `${group.common}.`,
        panels: [{ draw: bars({ off: new Set() }, items, items, { stacked: true, unit: "ms" }) }] });
    lead("Why: the order of the tiles. In the contiguous order a rank's own tiles come in one burst, and " +
        "the link is left with them at the end; in the interleaved order they come at a steady pace, and " +
        "the link works all along. Two traced calls on one time axis:");
    timeline(box, before, longest, "Before: contiguous order");
    timeline(box, after, longest, "After: interleaved order");
    before.told = after.told = true;
}

// "GEMM + ReduceScatter and AllGather + GEMM, measured and simulated"
function whatIsHeld() {
    const known = { "gemm-rs": "GEMM + ReduceScatter", "gemm-ar": "GEMM + AllReduce",
                    "ag-gemm": "AllGather + GEMM" };
    const joined = (words) => words.join(", ").replace(/, ([^,]*)$/, " and $1");
    const simulated = [...data.groups.map((group) => group.simulated),
                       ...tracesOf(data.sources).map(({ params }) => params.simulated === true)];
    const names = Object.keys(known).filter((op) => ops.includes(op)).map((op) => known[op]);
    const origins = ["measured", "simulated"].filter((_, at) => simulated.includes(at === 1));
    return [joined(names) || (origins.length ? "GEMM" : "No results"), joined(origins)]
        .filter(Boolean).join(", ");
}

const link = ({ title, id }) => make("a", { href: `#${id}` }, title);
const entry = (part) => make("li", {}, link(part),
                             part.figures.flatMap((one, at) => [at ? " · " : ": ", link(one)]));
const sections = distinct(data.sources.map((source) => source.section));
const names = distinct(data.sources.map((source) => source.name));
document.querySelector("h1").textContent = whatIsHeld();
document.title = `Entwine: ${whatIsHeld()}`;
byId("made").textContent = `Made from ${plural(names.length, "file")} by entwine ${data.version}, commit ` +
    `${data.commit}. Every measured call was checked: a file with wrong values is refused. Point at a ` +
    "mark, or focus a chart and use the arrow keys, for its numbers; click a method to switch it off.";
if (sections.length > 1)
    byId("made").after(make("p", { className: "note" }, `${sections.length} machines or commits. Each has ` +
        "a section of its own below, and no figure mixes them."));
data.groups.forEach(readGroup);
tracesOf(data.sources).forEach((trace) => { trace.lanes = lanesOf(trace); });
story();
sections.forEach(section);
if (numFigures > 4) {
    byId("contents").hidden = false;
    byId("contents").append(make("h4", {}, "Contents"), make("ol", {}, contents.map(entry)));
}
addEventListener("beforeprint", () => tables.forEach((open) => open()));
addEventListener("scroll", () => tip.hidden || follow(), { passive: true });
