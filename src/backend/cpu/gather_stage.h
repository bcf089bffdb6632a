/* AllGather: this rank leaves its rows of A in its segment, panel by panel, and its GEMM
 * takes the blocks whose rows have arrived.  A panel is as high as a tile. */
#ifndef EWX_CPU_GATHER_STAGE_H
#define EWX_CPU_GATHER_STAGE_H

#include "backend/cpu/call.h"

/* One rank's rows, which are a part of the grid. */
typedef struct ewx_gather_source {
    _Alignas(64) _Atomic int64_t next_block; /* of its part's walk; taken by swapping */
    _Atomic int64_t num_arrived;             /* panels, from the first on */
    int64_t num_blocks;
} ewx_gather_source;

typedef struct ewx_gather_stage {
    ewx_gather_source *sources; /* one per rank */
    /* For the present call: */
    unsigned char *gathered; /* all rows, for the caller; NULL: not wanted */
    int64_t num_panels;      /* that this rank publishes */
    _Alignas(64) _Atomic int64_t next_panel;
    _Atomic int64_t panels_done;
} ewx_gather_stage;

/* The rows of a panel that has arrived, for the worker that packs it, who is the only one
 * in a call; copies them for the caller as well, if they are wanted. */
const unsigned char *ewx_gather_stage_rows(ewx_cpu_engine *engine, int src, int64_t panel);
/* The first panel that a rank still owes; its number is the tile's row. */
bool ewx_gather_stage_missing(const ewx_cpu_engine *engine, int *src_out,
                              ewx_tile *tile_out);

/* As ewx_work says: a panel of our rows, and a block. */
extern const ewx_work ewx_share_rows_work, ewx_gathered_gemm_work;

#endif
