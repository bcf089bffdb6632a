/* What `tune` prints: a line for each problem as it is done, and what they come to. */
#ifndef ENTWINE_CLI_TUNE_OUTPUT_H
#define ENTWINE_CLI_TUNE_OUTPUT_H

#include <jansson.h>

#include "entwine/tune.h"
#include "run/job.h"

typedef enum cli_tuned_as {
    CLI_TUNED,        /* measured now */
    CLI_TUNE_RESUMED, /* an entry was there */
    CLI_TUNE_SKIPPED  /* not for this machine; `error` says why */
} cli_tuned_as;

typedef struct cli_tuned {
    cli_tuned_as kind;
    const cli_problem *problem;
    ew_tune_result result; /* of a resumed one the entry alone */
    char error[CLI_ERROR_BYTES];
} cli_tuned;

typedef struct cli_tune_output {
    const cli_settings *settings;
    const cli_job *job;
    const char *folder;
    json_t *document, *results; /* the second borrowed from the first */
    int num_kinds[3];
    int num_cut_short; /* searches that the budget ended */
    int num_left_out;  /* candidates, by the simulator */
    char profile[64];  /* with which; empty: none */
    double *regrets;   /* of the built-in choice, one for each problem */
    int num_regrets;
    double log_gain_sum;
    bool begun;
} cli_tune_output;

/* Whether what is found is kept: only entwine's, which plans look for. */
bool cli_tune_stores(const cli_settings *settings);

/* Takes over context.  On failure the error has been printed; close either way. */
cli_exit cli_tune_output_open(cli_tune_output *output, const cli_settings *settings,
                              const cli_job *job, const char *folder, json_t *context);
void cli_tune_output_problem(cli_tune_output *output, const cli_tuned *tuned);

/* Prints the end; the exit status of a run that was complete. */
cli_exit cli_tune_output_close(cli_tune_output *output, bool complete);

#endif
