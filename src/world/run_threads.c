/* Local ranks as threads of this process: the same world code on one control block, so
 * that ThreadSanitizer sees every access of every rank. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "world/world.h"

typedef struct rank_thread {
    pthread_t thread;
    int rank, num_ranks;
    const ew_world_options *options;
    ewx_control *control;
    int control_fd;
    ew_rank_main rank_main;
    void *argument;
    int exit_code;
    bool started;
} rank_thread;

/* A rank that never starts must not be waited for.  A fault that stands already stays. */
static void abort_for(ewx_control *control, int rank)
{
    ew_world absent = {.rank = rank, .control = control};
    ewx_world_raise_quietly(
        &absent, &(ewx_fault){.status = EW_ERR_ABORTED, .culprit = rank, .reporter = rank});
}

static void *rank_thread_main(void *argument)
{
    rank_thread *self = argument;
    ew_world *world;
    self->exit_code = EWX_EXIT_NO_WORLD;
    ewx_place_bind(self->rank, self->num_ranks);
    if (ewx_world_create_threads(self->rank, self->num_ranks, self->options, self->control,
                                 self->control_fd, &world) == EW_OK)
        self->exit_code = ewx_rank_body(world, self->rank_main, self->argument);
    else
        abort_for(self->control, self->rank);
    return NULL;
}

ew_status ewx_run_threads(int num_ranks, const ew_world_options *options,
                          ew_rank_main rank_main, void *argument, int *exits,
                          int *culprit_out)
{
    ew_world probe = {0};
    EW_TRY(ewx_world_init(&probe, 0, num_ranks, options));
    int control_fd = -1;
    ewx_control *control = NULL;
    rank_thread *threads = calloc((size_t)num_ranks, sizeof *threads);
    ew_status status = EW_OK;
    if (!threads)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", num_ranks);
    EW_TRY_TO(status, ewx_control_create(num_ranks, true, &control_fd), out);
    EW_TRY_TO(status, ewx_control_map(control_fd, num_ranks, &control), out);
    for (int rank = 0; rank < num_ranks; rank++) {
        threads[rank] = (rank_thread){.rank = rank,
                                      .num_ranks = num_ranks,
                                      .options = options,
                                      .control = control,
                                      .control_fd = control_fd,
                                      .rank_main = rank_main,
                                      .argument = argument};
        const int error =
            pthread_create(&threads[rank].thread, NULL, rank_thread_main, &threads[rank]);
        threads[rank].started = error == 0;
        if (error) {
            status = ewx_fail(EW_ERR_SYSTEM, "the thread of rank %d cannot start: %s", rank,
                              strerror(error));
            abort_for(control, rank);
        }
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        if (!threads[rank].started)
            continue;
        pthread_join(threads[rank].thread, NULL);
        exits[rank] = threads[rank].exit_code;
    }
    *culprit_out = ewx_world_culprit(&(ew_world){.control = control});
out:
    free(threads);
    if (control)
        munmap(control, ewx_control_bytes(num_ranks));
    if (control_fd >= 0)
        close(control_fd);
    return status;
}
