/* GEMM-AllReduce: the bits of GEMM-ReduceScatter's rows on every rank, in either form;
 * results that wait for their readers; ranks that die with them; and what is refused.
 * Shapes and configs in plenty are tests/test_conformance.c's. */
#include "faultkit.h"
#include "harness.h"
#include "stage.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/probe.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* ---- Bits ---- */

typedef struct bits_trial {
    ew_problem problem;
    int64_t m;
} bits_trial;

static int run_op(ew_world *world, ew_problem problem, const char *config, int64_t m,
                  const void *A, const void *B, void *C)
{
    ew_config parsed = EW_CONFIG_INIT;
    ew_plan *plan;
    RANK_OK(ew_config_parse(config, &parsed));
    RANK_OK(ew_plan_create(world, &problem, &parsed, &plan));
    RANK_OK(harness_call(problem.op, plan, m, A, B, C));
    ew_plan_destroy(plan);
    return 0;
}

/* The rows of all ranks, gathered; ranks without as many as others have some more room. */
static int gather_rows(ew_world *world, int64_t m, size_t row_bytes, const void *mine,
                       unsigned char *whole)
{
    const int W = ew_world_size(world);
    const size_t most = ((size_t)m / (size_t)W + 1) * row_bytes;
    unsigned char *all = calloc((size_t)W, most), *padded = calloc(1, most);
    int64_t first, count;
    RANK_OK(ew_owned_rows(m, W, ew_world_rank(world), &first, &count));
    memcpy(padded, mine, (size_t)count * row_bytes);
    RANK_OK(ew_world_allgather(world, padded, all, most));
    for (int rank = 0; rank < W; rank++) {
        RANK_OK(ew_owned_rows(m, W, rank, &first, &count));
        memcpy(whole + (size_t)first * row_bytes, all + (size_t)rank * most,
               (size_t)count * row_bytes);
    }
    free(all);
    free(padded);
    return 0;
}

static int compare_bits(ew_world *world, void *argument)
{
    static const char *const configs[] = {"shots=1", "shots=2", "",
                                          "shots=2,workers=3,release=output,x=2",
                                          "shots=2,order=default,release=3,block=256x256"};
    const bits_trial *t = argument;
    ew_problem p = t->problem;
    const size_t elem = ew_dtype_bytes(p.dtype), row = (size_t)p.n * elem;
    const size_t bytes = (size_t)t->m * row;
    void *A = malloc((size_t)(p.max_m * p.k) * elem), *B = malloc((size_t)p.k * row);
    unsigned char *C = malloc(bytes + 1), *want = malloc(bytes + 1);
    fill_random(p.dtype, 7, ew_world_rank(world), OPERAND_A, p.max_m, p.k, A);
    fill_random(p.dtype, 7, ew_world_rank(world), OPERAND_B, p.n, p.k, B);
    RANK_TRY(run_op(world, p, "", t->m, A, B, C));
    RANK_TRY(gather_rows(world, t->m, row, C, want));
    p.op = EW_OP_GEMM_AR;
    for (size_t i = 0; i < COUNT(configs); i++) {
        memset(C, 0xff, bytes + 1);
        RANK_TRY(run_op(world, p, configs[i], t->m, A, B, C));
        RANK_CHECK(memcmp(C, want, bytes) == 0, "%s: other bits", configs[i]);
        RANK_CHECK(C[bytes] == 0xff, "%s: written behind C", configs[i]);
    }
    free(A);
    free(B);
    free(C);
    free(want);
    return 0;
}

static void bits_are_those_of_the_scattered_rows(void **state)
{
    static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
    static const int64_t rows[] = {1, 3, 130, 397};
    (void)state;
    for (int W = 1; W <= 5; W++)
        for (size_t i = 0; i < COUNT(rows) * COUNT(dtypes); i++) {
            bits_trial t = {EW_PROBLEM(400, 300, 140, dtypes[i % 3]), rows[i / 3]};
            harness_context("W=%d m=%d %s", W, (int)t.m, ew_dtype_name(t.problem.dtype));
            harness_run(EW_RANKS_AS_THREADS, W, compare_bits, &t);
        }
    harness_context("%s", "");
}

/* ---- Results and their readers ---- */

