/* Grouped bars, drawn from a matrix of numbers. */
#ifndef ENTWINE_CLI_REPORT_BARS_H
#define ENTWINE_CLI_REPORT_BARS_H

#include "report_plot.h"

typedef struct report_bars {
    const char *title, *y_title;
    int width; /* px; 0: a page's */
    const char *const
        *labels; /* a group of bars each, the last num_means apart from the rest */
    int num_labels, num_means;
    const char *const *series;
    int num_series;
    const double
        *heights;        /* of label l and series s at [l * num_series + s]; NAN: no bar */
    const double *lower; /* the part of a bar below its tail; NULL: one piece */
    double rule;         /* a line at this height; NAN: none */
} report_bars;

/* In as many rows as keep bars and labels readable, all to one scale. */
void report_bars_draw(report_page *page, const report_bars *bars);

#endif
