/* From measured results to the numbers that the paper draws.  Ratios are between results of
 * the same problem, which one run measured interleaved. */
#include "output/figures.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "output/derived.h"

/* ---- What the derivations have in common ----------------------------------------- */

cli_figure_row *cli_figure_row_add(cli_figure_data *data, const cli_figure_point *point,
                                   const char *series)
{
    cli_figure_row *row = &data->rows[data->num_rows++];
    *row = (cli_figure_row){.point = point, .x = NAN};
    snprintf(row->series, sizeof row->series, "%.60s", series);
    for (int at = 0; at < CLI_FIGURE_COLUMNS; at++)
        row->values[at] = NAN;
    return row;
}

static void name_workload(const cli_problem *problem, char *text, size_t bytes)
{
    const ew_problem *shape = &problem->problem;
    if (*problem->name)
        snprintf(text, bytes, "%s", problem->name);
    else
        snprintf(text, bytes, "%" PRId64 "x%" PRId64 "x%" PRId64, shape->max_m, shape->n,
                 shape->k);
}

/* The results of a problem lie side by side: from its first to the one before the end. */
typedef struct problem_points {
    const cli_figure_point *first, *end;
} problem_points;

static problem_points points_beside(const cli_figure_data *data,
                                    const cli_figure_point *point)
{
    problem_points of = {point, point};
    while (of.first > data->points && of.first[-1].problem == point->problem)
        of.first--;
    while (of.end < data->points + data->num_points && of.end->problem == point->problem)
        of.end++;
    return of;
}

const cli_figure_point *cli_figure_result_of(const cli_figure_data *data,
                                             const cli_figure_point *point,
                                             const char *method)
{
    const problem_points of = points_beside(data, point);
    for (const cli_figure_point *at = of.first; at < of.end; at++)
        if (strcmp(at->entry->method, method) == 0)
            return at;
    return NULL;
}

static double best_time(const cli_figure_data *data, const cli_figure_point *point)
{
    const problem_points of = points_beside(data, point);
    double best = point->time_us;
    for (const cli_figure_point *at = of.first; at < of.end; at++)
        best = fmin(best, at->time_us);
    return best;
}

/* ---- speedup --------------------------------------------------------------------- */

static double efficiency_of(const cli_figure_data *data, const cli_figure_point *point)
{
    const cli_figure_point *sequential = cli_figure_result_of(data, point, "sequential");
    return cli_overlap_efficiency(point->entry->method, point->time_us, point->gemm_us,
                                  sequential ? sequential->gemm_us : NAN);
}

enum { SPEEDUP, EFFICIENCY, BEST };

/* The entry's geomeans over all workloads, and on how many of them it was the fastest. */
static void summarise_entry(cli_figure_data *data, const cli_entry *entry, int num_rows,
                            double *values)
{
    double best = 0.0;
    cli_figure_row *summary = cli_figure_row_add(data, NULL, entry->label);
    snprintf(summary->label, sizeof summary->label, "geomean");
    for (int column = SPEEDUP; column <= EFFICIENCY; column++) {
        int count = 0;
        for (int at = 0; at < num_rows; at++)
            if (data->rows[at].point->entry == entry && data->rows[at].values[column] > 0)
                values[count++] = data->rows[at].values[column];
        summary->values[column] = cli_geomean(values, count);
    }
    for (int at = 0; at < num_rows; at++)
        if (data->rows[at].point->entry == entry)
            best += data->rows[at].values[BEST];
    summary->values[BEST] = best;
}

void cli_derive_speedup(cli_figure_data *data)
{
    double *values = calloc((size_t)data->num_points + 1, sizeof *values);
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        cli_figure_row *row = cli_figure_row_add(data, point, point->entry->label);
        name_workload(point->problem, row->label, sizeof row->label);
        row->values[SPEEDUP] = point->speedup;
        row->values[EFFICIENCY] = efficiency_of(data, point);
        row->values[BEST] = point->time_us <= best_time(data, point);
    }
    const int num_rows = data->num_rows;
    for (int at = 0; values && num_rows && at < data->job->num_entries; at++)
        summarise_entry(data, &data->job->entries[at], num_rows, values);
    free(values);
}

/* ---- order, release, pool -------------------------------------------------------- */

/* The value of one key, as the config prints it. */
static void policy_of(const cli_figure_data *data, const cli_figure_point *point,
                      char *value, size_t bytes)
{
    char text[EW_CONFIG_TEXT_BYTES] = "", *rest = NULL;
    size_t length = strlen(data->figure->key);
    value[0] = '\0';
    if (ew_config_print(&point->config, text, sizeof text))
        return;
    for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest))
        if (strncmp(item, data->figure->key, length) == 0 && item[length] == '=')
            snprintf(value, bytes, "%s", item + length + 1);
}

