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

function curves(parent, group, { panels, caption, ...rest }) {
    const drawn = panels.slice(0, 12);
    const missing = drawn.length < panels.length ? ` Only the first ${drawn.length} of ` +
        `${panels.length} panels are drawn; the table of the results has all values.` : "";
    const draw = (panel) => (pen, width) => drawCurves(pen, width, { ...panel,
        series: panel.series().filter((one) => one.points.length) });
    if (panels.length)
        figure(parent, group, { marked: true, wide: panels.length === 1, ...rest,
            caption: caption + missing, panels: drawn.map((panel) => ({ title: panel.title, draw: draw(panel) })) });
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
