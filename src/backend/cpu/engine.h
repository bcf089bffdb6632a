/* The CPU engine's state.  cpu.c builds it, engine.c runs a call, produce.c computes and
 * publishes, consume.c waits and reduces, epilogue.c does what follows; route.h says how
 * tiles travel.  docs/PROTOCOL.md explains the flags. */
#ifndef EWX_CPU_ENGINE_H
#define EWX_CPU_ENGINE_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/heap.h"
#include "backend/cpu/team.h"
#include "backend/cpu/weight.h"
#include "backend/cpu/wire.h"

/* One of the x consumers of the paper: it owns tasks j, j+x, ... and is served by
 * whichever worker finds it idle.  step and src belong to the holder of `held`. */
typedef struct ewx_consumer {
    _Alignas(64) atomic_flag held;
    int64_t step;
    int src; /* contributions below this rank are known to be ready */
} ewx_consumer;

/* Sums of this host for others, one after the other; the fields belong to the holder. */
typedef struct ewx_combiner {
    _Alignas(64) atomic_flag held;
    int64_t step; /* in the order of units and destinations */
    int64_t tile; /* of the unit */
    int local;    /* contributions of local ranks below this are known to be ready */
    _Alignas(64) _Atomic int64_t tiles_left;
} ewx_combiner;

/* A call's epilogue, and how far it is. */
typedef struct ewx_cpu_layer {
    bool is_fused; /* done tile by tile; else there is none, or it follows the last tile */
    ew_epilogue parts;
    void *c;       /* or NULL */
    void *h;       /* the residual, else C, else normed */
    bool is_split; /* it follows in two steps, the norm behind the rest */
    int64_t num_strips;
    _Alignas(64) _Atomic int64_t next_strip;
    _Atomic int64_t next_norm; /* strip, where it is split */
    _Alignas(64) _Atomic int64_t strips_done;
} ewx_cpu_layer;

/* What changes from call to call.  Tickets are taken by fetch_add. */
typedef struct ewx_cpu_call {
    uint32_t epoch;
    ewx_grid grid;
    const unsigned char *A;
    const unsigned char *B;      /* NULL: the weight is packed already */
    const unsigned char *packed; /* it, or where B is packed; BLAS reads B where it lies */
    unsigned char *sum;          /* NULL: tiles are only passed on to the epilogue */
    int64_t num_positions;       /* P, or 1 when BLAS computes everything at once */
    int64_t num_tasks;           /* Q of this rank */
    _Alignas(64) _Atomic int64_t next_position;
    _Alignas(64) _Atomic int64_t positions_done;
    _Alignas(64) _Atomic int64_t tasks_done;
    _Alignas(64) _Atomic int64_t gemm_end_ns;
    _Atomic uint64_t num_events;
    ewx_packing packing; /* of B */
    ewx_cpu_layer layer;
} ewx_cpu_call;

struct ewx_cpu_engine {
    ew_world *world;
    const ewx_spec *spec;
    ewx_weight_form form;
    ewx_heap heap;
    ewx_team team;
    unsigned char *passing_weight; /* of a call with a B; NULL before the first */
    unsigned char *activations;    /* packed, one panel per tile row of every partition */
    size_t activation_panel_bytes;
    _Atomic uint8_t *panel_states; /* ewx_panel_state of each */
    unsigned char *scratch;        /* one per worker */
    size_t scratch_bytes;
    ewx_consumer *consumers;      /* x */
    _Atomic int64_t *unreleased;  /* tiles missing in each release group */
    _Atomic uint8_t *peer_agrees; /* this call's m was found equal */
    float *squares;               /* sums of them, of each owned row's tiles */
    _Atomic int64_t *row_tiles;   /* of each owned row of tiles, how many are summed */
    ew_trace_event *events;       /* NULL: tracing is off */
    size_t events_capacity;
    uint32_t epoch; /* of the last call */
    ew_timing timing;
    int levels;                         /* of the sum: over ranks; over hosts' sums */
    const ewx_route *to[EWX_MAX_RANKS]; /* each rank */
    const ewx_route *from[EWX_MAX_RANKS];
    const ewx_route *farthest; /* of them: what needs to be moved along */
    ewx_wire wire;
    ewx_combiner combiner;
    unsigned char *partials; /* two levels: a tile per worker */
    ewx_cpu_call call;
};

typedef enum ewx_panel_state {
    EWX_PANEL_UNPACKED,
    EWX_PANEL_PACKING,
    EWX_PANEL_PACKED
} ewx_panel_state;

