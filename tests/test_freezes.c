/* A job that is frozen as a whole, for longer than its timeout, goes on when it thaws:
 * SIGSTOP of the job with its launcher, as Ctrl-Z and docker pause do it, or of its ranks
 * alone, at a random time in every phase.  Nobody is late who could not run. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/timer.h"
#include "stress.h"

enum { TIMEOUT_MS = 700, FROZEN_MS = 2 * TIMEOUT_MS, NUM_RANKS = 3, MOST_CHILDREN = 64 };

typedef struct job job;
typedef struct phase {
    const char *name;
    ew_ranks_as kind;
    int (*turn)(ew_world *world, job *j); /* NULL: the phase is over when ranks have met */
} phase;

struct job {
    phase phase;
    atomic_int turns;  /* of rank 0, in all worlds */
    atomic_int thawed; /* the job may end */
    atomic_int forks_begun, forks_done;
};
static job *current; /* pthread_atfork takes no argument */

/* ---- Phases ---- */

static int barriers(ew_world *world, job *j)
{
    (void)j;
    for (int i = 0; i < 20; i++)
        RANK_OK(ew_world_barrier(world));
    return 0;
}

static int gathers(ew_world *world, job *j)
{
    (void)j;
    return gather_and_compare(world, 10000);
}

static int plans(ew_world *world, job *j)
{
    (void)j;
    duty d;
    RANK_OK(duty_open(&d, world, (ew_problem)EW_PROBLEM(64, 64, 64, EW_FP32), ""));
    duty_close(&d);
    return 0;
}

static int gather(void *world, const void *mine, void *all, size_t bytes)
{
    return ew_world_allgather(world, mine, all, bytes);
}

static int worlds(ew_world *world, job *j)
{
    (void)j;
    ew_world *second;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    RANK_OK(
        ew_world_create(ew_world_rank(world), NUM_RANKS, gather, world, &options, &second));
    ew_world_destroy(second);
    return 0;
}

/* With m = 1 two of the ranks own no row and run ahead. */
static int calls(ew_world *world, job *j)
{
    (void)j;
    duty d;
    RANK_OK(
        duty_open(&d, world, (ew_problem)EW_PROBLEM(300, 200, 300, EW_FP32), "workers=2"));
    for (uint32_t call = 0; call < 60; call++) {
        const int64_t m = call % 3 == 2 ? 1 : 300;
        RANK_OK(duty_call(&d, m, call));
        RANK_CHECK(duty_wrong(&d, m, call) == 0, "m=%d", (int)m);
    }
    duty_close(&d);
    return 0;
}

static const phase phases[] = {
    {"barriers", EW_RANKS_AS_PROCESSES, barriers},
    {"all-gathers", EW_RANKS_AS_PROCESSES, gathers},
    {"plans", EW_RANKS_AS_PROCESSES, plans},
    {"calls", EW_RANKS_AS_PROCESSES, calls},
    {"meetings", EW_RANKS_AS_PROCESSES, NULL},
    {"worlds", EW_RANKS_AS_PROCESSES, worlds},
    {"barriers of threads", EW_RANKS_AS_THREADS, barriers},
    {"calls of threads", EW_RANKS_AS_THREADS, calls},
};
enum { NUM_PHASES = sizeof phases / sizeof *phases };

static int rank_main(ew_world *world, void *argument)
{
    job *j = argument;
    char over = 0, everybody[NUM_RANKS];
    if (ew_world_rank(world) == 0)
        atomic_fetch_add(&j->turns, 1);
    while (j->phase.turn && !over) {
        RANK_TRY(j->phase.turn(world, j));
        if (ew_world_rank(world) == 0) {
            over = (char)atomic_load(&j->thawed);
            atomic_fetch_add(&j->turns, 1);
        }
        RANK_OK(ew_world_allgather(world, &over, everybody, 1));
        over = everybody[0];
    }
    return 0;
}

/* ---- The frozen job ---- */

static void count_fork_begun(void)
{
    atomic_fetch_add(&current->forks_begun, 1);
}

static void count_fork_done(void)
{
    atomic_fetch_add(&current->forks_done, 1);
}

/* In a process group of its own. */
_Noreturn static void run_job(job *j)
{
    char text[HARNESS_TEXT_BYTES];
    current = j;
    pthread_atfork(count_fork_begun, count_fork_done, NULL);
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    ew_status status = EW_OK;
    do {
        status = harness_try(j->phase.kind, NUM_RANKS, &options, rank_main, j, NULL, text,
                             sizeof text);
    } while (status == EW_OK && !text[0] && !atomic_load(&j->thawed));
    if (status != EW_OK || text[0])
        fprintf(stderr, "%s: %s: %s\n", j->phase.name, ew_last_error(), text);
    fflush(NULL);
    _exit(status != EW_OK || text[0]);
}

