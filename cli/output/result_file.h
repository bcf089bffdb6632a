/* A document of `bench -o json` read back.  It comes from outside: every value that is
 * used is checked, and every message names the file and the result. */
#ifndef ENTWINE_CLI_RESULT_FILE_H
#define ENTWINE_CLI_RESULT_FILE_H

#include <stdbool.h>

#include "base/json_file.h"

typedef struct cli_measured {
    json_int_t m, n, k, ranks;
    const char *op, *dtype, *weight, *link, *method; /* the document's */
    const char *profile; /* what was simulated; empty: nothing */
    bool ran;            /* false: skipped there */
    double *samples_us;  /* sorted */
    double *rounds_us;   /* the same in the order taken */
    int num_samples;
    double median_us;
    bool paired; /* for whoever compares */
} cli_measured;

typedef struct cli_result_file {
    const char *path;
    json_t *document;
    const char *time, *commit, *cpu; /* the document's */
    char gpus[160];                  /* "NVIDIA H200 (132 SMs)", empty: none */
    bool complete;
    cli_measured *results;
    int num_results;
} cli_result_file;

/* On failure the error has been printed; close either way. */
cli_exit cli_result_file_open(cli_result_file *file, const char *path);
/* The same with a document that was loaded before; takes it over. */
cli_exit cli_result_file_take(cli_result_file *file, const char *path, json_t *document);
void cli_result_file_close(cli_result_file *file);

#endif
