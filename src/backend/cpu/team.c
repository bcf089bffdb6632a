/* Workers asleep on a condition between calls.  Their waits during a call are the
 * engine's and bounded there. */
#include "backend/cpu/team.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

typedef struct seat {
    ewx_team *team;
    int worker;
} seat;

static void *worker_main(void *argument)
{
    seat self = *(seat *)argument;
    free(argument);
    ewx_team *team = self.team;
    uint64_t seen = 0;
    pthread_mutex_lock(&team->mutex);
    for (;;) {
        while (!team->stop && team->call == seen)
            pthread_cond_wait(&team->wake, &team->mutex);
        if (team->stop)
            break;
        seen = team->call;
        pthread_mutex_unlock(&team->mutex);
        const ew_status status = team->work(team->context, self.worker);
        pthread_mutex_lock(&team->mutex);
        if (team->status == EW_OK)
            team->status = status;
        if (--team->busy == 0)
            pthread_cond_signal(&team->finished);
    }
    pthread_mutex_unlock(&team->mutex);
    return NULL;
}

static ew_status start_worker(ewx_team *team, int worker)
{
    seat *self = malloc(sizeof *self);
    if (!self)
        return ewx_fail(EW_ERR_MEMORY, "no memory for worker %d", worker);
    *self = (seat){team, worker};
    const int error = pthread_create(&team->threads[worker - 1], NULL, worker_main, self);
    if (error) {
        free(self);
        return ewx_fail(EW_ERR_SYSTEM,
                        "worker %d cannot start: %s\n  fix: use fewer workers", worker,
                        strerror(error));
    }
    team->num_threads++;
    return EW_OK;
}

ew_status ewx_team_open(ewx_team *team, int num_workers)
{
    memset(team, 0, sizeof *team);
    team->num_workers = num_workers;
    if (num_workers == 1)
        return EW_OK;
    team->threads = calloc((size_t)num_workers - 1, sizeof *team->threads);
    if (!team->threads)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d workers", num_workers);
    pthread_mutex_init(&team->mutex, NULL);
    pthread_cond_init(&team->wake, NULL);
    pthread_cond_init(&team->finished, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ew_status status = EW_OK;
    for (int worker = 1; worker < num_workers && status == EW_OK; worker++)
        status = start_worker(team, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

void ewx_team_close(ewx_team *team)
{
    if (!team->threads)
        return;
    pthread_mutex_lock(&team->mutex);
    team->stop = true;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
    for (int i = 0; i < team->num_threads; i++)
        pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->finished);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->mutex);
    free(team->threads);
    team->threads = NULL;
}

ew_status ewx_team_run(ewx_team *team, ewx_team_work work, void *context)
{
    if (team->num_workers == 1)
        return work(context, 0);
    pthread_mutex_lock(&team->mutex);
    team->work = work;
    team->context = context;
    team->status = EW_OK;
    team->busy = team->num_workers - 1;
    team->call++;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
    const ew_status mine = work(context, 0);
    pthread_mutex_lock(&team->mutex);
    while (team->busy > 0)
        pthread_cond_wait(&team->finished, &team->mutex);
    const ew_status others = team->status;
    pthread_mutex_unlock(&team->mutex);
    return mine != EW_OK ? mine : others;
}
