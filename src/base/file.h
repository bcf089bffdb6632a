/* Small files, read whole or not at all and replaced whole or not at all. */
#ifndef EWX_BASE_FILE_H
#define EWX_BASE_FILE_H

#include <stddef.h>

#include "entwine/entwine.h"

/* Reads a file of at most `capacity` bytes.  EW_ERR_SYSTEM when it cannot be read, and
 * EW_ERR_ARGUMENT when it is larger. */
ew_status ewx_file_read(const char *path, char *data, size_t capacity, size_t *bytes_out);

/* Writes beside `path`, flushes, renames: whatever happens meanwhile, `path` holds what it
 * held before or all of `data`.  Makes the folder (for its owner alone) if it is missing.
 */
ew_status ewx_file_replace(const char *path, const char *data, size_t bytes);

#endif
