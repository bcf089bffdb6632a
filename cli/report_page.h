/* The page under construction, and the pieces that figures are built of.  A failure is kept
 * in the page, and what comes after it writes nothing of use: whoever writes the page looks
 * once, at its end. */
#ifndef ENTWINE_CLI_REPORT_PAGE_H
#define ENTWINE_CLI_REPORT_PAGE_H

#include "report_data.h"

typedef struct report_page {
    const cli_report *report;
    FILE *out;
    bool has_gnuplot;
    int num_figures, num_plots;
    const char
        *methods[REPORT_MAX_METHODS]; /* a method has one colour in all figures of a file */
    int num_methods;
    cli_exit failed; /* its error has been printed */
} report_page;

/* ---- Text ---- */

/* As HTML text or attribute: whatever bytes there are, none of them is markup. */
void report_text(FILE *out, const char *text);

/* The same through printf. */
void report_printf(FILE *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The stylesheet. */
void report_style(FILE *out);

/* ---- Tables ---- */

/* Heads end with NULL; one that starts with < stands above texts. */
void report_table_begin(FILE *out, const char *const *heads);
void report_table_row(FILE *out, const char *first);
void report_row_end(FILE *out);
void report_cell(FILE *out, double value, int digits); /* NAN: a dash */
void report_cell_text(FILE *out, const char *text);
void report_table_end(FILE *out);

/* ---- Figures ---- */

/* Title, and EMULATED, VIRTUAL NODE, SIMULATED where any of the group's numbers is. */
void report_figure_begin(report_page *page, const report_group *group, const char *title);
void report_caption(report_page *page, const report_group *group, const char *text);
/* Ends with the commands that made the numbers. */
void report_figure_end(report_page *page, const report_group *group);
void report_badge(FILE *out, const char *kind, const char *text);
void report_badges(FILE *out, const report_group *group);
void report_commands(FILE *out, const report_source *source);

/* One entry of a legend; `mark` is a sign of the line's points, NULL for a box. */
void report_legend(report_page *page, const char *colour, const char *mark,
                   const char *label);
/* A whole one, but for the method `left_out` (NULL: none); `with_tail` adds the tail's. */
void report_legend_of(report_page *page, const report_group *group, const char *left_out,
                      bool as_marks, bool with_tail);

/* Number of a method's colour: var(--s<number>) in the stylesheet. */
enum { REPORT_NUM_COLOURS = 16 };
int report_colour(report_page *page, const char *method);
/* And the sign of its points. */
const char *report_mark(int colour);

/* ---- What the page shows ---- */

/* All of it.  The stream's own failures are left to the caller. */
cli_exit report_write(const cli_report *report, FILE *out);

void report_overview_figures(report_page *page, const report_group *group);
void report_curve_figures(report_page *page, const report_group *group);
void report_map_figures(report_page *page, const report_group *group);
void report_budget_figure(report_page *page, const report_group *group);
void report_bandwidth_figure(report_page *page, const report_group *group);
void report_scaling_figures(report_page *page, const report_group *section);
void report_derived_figure(report_page *page, const report_group *group);
void report_timeline(report_page *page, const report_source *source);

#endif
