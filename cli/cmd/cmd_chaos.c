/* entwine chaos: trouble drawn from a seed, calls under it, and a judge who knows how each
 * must end.  Only what befalls any program is tried: ranks that are killed, stopped,
 * aborted, leave or are late.  What needs a library that fails on demand is the tests'
 * (test_chaos). */
#include "cmd/commands.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/interrupt.h"
#include "run/ranks.h"

enum {
    ROWS = 64,
    COLS = 256,
    DEPTH = 32,
    CALLS_WHEN_LATE = 50,
    LONGEST_US = 50000, /* until trouble strikes */
    GRACE_MS = 10000    /* beyond the timeout: an answer is told from a hang */
};

typedef enum trouble { KILL, STOP, ABORT, LEAVE, LATE, NUM_TROUBLES } trouble;

/* What all other ranks must say: a status, and a text with the rank in it. */
static const struct {
    const char *name;
    ew_status status;
    const char *text;
} troubles[NUM_TROUBLES] = {
    [KILL] = {"kill", EW_ERR_PEER_DIED, "rank %d died"},
    [STOP] = {"stop", EW_ERR_TIMEOUT, "of rank %d ("},
    [ABORT] = {"abort", EW_ERR_ABORTED, "rank %d aborted the world"},
    [LEAVE] = {"leave", EW_ERR_PEER_DIED, "rank %d left the world"},
    [LATE] = {"late", EW_OK, ""},
};

typedef struct witness {
    bool told;
    ew_status status;
    int64_t out_ns, wrong;
    char text[CLI_ERROR_BYTES];
} witness;

/* Shared with the ranks. */
typedef struct schedule {
    uint32_t seed;
    int num_ranks, victim, after_us;
    trouble trouble;
    atomic_bool began; /* a rank has begun to call */
    _Atomic int64_t struck_ns;
    witness ranks[CLI_MAX_RANKS];
} schedule;

/* ---- Drawing ---- */

/* splitmix64: every seed gives numbers of its own. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void draw_schedule(schedule *s, uint32_t seed, const cli_settings *settings)
{
    uint64_t state = seed;
    *s = (schedule){.seed = seed};
    const int drawn_ranks = 2 + (int)(draw(&state) % 3);
    s->num_ranks = settings->ranks.count ? (int)settings->ranks.at[0] : drawn_ranks;
    s->trouble = (trouble)(draw(&state) % NUM_TROUBLES);
    s->victim = (int)(draw(&state) % (uint64_t)s->num_ranks);
    s->after_us = 1 + (int)(draw(&state) % LONGEST_US);
}

/* ---- In the ranks ---- */

static void sleep_us(int us)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)us * 1000}, NULL);
}

typedef struct striker {
    schedule *schedule;
    ew_world *world;
    atomic_bool left;
} striker;

static void *strike(void *argument)
{
    striker *self = argument;
    schedule *s = self->schedule;
    sleep_us(s->after_us);
    atomic_store(&s->struck_ns, ew_now_ns());
    if (s->trouble == KILL)
        kill(getpid(), SIGKILL);
    if (s->trouble == STOP)
        kill(getpid(), SIGSTOP);
    if (s->trouble == ABORT)
        ew_world_abort(self->world);
    atomic_store(&self->left, s->trouble == LEAVE);
    return NULL;
}

static ew_status call_until_trouble(ew_plan *plan, const ew_problem *problem, schedule *s,
                                    int rank, striker *self)
{
    static float A[ROWS * DEPTH], B[COLS * DEPTH], C[ROWS * COLS]; /* ranks are processes */
    const bool is_late = s->trouble == LATE;
    const uint32_t most_calls = is_late ? CALLS_WHEN_LATE : UINT32_MAX;
    ew_status status = EW_OK;
    for (uint32_t call = 0;
         status == EW_OK && call < most_calls && !atomic_load(&self->left); call++) {
        ew_check check = {0};
        ew_exact_fill_a(EW_FP32, call, rank, s->num_ranks, ROWS, DEPTH, A);
        ew_exact_fill_b(EW_FP32, call, rank, EW_WEIGHT_NK, COLS, DEPTH, B);
        if (is_late && rank == s->victim && call == CALLS_WHEN_LATE / 2)
            sleep_us(s->after_us);
        status = ew_gemm_rs(plan, ROWS, A, B, C, NULL);
        if (status == EW_OK)
            ew_exact_verify(problem, call, rank, s->num_ranks, ROWS, C, &check);
        s->ranks[rank].wrong += check.wrong;
    }
    return status;
}

static void tell(witness *own, ew_status status)
{
    own->status = status;
    own->out_ns = ew_now_ns();
    snprintf(own->text, sizeof own->text, "%s", status ? ew_last_error() : "");
    own->told = true;
}