/* A wait for other ranks: whom it is for, how far every rank was when last looked at,
 * and for how many slices of the timeout that one has computed nothing. */
typedef struct ewx_patience {
    int rank;
    int quiet_slices;
    int extensions;
    uint32_t progress[EWX_MAX_RANKS];
} ewx_patience;

/* ---- patience.c ---- */
ewx_patience ewx_patience_begin(const ewx_cpu_engine *engine);
void ewx_patience_end(ewx_cpu_engine *engine);
/* A wait that lasts one slice of the timeout. */
ewx_wait ewx_patience_wait(const ewx_cpu_engine *engine);
/* Such a wait for `rank` has run out: whether to begin another, because the whole timeout
 * is not over, the rank has computed something, or it is held up itself. */
bool ewx_patience_lasts(ewx_cpu_engine *engine, ewx_patience *patience, int rank);
/* This rank has computed a block or reduced a tile. */
void ewx_patience_progress(ewx_cpu_engine *engine, ewx_step step, int64_t where);

/* ---- engine.c ---- */
/* On the caller's thread, which is worker 0; from other workers nothing. */
void ewx_engine_progress(ewx_cpu_engine *engine, int worker);
/* The same between tiles, where there is other work: not too often. */
void ewx_engine_glance(ewx_cpu_engine *engine, int worker);
ew_status ewx_engine_run(ewx_cpu_engine *engine, const ewx_call *asked);
/* The tests' way to reach the wrap of the epoch; all ranks, before the first call. */
void ewx_engine_set_epoch(ewx_cpu_engine *engine, uint32_t epoch);
void ewx_engine_trace(ewx_cpu_engine *engine, const ew_trace_event *event);
/* Release groups of one call, for sizing. */
int64_t ewx_release_groups(const ewx_spec *spec);

/* ---- produce.c ---- */
void ewx_produce_prepare(ewx_cpu_engine *engine);
ew_status ewx_produce_weight(ewx_cpu_engine *engine);
ew_status ewx_produce_block(ewx_cpu_engine *engine, int worker, int64_t position);

/* ---- consume.c ---- */
void ewx_consume_prepare(ewx_cpu_engine *engine);
/* Reduces up to b tiles of one consumer whose inputs are there; *reduced says how many. */
ew_status ewx_consume_some(ewx_cpu_engine *engine, int worker, int *reduced);
/* Returns when all of this rank's tiles are reduced, and, on worker 0, all it owes other
 * hosts is there; or with the world's fault. */
ew_status ewx_consume_rest(ewx_cpu_engine *engine, int worker);
/* The same without reducing: others do. */
ew_status ewx_consume_watch(ewx_cpu_engine *engine, int worker);

/* Whether src has entered this call, with our m, and its tile in that slot is there. */
ew_status ewx_contribution_ready(ewx_cpu_engine *engine, int src, int64_t slot,
                                 bool *ready);

/* ---- combine.c ---- */
static inline bool ewx_combine_is_needed(const ewx_cpu_engine *engine)
{
    return engine->levels == 2 && engine->world->num_locals > 1;
}
void ewx_combine_prepare(ewx_cpu_engine *engine);
/* Sums and sends up to b tiles of other hosts whose inputs are there. */
ew_status ewx_combine_some(ewx_cpu_engine *engine, int worker, int *combined);
bool ewx_combine_done(const ewx_cpu_engine *engine);
/* The first contribution that a local rank still owes to such a tile of ours. */
bool ewx_combine_missing(ewx_cpu_engine *engine, int *src_out, ewx_tile *tile_out);
/* The sum of this host's contributions to a tile; the worker's until its next one. */
const void *ewx_combine_locals(ewx_cpu_engine *engine, int worker, int dst, ewx_tile tile);

/* ---- epilogue.c ---- */
/* Chooses the form of the epilogue, if there is one, and the place of the sum. */
void ewx_layer_prepare(ewx_cpu_engine *engine, const ewx_call *asked);
/* The tile's sum is there, rows `stride` elements apart; may be C itself. */
void ewx_layer_tile(ewx_cpu_engine *engine, ewx_tile tile, const unsigned char *sum,
                    int64_t stride);
/* Normalises some rows whose tiles are all there; false when there are none. */
bool ewx_layer_some(ewx_cpu_engine *engine);
bool ewx_layer_done(const ewx_cpu_engine *engine);
/* What was not fused, when all tiles are summed: each worker takes what is left. */
ew_status ewx_layer_follow(ewx_cpu_engine *engine);

#endif
