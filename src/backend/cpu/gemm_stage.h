/* The GEMM: computes a block's contributions and releases its tiles to their owner. */
#ifndef EWX_CPU_GEMM_STAGE_H
#define EWX_CPU_GEMM_STAGE_H

#include "backend/cpu/activation.h"
#include "backend/cpu/call.h"
#include "backend/cpu/cpu_weight.h"

typedef enum ewx_panel_state {
    EWX_PANEL_UNPACKED,
    EWX_PANEL_PACKING,
    EWX_PANEL_PACKED
} ewx_panel_state;

/* A weight of the call, and where its product goes. */
typedef struct ewx_gemm_product {
    int64_t n;
    int64_t first_col; /* of the grid, in tiles: each begins with a tile of its own */
    size_t piece_bytes, panel_bytes; /* of its form */
    const unsigned char *packed;
    unsigned char *out; /* row-major, of all rows; NULL: tiles are contributions */
    bool aside;         /* ... but a tile lies in the worker's scratch, for a moment */
    bool rests;         /* ... and nobody reads it soon */
    bool packs;         /* a B of this call; BLAS reads it where it lies */
    ewx_packing packing;
} ewx_gemm_product;

/* Tickets are taken by fetch_add. */
typedef struct ewx_gemm_stage {
    ewx_weight_form form;
    unsigned char *passing_weight; /* of a call with a B; NULL before the first */
    size_t passing_bytes;
    unsigned char *activations; /* packed, one panel per tile row of every partition */
    size_t activation_piece_bytes, activation_panel_bytes; /* as of the weight's form */
    _Atomic uint8_t *panel_states;                         /* ewx_panel_state of each */
    unsigned char *scratch; /* one per worker, also for what follows the GEMM */
    size_t scratch_bytes, tile_scratch_bytes;
    size_t aside_offset;         /* in a tile's scratch: room for a tile of a product */
    _Atomic int64_t *unreleased; /* tiles missing in each release group */
    /* For the present call: */
    const unsigned char *A;
    ewx_gemm_product products[EW_MAX_PRODUCTS]; /* one, but in a call with several */
    int num_products;
    unsigned char *activated; /* where their activation goes; NULL: there is none */
    ew_activation activation;
    int64_t num_positions; /* P, or 1 when BLAS computes everything at once */
    _Alignas(64) _Atomic int64_t next_position;
    _Alignas(64) _Atomic int64_t positions_done;
    _Alignas(64) _Atomic int64_t begin_ns; /* of the first block */
    _Atomic int64_t end_ns;                /* of the last */
} ewx_gemm_stage;

/* Tiles of a block that pass through K together, chunk by chunk, so that their rows and
 * columns are still in L2 for the next tile; 1: one tile after the other. */
int64_t ewx_tiles_together(const ewx_spec *spec);

/* Release groups of one call, for sizing. */
int64_t ewx_release_groups(const ewx_spec *spec);

/* Columns of a call's grid, and the room that the weights it came with need. */
int64_t ewx_gemm_stage_cols(const ewx_spec *spec, const ewx_call *asked);
size_t ewx_gemm_stage_passing_bytes(const ewx_cpu_engine *engine, const ewx_call *asked);

/* Packs what there is to pack together with the other workers; all have to come here
 * first. */
ew_status ewx_gemm_stage_pack(ewx_cpu_engine *engine);

/* The parts of ewx_gemm_work, for an operation that chooses its blocks itself: it takes a
 * block and counts it in next_position.  `out` is where the product goes if the call has
 * only one. */
void ewx_gemm_stage_prepare(ewx_cpu_engine *engine, const ewx_call *asked, void *out);
ew_status ewx_gemm_stage_compute(ewx_cpu_engine *engine, int worker, ewx_block block,
                                 int64_t position);

/* As ewx_work says.  Done means that every block is taken. */
extern const ewx_work ewx_gemm_work;
bool ewx_gemm_stage_is_done(const ewx_cpu_engine *engine);
/* ... and this one, that every block has been computed. */
bool ewx_gemm_stage_has_ended(const ewx_cpu_engine *engine);

#endif
