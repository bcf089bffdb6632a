/* Checks of a call's epilogue and of all its memory. */
#ifndef EWX_EPILOGUE_H
#define EWX_EPILOGUE_H

#include <stdbool.h>
#include <stddef.h>

#include "entwine/entwine.h"

/* Refuses what cannot be the epilogue of a call into C with `rows` owned rows.  Parts that
 * hold no rows may be NULL. */
ew_status ewx_epilogue_check(const ew_epilogue *epilogue, const void *C, int64_t rows,
                             ew_op op);

/* A matrix or vector of a call.  One that is not there lies at 0, where nothing else
 * does. */
typedef struct ewx_part {
    uintptr_t at;
    size_t bytes;
} ewx_part;

static inline ewx_part ewx_part_of(const void *at, size_t bytes)
{
    return at && bytes > 0 ? (ewx_part){(uintptr_t)at, bytes} : (ewx_part){0, 0};
}

/* Refuses an output that shares memory with another part: tiles are written while others
 * are still read.  The outputs come first. */
ew_status ewx_parts_check(const ewx_part *parts, const char *const *names, int num_outputs,
                          int num_parts);

#endif
