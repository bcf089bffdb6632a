/* After a fault the ranks that are left go on in a new world: one death after the other
 * until one rank is left, two at a time, in the middle of the shrinking itself, ranks that
 * stop, and ranks that are threads. */
#include "faultkit.h"
#include "harness.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/probe.h"
#include "stress.h"

enum { MOST_RANKS = 6, TIMEOUT_MS = 20000, GRACE_MS = 100, OFTEN = 300 };

typedef struct scene {
    uint32_t seed;
    int victims;        /* that die at a time */
    atomic_int again;   /* attempts that had to be repeated */
    atomic_int stopped; /* pid of the rank that is */
    atomic_int_least64_t longest_ns;
} scene;

static void note_time(scene *s, int64_t ns)
{
    int64_t longest = atomic_load(&s->longest_ns);
    while (longest < ns && !atomic_compare_exchange_weak(&s->longest_ns, &longest, ns))
        ;
}

/* Calls until one fails. */
static ew_status call_until_fault(ew_world *world, int calls)
{
    duty d;
    ew_status status =
        duty_open(&d, world, (ew_problem)EW_PROBLEM(100, 150, 80, EW_FP32), "");
    for (int call = 0; call < calls && status == EW_OK; call++) {
        status = duty_call(&d, 100, (uint32_t)call);
        if (status == EW_OK && duty_wrong(&d, 100, (uint32_t)call) != 0)
            harness_note(world, __FILE__, __LINE__, "wrong values");
    }
    duty_close(&d);
    return status;
}

/* Until it succeeds: who dies meanwhile fails the attempt for all. */
static ew_status shrink(ew_world *world, scene *s, ew_world **made)
{
    const int64_t start_ns = ewx_now_ns();
    ew_status status;
    for (int attempt = 0; attempt < MOST_RANKS; attempt++) {
        status = ew_world_shrink(world, made);
        if (status != EW_ERR_PEER_DIED)
            break;
        if (!error_has("rank ", " died", "again", NULL))
            harness_note(world, __FILE__, __LINE__, "%s", ew_last_error());
        atomic_fetch_add(&s->again, 1);
    }
    note_time(s, ewx_now_ns() - start_ns);
    return status;
}

/* The members are the old ones in their order, less those that died. */
static int check_members(ew_world *world, int origin, int *origins)
{
    const int num_ranks = ew_world_size(world);
    RANK_OK(ew_world_allgather(world, &origin, origins, sizeof origin));
    for (int rank = 1; rank < num_ranks; rank++)
        RANK_CHECK(origins[rank] > origins[rank - 1], "rank %d", rank);
    RANK_CHECK(origins[ew_world_rank(world)] == origin, "rank %d of %d",
               ew_world_rank(world), num_ranks);
    return 0;
}

/* The first victim dies at once; the others while the ranks that are left shrink, if they
 * do not take longer to die. */
static void die_soon(int nth, int64_t after_us)
{
    if (nth == 0)
        raise(SIGKILL);
    ualarm((useconds_t)after_us, 0);
}

static int die_one_by_one(ew_world *world, void *argument)
{
    scene *s = argument;
    const int origin = ew_world_rank(world);
    harness_random random = harness_seed(s->seed);
    ew_world *current = world;
    int origins[MOST_RANKS];
    int dying = 0; /* in this world: those whose alarm has not come yet */
    RANK_TRY(check_members(current, origin, origins));
    while (ew_world_size(current) > s->victims || dying > 0) {
        const int size = ew_world_size(current);
        const int first = (int)harness_between(&random, 0, size - 1);
        const int64_t after_us = harness_between(&random, 100, 4000);
        const int nth = (ew_world_rank(current) - first + size) % size;
        const bool dies = dying == 0 && nth < s->victims;
        dying = dying > 0 ? dying : s->victims;
        if (dies)
            die_soon(nth, after_us);
        const ew_status status = call_until_fault(current, 1000000);
        RANK_CHECK(status == EW_ERR_PEER_DIED, "%s: %s", ew_status_name(status),
                   ew_last_error());
        ew_world *made;
        RANK_OK(shrink(current, s, &made));
        RANK_CHECK(ew_world_size(made) < size, "%d", ew_world_size(made));
        if (current != world)
            ew_world_destroy(current);
        current = made;
        dying -= size - ew_world_size(made);
        while (dies)
            pause(); /* the others go on without it, or find it dead in the new world */
        if (dying == 0) {
            RANK_TRY(check_members(current, origin, origins));
            /* The next victim may be through with them before this rank. */
            const ew_status worked = call_until_fault(current, 5);
            RANK_CHECK(worked == EW_OK || worked == EW_ERR_PEER_DIED, "%s",
                       ew_last_error());
        }
    }
    if (current != world)
        ew_world_destroy(current);
    return 0;
}

