/* A rank's workers: threads that all plans and weights of its world share, since these
 * serve one user at a time.  The caller is worker 0, so one worker alone needs no thread.
 */
#ifndef EWX_CPU_WORKERS_H
#define EWX_CPU_WORKERS_H

#include "entwine/entwine.h"
#include "world/world.h"

typedef ew_status (*ewx_workers_task)(void *context, int worker);

/* Starts what is missing of `num_workers` workers.  They stay until the world ends. */
ew_status ewx_workers_start(ew_world *world, int num_workers);

/* Runs work(context, w) on every worker w below `num_workers`, all of which were started,
 * and returns when all have returned: the first status that is not EW_OK.  All compute as
 * the caller's thread is set to, since who does which part is up to chance. */
ew_status ewx_workers_run(ew_world *world, int num_workers, ewx_workers_task work,
                          void *context);

#endif
