/* Where a document goes: stdout, or a temporary that takes the file's name once all is
 * written and on the disk, or, for a pipe or device, which must not be replaced, the file
 * itself.  A symbolic link stays: the file that it leads to is replaced. */
#ifndef ENTWINE_CLI_OUT_FILE_H
#define ENTWINE_CLI_OUT_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/message.h"

typedef struct cli_out_file {
    const char *what; /* it holds, for messages: "the trace" */
    const char *path;
    char target[PATH_MAX];    /* what the path leads to */
    char temporary[PATH_MAX]; /* empty: none */
    FILE *stream;
} cli_out_file;

/* `-` is stdout.  On failure the error has been printed. */
cli_exit cli_out_file_open(cli_out_file *file, const char *what, const char *path);

/* Whether the document can be put in place again and again, as it grows. */
bool cli_out_file_is_renewable(const cli_out_file *file);

/* Puts in place what was written, unless it was not all, and begins anew.  A failure is
 * silent and leaves the old document; closing tries for the last time. */
void cli_out_file_renew(cli_out_file *file, bool written);

/* Puts the file in place when all was `written`, and prints the error if that fails, or if
 * a write before failed; else takes back what there is of it. */
cli_exit cli_out_file_close(cli_out_file *file, bool written);

/* Prints the error of a write, from errno. */
cli_exit cli_out_file_fail(const cli_out_file *file);

#endif
