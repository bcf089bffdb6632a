/* A call as the stages of the CPU engine see it, the kinds of work that it consists of, the
 * patience with ranks that it waits for, and its trace. */
#ifndef EWX_CPU_CALL_H
#define EWX_CPU_CALL_H

#include <stdatomic.h>

#include "backend/backend.h"
#include "backend/cpu/route.h"
#include "plan/ownership.h"
#include "world/world.h"

/* ---- Work ---- */

/* With pool=static some workers only compute and the others only reduce. */
typedef enum ewx_role { EWX_ROLE_COMPUTE = 1, EWX_ROLE_REDUCE = 2 } ewx_role;
enum { EWX_EVERY_ROLE = EWX_ROLE_COMPUTE | EWX_ROLE_REDUCE, EWX_MAX_WORK = 4 };

/* One kind of work.  An operation lists its kinds, most urgent first (ops/); workers do
 * some of the first kind that has any, until all are done. */
typedef struct ewx_work {
    ewx_role role;
    /* Before a call's first worker starts; epoch, grid and exchange are the call's.  False:
     * the call has none of it. */
    bool (*prepare)(ewx_cpu_engine *engine, const ewx_call *asked);
    /* Does a little, if there is any whose inputs are there, and adds to *done how much.
     * Any worker; never waits for another rank. */
    ew_status (*some)(ewx_cpu_engine *engine, int worker, int *done);
    bool (*is_done)(const ewx_cpu_engine *engine);
} ewx_work;

typedef struct ewx_cpu_call {
    uint32_t epoch;
    ewx_grid grid;
    ewx_share share;                    /* what this rank sums */
    const ewx_work *work[EWX_MAX_WORK]; /* the operation's, as far as the call has any */
    int num_work;
} ewx_cpu_call;

/* ---- Trace ---- */

typedef struct ewx_cpu_trace {
    ew_trace_event *events; /* NULL: tracing is off */
    size_t capacity;
    _Atomic uint64_t count;
} ewx_cpu_trace;

void ewx_engine_trace(ewx_cpu_engine *engine, const ew_trace_event *event);

/* ---- stall.c ---- */

/* A wait for other ranks: whom it is for, how far every rank was when last looked at,
 * and for how many slices of the timeout that one has computed nothing. */
typedef struct ewx_patience {
    int rank;
    int quiet_slices;
    int extensions;
    uint32_t progress[EWX_MAX_RANKS];
} ewx_patience;

ewx_patience ewx_patience_begin(const ewx_cpu_engine *engine);
void ewx_patience_end(ewx_cpu_engine *engine);
/* A wait that lasts one slice of the timeout. */
ewx_wait ewx_patience_wait(const ewx_cpu_engine *engine);
/* Such a wait for `rank` has run out: whether to begin another, because the whole timeout
 * is not over, the rank has computed something, or it is held up itself. */
bool ewx_patience_lasts(ewx_cpu_engine *engine, ewx_patience *patience, int rank);
/* This rank has computed a block or reduced a tile. */
void ewx_patience_progress(ewx_cpu_engine *engine, ewx_step step, int64_t where);
/* A slice of the wait for the call's end is over: go on waiting, or name the rank that owes
 * us a tile or does not take ours. */
ew_status ewx_stall_judge(ewx_cpu_engine *engine, int worker, ewx_patience *patience);

#endif
