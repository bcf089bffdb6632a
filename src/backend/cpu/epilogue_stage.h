/* What follows the sum: bias, residual and norm of the owned rows. */
#ifndef EWX_CPU_EPILOGUE_STAGE_H
#define EWX_CPU_EPILOGUE_STAGE_H

#include "backend/cpu/call.h"

typedef struct ewx_epilogue_stage {
    float *squares;             /* sums of them, of each owned row's tiles */
    _Atomic int64_t *row_tiles; /* of each owned row of tiles, how many are summed */
    /* For the present call: */
    bool is_fused; /* done tile by tile; else there is none, or it follows the last tile */
    bool is_split; /* it follows in two steps, the norm behind the rest */
    ew_epilogue parts;
    void *c;            /* or NULL */
    void *h;            /* the residual, else C, else normed */
    int64_t num_strips; /* of each step */
    int64_t num_turns;  /* strips of all steps; 0: tiles are all there is */
    _Alignas(64) _Atomic int64_t next_turn;
    _Alignas(64) _Atomic int64_t turns_done;
} ewx_epilogue_stage;

/* Fused: the tile's sum is there, rows `stride` elements apart; may be C itself. */
void ewx_epilogue_stage_tile(ewx_cpu_engine *engine, ewx_tile tile,
                             const unsigned char *sum, int64_t stride);

/* As ewx_work says: a strip of rows whose tiles are all there. */
extern const ewx_work ewx_epilogue_work;

#endif
