/* Files, read whole or not at all and replaced whole or not at all.  Knows nothing of the
 * library but its texts: the tool is built with it, too. */
#ifndef EWX_BASE_FILE_H
#define EWX_BASE_FILE_H

#include <limits.h>
#include <stddef.h>
#include <sys/types.h>

/* Reads a regular file of at most `capacity` bytes; pipes and devices, which may block or
 * never end, are refused.  NULL, or why it cannot be read. */
const char *ewx_file_read(const char *path, char *data, size_t capacity, size_t *bytes_out);

/* What will replace a file, written beside it under a name that no other process uses. */
typedef struct ewx_draft {
    char path[PATH_MAX];
    int fd; /* the caller writes to it; the draft closes it */
} ewx_draft;

/* Both return 0 or the errno of the first step that failed, and then leave no draft. */
int ewx_draft_open(ewx_draft *draft, const char *target, mode_t mode);
/* `error` is the caller's: 0 flushes the draft and gives it the target's name, so that a
 * crash leaves the old file or all of the new one; anything else removes the draft. */
int ewx_draft_close(ewx_draft *draft, const char *target, int error);

/* Writes a draft of mode 0600 and closes it.  Makes the folder (for its owner alone) if it
 * is missing; replaces a link, and refuses to replace a pipe or a device.  NULL, or why the
 * file cannot be written. */
const char *ewx_file_replace(const char *path, const char *data, size_t bytes);

#endif
