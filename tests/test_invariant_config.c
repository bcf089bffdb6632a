/* The config key `invariant`: what is refused, what is chosen, and what it costs.  What it
 * promises is in test_invariant.c. */
#include "harness.h"

#include <string.h>

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "plan/spec.h"

enum { S = 8 };

/* ---- What is refused ---- */

static void expect_refusal(const char *config, int W, int64_t k, const char *word)
{
    const ew_problem problem = EW_PROBLEM(64, 64, k, EW_BF16);
    ew_config request = EW_CONFIG_INIT;
    char text[2048];
    assert_int_equal(ew_config_parse(config, &request), EW_OK);
    const ew_status status = ew_forecast_explain(&problem, W, &request, text, sizeof text);
    assert_int_not_equal(status, EW_OK);
    harness_expect_error(status, status, word, config);
}

static void what_cannot_hold_is_refused(void **state)
{
    (void)state;
    expect_refusal("invariant=8", 3, 64, "W=3");
    expect_refusal("invariant=8", 16, 64, "W=16");
    expect_refusal("invariant=8", 2, 66, "K=66");
    expect_refusal("invariant=8", 2, 66, "K=64 or K=68");
    expect_refusal("invariant=8", 1, 7, "use K=8,");
    expect_refusal("invariant=257", 1, 257, "257");
    expect_refusal("invariant=8,levels=2", 2, 64, "levels=2");
    expect_refusal("invariant=8,producer=blas", 2, 64, "producer=blas");
    ew_config request = EW_CONFIG_INIT;
    request.invariant = -1;
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    char text[2048];
    harness_expect_error(ew_forecast_explain(&problem, 2, &request, text, sizeof text),
                         EW_ERR_CONFIG, "-1", "a negative count");
}

/* Where hosts would be summed first, they are not. */
static void hosts_are_summed_on_one_level(void **state)
{
    (void)state;
    const ewx_machine two_hosts = {.cores = 8, .hosts = 2};
    const ew_problem problem = EW_PROBLEM(512, 512, 64, EW_FP32);
    ew_config request = EW_CONFIG_INIT;
    ewx_spec spec;
    assert_int_equal(ewx_spec_build(&problem, 4, &request, &two_hosts, &spec), EW_OK);
    assert_int_equal(spec.config.levels, 2);
    request.invariant = S;
    assert_int_equal(ewx_spec_build(&problem, 4, &request, &two_hosts, &spec), EW_OK);
    assert_int_equal(spec.config.levels, 1);
    request.invariant = 2; /* fewer pieces than ranks */
    assert_int_equal(ewx_spec_build(&problem, 4, &request, &two_hosts, &spec),
                     EW_ERR_CONFIG);
}

static int create_refused(ew_world *world, void *argument)
{
    const int32_t *invariants = argument; /* of two ranks */
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    config.invariant = invariants[ew_world_rank(world)];
    RANK_CHECK(ew_plan_create(world, &problem, &config, &plan) != EW_OK, "it was created");
    RANK_CHECK(strstr(ew_last_error(), "invariant=") && strstr(ew_last_error(), "fix:"),
               "%s", ew_last_error());
    return 0;
}

static void ranks_that_disagree_are_refused(void **state)
{
    (void)state;
    static const int32_t invariants[][2] = {{8, 0}, {0, 8}, {8, 4}, {3, 3}};
    for (size_t i = 0; i < sizeof invariants / sizeof *invariants; i++) {
        int32_t pair[2] = {invariants[i][0], invariants[i][1]};
        harness_context("%d and %d", pair[0], pair[1]);
        harness_run(EW_RANKS_AS_PROCESSES, 2, create_refused, pair);
    }
}

static int bind_another_form(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(8, 8, 16, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    float B[8 * 16] = {0};
    ew_plan *plan;
    ew_weight *weight;
    RANK_OK(ew_weight_create(world, &problem, &config, B, &weight));
    config.invariant = 2; /* of two ranks: a piece each, as without */
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    RANK_OK(ew_plan_bind_weight(plan, weight));
    ew_plan_destroy(plan);
    config.invariant = 8;
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    RANK_CHECK(ew_plan_bind_weight(plan, weight) == EW_ERR_ARGUMENT, "it was bound");
    RANK_CHECK(strstr(ew_last_error(), "invariant=8"), "%s", ew_last_error());
    ew_plan_destroy(plan);
    ew_weight_destroy(weight);
    return 0;
}

static void a_weight_is_packed_for_its_pieces(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, bind_another_form, NULL);
}

/* ---- What it costs ---- */

static ew_forecast forecast_of(ew_op op, int W, int64_t k, int32_t invariant, int32_t shots)
{
    ew_problem problem = EW_PROBLEM(512, 512, k, EW_BF16);
    ew_config config = EW_CONFIG_INIT;
    ew_forecast f;
    problem.op = op;
    config.invariant = invariant;
    config.shots = shots;
    assert_int_equal(ew_forecast_build(&problem, W, &config, &f), EW_OK);
    return f;
}

static void the_forecast_counts_the_pieces(void **state)
{
    (void)state;
    for (int W = 1; W <= S; W *= 2) {
        const double one = (double)(W - 1) / W * 512 * 512 * 2; /* contributions, once */
        const int pieces = S / W;
        ew_forecast f = forecast_of(EW_OP_GEMM_RS, W, 4096 / W, S, 0);
        assert_true(f.remote_bytes == pieces * one);
        const ew_forecast without = forecast_of(EW_OP_GEMM_RS, W, 4096 / W, 0, 0);
        assert_true(f.heap_bytes >=
                    without.heap_bytes + (size_t)((pieces - 1) * 2 * 524288));
        assert_true(f.total_bytes >= f.heap_bytes + f.weight_bytes);
        f = forecast_of(EW_OP_GEMM_AR, W, 4096 / W, S, 2);
        assert_true(f.remote_bytes == (pieces + 1) * one);
        f = forecast_of(EW_OP_GEMM_AR, W, 4096 / W, S, 1);
        assert_true(f.remote_bytes == W * pieces * one);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_hold_is_refused),
        cmocka_unit_test(hosts_are_summed_on_one_level),
        cmocka_unit_test(ranks_that_disagree_are_refused),
        cmocka_unit_test(a_weight_is_packed_for_its_pieces),
        cmocka_unit_test(the_forecast_counts_the_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
