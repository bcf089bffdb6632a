/* The n-th allocation, or the n-th system call, fails: for every n until a run needs no
 * more of them.  Each run ends in bounded time with the right error on the rank that had
 * it, an error on the others, and nothing left behind; or it did without and is right. */
#include "faultkit.h"
#include "harness.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "entwine/measure.h"
#include "exhaust.h"

enum { W = 2, VICTIM = 1, MOST = 500, M = 40, N = 130, K = 2100 };
#define SOON_NS 20000000000 /* a hang would last as long as the timeout, 30 s */

typedef struct outcome {
    atomic_int fired;
    ew_status statuses[W];
    char texts[W][512];
    bool wrong[W], again[W];
} outcome;

/* Buffers of its own: what the test allocates is not to fail. */
static float A[M * K], B[N * K], C[M * N];

/* A weight that the plan packs with the call, its own, and one that it is bound to: large
 * enough for workers to pack it together. */
static ew_status call_each_way(ew_world *world, ew_plan *plan, const ew_problem *problem,
                               const ew_config *config)
{
    ew_weight *weight = NULL;
    for (int call = 0; call < 2; call++)
        EW_TRY(ew_gemm_rs(plan, M, A, B, C, NULL));
    EW_TRY(ew_plan_set_weight(plan, B));
    EW_TRY(ew_gemm_rs(plan, M, A, NULL, C, NULL));
    EW_TRY(ew_weight_create(world, problem, config, B, &weight));
    ew_status status = ew_plan_bind_weight(plan, weight);
    if (status == EW_OK)
        status = ew_gemm_rs(plan, M, A, NULL, C, NULL);
    ew_weight_destroy(weight);
    return status;
}

static ew_status work(ew_world *world, bool *wrong_out)
{
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const int rank = ew_world_rank(world), num_ranks = ew_world_size(world);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan = NULL;
    ew_check check = {0};
    config.workers = 2;
    ew_status status = ew_plan_create(world, &problem, &config, &plan);
    ew_exact_fill_a(EW_FP32, 1, rank, num_ranks, M, K, A);
    ew_exact_fill_b(EW_FP32, 1, rank, EW_WEIGHT_NK, N, K, B);
    if (status == EW_OK)
        status = call_each_way(world, plan, &problem, &config);
    if (status == EW_OK &&
        ew_exact_verify(&problem, 1, rank, num_ranks, M, C, &check) == EW_OK)
        *wrong_out = check.wrong != 0;
    ew_plan_destroy(plan);
    return status;
}

static int work_and_tell(ew_world *world, void *argument)
{
    outcome *o = argument;
    const int rank = ew_world_rank(world);
    o->statuses[rank] = work(world, &o->wrong[rank]);
    snprintf(o->texts[rank], sizeof o->texts[rank], "%s", ew_last_error());
    return o->statuses[rank] == EW_OK ? 0 : 3;
}

static void set_fault(const char *place, int rank, int nth)
{
    char text[64];
    snprintf(text, sizeof text, "%s:rank=%d,nth=%d", place, rank, nth);
    setenv("ENTWINE_FAULT", text, 1);
    harness_context("%s", text);
}

static void clear_fault(void)
{
    unsetenv("ENTWINE_FAULT");
    assert_int_equal(ewx_inject_load(-1), EW_OK);
}

static bool is_shortage(ew_status status)
{
    return status == EW_ERR_MEMORY || status == EW_ERR_SYSTEM;
}

/* ---- Two ranks ---- */

/* The victim says what it lacked; a rank that never joined a world speaks through the
 * launcher.  No rank works on. */
static void judge(const outcome *o, ew_status status, const char *place, int nth)
{
    const ew_status own = o->statuses[VICTIM] ? o->statuses[VICTIM] : status;
    for (int rank = 0; rank < W; rank++)
        if (o->wrong[rank])
            fail_msg("%s %d: rank %d computed nonsense", place, nth, rank);
    if (status != EW_OK &&
        (!is_shortage(own) || strstr(ew_last_error(), "see what that rank itself says")))
        fail_msg("%s %d: %s \"%s\", launcher \"%s\"", place, nth, ew_status_name(own),
                 o->texts[VICTIM], ew_last_error());
}

