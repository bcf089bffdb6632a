/* A rank's workers: threads that sleep between calls.  The caller is worker 0, so one
 * worker alone needs no thread. */
#ifndef EWX_CPU_WORKERS_H
#define EWX_CPU_WORKERS_H

#include <fenv.h>
#include <pthread.h>
#include <stdbool.h>

#include "entwine/entwine.h"

typedef ew_status (*ewx_workers_task)(void *context, int worker);

typedef struct ewx_workers {
    int num_workers;
    int num_threads; /* started so far */
    pthread_t *threads;
    pthread_mutex_t mutex;
    pthread_cond_t wake, finished;
    /* Under the mutex: */
    uint64_t call;
    int busy;
    bool stop;
    ewx_workers_task work;
    void *context;
    fenv_t
        arithmetic; /* the caller's: how it rounds, whether it flushes subnormal numbers */
    ew_status status;
} ewx_workers;

ew_status ewx_workers_open(ewx_workers *workers, int num_workers);
void ewx_workers_close(ewx_workers *workers);

/* Runs work(context, w) on every worker w and returns when all have returned: the first
 * status that is not EW_OK.  All compute as the caller's thread is set to, since who does
 * which part is up to chance. */
ew_status ewx_workers_run(ewx_workers *workers, ewx_workers_task work, void *context);

#endif
