/* Speedup against one parameter of the problem, where only that one varies, and against the
 * number of waves. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_plot.h"

enum { LEAST_POINTS = 3, MOST_PANELS = 8 };

/* What is drawn along x. */
typedef struct parameter {
    const char *letter, *title;
    report_relation *related; /* equal in all the rest */
    json_int_t (*value)(const report_problem *problem);
} parameter;

static bool is_same_rest(const report_problem *a, const report_problem *b)
{
    return a->shape->ranks == b->shape->ranks &&
           strcmp(a->shape->dtype, b->shape->dtype) == 0 &&
           strcmp(a->shape->weight, b->shape->weight) == 0;
}

static bool is_same_but_rows(const report_problem *a, const report_problem *b)
{
    return is_same_rest(a, b) && a->shape->n == b->shape->n && a->shape->k == b->shape->k;
}

static bool is_same_but_cols(const report_problem *a, const report_problem *b)
{
    return is_same_rest(a, b) && a->shape->m == b->shape->m && a->shape->k == b->shape->k;
}

static bool is_same_but_depth(const report_problem *a, const report_problem *b)
{
    return is_same_rest(a, b) && a->shape->m == b->shape->m && a->shape->n == b->shape->n;
}

static json_int_t rows_of(const report_problem *problem)
{
    return problem->shape->m;
}

static json_int_t cols_of(const report_problem *problem)
{
    return problem->shape->n;
}

static json_int_t depth_of(const report_problem *problem)
{
    return problem->shape->k;
}

static bool is_baseline(const report_group *group, const char *method)
{
    const char *baseline = group->problems[0]->baseline;
    return baseline && strcmp(method, baseline) == 0;
}

/* ---- One parameter ---- */

/* By insertion: labels are not used from here on. */
static void sort_by_value(report_group *set, const parameter *p)
{
    for (int at = 1; at < set->num_problems; at++) {
        const report_problem *moved = set->problems[at];
        int to = at;
        for (; to > 0 && p->value(set->problems[to - 1]) > p->value(moved); to--)
            set->problems[to] = set->problems[to - 1];
        set->problems[to] = moved;
    }
}

static int count_values(const report_group *sorted, const parameter *p)
{
    int count = 1;
    for (int at = 1; at < sorted->num_problems; at++)
        count += p->value(sorted->problems[at]) != p->value(sorted->problems[at - 1]);
    return count;
}

static double highest_speedup(const report_group *group)
{
    double highest = 1.0;
    for (int at = 0; at < group->num_problems; at++)
        for (int row = 0; row < group->problems[at]->num_rows; row++)
            highest = fmax(highest, group->problems[at]->rows[row].speedup);
    return highest;
}

static void draw_curves(report_page *page, const report_group *set, const parameter *p,
                        double highest)
{
    const double first = (double)p->value(set->problems[0]);
    const double last = (double)p->value(set->problems[set->num_problems - 1]);
    const double margin = pow(last / first, 0.06);
    const report_axes axes = {.width = 440,
                              .height = 300,
                              .x_title = p->letter,
                              .y_title = "speedup",
                              .x_min = first / margin,
                              .x_max = last * margin,
                              .y_max = highest * 1.1,
                              .log_x = true,
                              .rule = 1.0};
    report_plot *plot = report_plot_begin(page, &axes);
    for (int at = 0; at < set->num_problems; at++) {
        char text[32];
        snprintf(text, sizeof text, "%" JSON_INTEGER_FORMAT, p->value(set->problems[at]));
        if (at == 0 || p->value(set->problems[at]) != p->value(set->problems[at - 1]))
            report_plot_tick(plot, (double)p->value(set->problems[at]), text);
    }
    for (int which = 0; which < set->num_methods; which++) {
        const char *method = set->methods[which];
        if (is_baseline(set, method))
            continue;
        report_plot_series(plot, REPORT_LINE, report_colour(page, method), method, 0);
        for (int at = 0; at < set->num_problems; at++) {
            const report_row *row = report_find_row(set->problems[at], method);
            report_plot_point(plot, (double)p->value(set->problems[at]),
                              row ? row->speedup : NAN);
        }
    }
    fprintf(page->out, "<div><h5>");
    report_text(page->out, set->common);
    fputs("</h5>", page->out);
    report_plot_end(plot, p->title);
    fputs("</div>\n", page->out);
}

static void write_set_rows(FILE *out, const report_group *group, const report_group *set,
                           const parameter *p)
{
    for (int at = 0; at < set->num_problems; at++) {
        char first[REPORT_LABEL_BYTES + 32];
        snprintf(first, sizeof first, "%s=%" JSON_INTEGER_FORMAT " (%s)", p->letter,
                 p->value(set->problems[at]), set->common);
        report_table_row(out, first);
        for (int which = 0; which < group->num_methods; which++) {
            const report_row *row =
                report_find_row(set->problems[at], group->methods[which]);
            report_cell(out, row ? row->speedup : NAN, 3);
        }
        report_row_end(out);
    }
}

/* Calls for every set in which the parameter takes enough values; returns how many. */
static int for_each_set(report_page *page, const report_group *group, const parameter *p,
                        bool as_table)
{
    int count = 0;
    for (int first = 0; first < group->num_problems; first++) {
        report_group set;
        if (report_group_open(&set, group, first, p->related)) {
            sort_by_value(&set, p);
            if (count_values(&set, p) >= LEAST_POINTS) {
                if (page && as_table)
                    write_set_rows(page->out, group, &set, p);
                else if (page && count < MOST_PANELS)
                    draw_curves(page, &set, p, highest_speedup(group));
                count++;
            }
        }
        report_group_close(&set);
    }
    return count;
}

