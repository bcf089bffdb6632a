/* Ranks that die, never come or leave early: every other rank gets out in bounded time with
 * an error that names the one to blame, the same on all of them, and nothing is left
 * behind.  Bounds are generous: they tell an answer from a hang. */
#include "stage.h"

#include <signal.h>
#include <stdio.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "stress.h"

#ifdef __SANITIZE_ADDRESS__ /* processes are costly to fork there */
enum { USUAL_KILLS = 15 };
#else
enum { USUAL_KILLS = 60 };
#endif

/* Two calls, then everyone tears down and meets once more. */
static int work_and_part(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    ew_status status = duty_open(&d, world, problem, "");
    for (uint32_t call = 0; status == EW_OK && call < 2; call++)
        status = duty_call(&d, 100, call);
    duty_close(&d);
    if (status == EW_OK)
        status = ew_world_barrier(world);
    return stage_tell(s, world, status);
}

/* ---- Killed ---- */

/* Since the kill: until a survivor had its error, and until the launcher returned. */
static stress_times survivors, launchers;

static void expect_killed(int num_ranks, ewx_probe_point point, int victim, int nth)
{
    stage *s = stage_open();
    int exits[MAX_W];
    char text[32];
    s->act = ACT_KILL;
    s->point = point;
    s->rank = victim;
    s->nth = nth;
    harness_context("W=%d, point %d, victim %d, time %d", num_ranks, (int)point, victim,
                    nth);
    const ew_status status =
        stage_run(s, EW_RANKS_AS_PROCESSES, num_ranks, LONG_TIMEOUT_MS,
                  point == EWX_PROBE_TEARDOWN ? work_and_part : work_for_ever, exits);
    assert_int_equal(status, EW_ERR_PEER_DIED);
    snprintf(text, sizeof text, "rank %d ", victim);
    assert_true(error_has(text, NULL));
    assert_true(ewx_now_ns() - s->acted_ns < SOON_NS);
    stress_time(&launchers, ewx_now_ns() - s->acted_ns);
    assert_int_equal(exits[victim], 128 + SIGKILL);
    snprintf(text, sizeof text, "rank %d died", victim);
    if (point != EWX_PROBE_BOOTSTRAP) /* where they have no world to tell it in */
        expect_same_story(s, num_ranks, victim, EW_ERR_PEER_DIED, text);
    for (int rank = 0; rank < num_ranks && point != EWX_PROBE_BOOTSTRAP; rank++)
        if (rank != victim) {
            assert_int_equal(exits[rank], 3); /* it went by itself */
            assert_true(s->out_ns[rank] - s->acted_ns < SOON_NS);
            stress_time(&survivors, s->out_ns[rank] - s->acted_ns);
        }
    stage_close(s);
}

static void killed_in_every_phase(void **state)
{
    static const ewx_probe_point points[] = {EWX_PROBE_BOOTSTRAP, EWX_PROBE_BLOCK,
                                             EWX_PROBE_PUBLISH, EWX_PROBE_REDUCE,
                                             EWX_PROBE_TEARDOWN};
    const int64_t kills = stress_count("KILLS", USUAL_KILLS);
    harness_random random = harness_seed((uint64_t)stress_count("SEED", 1));
    (void)state;
    for (int64_t kill = 0; kill < kills; kill++) {
        const int num_ranks = 2 << kill % 3;
        const ewx_probe_point point = points[kill / 3 % 5];
        const bool once = point == EWX_PROBE_BOOTSTRAP || point == EWX_PROBE_TEARDOWN;
        const int victim = (int)harness_between(&random, 0, num_ranks - 1);
        expect_killed(num_ranks, point, victim,
                      once ? 0 : (int)harness_between(&random, 0, 30));
    }
    stress_tell("kills", "%lld", (long long)kills);
    stress_tell_times("survivors", &survivors);
    stress_tell_times("launcher", &launchers);
    stress_figure("kills");
    expect_world_still_works();
}

/* Others that are slow to arrive did not die. */
static int delay_all_but_one(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP && rank == 1)
        raise(SIGKILL);
    if (point == EWX_PROBE_BOOTSTRAP)
        sleep_ms(300);
    return 0;
}

