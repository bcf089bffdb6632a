/* From inputs to the page's data.  All that is derived is derived before or here, so that
 * the script draws numbers and makes none.  Rows are arrays and texts that many rows share
 * are given once: a page of many files stays small. */
#include "report/report_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/context.h"
#include "output/derived.h"

enum {
    MOST_SAMPLES = 25,
    MOST_SLICES = 20000, /* of a trace */
    MOST_WORLDS = 32,
    MOST_METHODS = 64
};

static void append_number(json_t *array, double value)
{
    json_array_append_new(array, cli_number_json(value));
}

static json_t *copy_or_null(const json_t *value)
{
    return value ? json_deep_copy(value) : json_null();
}

/* The place of a text in the list of texts; `known` finds it. */
static int place_of(json_t *known, json_t *list, const char *text)
{
    const json_t *place = json_object_get(known, text);
    if (place)
        return (int)json_integer_value(place);
    const int next = (int)json_array_size(list);
    json_array_append_new(list, json_string(text));
    json_object_set_new(known, text, json_integer(next));
    return next;
}

/* ---- Means ---- */

typedef bool selects(const report_problem *problem, const void *which);

/* Geomeans of each method's speedup and efficiency over the problems selected. */
static json_t *means_json(const cli_report *report, selects *is_selected, const void *which)
{
    static const report_value kinds[] = {REPORT_SPEEDUP, REPORT_EFFICIENCY};
    json_t *means = json_object();
    double *seen = calloc((size_t)report->num_problems + 1, sizeof *seen);
    for (int first = 0; seen && first < report->num_problems; first++) {
        const report_problem *problem = &report->problems[first];
        for (int row = 0; row < problem->num_rows && is_selected(problem, which); row++) {
            const char *method = problem->rows[row].measured->method;
            if (problem->rows[row].error || json_object_get(means, method) ||
                json_object_size(means) == MOST_METHODS)
                continue;
            json_t *pair = json_array();
            for (int kind = 0; kind < 2; kind++) {
                int count = 0;
                for (int at = first; at < report->num_problems; at++) {
                    const report_row *found =
                        is_selected(&report->problems[at], which)
                            ? report_find_row(&report->problems[at], method)
                            : NULL;
                    if (found && found->values[kinds[kind]] > 0)
                        seen[count++] = found->values[kinds[kind]];
                }
                append_number(pair, cli_geomean(seen, count));
            }
            json_object_set_new(means, method, pair);
        }
    }
    free(seen);
    return means;
}

/* ---- Groups: problems of one input in one setting ---- */

static json_t *samples_json(const cli_measured *measured)
{
    json_t *samples = json_array();
    const int count = measured->num_samples;
    const int kept = count < MOST_SAMPLES ? count : MOST_SAMPLES;
    for (int at = 0; at < kept; at++)
        append_number(samples, cli_quantile(measured->samples_us, count,
                                            kept > 1 ? (double)at / (kept - 1) : 0.5));
    return samples;
}

/* [method, config, error, samples, how many there were, values ...] */
static json_t *row_json(const report_row *row, json_t *known, json_t *texts)
{
    json_t *json =
        json_pack("[i, i, s?, o, i]", place_of(known, texts, row->measured->method),
                  place_of(known, texts, row->config), row->error,
                  samples_json(row->measured), row->measured->num_samples);
    for (int at = 0; at < REPORT_NUM_VALUES; at++)
        append_number(json, row->error ? NAN : row->values[at]);
    return json;
}

static json_t *problem_json(const report_problem *problem, json_t *known, json_t *texts)
{
    const cli_measured *shape = problem->shape;
    json_t *rows = json_array();
    for (int at = 0; at < problem->num_rows; at++)
        json_array_append_new(rows, row_json(&problem->rows[at], known, texts));
    return json_pack(
        "{s:s?, s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:o, s:o, s:o, s:s?, s:i, s:o}", "name",
        json_string_value(json_object_get(problem->params, "name")), "op", shape->op, "m",
        shape->m, "n", shape->n, "k", shape->k, "w", shape->ranks, "dtype", shape->dtype,
        "weight", shape->weight, "sms",
        cli_number_json(report_number(problem->params, "sms_per_rank")), "waves",
        cli_number_json(problem->waves), "gain", cli_number_json(problem->gain), "lead",
        problem->lead, "run", problem->source->run, "rows", rows);
}

