/* The figures of the paper's evaluation.  A figure is a line of options that stands before
 * the user's own, so that any of them may be replaced; what is derived from its results is
 * in output/figures.h. */
#ifndef ENTWINE_CLI_FIGURE_LINES_H
#define ENTWINE_CLI_FIGURE_LINES_H

#include "options/options.h"

enum { CLI_FIGURE_WORDS = 256, CLI_FIGURE_TEXT = 2048 };

typedef struct cli_figure_setup {
    const char *problems; /* options: a suite, or shapes */
    const char *methods;  /* options; NULL: none */
    const char *policies; /* variants; NULL: none */
    const char *budgets;  /* each policy is measured with each of them; NULL: as it is */
    const char *rest;     /* further options */
} cli_figure_setup;

typedef struct cli_figure {
    const char *name;
    const char *shows;
    cli_figure_setup cpu, cuda, sim;
    const char *key;  /* ablations: the config key whose values are compared */
    const char *axis; /* what x is */
} cli_figure;

/* NULL: none has this name. */
const cli_figure *cli_figure_find(const char *name);
/* Ends with NULL. */
const char *const *cli_figure_names(void);

/* A figure's options and the user's behind them. */
typedef struct cli_figure_line {
    char text[CLI_FIGURE_TEXT]; /* of the figure's words, each ended by a NUL */
    size_t used;
    char *words[CLI_FIGURE_WORDS];
    int count;
} cli_figure_line;

/* For a command line that names a figure: parses it once more, with the figure's options in
 * front.  The settings point into the line, which must live as long.  On failure the error
 * has been printed. */
cli_exit cli_figure_apply(const cli_command *command, int argc, char **argv,
                          cli_figure_line *line, cli_settings *settings);

#endif
