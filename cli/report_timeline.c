/* The tiles of one traced call, drawn directly: a lane for each worker with its blocks,
 * coloured by the rank that they are for, and below them its reductions; the tail of each
 * rank is shaded. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_page.h"

enum {
    MOST_RANKS = 256,
    MOST_LANES = 32,
    WIDTH = 1000,
    LEFT = 118, /* names of lanes */
    RIGHT = 12,
    BLOCK_HEIGHT = 24,
    REDUCE_HEIGHT = 9,
    LANE_HEIGHT = BLOCK_HEIGHT + REDUCE_HEIGHT + 11,
    AXIS_HEIGHT = 34
};

typedef struct timeline {
    const json_t *events;
    int num_ranks;
    int workers[MOST_RANKS];     /* of each rank */
    int first_lane[MOST_RANKS];  /* of each rank that is shown */
    double gemm_end[MOST_RANKS]; /* us */
    double end[MOST_RANKS];
    double duration; /* us */
    int shown_ranks, num_lanes;
} timeline;

typedef struct slice {
    int rank, worker, dst;
    bool is_block;
    double begin, end; /* us */
} slice;

/* Events were checked when the file was read. */
static bool read_slice(const json_t *event, slice *s)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    const char *category = json_string_value(json_object_get(event, "cat"));
    if (strcmp(phase, "X") != 0)
        return false;
    s->rank = (int)json_number_value(json_object_get(event, "pid")) - 1;
    s->worker = (int)json_number_value(json_object_get(event, "tid")) - 1;
    s->dst = (int)json_number_value(json_object_get(json_object_get(event, "args"), "dst"));
    s->begin = json_number_value(json_object_get(event, "ts"));
    s->end = s->begin + json_number_value(json_object_get(event, "dur"));
    s->is_block = strcmp(category, "block") == 0;
    return s->is_block || strcmp(category, "reduce") == 0;
}

/* Whole ranks, as many as there is room for, and always the first. */
static void survey(timeline *t)
{
    const json_t *event;
    size_t at;
    slice s;
    json_array_foreach(t->events, at, event)
    {
        if (!read_slice(event, &s))
            continue;
        if (s.worker >= t->workers[s.rank])
            t->workers[s.rank] = s.worker + 1;
        t->end[s.rank] = fmax(t->end[s.rank], s.end);
        if (s.is_block)
            t->gemm_end[s.rank] = fmax(t->gemm_end[s.rank], s.end);
        t->duration = fmax(t->duration, s.end);
    }
    for (int rank = 0; rank < t->num_ranks; rank++) {
        if (rank > 0 && t->num_lanes + t->workers[rank] > MOST_LANES)
            break;
        t->first_lane[rank] = t->num_lanes;
        t->num_lanes += t->workers[rank];
        t->shown_ranks++;
    }
    if (t->num_lanes > MOST_LANES)
        t->num_lanes = MOST_LANES;
}

static double place(const timeline *t, double us)
{
    return LEFT + us / t->duration * (WIDTH - LEFT - RIGHT);
}

/* ---- Drawing ---- */

static void draw_tails(FILE *out, const timeline *t)
{
    for (int rank = 0; rank < t->shown_ranks; rank++) {
        const double from = place(t, t->gemm_end[rank]), to = place(t, t->end[rank]);
        int lanes = t->workers[rank];
        if (t->first_lane[rank] + lanes > t->num_lanes)
            lanes = t->num_lanes - t->first_lane[rank];
        if (to > from && lanes > 0)
            fprintf(out,
                    "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" "
                    "fill=\"var(--tail)\" fill-opacity=\".28\"><title>tail of rank %d: "
                    "%.1f us</title></rect>\n",
                    from, t->first_lane[rank] * LANE_HEIGHT, to - from,
                    lanes * LANE_HEIGHT - 5, rank, t->end[rank] - t->gemm_end[rank]);
    }
}

