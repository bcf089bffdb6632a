/* What every result file shows, workload by workload and method by method: speedup, where
 * the time goes, overlap efficiency. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_bars.h"

typedef struct overview {
    const char *title, *y_title, *caption;
    report_value *height;
    report_value *lower;   /* the part below the tail; NULL: bars of one piece */
    bool without_baseline; /* whose bars would all be 1 */
    double rule;
} overview;

static double relative_time(const report_problem *problem, const report_row *row)
{
    const report_row *base =
        problem->baseline ? report_find_row(problem, problem->baseline) : NULL;
    return base ? row->time_us / base->time_us : NAN;
}

static double relative_time_to_gemm_end(const report_problem *problem,
                                        const report_row *row)
{
    const double hidden_us = fmax(0.0, row->time_us - row->tail_us);
    return relative_time(problem, row) * hidden_us / row->time_us;
}

/* ---- The matrix ---- */

typedef struct matrix {
    report_bars bars;
    const char *series[REPORT_MAX_METHODS];
    const char **labels;
    double *heights, *lower;
} matrix;

static void choose_series(matrix *x, const report_group *group, const overview *o)
{
    const char *baseline = group->problems[0]->baseline;
    for (int at = 0; at < group->num_methods; at++) {
        int count;
        report_geomean(group, group->methods[at], o->height, &count);
        if (count > 0 &&
            !(o->without_baseline && baseline && strcmp(group->methods[at], baseline) == 0))
            x->series[x->bars.num_series++] = group->methods[at];
    }
}

static void fill_series(matrix *x, const report_group *group, const overview *o, int series)
{
    const int num_series = x->bars.num_series, num_problems = group->num_problems;
    int count;
    for (int at = 0; at < num_problems; at++) {
        const report_problem *problem = group->problems[at];
        const report_row *row = report_find_row(problem, x->series[series]);
        x->heights[at * num_series + series] = row ? o->height(problem, row) : NAN;
        x->lower[at * num_series + series] = row && o->lower ? o->lower(problem, row) : NAN;
    }
    if (x->bars.num_means)
        x->heights[num_problems * num_series + series] =
            report_geomean(group, x->series[series], o->height, &count);
}

/* The last row is the geomean, where there is more than one workload and it means much. */
static bool open_matrix(matrix *x, const report_group *group, const overview *o)
{
    const size_t rows = (size_t)group->num_problems + 1;
    *x = (matrix){.labels = calloc(rows, sizeof *x->labels)};
    choose_series(x, group, o);
    x->heights = calloc(rows * (size_t)x->bars.num_series + 1, sizeof *x->heights);
    x->lower = calloc(rows * (size_t)x->bars.num_series + 1, sizeof *x->lower);
    if (!x->labels || !x->heights || !x->lower)
        return false;
    const int num_means = !o->lower && group->num_problems > 1;
    for (int at = 0; at < group->num_problems; at++)
        x->labels[at] = group->labels[at];
    x->labels[group->num_problems] = "geomean";
    x->bars = (report_bars){.title = o->title,
                            .y_title = o->y_title,
                            .labels = x->labels,
                            .num_labels = group->num_problems + num_means,
                            .num_means = num_means,
                            .series = x->series,
                            .num_series = x->bars.num_series,
                            .heights = x->heights,
                            .lower = o->lower ? x->lower : NULL,
                            .rule = o->rule};
    for (int at = 0; at < x->bars.num_series; at++)
        fill_series(x, group, o, at);
    return true;
}

static void close_matrix(matrix *x)
{
    free(x->labels);
    free(x->heights);
    free(x->lower);
}

/* ---- Tables ---- */

static void write_value_table(FILE *out, const report_bars *b)
{
    const char *heads[REPORT_MAX_METHODS + 2] = {"<workload"};
    memcpy(heads + 1, b->series, (size_t)b->num_series * sizeof *heads);
    report_table_begin(out, heads);
    for (int label = 0; label < b->num_labels; label++) {
        report_table_row(out, b->labels[label]);
        for (int series = 0; series < b->num_series; series++)
            report_cell(out, b->heights[label * b->num_series + series], 3);
        report_row_end(out);
    }
    report_table_end(out);
}

static void write_time_row(FILE *out, const char *label, const report_row *row)
{
    report_table_row(out, label);
    report_cell_text(out, row->method);
    if (row->error) {
        fputs("<td colspan=\"5\" class=\"text\">skipped: ", out);
        report_printf(out, "%.*s", (int)strcspn(row->error, "\n"), row->error);
        fputs("</td>", out);
    } else {
        report_cell(out, row->time_us, 1);
        report_cell(out, row->gemm_us, 1);
        report_cell(out, row->tail_us, 1);
        report_cell(out, row->cv * 100.0, 1);
        report_cell(out, row->speedup, 3);
    }
    fputs("<td class=\"text config\">", out);
    report_text(out, row->config);
    fputs("</td>", out);
    report_row_end(out);
}

static void write_time_table(FILE *out, const report_group *group)
{
    static const char *const heads[] = {"<workload", "<method",   "time (us)",
                                        "GEMM (us)", "tail (us)", "cv (%)",
                                        "speedup",   "<config",   NULL};
    report_table_begin(out, heads);
    for (int at = 0; at < group->num_problems; at++)
        for (int row = 0; row < group->problems[at]->num_rows; row++)
            write_time_row(out, group->labels[at], &group->problems[at]->rows[row]);
    report_table_end(out);
}

/* ---- Figures ---- */

static void draw_overview(report_page *page, const report_group *group, const overview *o)
{
    const char *baseline = group->problems[0]->baseline;
    matrix x;
    if (!open_matrix(&x, group, o))
        page->failed = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for a chart");
    else if (x.bars.num_series > 0 || o->lower) {
        report_figure_begin(page, group, o->title);
        if (x.bars.num_series > 0)
            report_legend_of(page, group, o->without_baseline ? baseline : NULL, false,
                             o->lower != NULL);
        report_bars_draw(page, &x.bars);
        report_caption(page, group, o->caption);
        if (o->lower)
            write_time_table(page->out, group);
        else
            write_value_table(page->out, &x.bars);
        report_figure_end(page, group);
    }
    close_matrix(&x);
}

void report_overview_figures(report_page *page, const report_group *group)
{
    const char *baseline = group->problems[0]->baseline;
    char title[160];
    snprintf(title, sizeof title, "Speedup over %.120s", baseline ? baseline : "");
    const overview speedup = {
        .title = title,
        .y_title = "times as fast",
        .caption = "Time of the baseline over time of the method, same problem, same run; "
                   "more is better.",
        .height = report_speedup,
        .without_baseline = true,
        .rule = 1.0,
    };
    const overview split = {
        .title = "Where the time goes",
        .y_title = "time, baseline = 1",
        .caption = "A bar is the time of a call over that of the baseline. Its lower part "
                   "ends with the GEMM window; the tail above it is communication that was "
                   "not hidden. Times are medians of the slowest rank, the GEMM window in "
                   "the table is the longest of any rank.",
        .height = relative_time,
        .lower = relative_time_to_gemm_end,
        .rule = NAN,
    };
    const overview efficiency = {
        .title = "Overlap efficiency",
        .y_title = "GEMM alone / time",
        .caption = "GEMM window of sequential, where nothing runs beside it, over the time "
                   "of the method: 1 when all communication is hidden and costs the GEMM "
                   "nothing.",
        .height = report_efficiency,
        .rule = 1.0,
    };
    if (baseline)
        draw_overview(page, group, &speedup);
    draw_overview(page, group, &split);
    draw_overview(page, group, &efficiency);
}
