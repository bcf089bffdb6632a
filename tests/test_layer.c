/* ew_gemm_rs_layer and ew_gemm_ar_layer on the CPU: every bit of c, h and normed as
 * documented, whatever the type, the shape, the config and the mixture of parts; and its
 * refusals. */
#include "harness.h"

#include <math.h>
#include <string.h>

#include <stdarg.h>
#include <stdbool.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/cpu_engine.h"
#include "entwine/measure.h"
#include "layer_trial.h"
#include "api/testing.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};

static void run_with(int W, layer_trial t, const ew_world_options *options)
{
    if (!layer_parts_valid(&t, t.parts))
        return;
    harness_context("%s W=%d %s max_m=%lld N=%lld K=%lld all_rows=%d parts=%u config=%s",
                    ew_op_name(t.problem.op), W, ew_dtype_name(t.problem.dtype),
                    (long long)t.problem.max_m, (long long)t.problem.n,
                    (long long)t.problem.k, t.all_rows, t.parts, t.config);
    harness_run_with(EW_RANKS_AS_THREADS, W, options, layer_trial_body, &t);
    harness_context("%s", "");
}

/* Every operation, and where the residual's rows may lie. */
static void run(int W, layer_trial t)
{
    run_with(W, t, NULL);
    t.problem.op = EW_OP_GEMM_AR;
    run_with(W, t, NULL);
    t.all_rows = true;
    run_with(W, t, NULL);
}

static layer_trial trial_of(ew_dtype dtype, int64_t m, int64_t n, const char *config,
                            unsigned parts)
{
    const layer_trial t = {.problem = EW_PROBLEM(m, n, 24, dtype),
                           .config = config,
                           .parts = parts,
                           .num_calls = 1,
                           .rows = {m},
                           .seed = (uint64_t)(m + n + dtype)};
    return t;
}

static void test_every_mixture_of_parts(void **state)
{
    (void)state;
    for (unsigned parts = 0; parts < 16; parts++)
        for (size_t type = 0; type < COUNT(dtypes); type++)
            run(2, trial_of(dtypes[type], 70, 140, "", parts));
}

/* Columns around what a vector, a tile and the row's 32 sums hold. */
static void test_every_width(void **state)
{
    static const int64_t widths[] = {1, 7, 8, 9, 127, 128, 129, 1000, 4096, 4240};
    (void)state;
    for (size_t i = 0; i < COUNT(widths); i++)
        run(1,
            trial_of(dtypes[i % 3], 19, widths[i], "", LAYER_ALL | (i % 2 ? LAYER_C : 0)));
}

/* Another m in every call, fewer rows than ranks and none at all among them. */
static void test_ragged_rows(void **state)
{
    (void)state;
    for (int W = 1; W <= 5; W += 2)
        for (size_t type = 0; type < COUNT(dtypes); type++) {
            layer_trial t = trial_of(dtypes[type], 300 * W + 2, 200, "", LAYER_ALL);
            t.num_calls = 4;
            t.rows[1] = W - 1;
            t.rows[2] = 0;
            t.rows[3] = 129 * W + 1;
            run(W, t);
        }
}

/* Each is compared with one sequence, so all of them agree with each other. */
static void test_every_config(void **state)
{
    static const char *const configs[] = {
        "workers=1",
        "workers=3,x=1,b=4",
        "workers=3,x=3,order=contiguous,release=partition",
        "workers=2,x=2,order=default,release=output",
        "workers=3,pool=static,x=1,release=3",
        "workers=4,group=2,block=256x128",
        "workers=2,block=128x384,x=2,b=2",
    };
    (void)state;
    for (size_t i = 0; i < COUNT(configs); i++) {
        layer_trial t = trial_of(dtypes[i % 3], 600, 520, configs[i], LAYER_ALL);
        t.num_calls = 2;
        t.rows[1] = 411;
        run(2, t);
    }
}

static void test_blas(void **state)
{
    (void)state;
    if (!ew_blas_name())
        skip();
    for (int workers = 1; workers <= 2; workers++)
        run(2,
            trial_of(EW_FP32, 300, 200,
                     workers == 1 ? "producer=blas,workers=1" : "producer=blas,workers=2",
                     LAYER_ALL));
}

