/* Where a document goes: stdout, or a draft that takes the file's name once all is written
 * and on the disk, or, for a pipe or device, which must not be replaced, the file itself.
 * A symbolic link stays: the file that it leads to is replaced. */
#ifndef ENTWINE_CLI_OUT_FILE_H
#define ENTWINE_CLI_OUT_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/message.h"

typedef enum cli_out_kind { CLI_OUT_STDOUT, CLI_OUT_REPLACED, CLI_OUT_DIRECT } cli_out_kind;

typedef struct cli_out_file {
    const char *what; /* it holds, for messages: "the trace" */
    const char *path;
    cli_out_kind kind;
    char target[PATH_MAX]; /* what the path leads to, of a file that is replaced */
} cli_out_file;

/* Writes the document; false, and errno, when that fails. */
typedef bool (*cli_writer)(const void *context, FILE *stream);

/* `-` is stdout.  Finds out before any work whether the file can be written; if not, the
 * error has been printed. */
cli_exit cli_out_file_open(cli_out_file *file, const char *what, const char *path);

/* Puts the document in place, and prints the error if that fails, which leaves the old one.
 * Errors of stdout are main's. */
cli_exit cli_out_file_write(const cli_out_file *file, cli_writer writer,
                            const void *context);
/* The same for a document that grows, where files are replaced; a failure is silent. */
void cli_out_file_renew(const cli_out_file *file, cli_writer writer, const void *context);

#endif
