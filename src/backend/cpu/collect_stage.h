/* The second phase of an AllReduce: the rank that has finished a tile, or rows, leaves the
 * result in place of its own first contribution, which no other rank reads, and the other
 * ranks copy it from there; to other hosts the exchange carries it.  It needs no memory of
 * its own there, and the place is free again when a contribution's would be. */
#ifndef EWX_CPU_COLLECT_STAGE_H
#define EWX_CPU_COLLECT_STAGE_H

#include "backend/cpu/call.h"

/* One rank's results: tiles in the order in which it sums them, or its rows from top to
 * bottom, by rows of tiles.  step belongs to the holder. */
typedef struct ewx_collector {
    _Alignas(64) atomic_flag held;
    int64_t step;
} ewx_collector;

typedef struct ewx_collect_stage {
    ewx_collector *collectors;      /* one per rank */
    _Atomic int64_t *rows_finished; /* of each of this rank's results */
    /* For the present call: */
    int64_t num_results; /* that other ranks have for this one */
    _Alignas(64) _Atomic int64_t results_done;
} ewx_collect_stage;

/* The sum of a tile of ours, rows `stride` elements apart, is complete.  Any worker. */
void ewx_collect_stage_publish_tile(ewx_cpu_engine *engine, ewx_tile tile,
                                    const unsigned char *sum, int64_t stride);
/* So are our share's rows from `first` up to `end` of the norm. */
void ewx_collect_stage_publish_rows(ewx_cpu_engine *engine, int64_t first, int64_t end);
/* The first result that its rank still owes. */
bool ewx_collect_stage_missing(ewx_cpu_engine *engine, int *src_out, ewx_tile *tile_out);

/* As ewx_work says: up to b results of one rank. */
extern const ewx_work ewx_collect_work;
bool ewx_collect_stage_is_done(const ewx_cpu_engine *engine);

#endif