static void test_over_an_emulated_link(void **state)
{
    layer_trial t = trial_of(EW_BF16, 300, 300, "workers=2", LAYER_ALL);
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    (void)state;
    options.link_gbps = 1;
    options.link_latency_us = 200;
    for (int i = 0; i < 4; i++) {
        t.problem.op = i > 0 ? EW_OP_GEMM_AR : EW_OP_GEMM_RS;
        t.all_rows = i > 1;
        t.config = i == 3 ? "workers=2,shots=1" : "workers=2";
        run_with(3, t, &options);
    }
}

/* ---- The form ---- */

typedef struct form_trial {
    const char *config;
    bool has_c, has_norm, is_fused; /* the last is what is expected */
} form_trial;

/* How many turns of the epilogue are taken behind a call of which so many blocks were
 * still left. */
static int turns_taken(ewx_cpu_engine *engine, int64_t blocks_left)
{
    int done = 0;
    atomic_store(&engine->epilogue.next_turn, 0);
    atomic_store(&engine->gemm.next_position, engine->gemm.num_positions - blocks_left);
    ewx_epilogue_work.some(engine, 0, &done);
    return done;
}

static int form_body(ew_world *world, void *argument)
{
    static const float zeros[64 * 64];
    static float C[2][64 * 64], residual[2][64 * 64], normed[2][64 * 64];
    const form_trial *t = argument;
    const int rank = ew_world_rank(world);
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    ew_epilogue e = EW_EPILOGUE_INIT;
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    RANK_OK(ew_config_parse(t->config, &config));
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    e.residual = residual[rank];
    if (t->has_norm)
        e.norm_weight = zeros, e.normed = normed[rank];
    RANK_OK(ew_gemm_rs_layer(plan, 64, zeros, zeros, t->has_c ? C[rank] : NULL, &e, NULL));
    ewx_cpu_engine *engine = ewx_plan_state(plan);
    RANK_CHECK(engine->epilogue.is_fused == t->is_fused, "%s C=%d norm=%d: fused %d",
               t->config, t->has_c, t->has_norm, engine->epilogue.is_fused);
    RANK_CHECK(t->is_fused || turns_taken(engine, 1) == 0,
               "%s: rows before a block that another rank may wait for", t->config);
    RANK_CHECK(t->is_fused || turns_taken(engine, 0) == 1, "%s: no rows", t->config);
    ew_plan_destroy(plan);
    return 0;
}

/* Fused where a worker would wait otherwise, or where the sum has no place; else as asked.
 */
static void test_form_is_the_faster_one(void **state)
{
    ew_world_options linked = EW_WORLD_OPTIONS_INIT;
    form_trial trials[] = {{"", false, true, false},
                           {"", true, false, false},
                           {"", false, false, true},
                           {"workers=2,x=1,pool=static", true, true, true},
                           {"workers=2,x=1,pool=static,epilogue=after", true, true, false},
                           {"epilogue=fused", true, true, true},
                           {"epilogue=after", false, false, true},
                           {"epilogue=separate", true, true, false}};
    form_trial over_link = {"", true, true, true};
    form_trial asked_over_link = {"epilogue=after", true, true, false};
    (void)state;
    for (size_t i = 0; i < COUNT(trials); i++)
        harness_run(EW_RANKS_AS_THREADS, 2, form_body, &trials[i]);
    linked.link_gbps = 100;
    harness_run_with(EW_RANKS_AS_THREADS, 2, &linked, form_body, &over_link);
    harness_run_with(EW_RANKS_AS_THREADS, 2, &linked, form_body, &asked_over_link);
}

/* ---- Refusals ---- */

enum { M = 8, N = 16, K = 4 };

static ew_world *lone_world(void)
{
    ew_world *world;
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    return world;
}

