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
