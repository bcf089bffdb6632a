/* The first of two levels: what this host's ranks contribute to tiles of other hosts is
 * summed here and leaves as one message instead of one per rank. */
#ifndef EWX_CPU_HOST_SUM_H
#define EWX_CPU_HOST_SUM_H

#include "backend/cpu/call.h"

/* One sum after the other; the fields up to `local` belong to the holder. */
typedef struct ewx_host_sum {
    unsigned char *partials; /* a tile per worker */
    _Alignas(64) atomic_flag held;
    int64_t step; /* in the order of units and destinations */
    int64_t tile; /* of the unit */
    int local;    /* contributions of local ranks below this are known to be ready */
    _Alignas(64) _Atomic int64_t tiles_left;
} ewx_host_sum;

/* Whether a sum has two levels here. */
bool ewx_host_sum_is_needed(const ewx_cpu_engine *engine);
/* The first contribution that a local rank still owes to such a tile of ours. */
bool ewx_host_sum_missing(ewx_cpu_engine *engine, int *src_out, ewx_tile *tile_out);
/* The sum of this host's contributions to a tile; the worker's until its next one. */
const void *ewx_host_sum_of(ewx_cpu_engine *engine, int worker, int dst, ewx_tile tile);

/* As ewx_work says: up to b tiles. */
extern const ewx_work ewx_host_sum_work;

#endif
