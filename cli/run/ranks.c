/* Starting ranks, collecting what each of them reports, and choosing which report to
 * show. */
#include "run/ranks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/dump.h"
#include "base/interrupt.h"

typedef struct rank_report {
    ew_status status;
    char text[CLI_ERROR_BYTES];
} rank_report;

/* Shared with forked ranks; one report per rank. */
typedef struct rank_call {
    ew_ranks_as kind;
    bool joined;
    cli_rank_body body;
    void *argument;
    rank_report reports[];
} rank_call;

void *cli_shared_alloc(size_t bytes)
{
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void cli_shared_free(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}

const char *cli_ranks_as_name(const cli_ranks *ranks)
{
    if (ranks->launch && ranks->launch->joined)
        return ranks->launch->launcher.source;
    return ranks->kind == EW_RANKS_AS_THREADS ? "threads" : "processes";
}

/* The lower, the nearer to the cause: ranks that merely noticed come last. */
static int distance_to_cause(ew_status status)
{
    switch (status) {
    case EW_OK:
        return 5;
    case EW_ERR_ABORTED:
        return 4;
    case EW_ERR_TIMEOUT:
        return 3;
    case EW_ERR_PEER_DIED:
        return 2;
    default:
        return 1;
    }
}

static int rank_main(ew_world *world, void *argument)
{
    rank_call *call = argument;
    int rank = ew_world_rank(world);
    rank_report *report = &call->reports[rank];
    bool forked = call->kind == EW_RANKS_AS_PROCESSES && !call->joined;
    bool in_time =
        forked ? cli_interrupt_enter_process(rank) : cli_interrupt_enter_world(rank, world);
    cli_dump_open(world);
    ew_status status = in_time ? call->body(world, call->argument) : EW_ERR_ABORTED;
    if (status)
        snprintf(report->text, sizeof report->text, "%s",
                 in_time ? ew_last_error() : "interrupted");
    report->status = status;
    cli_dump_close(world);
    cli_interrupt_leave(rank);
    return status ? 1 : 0;
}

static ew_status choose_report(const rank_call *call, int num_ranks, const int *exits,
                               ew_status started, const char *start_text, char *error)
{
    const rank_report *best = NULL;
    for (int rank = 0; rank < num_ranks; rank++) {
        const rank_report *report = &call->reports[rank];
        if (report->status &&
            (!best || distance_to_cause(report->status) < distance_to_cause(best->status)))
            best = report;
    }
    /* A rank that names a culprit knows more than the launcher, which sees only exits, and
     * among them those of ranks that it ended itself. */
    if (best && (best->status != EW_ERR_ABORTED || !started)) {
        memcpy(error, best->text, CLI_ERROR_BYTES);
        return best->status;
    }
    if (started) {
        snprintf(error, CLI_ERROR_BYTES, "%s", start_text);
        return started;
    }
    for (int rank = 0; rank < num_ranks; rank++) {
        if (exits[rank] > 128) {
            snprintf(error, CLI_ERROR_BYTES, "rank %d was killed by signal %d (%s)", rank,
                     exits[rank] - 128, strsignal(exits[rank] - 128));
            return EW_ERR_PEER_DIED;
        }
    }
    return EW_OK;
}

ew_status cli_ranks_run(const cli_ranks *ranks, int num_ranks, cli_rank_body body,
                        void *argument, char *error)
{
    size_t bytes = sizeof(rank_call) + (size_t)num_ranks * sizeof(rank_report);
    rank_call *call = cli_shared_alloc(bytes);
    int *exits = calloc((size_t)num_ranks, sizeof *exits);
    bool joined = ranks->launch && ranks->launch->joined;
    ew_status status = EW_ERR_MEMORY;
    error[0] = '\0';
    if (call && exits) {
        ew_status started = EW_OK;
        char start_text[CLI_ERROR_BYTES] = "";
        call->kind = ranks->kind;
        call->joined = joined;
        call->body = body;
        call->argument = argument;
        fflush(NULL); /* or forked ranks would carry our buffers along */
        if (joined)
            rank_main(ranks->launch->world, call);
        else
            started = ew_run_ranks(ranks->kind, num_ranks, &ranks->options, rank_main, call,
                                   exits);
        if (started)
            snprintf(start_text, sizeof start_text, "%s", ew_last_error());
        status = choose_report(call, num_ranks, exits, started, start_text, error);
    }
    free(exits);
    cli_shared_free(call, bytes);
    return status;
}

ew_status cli_run_in_child(void (*body)(void *argument), void *argument, size_t bytes)
{
    int state = 0;
    pid_t waited = -1;
    void *shared = cli_shared_alloc(bytes);
    if (!shared)
        return EW_ERR_MEMORY;
    memcpy(shared, argument, bytes);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        body(shared);
        _exit(0);
    }
    while (child > 0 && (waited = waitpid(child, &state, 0)) < 0 && errno == EINTR)
        ;
    const bool ended = waited > 0 && WIFEXITED(state) && WEXITSTATUS(state) == 0;
    if (ended)
        memcpy(argument, shared, bytes);
    cli_shared_free(shared, bytes);
    return ended ? EW_OK : EW_ERR_SYSTEM;
}
