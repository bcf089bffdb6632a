/* A rank's workers: threads that sleep between calls.  The caller is worker 0, so a team
 * of one creates no thread. */
#ifndef EWX_CPU_TEAM_H
#define EWX_CPU_TEAM_H

#include <pthread.h>
#include <stdbool.h>

#include "entwine/entwine.h"

typedef ew_status (*ewx_team_work)(void *context, int worker);

typedef struct ewx_team {
    int num_workers;
    int num_threads; /* started so far */
    pthread_t *threads;
    pthread_mutex_t mutex;
    pthread_cond_t wake, finished;
    /* Under the mutex: */
    uint64_t call;
    int busy;
    bool stop;
    ewx_team_work work;
    void *context;
    ew_status status;
} ewx_team;

ew_status ewx_team_open(ewx_team *team, int num_workers);
void ewx_team_close(ewx_team *team);

/* Runs work(context, w) on every worker w and returns when all have returned: the first
 * status that is not EW_OK. */
ew_status ewx_team_run(ewx_team *team, ewx_team_work work, void *context);

#endif
