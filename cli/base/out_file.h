/* Where a document goes: stdout, or a temporary that takes the file's name once all is
 * written, or, for a pipe or device, which must not be replaced, the file itself. */
#ifndef ENTWINE_CLI_OUT_FILE_H
#define ENTWINE_CLI_OUT_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/message.h"

typedef struct cli_out_file {
    const char *what; /* it holds, for messages: "the trace" */
    const char *path;
    char temporary[PATH_MAX]; /* empty: none */
    FILE *stream;
} cli_out_file;

/* `-` is stdout.  On failure the error has been printed. */
cli_exit cli_out_file_open(cli_out_file *file, const char *what, const char *path);

/* Puts the file in place when all was written, else takes back what there is of it. */
cli_exit cli_out_file_close(cli_out_file *file, bool written);

/* Prints the error of a write, from errno. */
cli_exit cli_out_file_fail(const cli_out_file *file);

#endif
