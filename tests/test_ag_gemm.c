/* AllGather-GEMM: the bits of a plain GEMM of the gathered rows at every W and schedule;
 * rows that wait for their readers; sources that are late, die or stop; and what is
 * refused. Shapes and configs in plenty are tests/test_conformance.c's. */
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

static ew_problem gather_problem(int64_t max_m, int64_t n, int64_t k, ew_dtype dtype)
{
    ew_problem problem = EW_PROBLEM(max_m, n, k, dtype);
    problem.op = EW_OP_AG_GEMM;
    return problem;
}

/* ---- Bits ---- */

enum { MOST_RANKS = 5 };

typedef struct bits_trial {
    ew_problem problem;
    int64_t m;
    unsigned char *want[MOST_RANKS]; /* by rank */
} bits_trial;

/* A plain GEMM: a rank's weight alone, with all rows. */
static int multiply_alone(const bits_trial *t, const void *A, const void *B, void *C)
{
    ew_world *world = NULL;
    ew_problem alone = t->problem;
    ew_plan *plan;
    alone.op = EW_OP_GEMM_RS;
    RANK_OK(ew_world_create(0, 1, NULL, NULL, NULL, &world));
    RANK_OK(ew_plan_create(world, &alone, NULL, &plan));
    RANK_OK(ew_gemm_rs(plan, t->m, A, B, C, NULL));
    ew_plan_destroy(plan);
    ew_world_destroy(world);
    return 0;
}

/* All ranks' A is the same; a rank uses its rows of it. */
static void fill_operands(const ew_problem *p, int rank, void **A, void **B)
{
    const size_t elem = ew_dtype_bytes(p->dtype);
    *A = malloc((size_t)(p->max_m * p->k) * elem);
    *B = malloc((size_t)(p->n * p->k) * elem);
    fill_random(p->dtype, 7, 0, OPERAND_A, p->max_m, p->k, *A);
    fill_random(p->dtype, 7, rank, OPERAND_B, p->n, p->k, *B);
}

static void multiply_for_all(bits_trial *t, int num_ranks)
{
    const size_t elem = ew_dtype_bytes(t->problem.dtype);
    for (int rank = 0; rank < num_ranks; rank++) {
        void *A, *B;
        fill_operands(&t->problem, rank, &A, &B);
        t->want[rank] = malloc((size_t)(t->m * t->problem.n) * elem);
        assert_int_equal(multiply_alone(t, A, B, t->want[rank]), 0);
        free(A);
        free(B);
    }
}

typedef struct matrices {
    const unsigned char *want;
    unsigned char *A, *B, *C, *gathered;
    size_t a_bytes, c_bytes;
} matrices;

static int gather_and_multiply(ew_world *world, const bits_trial *t, const char *config,
                               const matrices *x)
{
    const size_t row = (size_t)t->problem.k * ew_dtype_bytes(t->problem.dtype);
    ew_config parsed = EW_CONFIG_INIT;
    ew_plan *plan;
    int64_t first, count;
    RANK_OK(
        ew_owned_rows(t->m, ew_world_size(world), ew_world_rank(world), &first, &count));
    RANK_OK(ew_config_parse(config, &parsed));
    RANK_OK(ew_plan_create(world, &t->problem, &parsed, &plan));
    for (int wanted = 0; wanted < 2; wanted++) {
        memset(x->C, 0xff, x->c_bytes + 1);
        memset(x->gathered, 0xee, x->a_bytes + 1);
        RANK_OK(ew_ag_gemm(plan, t->m, count ? x->A + (size_t)first * row : NULL, x->B,
                           x->C, wanted ? x->gathered : NULL, NULL));
        RANK_CHECK(memcmp(x->C, x->want, x->c_bytes) == 0, "%s: other bits", config);
        RANK_CHECK(x->C[x->c_bytes] == 0xff, "%s: written behind C", config);
        RANK_CHECK(wanted ? memcmp(x->gathered, x->A, x->a_bytes) == 0
                          : x->gathered[0] == 0xee,
                   "%s: other rows were gathered", config);
        RANK_CHECK(x->gathered[x->a_bytes] == 0xee, "%s: written behind gathered", config);
    }
    ew_plan_destroy(plan);
    return 0;
}

