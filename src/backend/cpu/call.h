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
    /* Does a little of it, if any has its inputs, and adds the amount to *done.  Any
     * worker; never waits for another rank. */
    ew_status (*some)(ewx_cpu_engine *engine, int worker, int *done);
    bool (*is_done)(const ewx_cpu_engine *engine);
} ewx_work;

typedef struct ewx_cpu_call {
    uint32_t epoch;
    uint32_t plan; /* its number */
    int64_t timeout_ns;
    ewx_grid grid;
    ewx_share share;                    /* what this rank sums */
    int32_t form;                       /* plan_reports.h */
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

/* A wait for other ranks: the rank it is for, for how many slices of the timeout that rank
 * has computed nothing, for how many it has not even looked at its clock, and how far every
 * rank was when last checked. */
typedef struct ewx_patience {
    int rank;
    int quiet_slices;
    int silent_slices;
    int extensions;
    uint32_t progress[EWX_MAX_RANKS];
    uint32_t looks[EWX_MAX_RANKS];
} ewx_patience;

ewx_patience ewx_patience_begin(const ewx_cpu_engine *engine);
void ewx_patience_end(ewx_cpu_engine *engine);
/* A wait for another worker of this rank; it ends when that worker has done its work, since
 * no worker waits for another rank in the middle of any.  An abort ends it, too. */
ewx_wait ewx_worker_wait(const ewx_cpu_engine *engine);
/* A wait that lasts one slice of the timeout. */
ewx_wait ewx_patience_wait(const ewx_cpu_engine *engine);
/* Such a wait for `rank` has run out: whether to begin another, because the whole timeout
 * is not over, the rank has computed something, or it is alive and held up itself. */
bool ewx_patience_lasts(ewx_cpu_engine *engine, ewx_patience *patience, int rank);
/* This rank has computed a block or reduced a tile; in a deep block also between chunks of
 * K, which are not recorded. */
void ewx_patience_progress(ewx_cpu_engine *engine, ewx_step step, int64_t where);
/* Reports a rank that was waited for in this call. */
ew_status ewx_stall_report(ewx_cpu_engine *engine, ew_status status, int culprit, int code,
                           const int64_t *detail);
/* A slice of the wait for the call's end is over: go on waiting, or name the rank that owes
 * us a tile or does not take ours. */
ew_status ewx_stall_judge(ewx_cpu_engine *engine, int worker, ewx_patience *patience);

#endif
