/* Speedup over M and K as a map: one cell a shape, the darker the more. */
#include <math.h>
#include <string.h>

#include "report_page.h"

enum { LEAST_VALUES = 3, MOST_VALUES = 32, MOST_MAPS = 8 };

/* Values that M or K takes, rising. */
typedef struct axis {
    json_int_t at[MOST_VALUES];
    int count;
} axis;

static bool is_same_map(const report_problem *a, const report_problem *b)
{
    return a->shape->n == b->shape->n && a->shape->ranks == b->shape->ranks &&
           strcmp(a->shape->dtype, b->shape->dtype) == 0 &&
           strcmp(a->shape->weight, b->shape->weight) == 0;
}

static void add_value(axis *values, json_int_t value)
{
    int to = values->count;
    for (int at = 0; at < values->count; at++)
        if (values->at[at] == value)
            return;
    if (values->count == MOST_VALUES)
        return;
    for (; to > 0 && values->at[to - 1] > value; to--)
        values->at[to] = values->at[to - 1];
    values->at[to] = value;
    values->count++;
}

/* Entwine over the fastest of the others; NAN: one of them is not there. */
static double gain_of(const report_problem *problem)
{
    const report_row *ours = report_find_row(problem, "entwine");
    double least_us = NAN;
    for (int at = 0; at < problem->num_rows; at++)
        if (!problem->rows[at].error &&
            strncmp(problem->rows[at].method, "entwine", strlen("entwine")) != 0)
            least_us = fmin(least_us, problem->rows[at].time_us);
    return ours ? least_us / ours->time_us : NAN;
}

static double gain_at(const report_group *map, json_int_t rows, json_int_t depth)
{
    for (int at = 0; at < map->num_problems; at++)
        if (map->problems[at]->shape->m == rows && map->problems[at]->shape->k == depth)
            return gain_of(map->problems[at]);
    return NAN;
}

static void read_axes(const report_group *map, axis *rows, axis *depths, double *most)
{
    *rows = *depths = (axis){.count = 0};
    *most = 0;
    for (int at = 0; at < map->num_problems; at++) {
        const double gain = gain_of(map->problems[at]);
        if (!(gain > 0))
            continue;
        add_value(rows, map->problems[at]->shape->m);
        add_value(depths, map->problems[at]->shape->k);
        *most = fmax(*most, fabs(log(gain)));
    }
}

/* Gains in blue, losses in yellow. */
static void write_cell(FILE *out, double gain, double most)
{
    if (!isfinite(gain)) {
        fputs("<td>-</td>", out);
        return;
    }
    const double share = most > 0 ? fabs(log(gain)) / most : 0;
    fprintf(out,
            "<td style=\"background:color-mix(in srgb,var(--s%d) %.0f%%,transparent)\">"
            "%.2f</td>",
            gain >= 1 ? 1 : 5, 5 + 65 * share, gain);
}

static void write_map(FILE *out, const report_group *map, const axis *rows,
                      const axis *depths, double most)
{
    fputs("<div class=\"table\"><table><thead><tr><th>M \\ K</th>", out);
    for (int at = 0; at < depths->count; at++)
        fprintf(out, "<th>%" JSON_INTEGER_FORMAT "</th>", depths->at[at]);
    fputs("</tr></thead><tbody>\n", out);
    for (int row = 0; row < rows->count; row++) {
        fprintf(out, "<tr><th>%" JSON_INTEGER_FORMAT "</th>", rows->at[row]);
        for (int at = 0; at < depths->count; at++)
            write_cell(out, gain_at(map, rows->at[row], depths->at[at]), most);
        fputs("</tr>\n", out);
    }
    fputs("</tbody></table></div>\n", out);
}

static void draw_map(report_page *page, const report_group *map)
{
    axis rows, depths;
    double most;
    read_axes(map, &rows, &depths, &most);
    if (rows.count < LEAST_VALUES || depths.count < LEAST_VALUES)
        return;
    report_figure_begin(page, map, "Speedup over M and K");
    write_map(page->out, map, &rows, &depths, most);
    report_caption(page, map,
                   "Time of the fastest other method over the time of entwine, for each "
                   "shape; the stronger the colour, the farther from 1.");
    report_figure_end(page, map);
}

void report_map_figures(report_page *page, const report_group *group)
{
    int drawn = 0;
    for (int first = 0; first < group->num_problems && drawn < MOST_MAPS; first++) {
        report_group map;
        if (report_group_open(&map, group, first, is_same_map)) {
            draw_map(page, &map);
            drawn++;
        }
        report_group_close(&map);
    }
}