static void test_refusals(void **state)
{
    static float A[M * K], B[N * K], C[M * N], D[M * N], vector[N];
    static const float bad_eps[] = {-1.0f, NAN, INFINITY};
    ew_world *world = lone_world();
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const ew_epilogue none = EW_EPILOGUE_INIT;
    ew_epilogue e = none;
    ew_plan *plan;
    (void)state;
    assert_int_equal(ew_plan_create(world, &problem, NULL, &plan), EW_OK);
    assert_int_equal(ew_plan_set_weight(plan, B), EW_OK);
#define REFUSES(value, C, what)                                                            \
    harness_expect_error(ew_gemm_rs_layer(plan, M, A, NULL, C, &e, NULL), EW_ERR_ARGUMENT, \
                         value, what);                                                     \
    e = none
    e.struct_size = 4;
    REFUSES("EW_EPILOGUE_INIT", C, "not initialised");
    e.norm_weight = vector;
    REFUSES("normed", C, "a weight without a place");
    e.normed = D;
    REFUSES("norm_weight", C, "a place without a weight");
    REFUSES("no place", NULL, "nowhere to put the result");
    e.bias = vector;
    REFUSES("no place", NULL, "a bias and nowhere to put it");
    e.residual = C;
    REFUSES("C and residual", C, "C is the residual");
    e.residual = D, e.norm_weight = vector, e.normed = D;
    REFUSES("residual and normed", C, "normed is the residual");
    e.norm_weight = vector, e.normed = C;
    REFUSES("C and normed", C, "normed is C");
    for (size_t i = 0; i < COUNT(bad_eps); i++) {
        e.norm_weight = vector, e.normed = D, e.eps = bad_eps[i];
        REFUSES("eps", C, "an eps that is no number");
    }
#undef REFUSES
    harness_expect_error(ew_gemm_rs_layer(plan, M + 1, A, NULL, C, &e, NULL), EW_ERR_SHAPE,
                         "9", "too many rows");
    assert_int_equal(ew_gemm_rs_layer(NULL, M, A, NULL, C, &e, NULL), EW_ERR_ARGUMENT);
    assert_int_equal(ew_gemm_rs_layer(plan, M, NULL, NULL, C, &e, NULL), EW_ERR_ARGUMENT);
    /* The plan is as good as before. */
    assert_int_equal(ew_gemm_rs_layer(plan, M, A, NULL, C, &none, NULL), EW_OK);
    assert_int_equal(ew_gemm_rs_layer(plan, M, A, NULL, C, NULL, NULL), EW_OK);
    assert_int_equal(ew_gemm_rs_layer(plan, 0, NULL, NULL, NULL, &none, NULL), EW_OK);
    ew_plan_destroy(plan);
    ew_world_destroy(world);
}

static void test_simulator_refuses(void **state)
{
    ew_world *world = lone_world();
    const ew_problem problem = EW_PROBLEM(M, N, 64, EW_BF16);
    const ew_epilogue none = EW_EPILOGUE_INIT;
    float place;
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    (void)state;
    config.backend = EW_BACKEND_SIM;
    assert_int_equal(ew_plan_create(world, &problem, &config, &plan), EW_OK);
    harness_expect_error(ew_gemm_rs_layer(plan, M, &place, &place, &place, &none, NULL),
                         EW_ERR_UNSUPPORTED, "simulator", "an epilogue in the simulator");
    ew_plan_destroy(plan);
    ew_world_destroy(world);
}

/* Sums of 0: a row of twos has a mean of squares of 4, and where that is 0, eps counts. */
static void test_known_values(void **state)
{
    static float A[M * K], B[N * K], residual[M * N], weight[N], normed[M * N];
    ew_world *world = lone_world();
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_epilogue e = EW_EPILOGUE_INIT;
    ew_plan *plan;
    (void)state;
    for (int i = 0; i < N; i++) {
        weight[i] = 1;
        residual[i] = 2;
    }
    e.residual = residual, e.norm_weight = weight, e.normed = normed, e.eps = 0;
    assert_int_equal(ew_plan_create(world, &problem, NULL, &plan), EW_OK);
    assert_int_equal(ew_gemm_rs_layer(plan, M, A, B, NULL, &e, NULL), EW_OK);
    assert_true(normed[0] == 1 && normed[N - 1] == 1);
    assert_true(isnan(normed[N])); /* 0 times infinity */
    e.eps = 1;
    assert_int_equal(ew_gemm_rs_layer(plan, M, A, B, NULL, &e, NULL), EW_OK);
    assert_true(normed[N] == 0 && normed[0] == 2 * (1.0f / sqrtf(5.0f)));
    ew_plan_destroy(plan);
    ew_world_destroy(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_mixture_of_parts),
        cmocka_unit_test(test_every_width),
        cmocka_unit_test(test_ragged_rows),
        cmocka_unit_test(test_every_config),
        cmocka_unit_test(test_blas),
        cmocka_unit_test(test_over_an_emulated_link),
        cmocka_unit_test(test_form_is_the_faster_one),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_simulator_refuses),
        cmocka_unit_test(test_known_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