static void fail_every(const char *place)
{
    int nth = 1, survived = 0;
    for (; nth <= MOST; nth++) {
        outcome *o = harness_share(sizeof *o);
        set_fault(place, VICTIM, nth);
        exhaust_fired = &o->fired;
        const int64_t start_ns = ewx_now_ns();
        const ew_status status =
            harness_run_failing(EW_RANKS_AS_PROCESSES, W, NULL, work_and_tell, o, NULL);
        const bool fired = atomic_load(&o->fired) > 0;
        exhaust_fired = NULL;
        if (ewx_now_ns() - start_ns > SOON_NS)
            fail_msg("%s %d took %.1f s", place, nth,
                     (double)(ewx_now_ns() - start_ns) * 1e-9);
        judge(o, status, place, nth);
        survived += status == EW_OK;
        clear_fault();
        harness_unshare(o, sizeof *o);
        if (!fired)
            break;
    }
    print_message("%s: %d failures tried, %d of them did no harm\n", place, nth - 1,
                  survived - 1);
    assert_in_range(nth, 5, MOST);
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    fail_every("memory");
}

static void every_system_call_may_fail(void **state)
{
    (void)state;
    fail_every("system");
}

/* A plan that could not be made for want of memory is tried again: ranks are still
 * together, and the second try succeeds on all. */
static int try_twice(ew_world *world, void *argument)
{
    outcome *o = argument;
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const int rank = ew_world_rank(world);
    ew_plan *plan = NULL;
    ew_status status = ew_plan_create(world, &problem, NULL, &plan);
    if (status != EW_OK) {
        RANK_CHECK(!plan, "a plan that failed");
        RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
        o->again[rank] = true;
    }
    status = ew_gemm_rs(plan, M, A, B, C, NULL); /* which makes room for B, and may fail */
    RANK_CHECK(status != EW_ERR_MISMATCH, "%s", ew_last_error());
    ew_plan_destroy(plan);
    return status != EW_OK;
}

/* How often both ranks succeeded at the second try, each allocation of the victim failing
 * in turn. */
static int count_second_tries(ew_rank_main body)
{
    int tried_again = 0;
    for (int nth = 1; nth <= MOST; nth++) {
        outcome *o = harness_share(sizeof *o);
        set_fault("memory", VICTIM, nth);
        exhaust_fired = &o->fired;
        harness_run_failing(EW_RANKS_AS_PROCESSES, W, NULL, body, o, NULL);
        const bool fired = atomic_load(&o->fired) > 0;
        exhaust_fired = NULL;
        tried_again += o->again[0] && o->again[VICTIM];
        clear_fault();
        harness_unshare(o, sizeof *o);
        if (!fired)
            break;
    }
    return tried_again;
}

static void a_failed_plan_leaves_ranks_together(void **state)
{
    (void)state;
    const int tried_again = count_second_tries(try_twice);
    print_message("%d plans were made at the second try\n", tried_again);
    assert_true(tried_again >= 5);
}

/* A simulated call that lacks memory on one rank fails on all, and can be made again. */
static int simulate_twice(ew_world *world, void *argument)
{
    outcome *o = argument;
    const ew_problem problem = EW_PROBLEM(M, 128, 256, EW_BF16);
    const int rank = ew_world_rank(world);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan = NULL;
    int32_t mine, all[W];
    config.backend = EW_BACKEND_SIM;
    if (ew_plan_create(world, &problem, &config, &plan) != EW_OK)
        RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    mine = ew_gemm_rs(plan, M, A, B, C, NULL);
    RANK_OK(ew_world_allgather(world, &mine, all, sizeof mine));
    RANK_CHECK(all[0] == all[VICTIM], "%d on rank 0, %d on the victim", all[0],
               all[VICTIM]);
    if (mine != EW_OK) {
        RANK_OK(ew_gemm_rs(plan, M, A, B, C, NULL));
        o->again[rank] = true;
    }
    ew_plan_destroy(plan);
    return 0;
}