static bool is_of_group(const report_problem *problem, const void *group)
{
    return problem->group == *(const int *)group;
}

static int source_at(const cli_report *report, const report_source *source)
{
    int at = 0;
    while (report->sources[at] != source)
        at++;
    return at;
}

static json_t *group_json(const cli_report *report, int group, json_t *known, json_t *texts)
{
    json_t *problems = json_array(), *sources = json_array();
    const report_problem *first = NULL;
    const report_source *before = NULL;
    double worst_cv = 0.0;
    for (int at = 0; at < report->num_problems; at++) {
        const report_problem *problem = &report->problems[at];
        if (problem->group != group)
            continue;
        first = first ? first : problem;
        if (problem->source != before)
            json_array_append_new(sources,
                                  json_integer(source_at(report, problem->source)));
        before = problem->source;
        json_array_append_new(problems, problem_json(problem, known, texts));
        for (int row = 0; row < problem->num_rows; row++)
            worst_cv = fmax(worst_cv, problem->rows[row].values[REPORT_CV]);
    }
    return json_pack("{s:s, s:f, s:b, s:b, s:s, s:o, s:s?, s:f, s:o, s:o, s:o}", "link",
                     first->shape->link, "link_gbs", first->link_gbs, "virtual",
                     (int)report_is_true(first, "virtual_node"), "simulated",
                     (int)report_is_true(first, "simulated"), "profile",
                     report_string(first->params, "profile", ""), "network",
                     copy_or_null(first->source->network), "baseline", first->baseline,
                     "cv", worst_cv, "sources", sources, "problems", problems, "means",
                     means_json(report, is_of_group, &group));
}

/* ---- Scaling: the same workloads on different numbers of ranks ---- */

typedef bool relation(const report_problem *a, const report_problem *b);

typedef struct worlds {
    const cli_report *report;
    const report_problem *first;
    relation *related;
    json_int_t ranks[MOST_WORLDS]; /* rising */
    int count, now;                /* the one that is averaged */
} worlds;

static bool is_same_kind(const report_problem *a, const report_problem *b)
{
    return report_same_section(a->source, b->source) &&
           report_is_true(a, "simulated") == report_is_true(b, "simulated") &&
           a->baseline && b->baseline && strcmp(a->baseline, b->baseline) == 0 &&
           !a->source->network && !b->source->network;
}

static bool is_same_link(const report_problem *a, const report_problem *b)
{
    return is_same_kind(a, b) && strcmp(a->shape->link, b->shape->link) == 0;
}

/* A link scaled like the slice of the GPU that a rank has: the node keeps its ratio. */
static bool is_same_node_link(const report_problem *a, const report_problem *b)
{
    const double node_a = a->link_gbs * (double)a->shape->ranks;
    const double node_b = b->link_gbs * (double)b->shape->ranks;
    return is_same_kind(a, b) && node_a > 0 && fabs(node_a - node_b) < 0.01 * node_a;
}

static bool is_same_workload(const report_problem *a, const report_problem *b)
{
    return strcmp(a->shape->op, b->shape->op) == 0 && a->shape->m == b->shape->m &&
           a->shape->n == b->shape->n && a->shape->k == b->shape->k &&
           strcmp(a->shape->dtype, b->shape->dtype) == 0 &&
           strcmp(a->shape->weight, b->shape->weight) == 0;
}

/* Whether a problem has the present number of ranks and was measured at all others too. */
static bool is_in_world(const report_problem *problem, const void *which)
{
    const worlds *w = which;
    if (problem->shape->ranks != w->ranks[w->now] || !w->related(w->first, problem))
        return false;
    for (int world = 0; world < w->count; world++) {
        int at = 0;
        while (at < w->report->num_problems &&
               !(w->report->problems[at].shape->ranks == w->ranks[world] &&
                 is_same_workload(problem, &w->report->problems[at]) &&
                 w->related(w->first, &w->report->problems[at])))
            at++;
        if (at == w->report->num_problems)
            return false;
    }
    return true;
}

static void add_world(worlds *w, json_int_t ranks)
{
    int to = 0;
    while (to < w->count && w->ranks[to] < ranks)
        to++;
    if (w->count == MOST_WORLDS || (to < w->count && w->ranks[to] == ranks))
        return;
    memmove(&w->ranks[to + 1], &w->ranks[to], (size_t)(w->count - to) * sizeof *w->ranks);
    w->ranks[to] = ranks;
    w->count++;
}

