/* Ranks that stop are given up on by name; ranks that are only slow are waited for: the
 * timeout counts from a rank's last progress. */
#include "stage.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "stress.h"

/* ---- Stopped ---- */

static int work_until_a_rank_stops(ew_world *world, void *argument)
{
    stage *s = argument;
    const int code = work_for_ever(world, argument);
    if (ew_world_rank(world) == s->rank)
        return code;
    /* When all others are out the stopped one is woken, and has to hear it too. */
    stage_await(s, ew_world_size(world) - 1);
    kill(s->pids[s->rank], SIGCONT);
    return code;
}

/* From the stop until the others had their error, and from then until the one that was
 * woken had it. */
static stress_times others, woken;

static void expect_stopped(int num_ranks, ewx_probe_point point, int victim, int nth)
{
    stage *s = stage_open();
    int exits[MAX_W];
    char text[32];
    int64_t last_ns = 0;
    s->act = ACT_STOP;
    s->point = point;
    s->rank = victim;
    s->nth = nth;
    harness_context("W=%d, point %d, victim %d, time %d", num_ranks, (int)point, victim,
                    nth);
    const ew_status status =
        stage_run(s, EW_RANKS_AS_PROCESSES, num_ranks, 500, work_until_a_rank_stops, exits);
    assert_int_not_equal(status, EW_OK);
    snprintf(text, sizeof text, "of rank %d (", victim);
    expect_same_story(s, num_ranks, -1, EW_ERR_TIMEOUT, text);
    for (int rank = 0; rank < num_ranks; rank++) {
        const int64_t took_ns = s->out_ns[rank] - s->acted_ns;
        assert_int_equal(exits[rank], 3);
        assert_true(strstr(s->texts[rank], "tile (") && strstr(s->texts[rank], "epoch"));
        assert_true(took_ns >= 250000000 && took_ns < SOON_NS);
        if (rank != victim)
            stress_time(&others, took_ns);
        if (rank != victim && s->out_ns[rank] > last_ns)
            last_ns = s->out_ns[rank];
    }
    stress_time(&woken, s->out_ns[victim] - last_ns);
    stage_close(s);
}

static void stopped_ranks_time_out(void **state)
{
    (void)state;
    static const ewx_probe_point points[] = {EWX_PROBE_BLOCK, EWX_PROBE_PUBLISH,
                                             EWX_PROBE_REDUCE};
    const int64_t stops = stress_count("STOPS", 9);
    harness_random random = harness_seed((uint64_t)stress_count("SEED", 1));
    for (int64_t stop = 0; stop < stops; stop++) {
        const int num_ranks = 2 << stop % 3;
        const int victim = (int)harness_between(&random, 0, num_ranks - 1);
        expect_stopped(num_ranks, points[stop / 3 % 3], victim,
                       (int)harness_between(&random, 0, 8));
    }
    stress_tell("stops", "%lld", (long long)stops);
    stress_tell_times("others", &others);
    stress_tell_times("woken", &woken);
    stress_figure("stops");
    expect_world_still_works();
}

/* Rank 2 stops while it still owes rank 1 a tile.  Rank 0 has all of its own, goes on to
 * the next call and waits there for rank 1, which is innocent: its time is up long after
 * rank 0's, because its plan has a longer timeout. */
static int stop_two(void *context, ewx_probe_point point, int rank, int64_t where)
{
    stage *s = context;
    if (point == EWX_PROBE_PUBLISH && rank == 2 && where == 5) { /* rank 1's second tile */
        atomic_store(&s->acted_ns, ewx_now_ns());
        kill(getpid(), SIGSTOP);
    }
    return 0;
}

static void an_innocent_waiter_is_not_blamed(void **state)
{
    (void)state;
    stage *s = stage_open();
    s->rank = 2;
    s->timeout_s[1] = 1.25;
    s->config = "order=contiguous,workers=1"; /* another one would wait for rank 2 */
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 500;
    ewx_probe_install(stop_two, s);
    const ew_status status = harness_run_failing(EW_RANKS_AS_PROCESSES, 3, &options,
                                                 work_until_a_rank_stops, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_not_equal(status, EW_OK);
    expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "rank 1 waited 1.25 s for tile");
    expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "of rank 2 (");
    stage_close(s);
}

/* Rank 2 stays away from a call of a single row, which is rank 0's.  Rank 1 owes and misses
 * nothing and waits at a barrier for rank 0, which is innocent. */
static int stay_away_from_one_row(ew_world *world, void *argument)
{
    duty d;
    ew_status status = EW_OK;
    RANK_OK(duty_open(&d, world, (ew_problem)EW_PROBLEM(8, 64, 64, EW_FP32), ""));
    if (ew_world_rank(world) != 2)
        status = duty_call(&d, 1, 1);
    if (ew_world_rank(world) == 1 && status == EW_OK)
        status = ew_world_barrier(world);
    return stage_listen(argument, world, &d, status);
}