static int compare_bits(ew_world *world, void *argument)
{
    static const char *const configs[] = {
        "", "order=contiguous,workers=2", "order=default,release=output,block=256x256",
        "workers=3,pool=static,x=1,release=2", "release=partition,group=2,block=128x128"};
    const bits_trial *t = argument;
    const ew_problem *p = &t->problem;
    const size_t elem = ew_dtype_bytes(p->dtype);
    matrices x = {.a_bytes = (size_t)(t->m * p->k) * elem,
                  .c_bytes = (size_t)(t->m * p->n) * elem};
    void *A, *B;
    fill_operands(p, ew_world_rank(world), &A, &B);
    x.A = A;
    x.B = B;
    x.want = t->want[ew_world_rank(world)];
    x.C = malloc(x.c_bytes + 1);
    x.gathered = malloc(x.a_bytes + 1);
    for (size_t i = 0; i < COUNT(configs); i++)
        RANK_TRY(gather_and_multiply(world, t, configs[i], &x));
    free(x.A);
    free(x.B);
    free(x.C);
    free(x.gathered);
    return 0;
}

static void bits_are_those_of_a_plain_gemm(void **state)
{
    static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
    static const int64_t rows[] = {1, 3, 130, 397};
    (void)state;
    for (int W = 1; W <= MOST_RANKS; W++)
        for (size_t i = 0; i < COUNT(rows) * COUNT(dtypes); i++) {
            bits_trial t = {
                gather_problem(400, 301, 143, dtypes[i % 3]), rows[i / 3], {NULL}};
            harness_context("W=%d m=%d %s", W, (int)t.m, ew_dtype_name(t.problem.dtype));
            multiply_for_all(&t, W);
            harness_run(EW_RANKS_AS_THREADS, W, compare_bits, &t);
            for (int rank = 0; rank < W; rank++)
                free(t.want[rank]);
        }
    harness_context("%s", "");
}

/* ---- The same columns at every W ---- */

enum { ALL_ROWS = 263, ALL_COLS = 208, DEPTH = 143, WIDEST = 8 };

typedef struct columns_trial {
    ew_dtype dtype;
    int64_t m;
    const char *config;
    unsigned char *A, *B, *want; /* of all ranks; `want` has ALL_ROWS rows */
} columns_trial;

/* Each rank has the columns that follow those of the rank before. */
static int compare_columns(ew_world *world, void *argument)
{
    const columns_trial *t = argument;
    const int W = ew_world_size(world), rank = ew_world_rank(world);
    const size_t elem = ew_dtype_bytes(t->dtype), row = DEPTH * elem;
    const int64_t cols = ALL_COLS / W;
    const size_t bytes = (size_t)cols * elem, first_col = (size_t)rank * bytes;
    const ew_problem problem = gather_problem(t->m, cols, DEPTH, t->dtype);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    int64_t first, count;
    unsigned char *C = malloc((size_t)t->m * bytes);
    RANK_OK(ew_owned_rows(t->m, W, rank, &first, &count));
    RANK_OK(ew_config_parse(t->config, &config));
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    RANK_OK(ew_ag_gemm(plan, t->m, t->A + (size_t)first * row,
                       t->B + (size_t)(rank * cols) * row, C, NULL, NULL));
    for (int64_t i = 0; i < t->m; i++)
        RANK_CHECK(memcmp(C + (size_t)i * bytes,
                          t->want + (size_t)i * ALL_COLS * elem + first_col, bytes) == 0,
                   "row %d has other bits than at W=1", (int)i);
    free(C);
    ew_plan_destroy(plan);
    return 0;
}

static int multiply_on_one_rank(ew_world *world, void *argument)
{
    const columns_trial *t = argument;
    const ew_problem problem = gather_problem(ALL_ROWS, ALL_COLS, DEPTH, t->dtype);
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    RANK_OK(ew_ag_gemm(plan, ALL_ROWS, t->A, t->B, t->want, NULL, NULL));
    ew_plan_destroy(plan);
    return 0;
}

/* A row's bits are those of its own values and of the weight's: not of W, of how many rows
 * come with it or of the schedule. */