static void append_scaling(json_t *list, worlds *w)
{
    json_t *points = json_array();
    int num_workloads = 0;
    for (int at = 0; at < w->report->num_problems; at++)
        num_workloads += is_in_world(&w->report->problems[at], w);
    for (; w->now < w->count && num_workloads > 0; w->now++)
        json_array_append_new(points, json_pack("[I, o]", w->ranks[w->now],
                                                means_json(w->report, is_in_world, w)));
    if (num_workloads == 0)
        json_decref(points);
    else
        json_array_append_new(list, json_pack("{s:i, s:i, s:i, s:o}", "source",
                                              source_at(w->report, w->first->source),
                                              "group", w->first->group, "workloads",
                                              num_workloads, "points", points));
}

static json_t *scaling_json(const cli_report *report)
{
    static relation *const relations[] = {is_same_link, is_same_node_link};
    json_t *list = json_array();
    for (int which = 0; which < 2; which++)
        for (int first = 0; first < report->num_problems; first++) {
            worlds w = {report, &report->problems[first], relations[which], {0}, 0, 0};
            bool is_first = true;
            for (int at = 0; at < report->num_problems; at++)
                if (w.related(w.first, &report->problems[at])) {
                    is_first &= at >= first;
                    add_world(&w, report->problems[at].shape->ranks);
                }
            if (is_first && w.count > 1)
                append_scaling(list, &w);
        }
    return list;
}

/* ---- Sources ---- */

/* [rank, worker, begin, duration, destination], which is -1 for a reduction.  Ranks lie one
 * behind the other, so that what is left out of a long trace is of the last of them. */
static json_t *slices_json(const json_t *events)
{
    const json_t *event;
    size_t at;
    json_t *slices = json_array();
    json_array_foreach(events, at, event)
    {
        const bool is_block = strcmp(report_string(event, "cat", ""), "block") == 0;
        const double dst = report_number(json_object_get(event, "args"), "dst");
        if (strcmp(report_string(event, "ph", ""), "X") == 0 &&
            json_array_size(slices) < MOST_SLICES)
            json_array_append_new(
                slices,
                json_pack("[i, i, f, f, i]", (int)report_number(event, "pid") - 1,
                          (int)report_number(event, "tid") - 1, report_number(event, "ts"),
                          report_number(event, "dur"), is_block ? (int)dst : -1));
    }
    return slices;
}

static json_t *trace_json(const json_t *trace)
{
    const json_t *about = json_object_get(trace, "otherData");
    return json_pack("{s:o, s:s, s:o, s:o}", "params",
                     copy_or_null(json_object_get(about, "params")), "config",
                     report_string(about, "config", ""), "numbers",
                     copy_or_null(json_object_get(about, "numbers")), "slices",
                     slices_json(json_object_get(trace, "traceEvents")));
}

static json_t *source_json(const cli_report *report, const report_source *source)
{
    const json_t *document = source->results.document;
    int section = 0;
    while (!report_same_section(report->sources[section], source))
        section++;
    return json_pack("{s:o, s:i, s:i, s:s, s:o, s:i, s:b, s:o, s:o, s:o, s:o}", "name",
                     cli_text_json(source->name), "run", source->run, "section", section,
                     "machine", source->machine, "context", copy_or_null(source->context),
                     "results", source->results.num_results, "complete",
                     source->trace || source->results.complete, "clocks",
                     copy_or_null(json_object_get(document, "clocks")), "targets",
                     copy_or_null(json_object_get(source->collection, "figures")), "figure",
                     copy_or_null(json_object_get(document, "figure")), "trace",
                     source->trace ? trace_json(source->trace) : json_null());
}

json_t *report_model(const cli_report *report)
{
    json_t *known = json_object(), *texts = json_array();
    json_t *sources = json_array(), *groups = json_array();
    for (int at = 0; at < report->num_sources; at++)
        json_array_append_new(sources, source_json(report, report->sources[at]));
    for (int at = 0; at < report->num_groups; at++)
        json_array_append_new(groups, group_json(report, at, known, texts));
    json_decref(known);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "version", ew_version(), "commit",
                     cli_commit(), "texts", texts, "sources", sources, "groups", groups,
                     "scaling", scaling_json(report));
}
