/* From inputs to the page's data.  All that is derived is derived before or here, so that
 * the script draws numbers and makes none.  Rows are arrays and texts that many rows share
 * are given once: a page of many files stays small. */
#include "report/report_inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_file.h"
#include "run/context.h"

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

/* Zeroes; NULL: no memory, which the tool says at its end. */
static void *new_array(int count, size_t bytes)
{
    void *array = calloc((size_t)count + 1, bytes);
    if (!array)
        cli_json_lack();
    return array;
}

/* The place of a text in the list of texts; `known` finds it. */
static int place_of(json_t *known, json_t *list, const char *text)
{
    const int place = report_number_of(known, "%s", text);
    if (place == (int)json_array_size(list))
        json_array_append_new(list, json_string(text));
    return place;
}

/* ---- Means ---- */

/* Geomeans of each method's speedup and efficiency over some problems. */
static json_t *means_json(const report_problem *const *problems, int count)
{
    static const report_value kinds[] = {REPORT_SPEEDUP, REPORT_EFFICIENCY};
    json_t *means = json_object();
    double *seen = new_array(count, sizeof *seen);
    for (int first = 0; seen && first < count; first++) {
        for (int row = 0; row < problems[first]->num_rows; row++) {
            const char *method = problems[first]->rows[row].measured->method;
            if (problems[first]->rows[row].error || json_object_get(means, method) ||
                json_object_size(means) == MOST_METHODS)
                continue;
            json_t *pair = json_array();
            for (int kind = 0; kind < 2; kind++) {
                int num_seen = 0;
                for (int at = first; at < count; at++) {
                    const report_row *found = report_find_row(problems[at], method);
                    if (found && found->values[kinds[kind]] > 0)
                        seen[num_seen++] = found->values[kinds[kind]];
                }
                append_number(pair, cli_geomean(seen, num_seen));
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

static json_t *group_json(const report_problem *const *members, int count, json_t *known,
                          json_t *texts)
{
    json_t *problems = json_array(), *sources = json_array();
    const report_problem *first = members[0];
    const report_source *before = NULL;
    double worst_cv = 0.0;
    for (int at = 0; at < count; at++) {
        const report_problem *problem = members[at];
        if (problem->source != before)
            json_array_append_new(sources, json_integer(problem->source->number));
        before = problem->source;
        json_array_append_new(problems, problem_json(problem, known, texts));
        for (int row = 0; row < problem->num_rows; row++)
            worst_cv = fmax(worst_cv, problem->rows[row].values[REPORT_CV]);
    }
    return json_pack("{s:s, s:f, s:b, s:b, s:s, s:o, s:s?, s:f, s:o, s:o, s:o}", "link",
                     first->shape->link, "link_gbs", first->link_gbs, "virtual",
                     (int)first->is_virtual, "simulated", *first->shape->profile != '\0',
                     "profile", first->shape->profile, "network",
                     copy_or_null(first->source->network), "baseline", first->baseline,
                     "cv", worst_cv, "sources", sources, "problems", problems, "means",
                     means_json(members, count));
}

/* The problems, those of a group one behind the other; ends[group] is behind its last. */
static void sort_into_groups(const cli_report *report, const report_problem **sorted,
                             int *ends)
{
    for (int at = 0; at < report->num_problems; at++)
        ends[report->problems[at].group + 1]++;
    for (int group = 1; group <= report->num_groups; group++)
        ends[group] += ends[group - 1];
    for (int at = 0; at < report->num_problems; at++)
        sorted[ends[report->problems[at].group]++] = &report->problems[at];
}

static json_t *groups_json(const cli_report *report, json_t *known, json_t *texts)
{
    json_t *groups = json_array();
    const report_problem **sorted = new_array(report->num_problems, sizeof *sorted);
    int *ends = new_array(report->num_groups, sizeof *ends);
    if (sorted && ends)
        sort_into_groups(report, sorted, ends);
    for (int group = 0, begin = 0; sorted && ends && group < report->num_groups; group++) {
        json_array_append_new(
            groups, group_json(sorted + begin, ends[group] - begin, known, texts));
        begin = ends[group];
    }
    free(sorted);
    free(ends);
    return groups;
}

/* ---- Scaling: the same workloads on different numbers of ranks ---- */

/* What a problem has in common with others, as numbers. */
typedef struct likeness {
    int kind; /* of machine or profile, and baseline; -1: it is like no other */
    int link, node, workload;
    double node_gbs;
} likeness;

typedef struct worlds {
    const cli_report *report;
    const likeness *like; /* of each problem */
    int first;            /* of the problems that are related */
    bool by_node;
    json_int_t ranks[MOST_WORLDS]; /* rising */
    int count;
} worlds;

/* To the first, by equal links; or by those scaled like the slice of the GPU that a rank
 * has, so that the node keeps its ratio. */
static bool is_related(const worlds *w, int at)
{
    const likeness *a = &w->like[w->first], *b = &w->like[at];
    if (a->kind < 0 || !w->by_node)
        return a->kind >= 0 && a->link == b->link;
    return a->kind == b->kind && a->node_gbs > 0 &&
           fabs(a->node_gbs - b->node_gbs) < 0.01 * a->node_gbs;
}

/* NULL: no memory. */
static likeness *find_likeness(const cli_report *report)
{
    json_t *kinds = json_object(), *links = json_object(), *nodes = json_object();
    json_t *workloads = json_object();
    likeness *like = new_array(report->num_problems, sizeof *like);
    for (int at = 0; like && at < report->num_problems; at++) {
        const report_problem *problem = &report->problems[at];
        const cli_measured *shape = problem->shape;
        likeness *l = &like[at];
        l->kind = -1;
        if (problem->baseline && !problem->source->network)
            l->kind = report_number_of(kinds, "%d %s\n%s", problem->source->section,
                                       problem->baseline, shape->profile);
        l->node_gbs = problem->link_gbs * (double)shape->ranks;
        l->link = report_number_of(links, "%d %s", l->kind, shape->link);
        l->node = report_number_of(nodes, "%d %a", l->kind, l->node_gbs);
        l->workload = report_number_of(workloads,
                                       "%" JSON_INTEGER_FORMAT " %" JSON_INTEGER_FORMAT
                                       " %" JSON_INTEGER_FORMAT " %s %s %s",
                                       shape->m, shape->n, shape->k, shape->dtype,
                                       shape->weight, shape->op);
    }
    json_decref(kinds);
    json_decref(links);
    json_decref(nodes);
    json_decref(workloads);
    return like;
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

/* The related problems with one number of ranks that were measured at all others too:
 * those have all bits in measured[workload]. */
static int select_world(const worlds *w, int world, const uint32_t *measured,
                        const report_problem **selected)
{
    int count = 0;
    for (int at = w->first; at < w->report->num_problems; at++) {
        const report_problem *problem = &w->report->problems[at];
        if (problem->shape->ranks == w->ranks[world] &&
            measured[w->like[at].workload] == UINT32_MAX >> (MOST_WORLDS - w->count) &&
            is_related(w, at))
            selected[count++] = problem;
    }
    return count;
}

static void mark_measured(const worlds *w, uint32_t *measured)
{
    for (int at = w->first; at < w->report->num_problems; at++)
        for (int world = 0; world < w->count; world++)
            if (w->report->problems[at].shape->ranks == w->ranks[world] &&
                is_related(w, at))
                measured[w->like[at].workload] |= UINT32_C(1) << world;
}

/* NULL: no memory. */
static json_t *points_json(const worlds *w, const uint32_t *measured, json_t *groups,
                           int *num_workloads_out)
{
    const report_problem **selected = new_array(w->report->num_problems, sizeof *selected);
    json_t *points = selected ? json_array() : NULL, *named = json_object();
    for (int world = 0; points && world < w->count; world++) {
        const int count = select_world(w, world, measured, selected);
        *num_workloads_out = world ? *num_workloads_out : count;
        json_array_append_new(
            points, json_pack("[I, o]", w->ranks[world], means_json(selected, count)));
        for (int at = 0; at < count; at++)
            if (report_number_of(named, "%d", selected[at]->group) ==
                (int)json_array_size(groups))
                json_array_append_new(groups, json_integer(selected[at]->group));
    }
    free(selected);
    json_decref(named);
    return points;
}

/* With every group that has a part in it: the page says of each what it is. */
static void append_scaling(json_t *list, const worlds *w)
{
    uint32_t *measured = new_array(w->report->num_problems, sizeof *measured);
    json_t *groups = json_array(), *points = NULL;
    int num_workloads = 0;
    if (measured) {
        mark_measured(w, measured);
        points = points_json(w, measured, groups, &num_workloads);
    }
    if (num_workloads > 0)
        json_array_append_new(list,
                              json_pack("{s:O, s:i, s:O}", "groups", groups, "workloads",
                                        num_workloads, "points", points));
    json_decref(points);
    json_decref(groups);
    free(measured);
}

/* Adds the scaling that starts with a problem, unless an earlier one is related to it. */
static void add_scaling(json_t *list, worlds *w)
{
    for (int at = 0; at < w->report->num_problems; at++)
        if (is_related(w, at)) {
            if (at < w->first)
                return;
            add_world(w, w->report->problems[at].shape->ranks);
        }
    if (w->count > 1)
        append_scaling(list, w);
}

static json_t *scaling_json(const cli_report *report)
{
    json_t *list = json_array();
    likeness *like = find_likeness(report);
    for (int by_node = 0; like && by_node < 2; by_node++) {
        int known = 0;
        /* Of problems of equal links, or of equal nodes, only the first can start one. */
        for (int at = 0; at < report->num_problems; at++)
            if ((by_node ? like[at].node : like[at].link) == known) {
                known++;
                add_scaling(list, &(worlds){report, like, at, by_node, {0}, 0});
            }
    }
    free(like);
    return list;
}

/* ---- Sources ---- */

/* What a rank did in a traced call.  It is taken from all of its slices: a tail is where it
 * is, however many of them the page has. */
typedef struct lane {
    int workers, num_slices;
    int kept, taken; /* how many slices the page is to have, and has so far */
    double gemm_end_us, end_us;
} lane;

static bool is(const json_t *event, const char *key, const char *text)
{
    return strcmp(report_string(event, key, ""), text) == 0;
}

static void measure_lanes(const json_t *events, lane *lanes)
{
    const json_t *event;
    size_t at;
    json_array_foreach(events, at, event)
    {
        if (!is(event, "ph", "X"))
            continue;
        lane *own = &lanes[(int)report_number(event, "pid") - 1];
        const int workers = (int)report_number(event, "tid");
        const double end_us = report_number(event, "ts") + report_number(event, "dur");
        own->workers = workers > own->workers ? workers : own->workers;
        own->end_us = fmax(own->end_us, end_us);
        if (is(event, "cat", "block"))
            own->gemm_end_us = fmax(own->gemm_end_us, end_us);
        own->num_slices++;
    }
}

/* Whole ranks, since half of one looks as if it had idled.  A first one that is too much
 * alone is better than none: the page says what it lacks.  Returns how many are shown. */
static int choose_ranks(lane *lanes, int num_ranks)
{
    int room = MOST_SLICES, rank = 0;
    for (; rank < num_ranks && lanes[rank].num_slices <= room; rank++) {
        lanes[rank].kept = lanes[rank].num_slices;
        room -= lanes[rank].kept;
    }
    if (rank < num_ranks && room == MOST_SLICES)
        lanes[rank++].kept = MOST_SLICES;
    return rank;
}

/* [workers, slices, how many of them the page has, end of the GEMM, end] */
static json_t *lanes_json(const lane *lanes, int num_shown)
{
    json_t *json = json_array();
    for (int rank = 0; rank < num_shown; rank++)
        json_array_append_new(json, json_pack("[i, i, i, f, f]", lanes[rank].workers,
                                              lanes[rank].num_slices, lanes[rank].kept,
                                              lanes[rank].gemm_end_us, lanes[rank].end_us));
    return json;
}

/* [rank, worker, begin, duration, destination], which is -1 for a reduction and -2 for a
 * result copied from another rank. */
static json_t *slices_json(const json_t *events, lane *lanes)
{
    const json_t *event;
    size_t at;
    json_t *slices = json_array();
    json_array_foreach(events, at, event)
    {
        if (!is(event, "ph", "X"))
            continue;
        const int rank = (int)report_number(event, "pid") - 1;
        const int dst = is(event, "cat", "block")
                            ? (int)report_number(json_object_get(event, "args"), "dst")
                        : is(event, "cat", "collect") ? -2
                                                      : -1;
        if (lanes[rank].taken++ < lanes[rank].kept)
            json_array_append_new(slices, json_pack("[i, i, f, f, i]", rank,
                                                    (int)report_number(event, "tid") - 1,
                                                    report_number(event, "ts"),
                                                    report_number(event, "dur"), dst));
    }
    return slices;
}

static json_t *trace_json(const report_source *source)
{
    const json_t *trace = source->trace, *about = json_object_get(trace, "otherData");
    const json_t *params = json_object_get(about, "params");
    const json_t *events = json_object_get(trace, "traceEvents");
    const int num_ranks = (int)report_number(params, "ranks");
    lane *lanes = new_array(num_ranks, sizeof *lanes);
    if (!lanes)
        return NULL;
    measure_lanes(events, lanes);
    const int num_shown = choose_ranks(lanes, num_ranks);
    json_t *json =
        json_pack("{s:o, s:s, s:s, s:o, s:o, s:o}", "params", copy_or_null(params), "op",
                  report_string(params, "op", ew_op_name(EW_OP_GEMM_RS)), "config",
                  report_string(about, "config", ""), "numbers",
                  copy_or_null(json_object_get(about, "numbers")), "lanes",
                  lanes_json(lanes, num_shown), "slices", slices_json(events, lanes));
    free(lanes);
    return json;
}

/* What --figure derived, where the page's own figures do not show the same numbers. */
static json_t *figure_json(const json_t *figure)
{
    static const char *const shown_elsewhere[] = {"speedup", "layer", "budget"};
    const char *name = report_string(figure, "name", "");
    for (size_t at = 0; at < sizeof shown_elsewhere / sizeof *shown_elsewhere; at++)
        if (strcmp(name, shown_elsewhere[at]) == 0)
            return json_null();
    return copy_or_null(figure);
}

static json_t *source_json(const report_source *source)
{
    const json_t *document = source->results.document;
    return json_pack("{s:o, s:i, s:i, s:s, s:s, s:s, s:o, s:i, s:b, s:o, s:o, s:o, s:o}",
                     "name", cli_text_json(source->name), "run", source->run, "section",
                     source->section, "machine", source->machine, "version",
                     source->version, "commit", source->commit, "context",
                     copy_or_null(source->context), "results", source->results.num_results,
                     "complete", source->trace || source->results.complete, "clocks",
                     copy_or_null(json_object_get(document, "clocks")), "targets",
                     copy_or_null(json_object_get(source->collection, "figures")), "figure",
                     figure_json(json_object_get(document, "figure")), "trace",
                     source->trace ? trace_json(source) : json_null());
}

json_t *report_model(const cli_report *report)
{
    json_t *known = json_object(), *texts = json_array();
    json_t *sources = json_array();
    for (int at = 0; at < report->num_sources; at++)
        json_array_append_new(sources, source_json(report->sources[at]));
    json_t *groups = groups_json(report, known, texts);
    json_decref(known);
    return json_pack("{s:s, s:s, s:o, s:o, s:o, s:o}", "version", ew_version(), "commit",
                     cli_commit(), "texts", texts, "sources", sources, "groups", groups,
                     "scaling", scaling_json(report));
}