static void a_barrier_does_not_blame_a_waiter(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        stage *s = stage_open();
        const ew_status status =
            stage_run(s, both_kinds[kind], 3, 500, stay_away_from_one_row, NULL);
        assert_int_not_equal(status, EW_OK);
        expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "of rank 2 (");
        stage_close(s);
    }
}

/* Rank 2 stays away from a call of a single row, which is rank 0's, and rank 0 comes late
 * to it.  Rank 1 owes and misses nothing, and waits for rank 0 in a call of another plan:
 * its time is up first, and rank 0 is innocent. */
static int stay_away_from_a_plan(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world);
    duty one, other;
    ew_status status = EW_OK;
    RANK_OK(duty_open(&one, world, (ew_problem)EW_PROBLEM(8, 64, 64, EW_FP32), ""));
    RANK_OK(duty_open(&other, world, (ew_problem)EW_PROBLEM(8, 64, 64, EW_FP32), ""));
    if (rank == 0)
        sleep_ms(300);
    if (rank != 2)
        status = duty_call(&one, 1, 1);
    if (rank == 1 && status == EW_OK)
        status = duty_call(&other, 8, 1);
    const int code = stage_listen(argument, world, &one, status);
    duty_close(&other);
    return code;
}

static void a_waiter_in_another_plan_is_not_blamed(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        stage *s = stage_open();
        const ew_status status =
            stage_run(s, both_kinds[kind], 3, 1000, stay_away_from_a_plan, NULL);
        assert_int_not_equal(status, EW_OK);
        expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "rank 0 waited 1 s for tile");
        expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "of rank 2 (");
        stage_close(s);
    }
}

/* The rank `s->rank` stops as soon as it has said that it waits for rank 2, which in a call
 * keeps a tile of rank 1 back until then. */
static int stop_the_waiter(void *context, ewx_probe_point point, int rank, int64_t where)
{
    stage *s = context;
    const bool has_stopped = atomic_load(&s->acted_ns) != 0;
    if (point == EWX_PROBE_EXCUSE && where == s->rank && has_stopped)
        atomic_fetch_add(&s->excuses[rank], 1);
    if (point == EWX_PROBE_PUBLISH && rank == 2 && where == 5)
        stage_await_act(s);
    if (point == EWX_PROBE_WAITING && rank == s->rank && where == 2 && !has_stopped) {
        atomic_store(&s->acted_ns, ewx_now_ns());
        kill(getpid(), SIGSTOP);
    }
    return 0;
}

/* What a rank says of its waiting excuses it while it looks around, and for at most one
 * timeout more, which is 8 slices. */
static void expect_waiter_named(int waiter, ew_rank_main body, const char *text,
                                int most_excuses)
{
    stage *s = stage_open();
    s->rank = waiter;
    s->config = "order=contiguous";
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 500;
    ewx_probe_install(stop_the_waiter, s);
    const ew_status status =
        harness_run_failing(EW_RANKS_AS_PROCESSES, 3, &options, body, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_not_equal(status, EW_OK);
    expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, text);
    for (int rank = 0; rank < 3; rank++)
        assert_in_range(atomic_load(&s->excuses[rank]), 0, most_excuses);
    stage_close(s);
}

/* Rank 2 then publishes the tile, and both others go on to the next call, where rank 1
 * never comes. */
static void a_stopped_waiter_is_named(void **state)
{
    (void)state;
    expect_waiter_named(1, work_until_a_rank_stops, "of rank 1 (", 8);
}

static int barrier_without_the_waiter(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    ew_status status = EW_OK;
    s->pids[ew_world_rank(world)] = getpid();
    RANK_OK(duty_open(&d, world, (ew_problem)EW_PROBLEM(8, 64, 64, EW_FP32), ""));
    if (ew_world_rank(world) != 2)
        status = duty_call(&d, 1, 1);
    if (ew_world_rank(world) == 1 && status == EW_OK) {
        stage_await_act(s);
        status = ew_world_barrier(world);
    }
    const int code = stage_listen(s, world, &d, status);
    if (ew_world_rank(world) == 1)
        kill(s->pids[0], SIGCONT);
    return code;
}

/* Rank 2 stays away from the call, where rank 0 waits for it.  Rank 1 has come to its
 * barrier after the stop, so when its time is up rank 0 has been silent for all of it. */
static void a_stopped_waiter_is_named_at_a_barrier(void **state)
{
    (void)state;
    expect_waiter_named(0, barrier_without_the_waiter, "rank 0", 0);
}

/* ---- Slow is not dead: the timeout counts from a rank's last progress ---- */

static int three_slow_calls(ew_world *world, void *argument)
{
    stage *s = argument;
    return work_on(world, s, s->rows, s->config, 3);
}

static void expect_patience(ewx_probe_point point, int rank, int64_t rows,
                            const char *config)
{
    stage *s = stage_open();
    s->act = ACT_SLEEP;
    s->point = point;
    s->rank = rank;
    s->sleep_ms = 300; /* four times in a call */
    s->rows = rows;
    s->config = config;
    harness_context("point %d, m=%d, %s", (int)point, (int)rows, config);
    const ew_status status =
        stage_run(s, EW_RANKS_AS_PROCESSES, 2, 1000, three_slow_calls, NULL);
    if (status != EW_OK)
        fail_msg("%s m=%d: \"%s\" / \"%s\"", config, (int)rows, s->texts[0], s->texts[1]);
    stage_close(s);
}

