/* Creating a world is cancelled, by another thread or a signal handler, while a rank does
 * not come: this rank is out with EW_ERR_ABORTED, those that it has met name it, and
 * nothing is left behind.  Nobody waits for the timeout: the rank that does not come gives
 * the others less time. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/probe.h"
#include "entwine/fabric.h"

enum { NUM_RANKS = 4, MOST_BYTES = 1024, TIMEOUT_MS = 20000, CANCEL_MS = 50 };
#define SOON_NS 10000000000 /* far less than the timeout */

typedef struct scene {
    int absent; /* does not leave its all-gather before the others are out */
    bool cancels[NUM_RANKS];
    atomic_int arrived, out;
    atomic_int at[3];                 /* ranks that have passed so far in their meeting */
    atomic_int wanted_at, num_wanted; /* cancelled when so many are there */
    unsigned char cards[NUM_RANKS][MOST_BYTES];
    ew_status statuses[NUM_RANKS];
    char texts[NUM_RANKS][512];
    int fds_before[NUM_RANKS], fds_after[NUM_RANKS];
} scene;

typedef struct actor {
    scene *scene;
    int rank;
} actor;

static bool reaches(atomic_int *counter, int count)
{
    for (const int64_t end = ewx_now_ns() + SOON_NS; ewx_now_ns() < end; sleep_ms(1))
        if (atomic_load(counter) >= count)
            return true;
    return false;
}

static int gather(void *context, const void *mine, void *all, size_t bytes)
{
    const actor *me = context;
    scene *s = me->scene;
    if (bytes > MOST_BYTES)
        return 1;
    memcpy(s->cards[me->rank], mine, bytes);
    atomic_fetch_add(&s->arrived, 1);
    if (!reaches(&s->arrived, NUM_RANKS))
        return 1;
    for (int rank = 0; rank < NUM_RANKS; rank++)
        memcpy((char *)all + (size_t)rank * bytes, s->cards[rank], bytes);
    return me->rank == s->absent && !reaches(&s->out, NUM_RANKS - 1);
}

static int count_meeting(void *context, ewx_probe_point point, int rank, int64_t where)
{
    scene *s = context;
    (void)rank;
    if (point == EWX_PROBE_MEETING)
        atomic_fetch_add(&s->at[where], 1);
    return 0;
}

/* ---- Who cancels ---- */

static int word;

static void *cancel_later(void *argument)
{
    scene *s = argument;
    if (s)
        reaches(&s->at[s->wanted_at], s->num_wanted);
    sleep_ms(CANCEL_MS);
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    return NULL;
}

static ew_world_options cancellable(void)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = TIMEOUT_MS;
    options.cancel = &word;
    word = 0;
    return options;
}

static void act(const actor *me)
{
    scene *s = me->scene;
    const ew_world_options options = cancellable();
    pthread_t thread;
    ew_world *world = NULL;
    ewx_probe_install(count_meeting, s);
    s->fds_before[me->rank] = census_take().fds;
    if (s->cancels[me->rank] && pthread_create(&thread, NULL, cancel_later, s) != 0)
        _exit(1);
    s->statuses[me->rank] = ew_world_create(me->rank, NUM_RANKS, gather,
                                            (void *)(uintptr_t)me, &options, &world);
    snprintf(s->texts[me->rank], sizeof s->texts[0], "%s", ew_last_error());
    if (s->cancels[me->rank])
        pthread_join(thread, NULL);
    s->fds_after[me->rank] = census_take().fds;
    atomic_fetch_add(&s->out, 1);
    reaches(&s->out, NUM_RANKS); /* that it lives is no help to those who wait */
    ew_world_destroy(world);
}

static void run_scene(scene *s)
{
    pid_t pids[NUM_RANKS];
    for (int rank = 0; rank < NUM_RANKS; rank++)
        if ((pids[rank] = fork()) == 0) {
            act(&(actor){s, rank});
            _exit(0);
        }
    for (int rank = 0; rank < NUM_RANKS; rank++) {
        int status;
        assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
        assert_int_equal(status, 0);
        assert_int_equal(s->fds_after[rank], s->fds_before[rank]);
    }
}

static void expect(const scene *s, int rank, ew_status status, const char *format,
                   int culprit)
{
    char words[80];
    snprintf(words, sizeof words, format, culprit);
    if (s->statuses[rank] != status || !strstr(s->texts[rank], words))
        fail_msg("rank %d (absent: %d) has %s, \"%s\"; wanted %s, \"%s\"", rank, s->absent,
                 ew_status_name(s->statuses[rank]), s->texts[rank], ew_status_name(status),
                 words);
}

#define GAVE_UP "rank %d gave up while the world was created: its program cancelled that"

/* ---- Ranks that meet ---- */

static void all_name_the_rank_that_gave_up(void **state)
{
    (void)state;
    for (int absent = 1; absent < NUM_RANKS; absent++)
        for (int culprit = 0; culprit < NUM_RANKS; culprit++) {
            if (culprit == absent)
                continue;
            scene *s = harness_share(sizeof *s);
            s->absent = absent;
            s->cancels[culprit] = true;
            s->wanted_at = 1; /* all but one have the control block */
            s->num_wanted = NUM_RANKS - 1;
            run_scene(s);
            for (int rank = 0; rank < NUM_RANKS; rank++)
                if (rank != absent)
                    expect(s, rank, EW_ERR_ABORTED, GAVE_UP, culprit);
            expect(s, absent, EW_ERR_PEER_DIED, "rank %d left the world", 0);
            harness_unshare(s, sizeof *s);
        }
}

