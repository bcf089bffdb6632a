/* Files that are read: those named by the user, and those that belong to the tool, found
 * from where its executable lies, so that a build tree and an installed prefix both work
 * wherever they are moved. */
#ifndef ENTWINE_CLI_PATHS_H
#define ENTWINE_CLI_PATHS_H

#include <stdbool.h>
#include <stddef.h>

/* The text of a file of at most `most_bytes`, to be freed.  NULL: `why` says what is wrong
 * with it. */
char *cli_path_read(const char *path, size_t most_bytes, const char **why_out);

/* Writes the first existing file `name` beside the executable (in `beside`, or "") or in
 * `from_bin`, a path relative to it.  False: there is none. */
bool cli_path_find(const char *beside, const char *from_bin, const char *name, char *path,
                   size_t bytes);

/* Where the installed tool keeps its parts, relative to the executable; set by CMake. */
#ifndef EW_MODULES_FROM_BIN
#define EW_MODULES_FROM_BIN "../lib/entwine"
#endif
#ifndef EW_SUITES_FROM_BIN
#define EW_SUITES_FROM_BIN "../share/entwine/suites"
#endif

#endif
