/* The figures of the paper's evaluation.  A figure is a line of options that stands before
 * the user's own, so that any of them may be replaced.  scripts/derive-figure makes the
 * paper's numbers of its results. */
#ifndef ENTWINE_CLI_FIGURE_LINES_H
#define ENTWINE_CLI_FIGURE_LINES_H

#include "options/options.h"

enum { CLI_FIGURE_WORDS = 256, CLI_FIGURE_TEXT = 2048 };

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
