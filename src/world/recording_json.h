/* A recording: a private copy of a world's control block, as JSON.  What is copied was
 * written by other processes, perhaps of another version, perhaps while it was copied:
 * every value is checked before it is used. */
#ifndef EWX_WORLD_RECORDING_JSON_H
#define EWX_WORLD_RECORDING_JSON_H

#include <stddef.h>

#include "entwine/entwine.h"

/* The recording behind a control block's descriptor as JSON text, to be freed by the
 * caller.  EW_ERR_MISMATCH: the memory is not a control block of this version. */
ew_status ewx_recording_read(int control_fd, char **json_out, size_t *bytes_out);

#endif
