/* The figure that `--figure NAME` put into a result document: a panel for each of its first
 * columns, bars where x is a workload and lines where it is a number. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_bars.h"

enum {
    FEW_BARS = 10,
    MOST_COLUMNS = 16,
    MOST_DRAWN = 3,
    MOST_SERIES = 24,
    MOST_LABELS = 512
};

typedef struct derived {
    const char *name, *shows, *axis;
    const char *columns[MOST_COLUMNS + 1];
    int num_columns;
    const json_t *rows;
    const char *series[MOST_SERIES];
    int num_series;
    const char *labels[MOST_LABELS]; /* texts that x takes */
    int num_labels;
    double x_min, x_max; /* of the numbers that x takes; x_max < x_min: none */
} derived;

/* Its place in the list, where it is put if there is room; -1: there is none. */
static int place_of(const char **list, int *count, int most, const char *text)
{
    int at = 0;
    while (at < *count && strcmp(list[at], text) != 0)
        at++;
    if (at == *count && *count < most)
        list[(*count)++] = text;
    return at < *count ? at : -1;
}

static bool read_derived(derived *d, const json_t *figure)
{
    const json_t *value;
    size_t at;
    *d = (derived){.name = report_string(figure, "name", ""),
                   .shows = report_string(figure, "shows", ""),
                   .axis = report_string(figure, "axis", ""),
                   .rows = json_object_get(figure, "derived"),
                   .x_min = INFINITY,
                   .x_max = -INFINITY};
    json_array_foreach(json_object_get(figure, "columns"), at, value)
    {
        if (json_is_string(value) && d->num_columns < MOST_COLUMNS)
            d->columns[d->num_columns++] = json_string_value(value);
    }
    json_array_foreach(d->rows, at, value)
    {
        const double x = report_number(value, "x");
        const char *label = report_string(value, "x", "");
        place_of(d->series, &d->num_series, MOST_SERIES,
                 report_string(value, "series", ""));
        if (*label)
            place_of(d->labels, &d->num_labels, MOST_LABELS, label);
        if (isfinite(x)) {
            d->x_min = fmin(d->x_min, x);
            d->x_max = fmax(d->x_max, x);
        }
    }
    return d->num_columns > 0 && d->num_series > 0;
}

/* ---- Lines ---- */

static double highest_at_numbers(const derived *d, const char *column)
{
    const json_t *row;
    size_t at;
    double highest = -INFINITY;
    json_array_foreach(d->rows, at, row)
    {
        if (isfinite(report_number(row, "x")))
            highest = fmax(highest, report_number(row, column));
    }
    return highest;
}

/* Points that come in order are joined, others are a cloud. */
static bool is_in_order(const derived *d, const char *series)
{
    const json_t *row;
    size_t at;
    double before = -INFINITY;
    json_array_foreach(d->rows, at, row)
    {
        const double x = report_number(row, "x");
        if (!isfinite(x) || strcmp(report_string(row, "series", ""), series) != 0)
            continue;
        if (x <= before)
            return false;
        before = x;
    }
    return true;
}

static void add_line(report_page *page, report_plot *plot, const derived *d,
                     const char *series, const char *column)
{
    const json_t *row;
    size_t at;
    report_plot_series(plot, is_in_order(d, series) ? REPORT_LINE : REPORT_DOTS,
                       report_colour(page, series), series, 0);
    json_array_foreach(d->rows, at, row)
    {
        if (strcmp(report_string(row, "series", ""), series) == 0)
            report_plot_point(plot, report_number(row, "x"), report_number(row, column));
    }
}

static void draw_lines(report_page *page, const derived *d, const char *column)
{
    const double highest = highest_at_numbers(d, column);
    const bool log_x = d->x_min > 0 && d->x_max / d->x_min > 8;
    const double margin = log_x ? 0.0 : 0.05 * (d->x_max - d->x_min);
    if (!(highest > 0) || d->x_min == d->x_max)
        return; /* the table says it all */
    const report_axes axes = {.width = 440,
                              .height = 300,
                              .x_title = "",
                              .y_title = "",
                              .x_min = log_x ? d->x_min / 1.15 : d->x_min - margin,
                              .x_max = log_x ? d->x_max * 1.15 : d->x_max + margin,
                              .y_max = highest * 1.1,
                              .log_x = log_x,
                              .rule = NAN};
    fputs("<div><h5>", page->out);
    report_printf(page->out, "%s against %s", column, d->axis);
    fputs("</h5>", page->out);
    report_plot *plot = report_plot_begin(page, &axes);
    for (int at = 0; at < d->num_series; at++)
        add_line(page, plot, d, d->series[at], column);
    report_plot_end(plot, column);
    fputs("</div>\n", page->out);
}

