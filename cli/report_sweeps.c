/* The budget sweep, and the bandwidth that is needed beside the one that was had. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_plot.h"

enum { MOST_BUDGETS = 64, MOST_PANELS = 12 };

/* ---- Budget ---- */

typedef struct sweep {
    struct {
        long budget; /* x */
        const report_row *row;
    } at[MOST_BUDGETS];
    int count;
} sweep;

static long budget_of(const report_row *row)
{
    const char *text = row->error ? NULL : report_config_value(row->config, "x");
    return text ? strtol(text, NULL, 10) : 0;
}

/* The next key=value that is not x; NULL: no more. */
static const char *next_pair(const char **at, size_t *length)
{
    while (**at) {
        const char *pair = *at;
        *length = strcspn(pair, ",");
        *at = pair + *length + (pair[*length] == ',');
        if (strncmp(pair, "x=", 2) != 0)
            return pair;
    }
    return NULL;
}

static bool is_same_but_budget(const char *a, const char *b)
{
    for (;;) {
        size_t length_a = 0, length_b = 0;
        const char *pair_a = next_pair(&a, &length_a), *pair_b = next_pair(&b, &length_b);
        if (!pair_a || !pair_b)
            return pair_a == pair_b;
        if (length_a != length_b || strncmp(pair_a, pair_b, length_a) != 0)
            return false;
    }
}

static void insert_row(sweep *s, long budget, const report_row *row)
{
    int to = s->count;
    for (int at = 0; at < s->count; at++)
        if (s->at[at].budget == budget)
            return;
    if (s->count == MOST_BUDGETS)
        return;
    for (; to > 0 && s->at[to - 1].budget > budget; to--)
        s->at[to] = s->at[to - 1];
    s->at[to].budget = budget;
    s->at[to].row = row;
    s->count++;
}

/* The rows of a problem that differ in x alone, the most of them that there are. */
static void find_sweep(const report_problem *problem, sweep *best)
{
    best->count = 0;
    for (int first = 0; first < problem->num_rows; first++) {
        sweep s = {.count = 0};
        for (int at = first; at < problem->num_rows; at++)
            if (budget_of(&problem->rows[at]) > 0 && budget_of(&problem->rows[first]) > 0 &&
                is_same_but_budget(problem->rows[first].config, problem->rows[at].config))
                insert_row(&s, budget_of(&problem->rows[at]), &problem->rows[at]);
        if (s.count > best->count)
            *best = s;
    }
}

static void draw_sweep(report_page *page, const sweep *s, const char *label)
{
    double highest = 0.0;
    for (int at = 0; at < s->count; at++)
        highest = fmax(highest, fmax(s->at[at].row->time_us, s->at[at].row->gemm_us));
    const double first = (double)s->at[0].budget, last = (double)s->at[s->count - 1].budget;
    const report_axes axes = {.width = 440,
                              .height = 300,
                              .x_title = "budget x",
                              .y_title = "time (us)",
                              .x_min = first / 1.1,
                              .x_max = last * 1.1,
                              .y_max = highest * 1.1,
                              .log_x = last / first > 4,
                              .rule = NAN};
    report_plot *plot = report_plot_begin(page, &axes);
    for (int at = 0; at < s->count; at++) {
        char text[24];
        snprintf(text, sizeof text, "%ld", s->at[at].budget);
        report_plot_tick(plot, (double)s->at[at].budget, text);
    }
    report_plot_series(plot, REPORT_DASHED, 0, "GEMM window", 0);
    for (int at = 0; at < s->count; at++)
        report_plot_point(plot, (double)s->at[at].budget, s->at[at].row->gemm_us);
    report_plot_series(plot, REPORT_LINE, 1, "whole call", 0);
    for (int at = 0; at < s->count; at++)
        report_plot_point(plot, (double)s->at[at].budget, s->at[at].row->time_us);
    report_plot_series(plot, REPORT_DOTTED, REPORT_TAIL_COLOUR, "exposed tail", 0);
    for (int at = 0; at < s->count; at++)
        report_plot_point(plot, (double)s->at[at].budget, s->at[at].row->tail_us);
    fputs("<div><h5>", page->out);
    report_text(page->out, label);
    fputs("</h5>", page->out);
    report_plot_end(plot, "Time against the budget x");
    fputs("</div>\n", page->out);
}

static void write_sweep_rows(FILE *out, const sweep *s, const char *label)
{
    for (int at = 0; at < s->count; at++) {
        report_table_row(out, label);
        report_cell(out, (double)s->at[at].budget, 0);
        report_cell(out, s->at[at].row->time_us, 1);
        report_cell(out, s->at[at].row->gemm_us, 1);
        report_cell(out, s->at[at].row->tail_us, 1);
        report_row_end(out);
    }
}

static void write_budget_table(const report_page *page, const report_group *group)
{
    static const char *const heads[] = {"<workload", "x",         "time (us)",
                                        "GEMM (us)", "tail (us)", NULL};
    report_table_begin(page->out, heads);
    for (int at = 0; at < group->num_problems; at++) {
        sweep s;
        find_sweep(group->problems[at], &s);
        if (s.count >= 2)
            write_sweep_rows(page->out, &s, group->labels[at]);
    }
    report_table_end(page->out);
}