static void columns_keep_their_bits_at_every_W(void **state)
{
    static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
    static const int64_t rows[] = {ALL_ROWS, 1, 130};
    static const char *const configs[] = {"", "order=contiguous,workers=2,block=128x128"};
    (void)state;
    for (size_t i = 0; i < COUNT(dtypes); i++) {
        const size_t elem = ew_dtype_bytes(dtypes[i]);
        columns_trial t = {.dtype = dtypes[i],
                           .A = malloc(ALL_ROWS * DEPTH * elem),
                           .B = malloc(ALL_COLS * DEPTH * elem),
                           .want = malloc(ALL_ROWS * ALL_COLS * elem)};
        fill_random(t.dtype, 7, 0, OPERAND_A, ALL_ROWS, DEPTH, t.A);
        fill_random(t.dtype, 7, 0, OPERAND_B, ALL_COLS, DEPTH, t.B);
        harness_run(EW_RANKS_AS_THREADS, 1, multiply_on_one_rank, &t);
        for (int W = 1; W <= WIDEST; W *= 2)
            for (size_t j = 0; j < COUNT(rows) * COUNT(configs); j++) {
                t.m = rows[j / COUNT(configs)];
                t.config = configs[j % COUNT(configs)];
                harness_context("W=%d m=%d %s %s", W, (int)t.m, ew_dtype_name(t.dtype),
                                t.config);
                harness_run(EW_RANKS_AS_THREADS, W, compare_columns, &t);
            }
        free(t.A);
        free(t.B);
        free(t.want);
    }
    harness_context("%s", "");
}

/* ---- Rows and their readers ---- */

/* Rank 0 publishes and pauses there; the others dawdle before they read. */
static int dawdle(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context, (void)where;
    if ((point == EWX_PROBE_BLOCK && rank != 0) ||
        (point == EWX_PROBE_PUBLISHED && rank == 0))
        sleep_ms(2);
    return 0;
}

/* With one row its owner needs nobody and could be calls ahead. */
static int call_back_to_back(ew_world *world, void *argument)
{
    duty d;
    RANK_OK(duty_open(&d, world, gather_problem(300, 100, 32, EW_FP32), argument));
    for (uint32_t seed = 0; seed < 40; seed++) {
        const int64_t m = seed % 4 ? 1 : 300;
        RANK_OK(duty_call(&d, m, seed));
        const int64_t wrong = duty_wrong(&d, m, seed);
        if (wrong != 0)
            ew_world_abort(world); /* the others need not wait */
        RANK_CHECK(wrong == 0, "%lld wrong in call %u", (long long)wrong, seed);
    }
    duty_close(&d);
    return 0;
}

static void rows_wait_for_their_readers(void **state)
{
    static const char *const configs[] = {"", "workers=2,order=contiguous",
                                          "workers=2,pool=static"};
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
    harness_context("%s", "");
}

/* An emulated link brings rows later than their flags. */
static void rows_that_come_over_a_link(void **state)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    char config[] = "workers=2";
    (void)state;
    options.link_gbps = 1.0;
    options.link_latency_us = 200.0;
    harness_run_with(EW_RANKS_AS_THREADS, 3, &options, call_back_to_back, config);
}

/* ---- Sources that fail ---- */

#ifndef __SANITIZE_THREAD__
static int gather_for_ever(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    ew_status status =
        duty_open(&d, world, gather_problem(400, 200, 64, EW_FP32), s->config);
    for (uint32_t call = 0; status == EW_OK; call++)
        status = duty_call(&d, call % 2 ? 400 : 100, call);
    duty_close(&d);
    return stage_tell(s, world, status);
}

static void killed_sources(void **state)
{
    static const ewx_probe_point points[] = {EWX_PROBE_PUBLISH, EWX_PROBE_PUBLISHED,
                                             EWX_PROBE_BLOCK, EWX_PROBE_DONE};
    static const char *const configs[] = {"order=default", "workers=2"};
    (void)state;
    expect_kills_named(points, COUNT(points), configs, gather_for_ever);
}
#endif

/* Rank 1 never publishes its second panel.  Whoever waits for it says so, and all repeat
 * it. */
static int lose_rows(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    ew_status status =
        duty_open(&d, world, gather_problem(600, 100, 32, EW_FP32), s->config);
    for (uint32_t call = 0; status == EW_OK && call < 3; call++)
        status = duty_call(&d, 600, call);
    return stage_listen(s, world, &d, status);
}

static void lost_rows_are_named(void **state)
{
    static const char *const configs[] = {"", "order=contiguous,workers=2",
                                          "release=output,workers=2,pool=static"};
    (void)state;
    for (size_t i = 0; i < COUNT(configs); i++) {
        stage *s = stage_open();
        s->act = ACT_DROP;
        s->point = EWX_PROBE_PUBLISH;
        s->rank = 1;
        s->where = 1;
        s->nth = -1;
        s->config = configs[i];
        harness_context("%s", configs[i]);
        stage_run(s, EW_RANKS_AS_THREADS, 3, 1000, lose_rows, NULL);
        expect_same_story(s, 3, -1, EW_ERR_TIMEOUT,
                          "for the rows of A of rank 1 from its row 128 on");
        stage_close(s);
    }
    harness_context("%s", "");
}

/* ---- Refusals ---- */