static int survivors_of(ew_ranks_as kind, int num_ranks, uint32_t timeout_ms,
                        ew_rank_main body, scene *s)
{
    int exits[MOST_RANKS], survivors = 0;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    (void)harness_run_failing(kind, num_ranks, &options, body, s, exits);
    for (int rank = 0; rank < num_ranks; rank++)
        survivors += exits[rank] == 0;
    return survivors;
}

static void deaths_until_one_is_left(void **state)
{
    (void)state;
    const int64_t rounds = stress_count("SHRINKS", 8);
    scene *s = harness_share(sizeof *s);
    for (int64_t round = 0; round < rounds; round++) {
        const int num_ranks = 3 + (int)round % (MOST_RANKS - 2);
        s->seed = (uint32_t)(stress_count("SEED", 1) * 1000 + round);
        s->victims = 1;
        harness_context("round %d", (int)round);
        assert_int_equal(
            survivors_of(EW_RANKS_AS_PROCESSES, num_ranks, TIMEOUT_MS, die_one_by_one, s),
            1);
    }
    stress_tell("jobs", "%lld", (long long)rounds);
    stress_tell("longest_ms", "%.1f", (double)atomic_load(&s->longest_ns) * 1e-6);
    stress_figure("shrinks");
    harness_unshare(s, sizeof *s);
}

/* Two at a time, the second in the middle of the shrinking, if it can be arranged. */
static void deaths_while_the_others_shrink(void **state)
{
    (void)state;
    const int64_t rounds = stress_count("SHRINKS", 8);
    scene *s = harness_share(sizeof *s);
    for (int64_t round = 0; round < rounds; round++) {
        s->seed = (uint32_t)(stress_count("SEED", 1) * 2000 + round);
        s->victims = 2;
        harness_context("round %d", (int)round);
        const int survivors =
            survivors_of(EW_RANKS_AS_PROCESSES, MOST_RANKS, TIMEOUT_MS, die_one_by_one, s);
        assert_int_equal(survivors, 2);
    }
    stress_tell("jobs", "%lld", (long long)rounds);
    stress_tell("again", "%d", atomic_load(&s->again));
    stress_tell("longest_ms", "%.1f", (double)atomic_load(&s->longest_ns) * 1e-6);
    stress_figure("shrinks-of-two");
    harness_unshare(s, sizeof *s);
}

/* ---- Other ends ---- */

/* The last rank leaves with an error; the launcher lets those go on that have shrunk, for
 * longer than its grace. */
static int leave_or_go_on(ew_world *world, void *argument)
{
    scene *s = argument;
    ew_world *made;
    int origins[MOST_RANKS];
    const int origin = ew_world_rank(world);
    if (origin == ew_world_size(world) - 1)
        return 7;
    RANK_CHECK(call_until_fault(world, 1000000) != EW_OK, "no fault");
    RANK_OK(shrink(world, s, &made));
    RANK_TRY(check_members(made, origin, origins));
    for (int i = 0; i < 30; i++) {
        sleep_ms(100);
        RANK_OK(call_until_fault(made, 2));
    }
    ew_world_destroy(made);
    return 0;
}

static void ranks_that_go_on_are_spared(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        scene *s = harness_share(sizeof *s);
        assert_int_equal(survivors_of(both_kinds[kind], 4, TIMEOUT_MS, leave_or_go_on, s),
                         3);
        harness_unshare(s, sizeof *s);
    }
}

/* Rank 1 stops in front of a call.  The others go on without it, and wake it then: it gets
 * the fault, and learns that it has come too late. */
static int stop_or_go_on(ew_world *world, void *argument)
{
    scene *s = argument;
    ew_world *made = NULL;
    const bool stops = ew_world_rank(world) == 1;
    RANK_OK(call_until_fault(world, 3));
    if (stops) {
        atomic_store(&s->stopped, (int)getpid());
        raise(SIGSTOP);
    }
    RANK_CHECK(call_until_fault(world, 1000000) == EW_ERR_TIMEOUT, "%s", ew_last_error());
    if (stops) {
        const ew_status status = ew_world_shrink(world, &made);
        RANK_CHECK(status == EW_ERR_ARGUMENT && error_has("shrunk already", NULL), "%s",
                   ew_last_error());
        return 0;
    }
    RANK_OK(ew_world_shrink(world, &made));
    RANK_CHECK(ew_world_size(made) == 3, "%d", ew_world_size(made));
    RANK_OK(call_until_fault(made, 5));
    if (ew_world_rank(made) == 0)
        kill(atomic_load(&s->stopped), SIGCONT);
    ew_world_destroy(made);
    return 0;
}

static void a_stopped_rank_is_left_behind(void **state)
{
    (void)state;
    scene *s = harness_share(sizeof *s);
    assert_int_equal(survivors_of(EW_RANKS_AS_PROCESSES, 4, 2000, stop_or_go_on, s), 4);
    harness_unshare(s, sizeof *s);
}

/* A rank stops in the middle of the shrinking.  The others name it, shrink without it, and
 * wake it then: it learns that it has come too late. */
