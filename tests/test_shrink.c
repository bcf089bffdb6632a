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
#include "stress.h"

enum { MOST_RANKS = 6, TIMEOUT_MS = 20000 };

typedef struct scene {
    uint32_t seed;
    int victims;         /* that die at a time */
    atomic_int again;    /* attempts that had to be repeated */
    atomic_int stopped;  /* pid of the rank that is */
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

/* The k-th victim dies while the survivors shrink, the first in its calls. */
static void die_soon(int k, harness_random *random)
{
    if (k == 0)
        raise(SIGKILL);
    ualarm((useconds_t)harness_between(random, 100, 4000), 0);
}

static int die_one_by_one(ew_world *world, void *argument)
{
    scene *s = argument;
    const int origin = ew_world_rank(world);
    harness_random random = harness_seed(s->seed);
    ew_world *current = world;
    int origins[MOST_RANKS];
    RANK_TRY(check_members(current, origin, origins));
    while (ew_world_size(current) > s->victims) {
        const int first = (int)harness_between(&random, 0, ew_world_size(current) - 1);
        const int size = ew_world_size(current);
        RANK_OK(call_until_fault(current, 5));
        for (int k = 0; k < s->victims; k++)
            if (ew_world_rank(current) == (first + k) % size)
                die_soon(k, &random);
        const ew_status status = call_until_fault(current, 100000);
        RANK_CHECK(status == EW_ERR_PEER_DIED, "%s: %s", ew_status_name(status),
                   ew_last_error());
        ew_world *made;
        RANK_OK(shrink(current, s, &made));
        if (current != world)
            ew_world_destroy(current);
        current = made;
        RANK_TRY(check_members(current, origin, origins));
        /* Those whose alarm comes late are in it, and die in its calls. */
        RANK_CHECK(ew_world_size(current) < size, "%d", ew_world_size(current));
        harness_next(&random);
    }
    if (current != world)
        ew_world_destroy(current);
    return 0;
}

static void one_is_left(void **state)
{
    (void)state;
    const int64_t rounds = stress_count("SHRINKS", 6);
    for (int64_t round = 0; round < rounds; round++) {
        scene *s = harness_share(sizeof *s);
        int exits[MOST_RANKS], survivors = 0;
        ew_world_options options = EW_WORLD_OPTIONS_INIT;
        const int num_ranks = 3 + (int)round % (MOST_RANKS - 2);
        options.timeout_ms = TIMEOUT_MS;
        s->seed = (uint32_t)(stress_count("SEED", 1) * 1000 + round);
        s->victims = 1;
        harness_context("round %d", (int)round);
        (void)harness_run_failing(EW_RANKS_AS_PROCESSES, num_ranks, &options,
                                  die_one_by_one, s, exits);
        for (int rank = 0; rank < num_ranks; rank++)
            survivors += exits[rank] == 0;
        assert_int_equal(survivors, 1);
        printf("W=%d: longest shrink %.1f ms\n", num_ranks, (double)s->longest_ns * 1e-6);
        harness_unshare(s, sizeof *s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {TIDY(one_is_left)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