/* Whoever collects dawdles, and those who sum are quick enough to be calls ahead. */
static int dawdle(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context, (void)where;
    if (point == EWX_PROBE_COLLECT && rank == 0)
        sleep_ms(3);
    return 0;
}

static int call_back_to_back(ew_world *world, void *argument)
{
    duty d;
    ew_problem problem = EW_PROBLEM(64, 400, 32, EW_FP32);
    problem.op = EW_OP_GEMM_AR;
    RANK_OK(duty_open(&d, world, problem, argument));
    for (uint32_t seed = 0; seed < 40; seed++) {
        const int64_t m = seed % 3 ? 1 : 64;
        RANK_OK(duty_call(&d, m, seed));
        const int64_t wrong = duty_wrong(&d, m, seed);
        if (wrong != 0)
            ew_world_abort(world); /* the others need not wait */
        RANK_CHECK(wrong == 0, "%lld wrong in call %u", (long long)wrong, seed);
    }
    duty_close(&d);
    return 0;
}

static void results_wait_for_their_readers(void **state)
{
    static const char *const configs[] = {"shots=2", "shots=2,workers=2", "shots=1"};
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    (void)state;
    options.timeout_ms = 10000;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (size_t i = 0; i < COUNT(configs); i++) {
            char config[64];
            strcpy(config, configs[i]);
            harness_context("kind %d, %s", (int)both_kinds[kind], config);
            ewx_probe_install(dawdle, NULL);
            harness_run_with(both_kinds[kind], 3, &options, call_back_to_back, config);
            ewx_probe_install(NULL, NULL);
        }
}

/* ---- Deaths ---- */

#ifndef __SANITIZE_THREAD__
static int reduce_for_ever(ew_world *world, void *argument)
{
    duty d;
    ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    problem.op = EW_OP_GEMM_AR;
    ew_status status = duty_open(&d, world, problem, "shots=2");
    for (uint32_t call = 0; status == EW_OK; call++)
        status = duty_call(&d, 100, call);
    duty_close(&d);
    return stage_tell(argument, world, status);
}

static void killed_with_results(void **state)
{
    static const ewx_probe_point points[] = {EWX_PROBE_REDUCE, EWX_PROBE_RESULT,
                                             EWX_PROBE_COLLECT};
    (void)state;
    expect_kills_named(points, COUNT(points), NULL, reduce_for_ever);
}
#endif

/* ---- Refusals ---- */