static int stop_in_the_meeting(void *context, ewx_probe_point point, int rank,
                               int64_t where)
{
    scene *s = context;
    if (point == EWX_PROBE_MEETING && where == 0 && rank == s->victims &&
        atomic_fetch_add(&s->again, 1) == 1) /* it has met once, for the old world */
        raise(SIGSTOP);
    return 0;
}

static int stop_while_shrinking(ew_world *world, void *argument)
{
    scene *s = argument;
    ew_world *made = NULL;
    char name[40];
    if (ew_world_rank(world) == s->victims) {
        atomic_store(&s->stopped, (int)getpid());
        ew_world_abort(world);
    }
    while (ew_world_barrier(world) == EW_OK)
        ;
    const ew_status status = ew_world_shrink(world, &made);
    RANK_CHECK(status == EW_ERR_TIMEOUT && !made, "%s", ew_status_name(status));
    snprintf(name, sizeof name, "rank %d ", s->victims);
    if (ew_world_rank(world) == s->victims) {
        RANK_CHECK(error_has(name, "came", "given it up", NULL), "%s", ew_last_error());
        return 0;
    }
    RANK_CHECK(error_has(name, "made no progress", NULL), "%s", ew_last_error());
    RANK_OK(ew_world_shrink(world, &made));
    RANK_CHECK(ew_world_size(made) == 2, "%d", ew_world_size(made));
    RANK_OK(ew_world_barrier(made));
    kill(atomic_load(&s->stopped), SIGCONT);
    ew_world_destroy(made);
    return 0;
}

static void a_rank_that_stops_while_shrinking_is_named(void **state)
{
    (void)state;
    for (int victim = 2; victim >= 0; victim -= 2) { /* rank 0 owns the new world */
        scene *s = harness_share(sizeof *s);
        s->victims = victim;
        harness_context("rank %d stops", victim);
        ewx_probe_install(stop_in_the_meeting, s);
        const int survivors =
            survivors_of(EW_RANKS_AS_PROCESSES, 3, 500, stop_while_shrinking, s);
        ewx_probe_install(NULL, NULL);
        assert_int_equal(survivors, 3);
        harness_unshare(s, sizeof *s);
    }
}

/* More often than the launcher's socket holds reports of it; then rank 1 fails. */
static int shrink_often(ew_world *world, void *argument)
{
    (void)argument;
    ew_world *current = world;
    for (int round = 0; round <= OFTEN; round++) {
        ew_world *made = NULL;
        if (round < OFTEN)
            ew_world_abort(current);
        else if (ew_world_rank(world) == 1)
            return 7;
        while (ew_world_barrier(current) == EW_OK)
            ;
        RANK_OK(ew_world_shrink(current, &made));
        if (current != world)
            ew_world_destroy(current);
        current = made;
    }
    sleep_ms(5 * GRACE_MS);
    ew_world_destroy(current);
    return 0;
}

static void ranks_that_shrink_often_are_spared(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    int exits[2];
    options.grace_ms = GRACE_MS;
    (void)harness_run_failing(EW_RANKS_AS_PROCESSES, 2, &options, shrink_often, NULL,
                              exits);
    assert_int_equal(exits[0], 0);
    assert_int_equal(exits[1], 7);
}

static int misuse(ew_world *world, void *argument)
{
    (void)argument;
    ew_world *made = NULL;
    RANK_CHECK(ew_world_shrink(world, &made) == EW_ERR_ARGUMENT &&
                   error_has("no fault", "fix:", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_world_shrink(NULL, &made) == EW_ERR_ARGUMENT, "no world");
    RANK_CHECK(ew_world_shrink(world, NULL) == EW_ERR_ARGUMENT, "no place");
    RANK_OK(ew_world_barrier(world));
    /* All may be left: an abort is a fault too. */
    ew_world_abort(world);
    RANK_OK(ew_world_shrink(world, &made));
    RANK_CHECK(ew_world_size(made) == ew_world_size(world), "%d", ew_world_size(made));
    RANK_CHECK(ew_world_rank(made) == ew_world_rank(world), "%d", ew_world_rank(made));
    RANK_OK(call_until_fault(made, 2));
    RANK_CHECK(ew_world_barrier(world) == EW_ERR_ABORTED, "the old world is dead");
    RANK_CHECK(ew_world_shrink(world, &made) == EW_ERR_ARGUMENT, "twice");
    ew_world_destroy(made);
    return 0;
}

static void only_a_broken_world_shrinks(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 1; num_ranks <= 3; num_ranks++)
            harness_run(both_kinds[kind], num_ranks, misuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(deaths_until_one_is_left),
        TIDY(deaths_while_the_others_shrink),
        TIDY(ranks_that_go_on_are_spared),
        TIDY(a_stopped_rank_is_left_behind),
        TIDY(a_rank_that_stops_while_shrinking_is_named),
        TIDY(ranks_that_shrink_often_are_spared),
        TIDY(only_a_broken_world_shrinks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