/* ---- Bars ---- */

static void draw_bars(report_page *page, derived *d, const char *column)
{
    const json_t *row;
    size_t at;
    const int cells = d->num_labels * d->num_series;
    double *heights = calloc((size_t)cells + 1, sizeof *heights);
    if (!heights) {
        page->failed = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for a chart");
        return;
    }
    for (int cell = 0; cell < cells; cell++)
        heights[cell] = NAN;
    json_array_foreach(d->rows, at, row)
    {
        const int label =
            place_of(d->labels, &d->num_labels, d->num_labels, report_string(row, "x", ""));
        const int series = place_of(d->series, &d->num_series, d->num_series,
                                    report_string(row, "series", ""));
        if (label >= 0 && series >= 0)
            heights[label * d->num_series + series] = report_number(row, column);
    }
    const report_bars bars = {.title = column,
                              .y_title = "",
                              .width = cells > FEW_BARS ? 0 : 440,
                              .labels = d->labels,
                              .num_labels = d->num_labels,
                              .series = d->series,
                              .num_series = d->num_series,
                              .heights = heights,
                              .rule = NAN};
    fputs("<div><h5>", page->out);
    report_text(page->out, column);
    fputs("</h5>\n", page->out);
    report_bars_draw(page, &bars);
    fputs("</div>\n", page->out);
    free(heights);
}

/* ---- Figure ---- */

static void write_rows(FILE *out, const derived *d)
{
    const char *heads[MOST_COLUMNS + 4] = {"<series", d->axis, "W"};
    const json_t *row;
    size_t at;
    memcpy(heads + 3, d->columns, (size_t)d->num_columns * sizeof *heads);
    report_table_begin(out, heads);
    json_array_foreach(d->rows, at, row)
    {
        const double x = report_number(row, "x"), ranks = report_number(row, "ranks");
        report_table_row(out, report_string(row, "series", ""));
        if (isfinite(x))
            fprintf(out, "<td>%.6g</td>", x);
        else
            report_cell_text(out, report_string(row, "x", ""));
        report_cell(out, ranks, 0);
        for (int column = 0; column < d->num_columns; column++)
            report_cell(out, report_number(row, d->columns[column]), 3);
        report_row_end(out);
    }
    report_table_end(out);
}

static void write_legend(report_page *page, const derived *d)
{
    const bool as_marks = d->x_max >= d->x_min;
    fputs("<ul class=\"legend\">", page->out);
    for (int at = 0; at < d->num_series; at++) {
        const int colour = report_colour(page, d->series[at]);
        char name[16];
        snprintf(name, sizeof name, "s%d", colour);
        report_legend(page, name, as_marks ? report_mark(colour) : NULL, d->series[at]);
    }
    fputs("</ul>\n", page->out);
}

void report_derived_figure(report_page *page, const report_group *group)
{
    const json_t *document = group->problems[0]->source->results.document;
    const json_t *figure = json_object_get(document, "figure");
    char title[160];
    derived d;
    if (!figure || !read_derived(&d, figure))
        return;
    snprintf(title, sizeof title, "Figure: %.120s", d.name);
    report_figure_begin(page, group, title);
    write_legend(page, &d);
    const int drawn = d.num_columns < MOST_DRAWN ? d.num_columns : MOST_DRAWN;
    const bool has_lines = d.x_max >= d.x_min;
    const bool side_by_side = has_lines || d.num_labels * d.num_series <= FEW_BARS;
    fputs(side_by_side ? "<div class=\"panels\">\n" : "<div>\n", page->out);
    for (int at = 0; at < drawn; at++) {
        if (has_lines)
            draw_lines(page, &d, d.columns[at]);
        else if (strcmp(d.columns[at], "best") != 0) /* yes or no: the table's */
            draw_bars(page, &d, d.columns[at]);
    }
    fputs("</div>\n", page->out);
    fputs("<figcaption>", page->out);
    report_text(page->out, d.shows);
    fputs("</figcaption>\n", page->out);
    write_rows(page->out, &d);
    report_figure_end(page, group);
}
