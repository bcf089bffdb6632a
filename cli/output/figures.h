/* What a figure (options/figure_lines.h) derives from results: the numbers that the paper
 * draws, each made from measured results of the same run. */
#ifndef ENTWINE_CLI_FIGURES_H
#define ENTWINE_CLI_FIGURES_H

#include <jansson.h>

#include "base/json_file.h"
#include "base/stats.h"
#include "options/figure_lines.h"
#include "output/output.h"

enum { CLI_FIGURE_COLUMNS = 8, CLI_SERIES_BYTES = 64 };

/* ---- What is made of results: figures_derive.c ----------------------------------- */

typedef struct cli_figure_point {
    const cli_problem *problem;
    const cli_entry *entry;
    int result; /* its place among the document's results */
    double time_us, gemm_us, tail_us;
    double speedup; /* over the job's baseline */
    double breq;    /* GB/s */
    ew_config config;
} cli_figure_point;

typedef struct cli_figure_row {
    const cli_figure_point *point; /* NULL: of several */
    char series[CLI_SERIES_BYTES];
    char label[CLI_SERIES_BYTES]; /* x in words; empty: x is a number */
    double x;
    double values[CLI_FIGURE_COLUMNS]; /* as the figure's columns; NAN: none */
} cli_figure_row;

typedef struct cli_figure_column {
    const char *name; /* of the JSON field */
    const char *head; /* of the table */
    int digits;
} cli_figure_column;

typedef struct cli_figure_data {
    const cli_figure *figure;
    const cli_figure_column *columns; /* a NULL name ends them */
    const cli_job *job;
    cli_figure_point *points; /* results that ran, problem by problem */
    int num_points;
    cli_figure_row *rows; /* derived from them */
    int num_rows;
} cli_figure_data;

/* A new row without x and values. */
cli_figure_row *cli_figure_row_add(cli_figure_data *data, const cli_figure_point *point,
                                   const char *series);

/* The first result of a method for the same problem, or NULL. */
const cli_figure_point *cli_figure_result_of(const cli_figure_data *data,
                                             const cli_figure_point *point,
                                             const char *method);

/* The derivations; the last two are in figures_ratios.c. */
void cli_derive_speedup(cli_figure_data *data);
void cli_derive_policies(cli_figure_data *data);
void cli_derive_budget(cli_figure_data *data);
void cli_derive_bandwidth(cli_figure_data *data);
void cli_derive_required(cli_figure_data *data);
void cli_derive_waves(cli_figure_data *data);
void cli_derive_scaling(cli_figure_data *data);

/* ---- What is kept and shown: figures_output.c ------------------------------------ */

/* False: no memory. */
bool cli_figure_init(cli_figure_data *data, const cli_figure *figure, const cli_job *job);
void cli_figure_fini(cli_figure_data *data);

void cli_figure_add(cli_figure_data *data, const cli_row *row, int result);

/* Fills the rows anew from the points there are so far. */
void cli_figure_derive(cli_figure_data *data);

json_t *cli_figure_json(const cli_figure_data *data);
void cli_figure_print(const cli_figure_data *data);

#endif