static void draw_parameter(report_page *page, const report_group *group, const parameter *p)
{
    const char *heads[REPORT_MAX_METHODS + 2] = {"<workload"};
    const int num_sets = for_each_set(NULL, group, p, false);
    if (num_sets == 0)
        return;
    memcpy(heads + 1, group->methods, (size_t)group->num_methods * sizeof *heads);
    report_figure_begin(page, group, p->title);
    report_legend_of(page, group, group->problems[0]->baseline, true, false);
    fputs("<div class=\"panels\">\n", page->out);
    for_each_set(page, group, p, false);
    fputs("</div>\n<figcaption>", page->out);
    report_printf(page->out, "Speedup over %s; the line at 1 is the baseline.%s",
                  group->problems[0]->baseline,
                  num_sets > MOST_PANELS ? " The first 8 sets are drawn, the table has all."
                                         : "");
    fputs("</figcaption>\n", page->out);
    report_table_begin(page->out, heads);
    for_each_set(page, group, p, true);
    report_table_end(page->out);
    report_figure_end(page, group);
}

/* ---- Waves ---- */

/* Blocks of one rank over its SMs; NAN where either is unknown. */
static double waves_of(const report_problem *problem)
{
    long rows = 0, cols = 0;
    for (int at = 0; at < problem->num_rows && rows == 0; at++) {
        const char *block = report_config_value(problem->rows[at].config, "block");
        if (block && sscanf(block, "%ldx%ld", &rows, &cols) != 2)
            rows = 0;
    }
    if (rows < 1 || cols < 1 || problem->sms_per_rank == 0)
        return NAN;
    const double ranks = (double)problem->shape->ranks;
    const double blocks = ranks * ceil((double)problem->shape->m / ranks / (double)rows) *
                          ceil((double)problem->shape->n / (double)cols);
    return blocks / problem->sms_per_rank;
}

static void write_wave_table(const report_page *page, const report_group *group)
{
    const char *heads[REPORT_MAX_METHODS + 3] = {"<workload", "waves"};
    memcpy(heads + 2, group->methods, (size_t)group->num_methods * sizeof *heads);
    report_table_begin(page->out, heads);
    for (int at = 0; at < group->num_problems; at++) {
        report_table_row(page->out, group->labels[at]);
        report_cell(page->out, waves_of(group->problems[at]), 1);
        for (int which = 0; which < group->num_methods; which++) {
            const report_row *row =
                report_find_row(group->problems[at], group->methods[which]);
            report_cell(page->out, row ? row->speedup : NAN, 3);
        }
        report_row_end(page->out);
    }
    report_table_end(page->out);
}

static void draw_wave_plot(report_page *page, const report_group *group, double least,
                           double most)
{
    const report_axes axes = {.width = 760,
                              .height = 340,
                              .x_title = "waves of blocks per rank",
                              .y_title = "speedup",
                              .x_min = least / 1.2,
                              .x_max = most * 1.2,
                              .y_max = highest_speedup(group) * 1.1,
                              .log_x = most / least > 8,
                              .rule = 1.0};
    report_plot *plot = report_plot_begin(page, &axes);
    for (int which = 0; which < group->num_methods; which++) {
        const char *method = group->methods[which];
        if (is_baseline(group, method))
            continue;
        report_plot_series(plot, REPORT_DOTS, report_colour(page, method), method, 0);
        for (int at = 0; at < group->num_problems; at++) {
            const report_row *row = report_find_row(group->problems[at], method);
            report_plot_point(plot, waves_of(group->problems[at]),
                              row ? row->speedup : NAN);
        }
    }
    report_plot_end(plot, "Speedup against the number of waves");
}

static void draw_waves(report_page *page, const report_group *group)
{
    double least = INFINITY, most = 0.0;
    for (int at = 0; at < group->num_problems; at++) {
        least = fmin(least, waves_of(group->problems[at]));
        most = fmax(most, waves_of(group->problems[at]));
    }
    if (group->num_problems < LEAST_POINTS || !(most > 1.01 * least))
        return;
    report_figure_begin(page, group, "Speedup against the number of waves");
    report_legend_of(page, group, group->problems[0]->baseline, true, false);
    draw_wave_plot(page, group, least, most);
    report_caption(page, group,
                   "A wave is one block on each SM of a rank. Few waves leave "
                   "little computation to hide the communication behind.");
    write_wave_table(page, group);
    report_figure_end(page, group);
}

void report_curve_figures(report_page *page, const report_group *group)
{
    static const parameter parameters[] = {
        {"K", "Speedup against the depth K", is_same_but_depth, depth_of},
        {"M", "Speedup against the rows M", is_same_but_rows, rows_of},
        {"N", "Speedup against the columns N", is_same_but_cols, cols_of},
    };
    if (!group->problems[0]->baseline || group->num_methods < 2)
        return; /* nothing to set beside the baseline */
    for (size_t at = 0; at < sizeof parameters / sizeof parameters[0]; at++)
        draw_parameter(page, group, &parameters[at]);
    draw_waves(page, group);
}
