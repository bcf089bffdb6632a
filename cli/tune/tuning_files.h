/* The folder of the tuning entries as a list: what is an entry, what was meant to be one,
 * and what an interrupted write left behind.  Other files there are left alone. */
#ifndef ENTWINE_CLI_TUNING_FILES_H
#define ENTWINE_CLI_TUNING_FILES_H

#include <limits.h>
#include <time.h>

#include "entwine/tune.h"
#include "base/message.h"

typedef enum cli_tuning_kind {
    CLI_TUNING_ENTRY,
    CLI_TUNING_DAMAGED, /* the name of an entry, but none inside; `why` says why */
    CLI_TUNING_LEFTOVER /* of a write that never ended */
} cli_tuning_kind;

typedef struct cli_tuning_file {
    char name[64];
    cli_tuning_kind kind;
    ew_tuning tuning; /* of an entry */
    char why[160];
    time_t changed;
} cli_tuning_file;

typedef struct cli_tuning_files {
    char folder[PATH_MAX];
    cli_tuning_file *at; /* sorted by name */
    int count;
} cli_tuning_files;

/* A folder that does not exist yet holds nothing.  On failure the error has been printed;
 * close either way. */
cli_exit cli_tuning_files_open(cli_tuning_files *files);
void cli_tuning_files_close(cli_tuning_files *files);

void cli_tuning_file_path(const cli_tuning_files *files, const cli_tuning_file *file,
                          char *path, size_t bytes);

/* The entry with this key; NULL: none. */
const cli_tuning_file *cli_tuning_files_find(const cli_tuning_files *files,
                                             const char *key);

/* How much faster than the built-in choice; NAN when the entry does not say. */
double cli_tuning_gain(const ew_tuning *tuning);

#endif
