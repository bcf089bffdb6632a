/* Problems that may share a figure, and what tells them apart. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "report_data.h"

/* ---- Labels ---- */

static void append(char *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void append(char *text, const char *format, ...)
{
    va_list arguments;
    size_t used = strlen(text);
    va_start(arguments, format);
    vsnprintf(text + used, REPORT_LABEL_BYTES - used, format, arguments);
    va_end(arguments);
}

/* What a problem's label can be made of; `at` is the problem, `is_same` compares two. */
typedef enum trait { ROWS, COLS, DEPTH, RANKS, DTYPE, WEIGHT, NUM_TRAITS } trait;

static bool is_same_trait(trait which, const cli_measured *a, const cli_measured *b)
{
    switch (which) {
    case ROWS:
        return a->m == b->m;
    case COLS:
        return a->n == b->n;
    case DEPTH:
        return a->k == b->k;
    case RANKS:
        return a->ranks == b->ranks;
    case DTYPE:
        return strcmp(a->dtype, b->dtype) == 0;
    default:
        return strcmp(a->weight, b->weight) == 0;
    }
}

static void append_trait(char *text, trait which, const cli_measured *shape)
{
    const char *comma = *text ? ", " : "";
    switch (which) {
    case ROWS:
        append(text, "%sM=%" PRId64, comma, (int64_t)shape->m);
        break;
    case COLS:
        append(text, "%sN=%" PRId64, comma, (int64_t)shape->n);
        break;
    case DEPTH:
        append(text, "%sK=%" PRId64, comma, (int64_t)shape->k);
        break;
    case RANKS:
        append(text, "%sW=%" PRId64, comma, (int64_t)shape->ranks);
        break;
    case DTYPE:
        append(text, "%s%.8s", comma, shape->dtype);
        break;
    default:
        append(text, "%sweight %.8s", comma, shape->weight);
    }
}

static void append_shape(char *text, const cli_measured *shape)
{
    append(text, "%" PRId64 "x%" PRId64 "x%" PRId64, (int64_t)shape->m, (int64_t)shape->n,
           (int64_t)shape->k);
}

static bool is_label_taken(const report_group *group, int which)
{
    for (int at = 0; at < group->num_problems; at++)
        if (at != which && strcmp(group->labels[at], group->labels[which]) == 0)
            return true;
    return false;
}

static void make_label(report_group *group, int which, const bool *varies)
{
    const report_problem *problem = group->problems[which];
    char *label = group->labels[which];
    if (problem->name)
        append(label, "%.60s", problem->name);
    /* Of two sizes that vary, none says enough by itself. */
    const bool whole_shape =
        !problem->name && varies[ROWS] + varies[COLS] + varies[DEPTH] > 1;
    if (whole_shape)
        append_shape(label, problem->shape);
    for (trait at = whole_shape ? RANKS : ROWS; at < NUM_TRAITS && !problem->name; at++)
        if (varies[at])
            append_trait(label, at, problem->shape);
    if (!*label)
        append_shape(label, problem->shape);
}

static void make_labels(report_group *group)
{
    bool varies[NUM_TRAITS] = {false};
    for (int at = 0; at < group->num_problems; at++)
        for (trait which = 0; which < NUM_TRAITS; which++)
            varies[which] |= !is_same_trait(which, group->problems[0]->shape,
                                            group->problems[at]->shape);
    for (trait which = 0; which < NUM_TRAITS; which++)
        if (!varies[which] &&
            (which != WEIGHT || group->problems[0]->shape->weight[0] == 'k'))
            append_trait(group->common, which, group->problems[0]->shape);
    for (int at = 0; at < group->num_problems; at++)
        make_label(group, at, varies);
    bool *taken = calloc((size_t)group->num_problems + 1, sizeof *taken);
    for (int at = 0; taken && at < group->num_problems; at++)
        taken[at] = is_label_taken(group, at);
    for (int at = 0; taken && at < group->num_problems; at++)
        if (taken[at])
            append(group->labels[at], ", W=%" PRId64 ", no. %d",
                   (int64_t)group->problems[at]->shape->ranks, at + 1);
    free(taken);
}

/* ---- Groups ---- */

static void add_methods(report_group *group, const report_problem *problem)
{
    for (int at = 0; at < problem->num_rows; at++) {
        const char *method = problem->rows[at].method;
        int known = 0;
        while (known < group->num_methods && strcmp(group->methods[known], method) != 0)
            known++;
        if (known == group->num_methods && known < REPORT_MAX_METHODS &&
            !problem->rows[at].error)
            group->methods[group->num_methods++] = method;
    }
}

static bool allocate(report_group *group, size_t most)
{
    *group = (report_group){.num_problems = 0};
    group->problems = calloc(most + 1, sizeof *group->problems);
    group->labels = calloc(most + 1, sizeof *group->labels);
    return group->problems && group->labels;
}

bool report_group_open_all(report_group *group, const cli_report *report)
{
    size_t most = 0;
    for (int at = 0; at < report->num_sources; at++)
        most += (size_t)report->sources[at]->num_problems;
    if (!allocate(group, most))
        return false;
    for (int at = 0; at < report->num_sources; at++)
        for (int which = 0; which < report->sources[at]->num_problems; which++)
            group->problems[group->num_problems++] = &report->sources[at]->problems[which];
    return true;
}

bool report_group_open(report_group *group, const report_group *from, int first,
                       report_relation *related)
{
    *group = (report_group){.num_problems = 0};
    for (int at = 0; at < first; at++)
        if (related(from->problems[at], from->problems[first]))
            return false;
    if (!allocate(group, (size_t)(from->num_problems - first)))
        return false;
    for (int at = first; at < from->num_problems; at++)
        if (related(from->problems[first], from->problems[at]))
            group->problems[group->num_problems++] = from->problems[at];
    for (int at = 0; at < group->num_problems; at++)
        add_methods(group, group->problems[at]);
    if (group->num_problems > 0)
        make_labels(group);
    return true;
}

void report_group_close(report_group *group)
{
    free(group->problems);
    free(group->labels);
    *group = (report_group){.num_problems = 0};
}

static bool is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool report_same_setting(const report_problem *a, const report_problem *b)
{
    return a->source == b->source && strcmp(a->shape->link, b->shape->link) == 0 &&
           a->virtual_node == b->virtual_node && a->simulated == b->simulated &&
           is_same_text(a->baseline, b->baseline);
}

/* ---- Values ---- */

double report_speedup(const report_problem *problem, const report_row *row)
{
    (void)problem;
    return row->speedup;
}

double report_efficiency(const report_problem *problem, const report_row *row)
{
    const report_row *plain = report_find_row(problem, "sequential");
    return plain ? plain->gemm_us / row->time_us : NAN;
}

double report_geomean(const report_group *group, const char *method, report_value *value,
                      int *count_out)
{
    double log_sum = 0.0;
    int count = 0;
    for (int at = 0; at < group->num_problems; at++) {
        const report_row *row = report_find_row(group->problems[at], method);
        double seen = row ? value(group->problems[at], row) : NAN;
        if (!(seen > 0))
            continue;
        log_sum += log(seen);
        count++;
    }
    *count_out = count;
    return count ? exp(log_sum / count) : NAN;
}
