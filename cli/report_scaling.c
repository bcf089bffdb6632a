/* The same workloads on different numbers of ranks. */
#include <math.h>
#include <string.h>

#include "report_plot.h"

enum { MOST_WORLDS = 32 };

/* ---- What may be compared ---- */

static bool is_same_kind(const report_problem *a, const report_problem *b)
{
    const char *base_a = a->baseline ? a->baseline : "";
    const char *base_b = b->baseline ? b->baseline : "";
    return report_same_section(a->source, b->source) && a->simulated == b->simulated &&
           strcmp(base_a, base_b) == 0;
}

static bool is_same_link(const report_problem *a, const report_problem *b)
{
    return is_same_kind(a, b) && a->link_gbps == b->link_gbps;
}

/* A link scaled like the slice of the GPU that a rank has: the node keeps its ratio. */
static bool is_same_node_link(const report_problem *a, const report_problem *b)
{
    const double node_a = a->link_gbps * (double)a->shape->ranks;
    const double node_b = b->link_gbps * (double)b->shape->ranks;
    return is_same_kind(a, b) && node_a > 0 && node_b > 0 &&
           fabs(node_a - node_b) < 0.01 * node_a;
}

static bool is_same_workload(const report_problem *a, const report_problem *b)
{
    return a->shape->m == b->shape->m && a->shape->n == b->shape->n &&
           a->shape->k == b->shape->k && strcmp(a->shape->dtype, b->shape->dtype) == 0 &&
           strcmp(a->shape->weight, b->shape->weight) == 0;
}

/* ---- Worlds ---- */

typedef struct worlds {
    const report_group *group;
    int ranks[MOST_WORLDS]; /* rising */
    int count;
} worlds;

static void add_world(worlds *w, int ranks)
{
    int to = w->count;
    for (int at = 0; at < w->count; at++)
        if (w->ranks[at] == ranks)
            return;
    if (w->count == MOST_WORLDS)
        return;
    for (; to > 0 && w->ranks[to - 1] > ranks; to--)
        w->ranks[to] = w->ranks[to - 1];
    w->ranks[to] = ranks;
    w->count++;
}

/* Whether the workload was measured on every number of ranks there is. */
static bool is_everywhere(const worlds *w, const report_problem *problem)
{
    for (int at = 0; at < w->count; at++) {
        bool found = false;
        for (int other = 0; other < w->group->num_problems && !found; other++)
            found = w->group->problems[other]->shape->ranks == w->ranks[at] &&
                    is_same_workload(w->group->problems[other], problem);
        if (!found)
            return false;
    }
    return true;
}

static double mean_at(const worlds *w, int ranks, const char *method, report_value *value)
{
    double log_sum = 0.0;
    int count = 0;
    for (int at = 0; at < w->group->num_problems; at++) {
        const report_problem *problem = w->group->problems[at];
        const report_row *row = report_find_row(problem, method);
        const double seen = row ? value(problem, row) : NAN;
        if (problem->shape->ranks != ranks || !(seen > 0) || !is_everywhere(w, problem))
            continue;
        log_sum += log(seen);
        count++;
    }
    return count ? exp(log_sum / count) : NAN;
}

static int count_workloads(const worlds *w)
{
    int count = 0;
    for (int at = 0; at < w->group->num_problems; at++)
        count += w->group->problems[at]->shape->ranks == w->ranks[0] &&
                 is_everywhere(w, w->group->problems[at]);
    return count;
}

/* ---- Figure ---- */

static void draw_value(report_page *page, const worlds *w, const char *title,
                       report_value *value)
{
    double highest = 1.0;
    for (int at = 0; at < w->count; at++)
        for (int which = 0; which < w->group->num_methods; which++)
            highest =
                fmax(highest, mean_at(w, w->ranks[at], w->group->methods[which], value));
    const report_axes axes = {.width = 440,
                              .height = 300,
                              .x_title = "ranks W",
                              .y_title = title,
                              .x_min = w->ranks[0] / 1.15,
                              .x_max = w->ranks[w->count - 1] * 1.15,
                              .y_max = highest * 1.1,
                              .log_x = true,
                              .rule = 1.0};
    report_plot *plot = report_plot_begin(page, &axes);
    for (int at = 0; at < w->count; at++) {
        char text[16];
        snprintf(text, sizeof text, "%d", w->ranks[at]);
        report_plot_tick(plot, w->ranks[at], text);
    }
    for (int which = 0; which < w->group->num_methods; which++) {
        const char *method = w->group->methods[which];
        report_plot_series(plot, REPORT_LINE, report_colour(page, method), method, 0);
        for (int at = 0; at < w->count; at++)
            report_plot_point(plot, w->ranks[at], mean_at(w, w->ranks[at], method, value));
    }
    fputs("<div>", page->out);
    report_plot_end(plot, title);
    fputs("</div>\n", page->out);
}

static void write_scaling_table(const report_page *page, const worlds *w)
{
    static const char *const heads[] = {"<method", "W", "speedup", "overlap efficiency",
                                        NULL};
    report_table_begin(page->out, heads);
    for (int which = 0; which < w->group->num_methods; which++)
        for (int at = 0; at < w->count; at++) {
            const char *method = w->group->methods[which];
            report_table_row(page->out, method);
            report_cell(page->out, w->ranks[at], 0);
            report_cell(page->out, mean_at(w, w->ranks[at], method, report_speedup), 3);
            report_cell(page->out, mean_at(w, w->ranks[at], method, report_efficiency), 3);
            report_row_end(page->out);
        }
    report_table_end(page->out);
}

static void draw_scaling(report_page *page, const worlds *w, int num_workloads)
{
    report_figure_begin(page, w->group, "Scaling with the number of ranks");
    report_legend_of(page, w->group, NULL, true, false);
    fputs("<div class=\"panels\">\n", page->out);
    draw_value(page, w, "speedup", report_speedup);
    draw_value(page, w, "overlap efficiency", report_efficiency);
    fputs("</div>\n<figcaption>", page->out);
    report_printf(page->out,
                  "Geomean over the %d workload%s that ran on every number of ranks here; "
                  "M, N and the depth K of one rank are the same. Speedup over %s.",
                  num_workloads, num_workloads == 1 ? "" : "s",
                  w->group->problems[0]->baseline);
    fputs("</figcaption>\n", page->out);
    write_scaling_table(page, w);
    report_figure_end(page, w->group);
}

static void draw_related(report_page *page, const report_group *section,
                         report_relation *related)
{
    for (int first = 0; first < section->num_problems; first++) {
        report_group group;
        if (report_group_open(&group, section, first, related)) {
            worlds w = {.group = &group};
            for (int at = 0; at < group.num_problems; at++)
                add_world(&w, (int)group.problems[at]->shape->ranks);
            const int num_workloads = w.count > 1 ? count_workloads(&w) : 0;
            if (num_workloads > 0 && group.problems[0]->baseline)
                draw_scaling(page, &w, num_workloads);
        }
        report_group_close(&group);
    }
}

void report_scaling_figures(report_page *page, const report_group *section)
{
    draw_related(page, section, is_same_link);
    draw_related(page, section, is_same_node_link);
}