/* Without the lowest rank of a host no one has the control block; it comes later, and sees
 * that the others, which live, have left. */
static void owner_learns_that_ranks_have_left(void **state)
{
    (void)state;
    scene *s = harness_share(sizeof *s);
    s->absent = 0;
    for (int rank = 1; rank < NUM_RANKS; rank++)
        s->cancels[rank] = true;
    s->num_wanted = NUM_RANKS - 1;
    run_scene(s);
    for (int rank = 1; rank < NUM_RANKS; rank++)
        expect(s, rank, EW_ERR_ABORTED, GAVE_UP, rank);
    expect(s, 0, EW_ERR_PEER_DIED, "rank %d left the world while rank 0 waited for it", 1);
    harness_unshare(s, sizeof *s);
}

/* ---- Ranks that gather ---- */

static int gather_in_vain(void *context, const void *mine, void *all, size_t bytes)
{
    (void)mine;
    (void)all;
    (void)bytes;
    ++*(int *)context;
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    return 1;
}

static void cancelled_before_it_starts(void **state)
{
    (void)state;
    ew_world *world = NULL;
    int calls = 0;
    for (int num_ranks = 1; num_ranks <= 3; num_ranks += 2) {
        const ew_world_options options = cancellable();
        word = 1;
        assert_int_equal(ew_world_create(num_ranks - 1, num_ranks, gather_in_vain, &calls,
                                         &options, &world),
                         EW_ERR_ABORTED);
        assert_true(error_has(num_ranks == 1 ? "rank 0 gave up" : "rank 2 gave up",
                              "ew_world_options.cancel", NULL));
    }
    assert_int_equal(calls, 0);
}

static void an_all_gather_may_watch_the_word(void **state)
{
    (void)state;
    const ew_world_options options = cancellable();
    ew_world *world = NULL;
    int calls = 0;
    assert_int_equal(ew_world_create(1, 2, gather_in_vain, &calls, &options, &world),
                     EW_ERR_ABORTED);
    assert_true(error_has("rank 1 gave up", NULL));
    assert_int_equal(calls, 1);
}

static int miss_rank_1(void *context, const void *mine, void *all, size_t bytes,
                       bool *missing_out)
{
    (void)mine;
    (void)all;
    (void)bytes;
    missing_out[1] = true;
    return ewx_now_ns() > *(const int64_t *)context;
}

static void cancelled_while_a_fabric_gathers(void **state)
{
    (void)state;
    const ew_world_options options = cancellable();
    int64_t end_ns = ewx_now_ns() + SOON_NS;
    const ew_fabric fabric = {.struct_size = sizeof fabric,
                              .num_ranks = 2,
                              .name = "a fabric",
                              .context = &end_ns,
                              .gather = miss_rank_1};
    ew_world *world = NULL;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, cancel_later, NULL), 0);
    const ew_status status = ew_world_join(&fabric, &options, &world);
    pthread_join(thread, NULL);
    assert_int_equal(status, EW_ERR_ABORTED);
    assert_true(error_has("rank 0 gave up", NULL));
}

/* ---- Ranks of a launcher ---- */

static void cancel_on_signal(int signal_number)
{
    (void)signal_number;
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
}

/* Rank 2 never says hello; rank 1 is cancelled, the others wait. */
static int hold_rank_2(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point != EWX_PROBE_BOOTSTRAP)
        return 0;
    if (rank == 2)
        sleep_ms(2 * TIMEOUT_MS); /* until it is killed */
    if (rank == 1) {
        signal(SIGALRM, cancel_on_signal);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, CANCEL_MS * 1000}},
                  NULL);
    }
    return 0;
}

static int never_runs(ew_world *world, void *argument)
{
    (void)argument;
    harness_note(world, __FILE__, __LINE__, "there is a world");
    return 1;
}

static void launcher_names_the_rank_that_gave_up(void **state)
{
    (void)state;
    const ew_world_options options = cancellable();
    ewx_probe_install(hold_rank_2, NULL);
    const ew_status status = harness_run_failing(EW_RANKS_AS_PROCESSES, NUM_RANKS, &options,
                                                 never_runs, NULL, NULL);
    ewx_probe_install(NULL, NULL);
    if (status != EW_ERR_ABORTED || !error_has("rank 1: rank 1 gave up", NULL))
        fail_msg("%s: %s", ew_status_name(status), ew_last_error());
}

/* ---- A world that exists ---- */

static int gather_twice(ew_world *world, void *argument)
{
    RANK_TRY(gather_and_compare(world, 100));
    *(int *)argument = 1;
    RANK_TRY(gather_and_compare(world, 100));
    return 0;
}

static void worlds_are_not_cancelled(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        int *shared = harness_share(sizeof *shared);
        ew_world_options options = cancellable();
        options.cancel = shared;
        harness_run_with(both_kinds[kind], 1, &options, gather_twice, shared);
        harness_unshare(shared, sizeof *shared);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(all_name_the_rank_that_gave_up),   TIDY(owner_learns_that_ranks_have_left),
        TIDY(cancelled_before_it_starts),       TIDY(an_all_gather_may_watch_the_word),
        TIDY(cancelled_while_a_fabric_gathers), TIDY(launcher_names_the_rank_that_gave_up),
        TIDY(worlds_are_not_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