static int refuse_calls(ew_world *world, ew_plan *rs, ew_plan *ag)
{
    float A[8 * 8] = {0}, B[8 * 8] = {0}, C[8 * 8], gathered[8 * 8];
    ew_epilogue e = EW_EPILOGUE_INIT;
    RANK_CHECK(ew_gemm_rs(ag, 8, A, B, C, NULL) == EW_ERR_ARGUMENT &&
                   error_has("ew_gemm_rs", "ag-gemm", "call ew_ag_gemm", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_gemm_rs_layer(ag, 8, A, B, C, &e, NULL) == EW_ERR_ARGUMENT, "%s",
               ew_last_error());
    RANK_CHECK(ew_ag_gemm(rs, 8, A, B, C, NULL, NULL) == EW_ERR_ARGUMENT, "%s",
               ew_last_error());
    RANK_CHECK(ew_ag_gemm(ag, 9, A, B, C, NULL, NULL) == EW_ERR_SHAPE, "%s",
               ew_last_error());
    RANK_CHECK(ew_ag_gemm(ag, 8, NULL, B, C, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("needs A", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm(ag, 8, A, B, NULL, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("needs C", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm(ag, 8, A, NULL, C, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("no weight", NULL),
               "%s", ew_last_error());
    void *const overlapping[][2] = {{A, NULL}, {B, NULL}, {C, C + 63}, {C, A}, {C, B}};
    for (size_t i = 0; i < COUNT(overlapping); i++)
        RANK_CHECK(ew_ag_gemm(ag, 8, A, B, overlapping[i][0], overlapping[i][1], NULL) ==
                           EW_ERR_ARGUMENT &&
                       error_has("overlap", NULL),
                   "%zu: %s", i, ew_last_error());
    RANK_OK(ew_ag_gemm(ag, 8, A, B, C, gathered, NULL)); /* the plan is as good as new */
    return 0;
}

typedef struct bad_config {
    const char *config;
    ew_status status;
    const char *text;
} bad_config;

static int refuse(ew_world *world, void *argument)
{
    static const bad_config bad[] = {
        {"shots=2", EW_ERR_CONFIG, "shots=2"},
        {"transport=push", EW_ERR_UNSUPPORTED, "transport=push"},
        {"backend=cuda", EW_ERR_UNSUPPORTED, NULL}, /* built without, or not for ag-gemm */
    };
    ew_problem problem = EW_PROBLEM(8, 8, 8, EW_FP32);
    ew_plan *rs, *ag, *none;
    (void)argument;
    RANK_OK(ew_plan_create(world, &problem, NULL, &rs));
    problem.op = EW_OP_AG_GEMM;
    RANK_OK(ew_plan_create(world, &problem, NULL, &ag));
    RANK_TRY(refuse_calls(world, rs, ag));
    for (size_t i = 0; i < COUNT(bad); i++) {
        ew_config config = EW_CONFIG_INIT;
        RANK_OK(ew_config_parse(bad[i].config, &config));
        RANK_CHECK(ew_plan_create(world, &problem, &config, &none) == bad[i].status &&
                       (!bad[i].text || error_has(bad[i].text, "fix:", NULL)),
                   "%s: %s", bad[i].config, ew_last_error());
    }
    ew_plan_destroy(rs);
    ew_plan_destroy(ag);
    return 0;
}

static void refusals(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 2, refuse, NULL);
}

static int disagree(ew_world *world, void *argument)
{
    duty d;
    (void)argument;
    RANK_OK(duty_open(&d, world, gather_problem(300, 8, 8, EW_FP32), ""));
    ew_status status = EW_OK; /* a rank may be through before the other has looked */
    for (uint32_t call = 0; call < 3 && status == EW_OK; call++)
        status = duty_call(&d, ew_world_rank(world) ? 300 : 299, call);
    RANK_CHECK(status == EW_ERR_MISMATCH && error_has("m=299", "m=300", NULL), "%d: %s",
               (int)status, ew_last_error());
    duty_close(&d);
    return 0;
}

static void ranks_that_disagree_on_m(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 2, disagree, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_those_of_a_plain_gemm),
        cmocka_unit_test(columns_keep_their_bits_at_every_W),
        cmocka_unit_test(rows_wait_for_their_readers),
        cmocka_unit_test(rows_that_come_over_a_link),
#ifndef __SANITIZE_THREAD__
        TIDY(killed_sources),
#endif
        cmocka_unit_test(lost_rows_are_named),
        cmocka_unit_test(refusals),
        cmocka_unit_test(ranks_that_disagree_on_m),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
