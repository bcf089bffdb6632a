/* Charts, drawn by gnuplot as SVG.  gnuplot sees numbers and placeholders only: colours
 * and texts are put in afterwards, so that no text of a file is ever read as a command,
 * and the colours are the page's, in light and in dark. */
#ifndef ENTWINE_CLI_REPORT_PLOT_H
#define ENTWINE_CLI_REPORT_PLOT_H

#include "report_page.h"

typedef struct report_axes {
    int width, height;
    const char *x_title, *y_title; /* ours: plain words */
    double x_min, x_max, y_min, y_max;
    bool log_x, log_y;
    int slanted_letters; /* of the x axis' longest label; 0: they lie level */
    double rule;         /* a line at this y; NAN: none */
    bool diagonal;       /* a line at y = x */
} report_axes;

typedef enum report_shape {
    REPORT_BARS,
    REPORT_LINE,
    REPORT_DASHED,
    REPORT_DOTTED,
    REPORT_DOTS,
    REPORT_VALUES /* no shape: the y of each point, written above it */
} report_shape;

typedef struct report_plot report_plot;

enum { REPORT_TAIL_COLOUR = 100, REPORT_INK_COLOUR, REPORT_MUTED_COLOUR };

/* NULL: no memory, kept in the page.  The rest accepts NULL. */
report_plot *report_plot_begin(report_page *page, const report_axes *axes);
void report_plot_tick(report_plot *plot, double x, const char *label);
/* What follows belongs to it.  `bar_width` counts for bars only. */
void report_plot_series(report_plot *plot, report_shape shape, int colour,
                        const char *label, double bar_width);
void report_plot_point(report_plot *plot, double x, double y); /* NAN is left out */
/* Writes the SVG; frees the plot. */
void report_plot_end(report_plot *plot, const char *title);

#endif