static int refuse(ew_world *world, void *argument)
{
    float A[8 * 8] = {0}, B[8 * 8] = {0}, C[8 * 8], residual[8 * 8] = {0}, weight[8] = {0};
    float normed[8 * 8];
    ew_problem problem = EW_PROBLEM(8, 8, 8, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    ew_epilogue e = EW_EPILOGUE_INIT;
    ew_plan *rs, *ar;
    (void)argument;
    RANK_OK(ew_plan_create(world, &problem, NULL, &rs));
    problem.op = EW_OP_GEMM_AR;
    RANK_OK(ew_plan_create(world, &problem, NULL, &ar));
    RANK_CHECK(ew_gemm_rs(ar, 8, A, B, C, NULL) == EW_ERR_ARGUMENT &&
                   error_has("ew_gemm_rs", "gemm-ar", "ew_gemm_ar", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_gemm_ar(rs, 8, A, B, C, NULL) == EW_ERR_ARGUMENT, "%s", ew_last_error());
    RANK_CHECK(ew_gemm_ar(ar, 8, A, B, A, NULL) == EW_ERR_ARGUMENT &&
                   error_has("overlap", NULL),
               "%s", ew_last_error());
    e.residual = residual;
    RANK_CHECK(ew_gemm_ar_layer(ar, 8, A, B, C, &e, NULL) == EW_ERR_ARGUMENT &&
                   error_has("no norm", "EW_RESIDUAL_ALL", NULL),
               "%s", ew_last_error());
    e.norm_weight = weight;
    e.normed = normed;
    RANK_CHECK(ew_gemm_ar_layer(ar, 8, A, B, C, &e, NULL) == EW_ERR_ARGUMENT &&
                   error_has("NULL for C", NULL),
               "%s", ew_last_error());
    e.residual_rows = (ew_residual_rows)2;
    RANK_CHECK(ew_gemm_ar_layer(ar, 8, A, B, NULL, &e, NULL) == EW_ERR_ARGUMENT &&
                   error_has("residual_rows=2", NULL),
               "%s", ew_last_error());
    e.residual_rows = EW_RESIDUAL_ALL;
    RANK_CHECK(ew_gemm_rs_layer(rs, 8, A, B, C, &e, NULL) == EW_ERR_ARGUMENT, "%s",
               ew_last_error());
    RANK_OK(ew_gemm_ar_layer(ar, 8, A, B, C, &e, NULL)); /* the plan is as good as new */
    problem.op = EW_OP_GEMM_RS;
    config.shots = 1;
    ew_plan *none = NULL;
    RANK_CHECK(ew_plan_create(world, &problem, &config, &none) == EW_ERR_CONFIG &&
                   error_has("shots=1", "gemm-ar", NULL),
               "%s", ew_last_error());
    ew_plan_destroy(rs);
    ew_plan_destroy(ar);
    return 0;
}

static void refusals(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 2, refuse, NULL);
}

/* Steps by their letters: bias, residual (R: of all rows) and norm.  Of a rank without rows
 * a residual is not expected. */
static const struct difference {
    int64_t m;
    const char *steps[2], *texts[2]; /* texts are NULL: allowed */
} differences[] = {
    {8, {"rn", "Rn"}, {"a residual and a norm of its own rows", "a residual and a norm"}},
    {8, {"bRn", "Rn"}, {"a bias and a residual and a norm", " a residual and a norm"}},
    {8, {"rn", "brn"}, {" a residual and a norm of its own", "a bias and a residual"}},
    {8, {"b", "bR"}, {" a bias", "a bias and a residual"}},
    {8, {"n", "rn"}, {" a norm of its own rows", "a residual and a norm of its own"}},
    {8, {"", "b"}, {"no epilogue", "a bias"}},
    {1, {"brn", "bn"}, {NULL, NULL}},
};

static int disagree(ew_world *world, void *argument)
{
    static float A[2][64], B[2][64], residual[2][64], vector[8], normed[2][64], C[2][64];
    const struct difference *d = argument;
    const int rank = ew_world_rank(world);
    ew_problem problem = EW_PROBLEM(8, 8, 8, EW_FP32);
    ew_epilogue e = EW_EPILOGUE_INIT;
    ew_plan *plan;
    problem.op = EW_OP_GEMM_AR;
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    const char *steps = d->steps[rank];
    const bool has_norm = strchr(steps, 'n');
    e.bias = strchr(steps, 'b') ? vector : NULL;
    e.residual = strpbrk(steps, "rR") ? residual[rank] : NULL;
    e.residual_rows = strchr(steps, 'R') ? EW_RESIDUAL_ALL : EW_RESIDUAL_OWNED;
    e.norm_weight = has_norm ? vector : NULL;
    e.normed = has_norm ? normed[rank] : NULL;
    ew_status status = EW_OK; /* a rank may be through before the other has looked */
    for (int call = 0; call < 3 && status == EW_OK; call++)
        status = ew_gemm_ar_layer(plan, d->m, A[rank], B[rank], has_norm ? NULL : C[rank],
                                  &e, NULL);
    if (!d->texts[0])
        RANK_OK(status);
    else
        RANK_CHECK(status == EW_ERR_MISMATCH &&
                       error_has("ranks disagree", d->texts[0], d->texts[1], NULL),
                   "%d: %s", (int)status, ew_last_error());
    ew_plan_destroy(plan);
    return 0;
}

static void ranks_that_disagree_on_the_steps(void **state)
{
    (void)state;
    for (size_t which = 0; which < sizeof differences / sizeof *differences; which++) {
        harness_context("difference %zu", which);
        harness_run(EW_RANKS_AS_THREADS, 2, disagree,
                    (void *)(uintptr_t)&differences[which]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_the_scattered_rows),
        cmocka_unit_test(results_wait_for_their_readers),
#ifndef __SANITIZE_THREAD__
        TIDY(killed_with_results),
#endif
        cmocka_unit_test(refusals),
        cmocka_unit_test(ranks_that_disagree_on_the_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