void report_budget_figure(report_page *page, const report_group *group)
{
    int num_sweeps = 0;
    for (int at = 0; at < group->num_problems; at++) {
        sweep s;
        find_sweep(group->problems[at], &s);
        if (s.count < 2)
            continue;
        if (num_sweeps++ == 0) {
            report_figure_begin(page, group, "Budget sweep");
            fputs("<ul class=\"legend\">", page->out);
            report_legend(page, "s1", report_mark(1), "whole call");
            report_legend(page, "s0", report_mark(0), "GEMM window");
            report_legend(page, "tail", report_mark(REPORT_TAIL_COLOUR), "exposed tail");
            fputs("</ul>\n<div class=\"panels\">\n", page->out);
        }
        if (num_sweeps <= MOST_PANELS)
            draw_sweep(page, &s, group->labels[at]);
    }
    if (num_sweeps == 0)
        return;
    fputs("</div>\n", page->out);
    report_caption(
        page, group,
        "The same config with another x, how many workers (on a GPU: CTAs) may "
        "reduce at once. A small one leaves a tail, a large one slows the GEMM.");
    write_budget_table(page, group);
    report_figure_end(page, group);
}

/* ---- Bandwidth ---- */

/* Eq. 2 / time: what a rank moves, from the whole contribution. */
static double achieved_gbs(const report_problem *problem, const report_row *row)
{
    const double ranks = (double)problem->shape->ranks;
    return row->algbw * (ranks - 1.0) / ranks;
}

static void find_range(const report_group *group, double *least, double *most)
{
    *least = INFINITY;
    *most = 0.0;
    for (int at = 0; at < group->num_problems; at++) {
        const report_problem *problem = group->problems[at];
        for (int row = 0; row < problem->num_rows; row++) {
            const double achieved = achieved_gbs(problem, &problem->rows[row]);
            const double required = problem->rows[row].breq;
            if (problem->rows[row].error || !(achieved > 0) || !(required > 0))
                continue;
            *least = fmin(*least, fmin(achieved, required));
            *most = fmax(*most, fmax(achieved, required));
        }
    }
}

static void draw_bandwidth(report_page *page, const report_group *group, double least,
                           double most)
{
    const double link_gbs = group->problems[0]->link_gbps / 8.0;
    const bool logarithmic = most / least > 8;
    most = fmax(most, link_gbs);
    const double low = logarithmic ? least / 1.3 : 0.0, high = most * 1.15;
    const report_axes axes = {.width = 760,
                              .height = 400,
                              .x_title = "required to hide all (GB/s per rank)",
                              .y_title = "achieved (GB/s per rank)",
                              .x_min = low,
                              .x_max = high,
                              .y_min = low,
                              .y_max = high,
                              .log_x = logarithmic,
                              .log_y = logarithmic,
                              .rule = link_gbs > 0 ? link_gbs : NAN,
                              .diagonal = true};
    report_plot *plot = report_plot_begin(page, &axes);
    for (int which = 0; which < group->num_methods; which++) {
        const char *method = group->methods[which];
        report_plot_series(plot, REPORT_DOTS, report_colour(page, method), method, 0);
        for (int at = 0; at < group->num_problems; at++) {
            const report_row *row = report_find_row(group->problems[at], method);
            if (row && row->breq > 0)
                report_plot_point(plot, row->breq, achieved_gbs(group->problems[at], row));
        }
    }
    report_plot_end(plot, "Required and achieved bandwidth");
}

static void write_bandwidth_table(const report_page *page, const report_group *group)
{
    static const char *const heads[] = {"<workload",           "<method",
                                        "required (GB/s)",     "achieved (GB/s)",
                                        "achieved / required", NULL};
    report_table_begin(page->out, heads);
    for (int at = 0; at < group->num_problems; at++)
        for (int which = 0; which < group->problems[at]->num_rows; which++) {
            const report_row *row = &group->problems[at]->rows[which];
            const double achieved = achieved_gbs(group->problems[at], row);
            if (row->error || !(row->breq > 0))
                continue;
            report_table_row(page->out, group->labels[at]);
            report_cell_text(page->out, row->method);
            report_cell(page->out, row->breq, 3);
            report_cell(page->out, achieved, 3);
            report_cell(page->out, achieved / row->breq, 3);
            report_row_end(page->out);
        }
    report_table_end(page->out);
}

void report_bandwidth_figure(report_page *page, const report_group *group)
{
    double least, most;
    find_range(group, &least, &most);
    if (!(most > 0))
        return;
    report_figure_begin(page, group, "Required and achieved bandwidth");
    report_legend_of(page, group, NULL, true, false);
    draw_bandwidth(page, group, least, most);
    report_caption(
        page, group,
        group->problems[0]->link_gbps > 0
            ? "Required: Eq. 4 at the rate of the call's own GEMM window. Achieved: "
              "bytes over the time of the call. A point on the dashed diagonal has "
              "no tail; the horizontal line is the emulated link."
            : "Required: Eq. 4 at the rate of the call's own GEMM window. Achieved: "
              "bytes over the time of the call. A point on the dashed diagonal has "
              "no tail.");
    write_bandwidth_table(page, group);
    report_figure_end(page, group);
}