static void a_slow_producer_is_waited_for(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_BLOCK, 1, 128, "block=128x128");
}

static void a_slow_reducer_is_waited_for(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_REDUCE, 1, 128, "release=output");
}

/* Rank 1 owns nothing and waits only for its slices to be free again. */
static void a_slow_reader_is_waited_for(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_BLOCK, 0, 1, "block=128x128");
}

/* Rank 0's reducer is done when its own partition is, long before the GEMM. */
static void an_idle_reducer_is_patient(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_BLOCK, -1, 128,
                    "block=128x128,order=contiguous,pool=static,workers=2,x=1");
}

/* A worker that takes longer over a block than the timeout, while another one of its rank
 * waits for it: for a tile of the sum, or with nothing left to reduce. */
static void a_rank_does_not_give_up_on_itself(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "block=128x128,workers=2",
        "block=128x128,order=contiguous,pool=static,workers=2,x=1"};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        stage *s = stage_open();
        s->act = ACT_SLEEP;
        s->point = EWX_PROBE_BLOCK;
        s->rank = 0;
        s->nth = 0;
        s->sleep_ms = 600;
        s->rows = 128;
        s->config = configs[i];
        harness_context("%s", configs[i]);
        const ew_status status =
            stage_run(s, EW_RANKS_AS_PROCESSES, 1, 200, three_slow_calls, NULL);
        if (status != EW_OK)
            fail_msg("%s: \"%s\"", configs[i], s->texts[0]);
        stage_close(s);
    }
}

/* ---- A timeout of a plan's own ---- */

static int refuse_odd_timeouts(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    RANK_OK(duty_open(&d, world, (ew_problem)EW_PROBLEM(8, 8, 8, EW_FP32), ""));
    const double odd[] = {-1.0, 0.0009, 4.1e6, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++)
        RANK_CHECK(ew_plan_set_timeout(d.plan, odd[i]) == EW_ERR_ARGUMENT &&
                       error_has("timeout", "out of range", "fix:", NULL),
                   "%g: %s", odd[i], ew_last_error());
    RANK_CHECK(ew_plan_set_timeout(d.plan, 4000001.0) == EW_ERR_ARGUMENT &&
                   error_has("4000001 s", "to 4000000 s", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_plan_set_timeout(NULL, 1.0) == EW_ERR_ARGUMENT, "NULL");
    const double fine[] = {0.001, 4e6, 0.0};
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++)
        RANK_OK(ew_plan_set_timeout(d.plan, fine[i]));
    RANK_OK(duty_call(&d, 8, 1)); /* still usable */
    duty_close(&d);
    return 0;
}

static void odd_timeouts_are_refused(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, refuse_odd_timeouts, NULL);
}

/* Rank 2 stays away from the second plan's second call.  Rank 0 alone has a short timeout,
 * and that only for this plan: the world's is never reached. */
static int stay_away(ew_world *world, void *argument)
{
    stage *s = argument;
    const int rank = ew_world_rank(world);
    duty first, second;
    const ew_problem problem = EW_PROBLEM(90, 128, 64, EW_FP32);
    RANK_OK(duty_open(&first, world, problem, ""));
    RANK_OK(duty_open(&second, world, problem, ""));
    RANK_OK(ew_plan_set_timeout(second.plan, 7.0));
    if (rank == 0)
        RANK_OK(ew_plan_set_timeout(second.plan, 0.25));
    RANK_OK(duty_call(&first, 90, 1));
    RANK_OK(duty_call(&second, 90, 1));
    ew_status status = EW_OK;
    if (rank != 2)
        status = duty_call(&second, 90, 2);
    duty_close(&first);
    return stage_listen(s, world, &second, status);
}

static void a_plan_has_its_own_timeout(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        stage *s = stage_open();
        const ew_status status =
            stage_run(s, both_kinds[kind], 3, LONG_TIMEOUT_MS, stay_away, NULL);
        assert_int_not_equal(status, EW_OK);
        expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "rank 0 waited 0.25 s for tile (0,0)");
        expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "of rank 2 (plan 2, saw epoch 1");
        stage_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(stopped_ranks_time_out),
        TIDY(an_innocent_waiter_is_not_blamed),
        TIDY(a_barrier_does_not_blame_a_waiter),
        TIDY(a_waiter_in_another_plan_is_not_blamed),
        TIDY(a_stopped_waiter_is_named),
        TIDY(a_stopped_waiter_is_named_at_a_barrier),
        TIDY(a_slow_producer_is_waited_for),
        TIDY(a_slow_reducer_is_waited_for),
        TIDY(a_slow_reader_is_waited_for),
        TIDY(an_idle_reducer_is_patient),
        TIDY(a_rank_does_not_give_up_on_itself),
        TIDY(odd_timeouts_are_refused),
        TIDY(a_plan_has_its_own_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