/* One path for all slices of a colour: a file of many tiles stays small. */
static void draw_slices(FILE *out, const timeline *t, bool blocks, int dst)
{
    const json_t *event;
    size_t at;
    slice s;
    bool any = false;
    json_array_foreach(t->events, at, event)
    {
        if (!read_slice(event, &s) || s.is_block != blocks || (blocks && s.dst != dst) ||
            s.rank >= t->shown_ranks || t->first_lane[s.rank] + s.worker >= t->num_lanes)
            continue;
        const int lane = t->first_lane[s.rank] + s.worker;
        const double from = place(t, s.begin);
        /* A seam between neighbours, and nothing too thin to be seen. */
        const double width =
            fmax(blocks ? 0.4 : 1.2, place(t, s.end) - from - (blocks ? 0.8 : 0.0));
        if (!any && blocks)
            fprintf(out, "<path fill=\"var(--s%d)\" d=\"",
                    1 + dst % (REPORT_NUM_COLOURS - 1));
        else if (!any)
            fputs("<path fill=\"var(--reduce)\" d=\"", out);
        any = true;
        fprintf(out, "M%.1f %dh%.1fv%dh-%.1fz", from,
                lane * LANE_HEIGHT + (blocks ? 0 : BLOCK_HEIGHT + 2), width,
                blocks ? BLOCK_HEIGHT : REDUCE_HEIGHT, width);
    }
    if (!any)
        return;
    if (blocks)
        fprintf(out, "\"><title>blocks for rank %d</title></path>\n", dst);
    else
        fputs("\"><title>reductions</title></path>\n", out);
}

static void draw_names(FILE *out, const timeline *t)
{
    for (int rank = 0; rank < t->shown_ranks; rank++)
        for (int worker = 0; worker < t->workers[rank]; worker++) {
            const int lane = t->first_lane[rank] + worker;
            if (lane >= t->num_lanes)
                break;
            fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank %d", LEFT - 10,
                    lane * LANE_HEIGHT + BLOCK_HEIGHT - 7, rank);
            if (t->workers[rank] > 1)
                fprintf(out, ", worker %d", worker);
            fputs("</text>\n", out);
        }
}

/* About ten ticks at 1, 2 or 5 times a power of ten. */
static void draw_axis(FILE *out, const timeline *t)
{
    const int bottom = t->num_lanes * LANE_HEIGHT;
    const bool in_ms = t->duration >= 10000.0;
    const double power = pow(10.0, floor(log10(t->duration / 8.0)));
    const double rough = t->duration / 8.0 / power;
    const double step = power * (rough < 1.5   ? 1.0
                                 : rough < 3.5 ? 2.0
                                 : rough < 7.5 ? 5.0
                                               : 10.0);
    for (int at = 0; at * step <= t->duration; at++) {
        const double x = place(t, at * step);
        fprintf(out,
                "<path stroke=\"var(--grid)\" d=\"M%.1f 0V%d\"/><text x=\"%.1f\" y=\"%d\" "
                "text-anchor=\"middle\">%g%s</text>\n",
                x, bottom, x, bottom + 18, at * step * (in_ms ? 1e-3 : 1.0),
                at > 0  ? ""
                : in_ms ? " ms"
                        : " us");
    }
}

static void draw(FILE *out, const timeline *t)
{
    fprintf(out,
            "<div class=\"plot\" tabindex=\"0\"><svg xmlns=\"http://www.w3.org/2000/svg\" "
            "viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Timeline of the tiles\" "
            "font-size=\"13\" fill=\"var(--ink)\">\n",
            WIDTH, t->num_lanes * LANE_HEIGHT + AXIS_HEIGHT);
    draw_axis(out, t);
    draw_tails(out, t);
    for (int dst = 0; dst < t->num_ranks; dst++)
        draw_slices(out, t, true, dst);
    draw_slices(out, t, false, 0);
    draw_names(out, t);
    fputs("</svg></div>\n", out);
}

/* ---- Words and numbers ---- */

static void write_legend(report_page *page, const timeline *t)
{
    fputs("<ul class=\"legend\">", page->out);
    for (int dst = 0; dst < t->num_ranks && dst < REPORT_NUM_COLOURS - 1; dst++) {
        char colour[16], text[32];
        snprintf(colour, sizeof colour, "s%d", 1 + dst);
        snprintf(text, sizeof text, "block for rank %d", dst);
        report_legend(page, colour, NULL, text);
    }
    report_legend(page, "reduce", NULL, "reduction (lower row)");
    report_legend(page, "tail", NULL, "exposed tail (shaded)");
    fputs("</ul>\n", page->out);
}

