/* The sum over ranks: waits for every rank's contributions to a tile of ours, then adds
 * them in rank order.  A rank has one, or one per piece of K (config invariant). */
#ifndef EWX_CPU_REDUCE_STAGE_H
#define EWX_CPU_REDUCE_STAGE_H

#include "backend/cpu/call.h"

/* One of the x consumers of the paper: it owns tasks j, j+x, ... and is served by
 * whichever worker finds it idle.  step and src belong to the holder of `held`. */
typedef struct ewx_consumer {
    _Alignas(64) atomic_flag held;
    int64_t step;
    int src; /* contributions below this rank are known to be ready */
} ewx_consumer;

typedef struct ewx_reduce_stage {
    ewx_consumer *consumers;      /* x */
    _Atomic uint8_t *peer_agrees; /* this call's m was found equal */
    int levels;                   /* of the sum: over ranks; over hosts' sums */
    /* For the present call: */
    unsigned char *sum; /* NULL: tiles are only passed on to the epilogue */
    bool in_place;      /* of a single rank with one contribution: that is the sum */
    _Alignas(64) _Atomic int64_t tasks_done;
} ewx_reduce_stage;

/* Before the first worker of a call: nobody has been seen in it. */
void ewx_peers_forget(ewx_cpu_engine *engine);
/* Whether src has entered this call.  Checks once per call that it came with our m: a rank
 * with fewer rows would otherwise never publish the tile we wait for. */
ew_status ewx_peer_in_call(ewx_cpu_engine *engine, int src, bool *in_call);
/* The same for whoever judges what is missing: reports nothing. */
bool ewx_peer_has_come(const ewx_cpu_engine *engine, int src);
/* Whether src has entered this call, with our m, and its tile in that slot is there. */
ew_status ewx_contribution_ready(ewx_cpu_engine *engine, int src, int64_t slot,
                                 bool *ready);

/* As ewx_work says: up to b tiles of one consumer. */
extern const ewx_work ewx_reduce_work;
bool ewx_reduce_stage_is_done(const ewx_cpu_engine *engine);

#endif
