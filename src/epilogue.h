/* Epilogues: the check of their arguments and of all memory of a call, and one that runs as
 * a step of its own. */
#ifndef EWX_EPILOGUE_H
#define EWX_EPILOGUE_H

#include <stdbool.h>
#include <stddef.h>

#include "entwine/entwine.h"

/* Refuses what cannot be the epilogue of a call into C with so many owned rows.  Parts that
 * hold no rows may be NULL. */
ew_status ewx_epilogue_check(const ew_epilogue *epilogue, const void *C, int64_t rows);

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

/* Whether ew_gemm_rs_layer fuses the epilogue also where it is faster to let it follow; a
 * GPU keeps its choice. */
void ewx_plan_fuse(ew_plan *plan, bool always);

/* Enqueues an epilogue behind an ew_gemm_rs of m rows into `sum`, both on the rank's own
 * stream: what a fused one is compared with. */
ew_status ewx_plan_finish(ew_plan *plan, int64_t m, void *sum, const ew_epilogue *epilogue);

#endif
