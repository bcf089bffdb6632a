/* The figures of the paper's evaluation.  A figure is a line of options that stands before
 * the user's own, so that any of them may be replaced, and a derivation: the numbers that
 * the paper draws, each made from measured results of the same run. */
#ifndef ENTWINE_CLI_FIGURES_H
#define ENTWINE_CLI_FIGURES_H

#include <jansson.h>

#include "output/output.h"

enum {
    CLI_FIGURE_COLUMNS = 8,
    CLI_FIGURE_WORDS = 256,
    CLI_FIGURE_TEXT = 2048,
    CLI_SERIES_BYTES = 64
};

/* ---- What there is: figures.c ---------------------------------------------------- */

typedef struct cli_figure_setup {
    const char *problems; /* options: a suite, or shapes */
    const char *methods;  /* options; NULL: none */
    const char *policies; /* variants; NULL: none */
    const char *budgets;  /* each policy is measured with each of them; NULL: as it is */
    const char *rest;     /* further options */
} cli_figure_setup;

typedef struct cli_figure_column {
    const char *name; /* of the JSON field */
    const char *head; /* of the table */
    int digits;
} cli_figure_column;

typedef struct cli_figure_data cli_figure_data;

typedef struct cli_figure {
    const char *name;
    cli_command_bit command;
    const char *shows;
    cli_figure_setup cpu, cuda, sim;
    const char *key;  /* ablations: the config key whose values are compared */
    const char *axis; /* what x is */
    const cli_figure_column *columns; /* a NULL name ends them */
    void (*derive)(cli_figure_data *data);
} cli_figure;

/* NULL: none has this name. */
const cli_figure *cli_figure_find(const char *name);

/* The names of a command's figures; returns how many, CLI_MAX_CHOICES at most. */
int cli_figure_names(const cli_command *command, const char **names);

/* A figure's options and the user's behind them. */
typedef struct cli_figure_line {
    char text[CLI_FIGURE_TEXT]; /* of the figure's words, each ended by a NUL */
    size_t used;
    char *words[CLI_FIGURE_WORDS];
    int count;
} cli_figure_line;

/* For a command line that names a figure, or whose command is for figures only: parses it
 * once more, with the figure's options in front.  The settings point into the line, which
 * must live as long.  On failure the error has been printed. */
cli_exit cli_figure_apply(const cli_command *command, int argc, char **argv,
                          cli_figure_line *line, cli_settings *settings);

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

struct cli_figure_data {
    const cli_figure *figure;
    const cli_job *job;
    cli_figure_point *points; /* results that ran, problem by problem */
    int num_points;
    cli_figure_row *rows; /* derived from them */
    int num_rows;
};

/* A new row without x and values. */
cli_figure_row *cli_figure_row_add(cli_figure_data *data, const cli_figure_point *point,
                                   const char *series);

/* The first result of a method for the same problem, or NULL. */
const cli_figure_point *cli_figure_result_of(const cli_figure_data *data,
                                             const cli_figure_point *point,
                                             const char *method);

double cli_geomean(const double *values, int count);
void cli_sort(double *values, int count);
/* Of sorted values, between the two that are nearest. */
double cli_quantile(const double *values, int count, double part);

/* The derivations of the table in figures.c; the last two are in figures_ratios.c. */
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
