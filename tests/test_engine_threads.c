/* The engine with ranks and workers as threads, small enough for ThreadSanitizer, which
 * then sees every access of every rank.  No fork, no timing. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "trial.h"

static trial small_trial(int W, int workers, uint32_t seed)
{
    const int64_t m = 130 * W + 1;
    trial t = {.kind = EW_RANKS_AS_THREADS,
               .num_ranks = W,
               .problem = EW_PROBLEM(m, 270, 12, (ew_dtype)(seed % 3 + 1)),
               .config = EW_CONFIG_INIT,
               .weight_per_call = seed % 2 == 1,
               .weight_bound = seed % 4 == 2,
               .seed = seed,
               .num_calls = 5,
               .rows = {m, 1, m / 2, 0, m - 1}};
    t.config.workers = workers;
    return t;
}

static void orders_and_releases(void **state)
{
    (void)state;
    static const int32_t releases[] = {1, 3, EW_RELEASE_PARTITION, EW_RELEASE_OUTPUT};
    uint32_t seed = 0;
    for (int workers = 1; workers <= 3; workers++)
        for (int order = EW_ORDER_INTERLEAVED; order <= EW_ORDER_CONTIGUOUS; order++)
            for (int release = 0; release < 4; release++) {
                trial t = small_trial(2 + (release & 1), workers, ++seed);
                t.config.order = (ew_order)order;
                t.config.release = releases[release];
                t.config.budget = 1 + (int32_t)seed % 3;
                t.config.block_n = seed % 2 ? 128 : 256;
                t.config.block_m = 128;
                trial_run(&t);
            }
}

static void static_pools(void **state)
{
    (void)state;
    for (int workers = 2; workers <= 3; workers++)
        for (int32_t budget = 1; budget < workers; budget++) {
            trial t = small_trial(2, workers, 40 + (uint32_t)budget);
            t.config.pool = EW_POOL_STATIC;
            t.config.budget = budget;
            trial_run(&t);
        }
}

static void emulated_link(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.link_gbps = 4.0;
    options.link_latency_us = 10.0;
    for (int workers = 1; workers <= 2; workers++) {
        trial t = small_trial(3, workers, 50);
        t.options = &options;
        trial_run(&t);
    }
}

/* ---- Calls in quick succession, with nothing between them ---- */

enum { CALLS = 400, MAX_M = 40, N = 24, K = 6, SEED = 9 };

static int many_calls(ew_world *world, void *argument)
{
    const ew_config *config = argument;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    const ew_problem problem = EW_PROBLEM(MAX_M, N, K, EW_FP32);
    float A[MAX_M * K], B[N * K], C[MAX_M * N];
    harness_random random = harness_seed(77); /* the same m on all ranks */
    ew_plan *plan;
    RANK_OK(ew_exact_fill_a(EW_FP32, SEED, rank, W, MAX_M, K, A));
    RANK_OK(ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B));
    RANK_OK(ew_plan_create(world, &problem, config, &plan));
    RANK_OK(ew_plan_trace_enable(plan));
    RANK_OK(ew_plan_set_weight(plan, B));
    for (int call = 0; call < CALLS; call++) {
        const int64_t m = harness_between(&random, 0, MAX_M);
        ew_check check;
        memset(C, 0xff, sizeof C);
        RANK_OK(ew_gemm_rs(plan, m, A, NULL, C, NULL));
        RANK_OK(ew_exact_verify(&problem, SEED, rank, W, m, C, &check));
        RANK_CHECK(check.wrong == 0, "call %d, m=%lld: %lld wrong", call, (long long)m,
                   (long long)check.wrong);
    }
    ew_plan_destroy(plan);
    return 0;
}

static void back_to_back_calls(void **state)
{
    (void)state;
    for (int W = 2; W <= 3; W++)
        for (int32_t workers = 1; workers <= 3; workers++) {
            ew_config config = EW_CONFIG_INIT;
            config.workers = workers;
            harness_context("W=%d workers=%d", W, workers);
            harness_run(EW_RANKS_AS_THREADS, W, many_calls, &config);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_and_releases),
        cmocka_unit_test(static_pools),
        cmocka_unit_test(emulated_link),
        cmocka_unit_test(back_to_back_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