static void death_at_bootstrap_names_the_dead(void **state)
{
    (void)state;
    stage *s = stage_open();
    ewx_probe_install(delay_all_but_one, NULL);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 4, NULL, work_for_ever, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_PEER_DIED);
    if (!error_has("rank 1 died before joining", NULL))
        fail_msg("%s", ew_last_error());
    stage_close(s);
}

/* ---- Never arrives ---- */

static int two_do_not_come(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP && (rank == 1 || rank == 3))
        sleep_ms(120000);
    return 0;
}

static void missing_ranks_are_listed(void **state)
{
    (void)state;
    stage *s = stage_open();
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 400;
    const int64_t start_ns = ewx_now_ns();
    ewx_probe_install(two_do_not_come, NULL);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 4, &options, work_for_ever, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_TIMEOUT);
    assert_true(error_has("rank 1 3 did not arrive in 0.4 s", "fix:", NULL));
    assert_true(ewx_now_ns() - start_ns < SOON_NS);
    stage_close(s);
}

/* ---- Left early ---- */

static int leave_early(ew_world *world, void *argument)
{
    stage *s = argument;
    const bool leaves = ew_world_rank(world) == 1;
    const int code = work_on(world, s, 100, "", leaves ? 2 : 1000000);
    return leaves ? 0 : code;
}

static int meet_without_one(ew_world *world, void *argument)
{
    stage *s = argument;
    if (ew_world_rank(world) == 1)
        return 0;
    return stage_tell(s, world, ew_world_barrier(world));
}

static void leaving_early_is_named(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int meeting = 0; meeting < 2; meeting++) {
            stage *s = stage_open();
            harness_context("kind %d, meeting %d", (int)both_kinds[kind], meeting);
            stage_run(s, both_kinds[kind], 3, LONG_TIMEOUT_MS,
                      meeting ? meet_without_one : leave_early, NULL);
            expect_same_story(s, 3, 1, EW_ERR_PEER_DIED, "rank 1 left the world");
            stage_close(s);
        }
}

/* ---- Given time ---- */

static int fail_or_save(ew_world *world, void *argument)
{
    if (ew_world_rank(world) == 0)
        return 5;
    sleep_ms(*(const int *)argument);
    return 0;
}

/* One rank has failed; the other is busy with what needs no world. */
static ew_status run_with_grace(uint32_t grace_ms, int busy_ms, int *exits)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.grace_ms = grace_ms;
    return ew_run_ranks(EW_RANKS_AS_PROCESSES, 2, &options, fail_or_save, &busy_ms, exits);
}

static void ranks_have_their_grace(void **state)
{
    (void)state;
    int exits[2];
    assert_int_equal(run_with_grace(120000, 2500, exits), EW_ERR_ABORTED);
    assert_int_equal(exits[0], 5);
    assert_int_equal(exits[1], 0); /* longer than the usual grace, and whole */
    assert_int_equal(run_with_grace(100, 120000, exits), EW_ERR_PEER_DIED);
    assert_true(error_has("rank 1 was still running 0.1 s", "grace_ms", NULL));
    assert_int_equal(exits[1], 128 + SIGKILL);
}

/* Plans that fail half-way give their memory back, also when ranks are threads. */
static int abort_first(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(256, 4096, 16, EW_FP32);
    if (ew_world_rank(world) == 0)
        ew_world_abort(world);
    RANK_CHECK(duty_open(&d, world, problem, "") == EW_ERR_ABORTED, "%s", ew_last_error());
    duty_close(&d);
    return 3;
}

static void failed_plans_leave_no_mappings(void **state)
{
    (void)state;
    harness_run_failing(EW_RANKS_AS_THREADS, 3, NULL, abort_first, NULL, NULL);
    const census before = census_take();
    for (int round = 0; round < 100; round++)
        harness_run_failing(EW_RANKS_AS_THREADS, 3, NULL, abort_first, NULL, NULL);
    const census after = census_take();
    if (after.maps > before.maps + 30)
        fail_msg("%d mappings became %d", before.maps, after.maps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(killed_in_every_phase),          TIDY(death_at_bootstrap_names_the_dead),
        TIDY(missing_ranks_are_listed),       TIDY(leaving_early_is_named),
        TIDY(failed_plans_leave_no_mappings), TIDY(ranks_have_their_grace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
