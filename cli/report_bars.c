/* Rows of grouped bars that fit a page's width. */
#include "report_bars.h"

#include <math.h>
#include <string.h>

enum {
    MOST_BARS = 72, /* in a row */
    MOST_GROUPS = 16,
    BARS_WITH_VALUES = 20,
    LETTER_WIDTH = 8, /* px, rather too much */
    PLOT_WIDTH = 680
};

static double highest_of(const report_bars *b)
{
    double highest = isfinite(b->rule) ? b->rule : 0.0;
    for (int at = 0; at < b->num_labels * b->num_series; at++)
        highest = fmax(highest, b->heights[at]);
    return highest;
}

/* Where a group stands in its row; means stand a little apart. */
static double group_place(const report_bars *b, int first, int label)
{
    return label - first + (label >= b->num_labels - b->num_means ? 0.25 : 0.0);
}

static void add_series(const report_bars *b, report_plot *plot, int first, int end,
                       int series, const double *values, report_shape shape, int colour)
{
    const double step = 0.8 / b->num_series;
    report_plot_series(plot, shape, colour, b->series[series], step * 0.94);
    for (int label = first; label < end; label++)
        report_plot_point(plot,
                          group_place(b, first, label) +
                              (series - (b->num_series - 1) / 2.0) * step,
                          values[label * b->num_series + series]);
}

/* Labels lie level where they have room, else slanted below their bars. */
static int slanted_letters(const report_bars *b, int first, int end)
{
    int longest = 0;
    for (int label = first; label < end; label++)
        if ((int)strlen(b->labels[label]) > longest)
            longest = (int)strlen(b->labels[label]);
    return longest * LETTER_WIDTH > PLOT_WIDTH / (end - first) ? longest : 0;
}

static void draw_row(report_page *page, const report_bars *b, int first, int end)
{
    /* One or two groups are not blown up to the whole width. */
    const bool few = !b->width && end - first < 3;
    const double margin = few ? 0.6 + 0.5 * (3 - (end - first)) : 0.6;
    const report_axes axes = {
        .width = b->width ? b->width : 760,
        .height = 290,
        .x_title = "",
        .y_title = b->y_title,
        .x_min = -margin,
        .x_max = group_place(b, first, end - 1) + margin,
        .y_max = highest_of(b) * 1.13,
        .slanted_letters = slanted_letters(b, first, end),
        .rule = b->rule,
    };
    report_plot *plot = report_plot_begin(page, &axes);
    for (int label = first; label < end; label++)
        report_plot_tick(plot, group_place(b, first, label), b->labels[label]);
    for (int at = 0; at < b->num_series; at++) {
        const int colour = report_colour(page, b->series[at]);
        add_series(b, plot, first, end, at, b->heights, REPORT_BARS,
                   b->lower ? REPORT_TAIL_COLOUR : colour);
        if (b->lower)
            add_series(b, plot, first, end, at, b->lower, REPORT_BARS, colour);
        if ((end - first) * b->num_series <= BARS_WITH_VALUES)
            add_series(b, plot, first, end, at, b->heights, REPORT_VALUES, colour);
    }
    report_plot_end(plot, b->title);
}

void report_bars_draw(report_page *page, const report_bars *b)
{
    if (b->num_series == 0 || b->num_labels == 0)
        return;
    int most = MOST_BARS / b->num_series;
    most = most > MOST_GROUPS ? MOST_GROUPS : most < 3 ? 3 : most;
    const int num_rows = (b->num_labels + most - 1) / most;
    const int each = (b->num_labels + num_rows - 1) / num_rows;
    for (int first = 0; first < b->num_labels; first += each) {
        const int end = first + each < b->num_labels ? first + each : b->num_labels;
        draw_row(page, b, first, end);
    }
}