/* The row of this problem and policy, new if it is the first of them.  The problem's rows
 * are the last there are. */
static cli_figure_row *find_policy(cli_figure_data *data, const cli_figure_point *point,
                                   const char *policy)
{
    for (int at = data->num_rows - 1; at >= 0; at--) {
        if (data->rows[at].point->problem != point->problem)
            break;
        if (strcmp(data->rows[at].series, policy) == 0)
            return &data->rows[at];
    }
    return cli_figure_row_add(data, point, policy);
}

/* Ours is the first policy of entwine: sequential may stand before it. */
static const cli_figure_row *find_ours(const cli_figure_data *data,
                                       const cli_figure_row *row)
{
    const cli_figure_row *end = data->rows + data->num_rows;
    const cli_problem *problem = row->point->problem;
    while (row > data->rows && row[-1].point->problem == problem)
        row--;
    for (; row < end && row->point->problem == problem; row++)
        if (strcmp(row->point->entry->method, "entwine") == 0)
            return row;
    return NULL;
}

void cli_derive_policies(cli_figure_data *data)
{
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        char policy[CLI_SERIES_BYTES];
        policy_of(data, point, policy, sizeof policy);
        cli_figure_row *row = find_policy(data, point, policy);
        if (point->time_us < row->point->time_us)
            row->point = point;
    }
    for (int at = 0; at < data->num_rows; at++) {
        cli_figure_row *row = &data->rows[at];
        const cli_figure_row *ours = find_ours(data, row);
        const cli_figure_point *best = row->point;
        double *values = row->values;
        name_workload(best->problem, row->label, sizeof row->label);
        values[0] = best->time_us;
        values[1] = best->gemm_us;
        values[2] = best->tail_us;
        values[3] = best->config.budget;
        if (ours) {
            values[4] = best->time_us / ours->point->time_us;
            values[5] = 1.0 - ours->point->tail_us / best->tail_us;
        }
        if (strcmp(data->job->entries[data->job->baseline].method, "sequential") == 0)
            values[6] = best->speedup;
    }
}

/* ---- budget, bandwidth, required ------------------------------------------------- */

static cli_figure_row *add_budget_row(cli_figure_data *data, const cli_figure_point *point)
{
    char workload[CLI_SERIES_BYTES];
    name_workload(point->problem, workload, sizeof workload);
    cli_figure_row *row = cli_figure_row_add(data, point, workload);
    row->x = point->config.budget;
    return row;
}

void cli_derive_budget(cli_figure_data *data)
{
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        double *values = add_budget_row(data, point)->values;
        values[0] = point->time_us;
        values[1] = point->gemm_us;
        values[2] = point->tail_us;
        values[3] = point->time_us / best_time(data, point);
    }
}

static double remote_gbs(const cli_problem *problem, double us)
{
    return cli_remote_gbs(&problem->problem, problem->num_ranks, us);
}

void cli_derive_bandwidth(cli_figure_data *data)
{
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        double *values = add_budget_row(data, point)->values;
        values[0] = point->tail_us;
        values[1] = remote_gbs(point->problem, point->tail_us);
    }
}

/* The median and the largest distance between required and measured. */
static void summarise_gaps(cli_figure_data *data)
{
    const int count = data->num_rows;
    double *gaps = calloc((size_t)count + 1, sizeof *gaps);
    for (int at = 0; gaps && at < count; at++)
        gaps[at] = fabs(data->rows[at].values[1]);
    if (gaps && count > 1) {
        cli_sort(gaps, count);
        for (int which = 0; which < 2; which++) {
            cli_figure_row *row = cli_figure_row_add(data, NULL, "all");
            snprintf(row->label, sizeof row->label, which ? "worst" : "median");
            row->values[1] = which ? gaps[count - 1] : cli_quantile(gaps, count, 0.5);
        }
    }
    free(gaps);
}

void cli_derive_required(cli_figure_data *data)
{
    for (int at = 0; at < data->num_points; at++) {
        const cli_figure_point *point = &data->points[at];
        if (point->problem->num_ranks < 2) /* nothing is read from peers */
            continue;
        char series[CLI_SERIES_BYTES];
        snprintf(series, sizeof series, "K=%" PRId64 ", W=%d", point->problem->problem.k,
                 point->problem->num_ranks);
        cli_figure_row *row = cli_figure_row_add(data, point, series);
        row->x = point->breq;
        row->values[0] = remote_gbs(point->problem, point->time_us);
        row->values[1] = row->values[0] / point->breq - 1.0;
    }
    summarise_gaps(data);
}
