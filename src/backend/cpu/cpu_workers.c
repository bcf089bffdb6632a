/* Workers asleep on a condition between calls.  Their waits during a call are the
 * engine's and bounded there. */
#include "backend/cpu/cpu_workers.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

typedef struct seat {
    ewx_workers *workers;
    int worker;
} seat;

static void *worker_main(void *argument)
{
    seat self = *(seat *)argument;
    free(argument);
    ewx_workers *workers = self.workers;
    uint64_t seen = 0;
    pthread_mutex_lock(&workers->mutex);
    for (;;) {
        while (!workers->stop && workers->call == seen)
            pthread_cond_wait(&workers->wake, &workers->mutex);
        if (workers->stop)
            break;
        seen = workers->call;
        fesetenv(&workers->arithmetic);
        fedisableexcept(FE_ALL_EXCEPT); /* whose signal the program could not handle here */
        pthread_mutex_unlock(&workers->mutex);
        const ew_status status = workers->work(workers->context, self.worker);
        pthread_mutex_lock(&workers->mutex);
        if (workers->status == EW_OK)
            workers->status = status;
        if (--workers->busy == 0)
            pthread_cond_signal(&workers->finished);
    }
    pthread_mutex_unlock(&workers->mutex);
    return NULL;
}

static ew_status start_worker(ewx_workers *workers, int worker)
{
    seat *self = malloc(sizeof *self);
    if (!self)
        return ewx_fail(EW_ERR_MEMORY, "no memory for worker %d", worker);
    *self = (seat){workers, worker};
    const int error =
        pthread_create(&workers->threads[worker - 1], NULL, worker_main, self);
    if (error) {
        free(self);
        return ewx_fail(EW_ERR_SYSTEM,
                        "worker %d cannot start: %s\n  fix: use fewer workers", worker,
                        strerror(error));
    }
    workers->num_threads++;
    return EW_OK;
}

ew_status ewx_workers_open(ewx_workers *workers, int num_workers)
{
    memset(workers, 0, sizeof *workers);
    workers->num_workers = num_workers;
    if (num_workers == 1)
        return EW_OK;
    workers->threads = calloc((size_t)num_workers - 1, sizeof *workers->threads);
    if (!workers->threads)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d workers", num_workers);
    pthread_mutex_init(&workers->mutex, NULL);
    pthread_cond_init(&workers->wake, NULL);
    pthread_cond_init(&workers->finished, NULL);
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    ew_status status = EW_OK;
    for (int worker = 1; worker < num_workers && status == EW_OK; worker++)
        status = start_worker(workers, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

void ewx_workers_close(ewx_workers *workers)
{
    if (!workers->threads)
        return;
    pthread_mutex_lock(&workers->mutex);
    workers->stop = true;
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->mutex);
    for (int i = 0; i < workers->num_threads; i++)
        pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->finished);
    pthread_cond_destroy(&workers->wake);
    pthread_mutex_destroy(&workers->mutex);
    free(workers->threads);
    workers->threads = NULL;
}

ew_status ewx_workers_run(ewx_workers *workers, ewx_workers_task work, void *context)
{
    if (workers->num_workers == 1)
        return work(context, 0);
    pthread_mutex_lock(&workers->mutex);
    workers->work = work;
    workers->context = context;
    fegetenv(&workers->arithmetic);
    workers->status = EW_OK;
    workers->busy = workers->num_workers - 1;
    workers->call++;
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->mutex);
    const ew_status mine = work(context, 0);
    pthread_mutex_lock(&workers->mutex);
    while (workers->busy > 0)
        pthread_cond_wait(&workers->finished, &workers->mutex);
    const ew_status others = workers->status;
    pthread_mutex_unlock(&workers->mutex);
    return mine != EW_OK ? mine : others;
}