static void write_numbers(FILE *out, const json_t *numbers)
{
    static const struct {
        const char *key, *label;
        int digits;
    } shown[] = {
        {"time_us", "time of the call (us)", 1},
        {"overlap_efficiency", "overlap efficiency", 3},
        {"tail_us", "tail (us)", 1},
        {"gemm_us", "GEMM window (us)", 1},
        {"gemm_alone_us", "GEMM alone (us)", 1},
        {"gemm_slowdown", "GEMM slowdown", 3},
        {"breq_gbs", "required (GB/s per rank)", 3},
        {"achieved_gbs", "achieved (GB/s per rank)", 3},
    };
    static const char *const heads[] = {"<number", "value", NULL};
    report_table_begin(out, heads);
    for (size_t at = 0; at < sizeof shown / sizeof shown[0]; at++) {
        report_table_row(out, shown[at].label);
        report_cell(out, report_number(numbers, shown[at].key), shown[at].digits);
        report_row_end(out);
    }
    report_table_end(out);
}

static void write_badges(FILE *out, const json_t *params)
{
    const char *link = json_string_value(json_object_get(params, "link"));
    fputs("<p class=\"badges\">", out);
    if (link && strcmp(link, "none") != 0)
        report_badge(out, "emulated", link);
    if (json_is_true(json_object_get(params, "virtual_node")))
        report_badge(out, "virtual", "VIRTUAL NODE: ranks share GPUs");
    if (json_is_true(json_object_get(params, "simulated")))
        report_badge(out, "simulated", "SIMULATED, not measured");
    fputs("</p>\n", out);
}

static void write_title(FILE *out, const report_source *source, const json_t *params,
                        const char *config)
{
    const char *dtype = json_string_value(json_object_get(params, "dtype"));
    const char *order = report_config_value(config, "order");
    report_printf(out, "%s: one call", source->title);
    if (order)
        report_printf(out, " in %.*s order", (int)strcspn(order, ","), order);
    report_printf(out, ", M=%.0f, N=%.0f, K=%.0f per rank, W=%.0f, %s",
                  report_number(params, "m"), report_number(params, "n"),
                  report_number(params, "k"), report_number(params, "ranks"),
                  dtype ? dtype : "");
}

static void write_caption(FILE *out, const timeline *t, const char *config)
{
    fputs("<figcaption>Every block that a worker computes, in the colour of the rank that "
          "owns its tiles, and below it the reductions of its own tiles. Reductions beside "
          "blocks are hidden; what comes after a rank&#39;s last block is its tail.",
          out);
    if (t->shown_ranks < t->num_ranks)
        fprintf(out, " The first %d of %d ranks are shown.", t->shown_ranks, t->num_ranks);
    fputs(" <code>", out);
    report_text(out, config);
    fputs("</code></figcaption>\n", out);
}

void report_timeline(report_page *page, const report_source *source)
{
    FILE *out = page->out;
    const json_t *about = json_object_get(source->trace, "otherData");
    const json_t *params = json_object_get(about, "params");
    const char *config = json_string_value(json_object_get(about, "config"));
    timeline *t = calloc(1, sizeof *t);
    if (!t) {
        page->failed = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for a trace");
        return;
    }
    config = config ? config : "";
    t->events = json_object_get(source->trace, "traceEvents");
    t->num_ranks = (int)report_number(params, "ranks");
    survey(t);
    fprintf(out, "<figure id=\"figure-%d\"><h4>", ++page->num_figures);
    write_title(out, source, params, config);
    fputs("</h4>\n", out);
    write_badges(out, params);
    write_legend(page, t);
    if (t->duration > 0)
        draw(out, t);
    write_caption(out, t, config);
    write_numbers(out, json_object_get(about, "numbers"));
    fputs("<p class=\"again\">Recorded by ", out);
    report_commands(out, source);
    fputs("</p>\n</figure>\n", out);
    free(t);
}
