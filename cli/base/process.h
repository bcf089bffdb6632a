/* Helper programs, run to their end within a time. */
#ifndef ENTWINE_CLI_PROCESS_H
#define ENTWINE_CLI_PROCESS_H

#include <stdbool.h>
#include <stddef.h>

/* Whether a program of this name is on PATH. */
bool cli_process_exists(const char *name);

/* Runs argv (ending with NULL, found on PATH) with `input` on its stdin and returns its
 * exit status; `output` gets what fits of its stdout, as text.  -1: it could not be
 * started, was killed, or had not ended in time and was ended.  A Ctrl-C
 * that the user means for us does not reach it. */
int cli_process_run(const char *const *argv, const char *input, double seconds,
                    char *output, size_t bytes);

#endif