static ew_status live_through(ew_world *world, void *argument)
{
    schedule *s = argument;
    const int rank = ew_world_rank(world);
    const ew_problem problem = EW_PROBLEM(ROWS, COLS, DEPTH, EW_FP32);
    const bool strikes = rank == s->victim && s->trouble != LATE;
    striker self = {.schedule = s, .world = world};
    pthread_t thread;
    ew_plan *plan = NULL;
    ew_status status = ew_plan_create(world, &problem, NULL, &plan);
    if (status == EW_OK)
        status = ew_world_barrier(world);
    if (status == EW_OK && strikes && pthread_create(&thread, NULL, strike, &self) != 0)
        status = EW_ERR_SYSTEM;
    if (status == EW_OK) {
        atomic_store(&s->began, true);
        tell(&s->ranks[rank], call_until_trouble(plan, &problem, s, rank, &self));
        status = s->ranks[rank].status;
        if (strikes)
            pthread_join(thread, NULL);
    }
    ew_plan_destroy(plan);
    return status;
}

/* ---- The judge ---- */

/* NULL, or what is wrong with how a rank ended. */
static const char *judge_rank(const schedule *s, int rank, int64_t most_ns)
{
    const witness *own = &s->ranks[rank];
    char text[64];
    if (own->wrong)
        return "has wrong values";
    if (rank == s->victim && s->trouble != ABORT && s->trouble != LATE)
        return NULL; /* it had its share */
    snprintf(text, sizeof text, troubles[s->trouble].text, s->victim);
    if (!own->told)
        return "vanished";
    if (own->status != troubles[s->trouble].status)
        return "ended otherwise";
    if (!strstr(own->text, text))
        return "blames somebody else";
    if (s->trouble != LATE && own->out_ns - atomic_load(&s->struck_ns) > most_ns)
        return "got out too late";
    return NULL;
}

/* From the blow until the last other rank was out. */
static void print_time(const schedule *s, char *text, size_t bytes)
{
    int64_t most = 0;
    for (int rank = 0; rank < s->num_ranks; rank++)
        if (rank != s->victim && s->ranks[rank].out_ns - s->struck_ns > most)
            most = s->ranks[rank].out_ns - s->struck_ns;
    snprintf(text, bytes, "%.2f", (double)most * 1e-6);
}

static bool print_verdict(const schedule *s, int64_t most_ns)
{
    int wrong_rank = -1;
    const char *wrong = NULL;
    char time[32] = "-";
    for (int rank = 0; rank < s->num_ranks && !wrong; rank++)
        if ((wrong = judge_rank(s, rank, most_ns)))
            wrong_rank = rank;
    if (s->struck_ns)
        print_time(s, time, sizeof time);
    printf("%10" PRIu32 " %3d  %-5s rank %-3d after %5.1f ms  %-16s %8s  %s\n", s->seed,
           s->num_ranks, troubles[s->trouble].name, s->victim, s->after_us * 1e-3,
           ew_status_name(troubles[s->trouble].status), time, wrong ? "WRONG" : "OK");
    if (wrong)
        printf("  rank %d %s: %s %s\n", wrong_rank, wrong,
               ew_status_name(s->ranks[wrong_rank].status), s->ranks[wrong_rank].text);
    fflush(stdout);
    return !wrong;
}

/* ---- The command ---- */

/* CLI_EXIT_WRONG: it ended otherwise than it must.  Ranks that never came to work are this
 * machine's fault, not the schedule's. */
static cli_exit try_seed(const cli_ranks *ranks, schedule *s)
{
    const int64_t most_ns = (int64_t)(ranks->options.timeout_ms + GRACE_MS) * 1000000;
    char error[CLI_ERROR_BYTES];
    const ew_status status = cli_ranks_run(ranks, s->num_ranks, live_through, s, error);
    cli_interrupt_leave(s->victim); /* a killed rank could not */
    if (cli_interrupted())
        return CLI_EXIT_INTERRUPTED;
    if (status && !atomic_load(&s->began))
        return cli_fail_status(status, error);
    return print_verdict(s, most_ns) ? CLI_EXIT_OK : CLI_EXIT_WRONG;
}

cli_exit cli_chaos_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (settings->ranks.count && settings->ranks.at[0] < 2)
        return cli_fail_usage("-W 2 or more",
                              "'chaos' needs a rank that is left to notice");
    cli_ranks ranks = {EW_RANKS_AS_PROCESSES, EW_WORLD_OPTIONS_INIT, NULL};
    ranks.options.timeout_ms =
        settings->timeout_s > 0 ? (uint32_t)(settings->timeout_s * 1000) : 500;
    schedule *s = cli_shared_alloc(sizeof *s);
    int64_t wrong = 0, count = 0;
    cli_exit ended = CLI_EXIT_OK;
    if (!s || !cli_interrupt_open())
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for a schedule");
    printf("%10s %3s  %-30s %-16s %8s  verdict\n", "seed", "W", "trouble", "others end as",
           "out ms");
    for (; count < settings->count && ended <= CLI_EXIT_WRONG; count++) {
        draw_schedule(s, settings->seed + (uint32_t)count, settings);
        ended = try_seed(&ranks, s);
        wrong += ended == CLI_EXIT_WRONG;
    }
    cli_interrupt_close();
    cli_shared_free(s, sizeof *s);
    if (ended > CLI_EXIT_WRONG)
        return ended;
    printf("# Schedules : %" PRId64 ", wrong : %" PRId64 "%s\n", count, wrong,
           wrong ? "" : " OK");
    return wrong ? CLI_EXIT_WRONG : CLI_EXIT_OK;
}
