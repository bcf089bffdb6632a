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