static void a_failed_simulation_leaves_ranks_together(void **state)
{
    (void)state;
    const int tried_again = count_second_tries(simulate_twice);
    print_message("%d simulated calls were made at the second try\n", tried_again);
    assert_true(tried_again >= 2);
}

/* ---- The launcher ---- */

static int meet_once(ew_world *world, void *argument)
{
    (void)argument;
    return ew_world_barrier(world) == EW_OK ? 0 : 3;
}

/* Whatever the launcher lacks, it neither waits for ranks that it has not answered nor
 * leaves any behind. */
static void fail_launcher(ewx_deal deal, const char *place)
{
    for (int nth = 1; nth <= MOST; nth++) {
        ew_world_options options = EW_WORLD_OPTIONS_INIT;
        options.timeout_ms = 60000; /* never reached */
        harness_context("launcher, %s %d", place, nth);
        const int64_t start_ns = ewx_now_ns();
        exhaust_launcher.pid = getpid();
        exhaust_launcher.deal = deal;
        exhaust_launcher.left = nth;
        int exits[3] = {0};
        const ew_status status =
            ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, &options, meet_once, NULL, exits);
        const bool fired = exhaust_launcher.left == 0;
        exhaust_launcher.left = 0;
        assert_true(ewx_now_ns() - start_ns < SOON_NS);
        if (fired && status != EW_OK && !is_shortage(status))
            fail_msg("%s %d: %s \"%s\"", place, nth, ew_status_name(status),
                     ew_last_error());
        for (int rank = 0; rank < 3 && status != EW_OK; rank++)
            assert_int_not_equal(exits[rank], 0); /* killed, or never started */
        if (!fired) {
            assert_int_equal(status, EW_OK);
            print_message("launcher, %s: %d failures tried\n", place, nth - 1);
            assert_true(nth > 2);
            return;
        }
    }
    fail_msg("%s: no end", place);
}

static void the_launcher_may_fail(void **state)
{
    (void)state;
    fail_launcher(EWX_DEAL_NO_MEMORY, "memory");
    fail_launcher(EWX_DEAL_NO_SYSTEM, "system");
}

/* ---- One rank, in this process, where every byte can be counted ---- */

static ew_status live_and_die(bool *wrong)
{
    ew_world *world = NULL;
    ew_status status = ew_world_create(0, 1, NULL, NULL, NULL, &world);
    if (status == EW_OK)
        status = work(world, wrong);
    ew_world_destroy(world);
    return status;
}

static void leak_none(const char *place)
{
    bool wrong = false;
    atomic_int fired = 0;
    int nth = 1;
    assert_int_equal(live_and_die(&wrong),
                     EW_OK); /* whatever is kept for ever is kept now */
    const long live = atomic_load(&exhaust_live);
    const census before = census_take();
    exhaust_fired = &fired;
    for (; nth <= MOST; nth++) {
        atomic_store(&fired, 0);
        set_fault(place, 0, nth);
        const ew_status status = live_and_die(&wrong);
        clear_fault();
        if (wrong || (status != EW_OK && !is_shortage(status)))
            fail_msg("%s %d: %s \"%s\"", place, nth, ew_status_name(status),
                     ew_last_error());
        if (atomic_load(&exhaust_live) != live)
            fail_msg("%s %d: %ld allocations were not freed", place, nth,
                     atomic_load(&exhaust_live) - live);
        census_expect_same(&before);
        if (!atomic_load(&fired))
            break;
    }
    exhaust_fired = NULL;
    assert_in_range(nth, 5, MOST);
#ifndef __SANITIZE_ADDRESS__ /* which maps memory of its own */
    assert_true(census_take().maps <= before.maps + 5);
#endif
}

static void failures_leak_nothing(void **state)
{
    (void)state;
    leak_none("memory");
    leak_none("system");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(failures_leak_nothing),
        TIDY(every_allocation_may_fail),
        TIDY(a_failed_plan_leaves_ranks_together),
        TIDY(a_failed_simulation_leaves_ranks_together),
        TIDY(every_system_call_may_fail),
        TIDY(the_launcher_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
