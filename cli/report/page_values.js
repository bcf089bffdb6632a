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