static int children_of(pid_t parent, pid_t *children)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "re");
    for (int pid; file && count < MOST_CHILDREN && fscanf(file, "%d", &pid) == 1;)
        children[count++] = pid;
    if (file)
        fclose(file);
    return count;
}

static bool is_stopped(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const int got = fscanf(file, "%*d (%*[^)]) %c", &state);
    fclose(file);
    return got == 1 && state == 'T';
}

/* Stops a whole world: all of its ranks are forked when the list is read, and one that
 * stopped keeps the launcher from the next world.  A rank that the launcher forks later
 * would run, and rightly report that the others are late. */
static int stop_ranks(const job *j, pid_t launcher, pid_t *ranks)
{
    for (int64_t end = ewx_now_ns() + 20000000000; ewx_now_ns() < end;) {
        const int forked = atomic_load(&j->forks_done);
        const int num_ranks = children_of(launcher, ranks);
        const bool is_whole =
            forked == atomic_load(&j->forks_begun) && forked % NUM_RANKS == 0;
        for (int i = 0; i < num_ranks; i++)
            kill(ranks[i], SIGSTOP);
        sleep_ms(5);
        for (int i = 0; i < num_ranks && is_whole; i++)
            if (is_stopped(ranks[i]))
                return num_ranks;
    }
    return 0;
}

static void freeze(const job *j, pid_t launcher, bool ranks_alone)
{
    pid_t ranks[MOST_CHILDREN];
    const int num_ranks = ranks_alone ? stop_ranks(j, launcher, ranks) : 0;
    if (!ranks_alone)
        kill(-launcher, SIGSTOP);
    sleep_ms(FROZEN_MS);
    for (int i = 0; i < num_ranks; i++)
        kill(ranks[i], SIGCONT);
    if (!ranks_alone)
        kill(-launcher, SIGCONT);
}

static void await_turn(const job *j, int turns)
{
    for (int64_t end = ewx_now_ns() + 20000000000;
         atomic_load(&j->turns) < turns && ewx_now_ns() < end;)
        sleep_ms(1);
}

/* Whether the job came through. */
static bool try_one(const phase *which, bool ranks_alone, harness_random *random)
{
    job *j = harness_share(sizeof *j);
    j->phase = *which;
    fflush(NULL);
    const pid_t launcher = fork();
    if (launcher == 0) {
        setpgid(0, 0);
        run_job(j);
    }
    setpgid(launcher, launcher);
    await_turn(j, 1);
    usleep((useconds_t)harness_between(random, 0, 15000));
    freeze(j, launcher, ranks_alone);
    await_turn(j, atomic_load(&j->turns) + 2);
    atomic_store(&j->thawed, 1);
    int state = -1;
    const bool ended = waitpid(launcher, &state, 0) == launcher;
    harness_unshare(j, sizeof *j);
    return ended && state == 0;
}

static void a_frozen_job_goes_on(void **state)
{
    (void)state;
    const int64_t freezes = stress_count("FREEZES", 2 * NUM_PHASES);
    harness_random random = harness_seed((uint64_t)stress_count("SEED", 1));
    int64_t failed = 0;
    for (int64_t i = 0; i < freezes; i++) {
        const phase *which = &phases[i % NUM_PHASES];
        const bool alone = which->kind == EW_RANKS_AS_PROCESSES && i / NUM_PHASES % 2;
        const bool went_on = try_one(which, alone, &random);
        if (!went_on)
            printf("%s, %s: the job failed\n", which->name, alone ? "ranks alone" : "all");
        failed += !went_on;
    }
    stress_tell("freezes", "%lld", (long long)freezes);
    stress_tell("failed", "%lld", (long long)failed);
    stress_figure("freezes");
    assert_int_equal(failed, 0);
}

/* As a virtual machine that is moved may see it. */
static void a_clock_that_goes_back_gives_no_time(void **state)
{
    (void)state;
    ewx_timer timer = ewx_timer_begin(1000000000);
    timer.used_ns = 900000000;
    timer.seen_ns = ewx_now_ns() + 60000000000;
    assert_false(ewx_timer_is_over(&timer));
    assert_int_equal(timer.used_ns, 900000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {TIDY(a_frozen_job_goes_on),
                                       TIDY(a_clock_that_goes_back_gives_no_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
