/* Workers asleep on a condition between calls.  Their waits during a call are the
 * engine's and bounded there. */
#include "backend/cpu/cpu_workers.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/limits.h"
#include "base/numa.h"
#include "base/status.h"
#include "world/places.h"

typedef struct worker {
    pthread_t thread;
    struct worker_team *team;
    int number;
    uint64_t seen; /* the last call that it knows of */
} worker;

typedef struct worker_team {
    const ew_world *world;
    pthread_mutex_t mutex;
    pthread_cond_t wake, finished;
    /* Under the mutex: */
    uint64_t call;
    int busy;
    bool stop;
    int num_workers; /* of the call */
    ewx_workers_task work;
    void *context;
    fenv_t arithmetic; /* the caller's: how it rounds, whether it flushes subnormals */
    ew_status status;
    /* The caller's: */
    ewx_cpus home;
    bool has_home;
    int avoided; /* the CPU that no worker may use; -1: none */
    int num_threads;
    worker workers[EWX_MAX_WORKERS - 1];
} worker_team;

static bool has_news(const worker_team *team, uint64_t seen)
{
    return team->stop || team->call != seen;
}

/* ---- Workers ---- */

static void *worker_main(void *argument)
{
    worker *self = argument;
    worker_team *team = self->team;
    for (;;) {
        pthread_mutex_lock(&team->mutex);
        while (!has_news(team, self->seen))
            pthread_cond_wait(&team->wake, &team->mutex);
        const bool stop = team->stop, takes_part = self->number < team->num_workers;
        self->seen = team->call;
        pthread_mutex_unlock(&team->mutex);
        if (stop)
            return NULL;
        if (!takes_part)
            continue;
        fesetenv(&team->arithmetic);
        fedisableexcept(FE_ALL_EXCEPT); /* whose signal the program could not handle here */
        const ew_status status = team->work(team->context, self->number);
        pthread_mutex_lock(&team->mutex);
        if (team->status == EW_OK)
            team->status = status;
        if (--team->busy == 0)
            pthread_cond_signal(&team->finished);
        pthread_mutex_unlock(&team->mutex);
    }
}

/* Calls before had fewer workers, so the new one takes no part in the last of them. */
static ew_status start_worker(worker_team *team)
{
    worker *next = &team->workers[team->num_threads];
    *next = (worker){.team = team, .number = team->num_threads + 1};
    const int error = pthread_create(&next->thread, NULL, worker_main, next);
    if (error)
        return ewx_fail(EW_ERR_SYSTEM,
                        "worker %d cannot start: %s\n  fix: use fewer workers",
                        next->number, strerror(error));
    team->num_threads++;
    return EW_OK;
}

/* They inherit the rank's home, which those who are there follow if it has changed, and no
 * signals: these belong to the program's own threads. */
static ew_status start_workers(worker_team *team, int num_workers)
{
    ewx_home home;
    sigset_t all, before;
    ewx_place_home(team->world, &home);
    const ewx_stay stay = ewx_home_enter(&home);
    team->has_home = ewx_own_cpus(&team->home);
    team->avoided = -1;
    for (int i = 0; i < team->num_threads && team->has_home; i++)
        ewx_confine(team->workers[i].thread, &team->home);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ew_status status = EW_OK;
    while (status == EW_OK && team->num_threads < num_workers - 1)
        status = start_worker(team);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ewx_home_leave(&stay);
    return status;
}

/* ---- The team ---- */

static void close_team(void *attachment)
{
    worker_team *team = attachment;
    pthread_mutex_lock(&team->mutex);
    team->stop = true;
    pthread_cond_broadcast(&team->wake);
    pthread_mutex_unlock(&team->mutex);
    for (int i = 0; i < team->num_threads; i++)
        pthread_join(team->workers[i].thread, NULL);
    pthread_cond_destroy(&team->finished);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->mutex);
    free(team);
}

ew_status ewx_workers_start(ew_world *world, int num_workers)
{
    if (num_workers == 1)
        return EW_OK;
    ewx_attachment *attached = &world->attachments[EWX_ATTACHED_WORKERS];
    if (!attached->object) {
        worker_team *fresh = calloc(1, sizeof *fresh);
        if (!fresh)
            return ewx_fail(EW_ERR_MEMORY, "no memory for %d workers", num_workers);
        fresh->world = world;
        pthread_mutex_init(&fresh->mutex, NULL);
        pthread_cond_init(&fresh->wake, NULL);
        pthread_cond_init(&fresh->finished, NULL);
        *attached = (ewx_attachment){fresh, close_team};
    }
    return start_workers(attached->object, num_workers);
}

/* A worker that wakes up where its caller computes would wait for the next tick, which is
 * longer than a call of few rows takes, although another CPU is idle.  Linux puts it there
 * if it has run there before, or if a program's other threads have just been spinning
 * everywhere else.  Callers hardly ever move, so that this costs next to nothing. */
static void avoid_caller(worker_team *team)
{
    const int cpu = sched_getcpu();
    if (cpu == team->avoided || cpu < 0 || cpu >= EWX_MAX_CPUS || !team->has_home)
        return;
    ewx_cpus others = team->home;
    ewx_cpus_remove(&others, cpu);
    const bool has_room = ewx_cpus_count(&others) >= team->num_threads;
    for (int i = 0; i < team->num_threads; i++)
        ewx_confine(team->workers[i].thread, has_room ? &others : &team->home);
    team->avoided = cpu;
}

ew_status ewx_workers_run(ew_world *world, int num_workers, ewx_workers_task work,
                          void *context)
{
    if (num_workers == 1)
        return work(context, 0);
    worker_team *team = world->attachments[EWX_ATTACHED_WORKERS].object;
    avoid_caller(team);
    pthread_mutex_lock(&team->mutex);
    team->num_workers = num_workers;
    team->work = work;
    team->context = context;
    fegetenv(&team->arithmetic);
    team->status = EW_OK;
    team->busy = num_workers - 1;
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
