/* Wrong input gets the right status, a text with the offending value (and the remedy
 * where there is one), and leaves every object as usable as before. */
#include "faultkit.h"
#include "harness.h"

#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

static int tried;

static void expect_refused(int line, const char *what, ew_status got, ew_status wanted,
                           const char *value, bool fix)
{
    tried++;
    if (got != wanted || !strstr(ew_last_error(), value) ||
        (fix && !strstr(ew_last_error(), "\n  fix: ")))
        fail_msg("line %d: %s gave %s \"%s\"; wanted %s with \"%s\"%s", line, what,
                 ew_status_name(got), ew_last_error(), ew_status_name(wanted), value,
                 fix ? " and a fix" : "");
}

/* The text must be this call's own, not one left over. */
#define REFUSED(expression, status, value) REFUSED_(expression, status, value, false)
#define REFUSED_WITH_FIX(expression, status, value) \
    REFUSED_(expression, status, value, true)
#define REFUSED_(expression, status, value, fix)                              \
    do {                                                                      \
        ew_config_parse("stale", &(ew_config)EW_CONFIG_INIT);                 \
        const ew_status got_ = (expression);                                  \
        assert_null(strstr(ew_last_error(), "'stale'"));                      \
        expect_refused(__LINE__, #expression, got_, EW_##status, value, fix); \
    } while (0)

typedef struct room {
    ew_world *world;
    ew_problem problem;
    ew_plan *plan;
    float A[64], B[128], C[128];
} room;

static room *enter(void)
{
    room *r = calloc(1, sizeof *r);
    assert_non_null(r);
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &r->world), EW_OK);
    r->problem = (ew_problem)EW_PROBLEM(8, 16, 8, EW_FP32);
    assert_int_equal(ew_plan_create(r->world, &r->problem, NULL, &r->plan), EW_OK);
    ew_exact_fill_a(EW_FP32, 1, 0, 1, 8, 8, r->A);
    ew_exact_fill_b(EW_FP32, 1, 0, EW_WEIGHT_NK, 16, 8, r->B);
    return r;
}

/* Whatever was refused before, the plan computes. */
static void expect_usable(room *r)
{
    ew_check check;
    assert_int_equal(ew_gemm_rs(r->plan, 8, r->A, r->B, r->C, NULL), EW_OK);
    assert_int_equal(ew_exact_verify(&r->problem, 1, 0, 1, 8, r->C, &check), EW_OK);
    assert_int_equal(check.wrong, 0);
    assert_int_equal(ew_plan_wait(r->plan), EW_OK);
}

static void leave(room *r)
{
    ew_plan_destroy(r->plan);
    ew_world_destroy(r->world);
    free(r);
}

/* ---- World ---- */

static int nobody(ew_world *world, void *argument)
{
    (void)world;
    (void)argument;
    return 0;
}

static int gather_nothing(void *context, const void *mine, void *all, size_t bytes)
{
    (void)context;
    (void)mine;
    (void)all;
    (void)bytes;
    return -1;
}

static ew_status with_options(ew_world_options options)
{
    ew_world *world = NULL;
    const ew_status status = ew_world_create(0, 1, NULL, NULL, &options, &world);
    ew_world_destroy(world);
    return status;
}

static void wrong_worlds(void **state)
{
    (void)state;
    ew_world *world = (ew_world *)1;
    const ew_world_options good = EW_WORLD_OPTIONS_INIT;
    REFUSED(ew_world_create(0, 1, NULL, NULL, NULL, NULL), ERR_ARGUMENT, "place");
    REFUSED_WITH_FIX(ew_world_create(-1, 2, gather_nothing, NULL, NULL, &world),
                     ERR_ARGUMENT, "rank -1 of W=2");
    REFUSED_WITH_FIX(ew_world_create(2, 2, gather_nothing, NULL, NULL, &world),
                     ERR_ARGUMENT, "rank 2 of W=2");
    REFUSED_WITH_FIX(ew_world_create(0, 0, gather_nothing, NULL, NULL, &world),
                     ERR_ARGUMENT, "rank 0 of W=0");
    REFUSED_WITH_FIX(ew_world_create(0, 257, gather_nothing, NULL, NULL, &world),
                     ERR_ARGUMENT, "257");
    REFUSED_WITH_FIX(ew_world_create(0, 2, NULL, NULL, NULL, &world), ERR_ARGUMENT, "W=2");
    REFUSED(ew_world_create(0, 2, gather_nothing, NULL, NULL, &world), ERR_ABORTED, "-1");
    assert_ptr_equal(world, (ew_world *)1); /* written only on success */

    ew_world_options bad = {0};
    REFUSED_WITH_FIX(with_options(bad), ERR_ARGUMENT, "not initialised");
    static const double rates[] = {-1.0, 1e7, 1e-9, DBL_MIN, -0.5};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        bad = good;
        bad.link_gbps = rates[i];
        REFUSED_WITH_FIX(with_options(bad), ERR_ARGUMENT, "Gb/s");
        bad = good;
        bad.link_latency_us = rates[i] < 0.0 ? rates[i] : 1e9;
        REFUSED_WITH_FIX(with_options(bad), ERR_ARGUMENT, "us");
        bad = good;
        bad.link_header_bytes = rates[i] < 0.0 ? rates[i] : 1025.0;
        REFUSED_WITH_FIX(with_options(bad), ERR_ARGUMENT, "headers of");
    }
    bad = good;
    bad.link_gbps = NAN;
    REFUSED_WITH_FIX(with_options(bad), ERR_ARGUMENT, "nan");
    bad.link_gbps = INFINITY;
    REFUSED_WITH_FIX(with_options(bad), ERR_ARGUMENT, "inf");

    char byte = 0, all = 0;
    REFUSED(ew_world_allgather(NULL, &byte, &all, 1), ERR_ARGUMENT, "world");
    REFUSED(ew_world_barrier(NULL), ERR_ARGUMENT, "world");
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    REFUSED(ew_world_allgather(world, NULL, &all, 1), ERR_ARGUMENT, "buffers");
    REFUSED(ew_world_allgather(world, &byte, NULL, 1), ERR_ARGUMENT, "buffers");
    assert_int_equal(ew_world_allgather(world, NULL, NULL, 0), EW_OK);
    assert_int_equal(ew_world_allgather(world, &byte, &all, 1), EW_OK);
    ew_world_destroy(world);
    assert_int_equal(ew_world_rank(NULL), -1);
    assert_int_equal(ew_world_size(NULL), 0);
}

static void wrong_runs(void **state)
{
    (void)state;
    ew_world_options bad = {0};
    REFUSED(ew_run_ranks(EW_RANKS_AS_PROCESSES, 2, NULL, NULL, NULL, NULL), ERR_ARGUMENT,
            "function");
    REFUSED_WITH_FIX(ew_run_ranks(EW_RANKS_AS_THREADS, 0, NULL, nobody, NULL, NULL),
                     ERR_ARGUMENT, "W=0");
    REFUSED_WITH_FIX(ew_run_ranks(EW_RANKS_AS_THREADS, -3, NULL, nobody, NULL, NULL),
                     ERR_ARGUMENT, "W=-3");
    REFUSED_WITH_FIX(ew_run_ranks(EW_RANKS_AS_PROCESSES, 257, NULL, nobody, NULL, NULL),
                     ERR_ARGUMENT, "W=257");
    REFUSED_WITH_FIX(ew_run_ranks((ew_ranks_as)0, 2, NULL, nobody, NULL, NULL),
                     ERR_ARGUMENT, "kind of ranks: 0");
    REFUSED_WITH_FIX(ew_run_ranks((ew_ranks_as)9, 2, NULL, nobody, NULL, NULL),
                     ERR_ARGUMENT, "kind of ranks: 9");
    REFUSED_WITH_FIX(ew_run_ranks(EW_RANKS_AS_PROCESSES, 2, &bad, nobody, NULL, NULL),
                     ERR_ARGUMENT, "not initialised");
    REFUSED_WITH_FIX(ew_run_ranks(EW_RANKS_AS_THREADS, 2, &bad, nobody, NULL, NULL),
                     ERR_ARGUMENT, "not initialised");
}

static void wrong_timeout_variable(void **state)
{
    static const char *const values[] = {"abc",  "0",         "-1", "1.5",
                                         "10ms", "1 ",        " ",  "99999999999999999999",
                                         "0x10", "4294967296"};
    (void)state;
    ew_world *world;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        setenv("ENTWINE_TIMEOUT_MS", values[i], 1);
        REFUSED_WITH_FIX(ew_world_create(0, 1, NULL, NULL, NULL, &world), ERR_ARGUMENT,
                         values[i]);
        REFUSED_WITH_FIX(ew_run_ranks(EW_RANKS_AS_PROCESSES, 2, NULL, nobody, NULL, NULL),
                         ERR_ARGUMENT, "ENTWINE_TIMEOUT_MS");
    }
    setenv("ENTWINE_TIMEOUT_MS", "abc", 1);
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 5; /* an explicit one does not look at the variable */
    assert_int_equal(with_options(options), EW_OK);
    setenv("ENTWINE_TIMEOUT_MS", "", 1);
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    ew_world_destroy(world);
    unsetenv("ENTWINE_TIMEOUT_MS");
}

/* ---- Problems and plans ---- */

static void wrong_problems(void **state)
{
    (void)state;
    room *r = enter();
    ew_plan *plan = (ew_plan *)1;
    const ew_problem good = r->problem;
    ew_problem bad = {0};
    REFUSED(ew_plan_create(NULL, &good, NULL, &plan), ERR_ARGUMENT, "world");
    REFUSED(ew_plan_create(r->world, &good, NULL, NULL), ERR_ARGUMENT, "place");
    REFUSED_WITH_FIX(ew_plan_create(r->world, NULL, NULL, &plan), ERR_ARGUMENT, "missing");
    REFUSED_WITH_FIX(ew_plan_create(r->world, &bad, NULL, &plan), ERR_ARGUMENT,
                     "not initialised");
#define BAD_FIELD(field, value, status, text)                                        \
    do {                                                                             \
        bad = good;                                                                  \
        bad.field = value;                                                           \
        REFUSED_WITH_FIX(ew_plan_create(r->world, &bad, NULL, &plan), status, text); \
        ew_forecast forecast;                                                        \
        REFUSED_WITH_FIX(ew_forecast_build(&bad, 2, NULL, &forecast), status, text); \
    } while (0)
    BAD_FIELD(dtype, (ew_dtype)0, ERR_ARGUMENT, "element type 0");
    BAD_FIELD(dtype, (ew_dtype)4, ERR_ARGUMENT, "element type 4");
    BAD_FIELD(weight_layout, (ew_weight_layout)0, ERR_ARGUMENT, "weight layout 0");
    BAD_FIELD(weight_layout, (ew_weight_layout)7, ERR_ARGUMENT, "weight layout 7");
    BAD_FIELD(max_m, -1, ERR_SHAPE, "M=-1");
    BAD_FIELD(max_m, INT64_MAX, ERR_SHAPE, "M=9223372036854775807");
    BAD_FIELD(n, 0, ERR_SHAPE, "N=0");
    BAD_FIELD(n, -16, ERR_SHAPE, "N=-16");
    BAD_FIELD(n, INT64_MAX, ERR_SHAPE, "N=9223372036854775807");
    BAD_FIELD(k, 0, ERR_SHAPE, "K=0");
    BAD_FIELD(k, INT64_MIN, ERR_SHAPE, "K=-9223372036854775808");
    BAD_FIELD(k, INT64_MAX / 2, ERR_SHAPE, "K=");
#undef BAD_FIELD
    bad = (ew_problem)EW_PROBLEM((int64_t)1 << 40, (int64_t)1 << 40, 1, EW_FP32);
    REFUSED_WITH_FIX(ew_plan_create(r->world, &bad, NULL, &plan), ERR_SHAPE, "64 bits");
    bad = (ew_problem)EW_PROBLEM((int64_t)1 << 40, 1, (int64_t)1 << 40, EW_FP32);
    REFUSED_WITH_FIX(ew_plan_create(r->world, &bad, NULL, &plan), ERR_SHAPE, "64 bits");
    assert_ptr_equal(plan, (ew_plan *)1);
    ew_forecast forecast;
    REFUSED(ew_forecast_build(&good, 2, NULL, NULL), ERR_ARGUMENT, "place");
    REFUSED_WITH_FIX(ew_forecast_build(&good, 0, NULL, &forecast), ERR_SHAPE, "W=0");
    REFUSED_WITH_FIX(ew_forecast_build(&good, 257, NULL, &forecast), ERR_SHAPE, "W=257");
    expect_usable(r);
    leave(r);
}

/* A heap larger than the machine's memory is refused before a page of it is touched.  The
 * kernel does not refuse: a memfd grows until the out-of-memory killer chooses among the
 * bystanders.  The limit on file sizes keeps a library that tries from getting far. */
static void problems_beyond_memory(void **state)
{
    (void)state;
    room *r = enter();
    ew_plan *plan;
    const ew_problem huge = EW_PROBLEM((int64_t)1 << 24, (int64_t)1 << 24, 8, EW_FP32);
    struct rlimit before, limited;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limited = before;
    limited.rlim_cur = 64 << 20;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limited), 0);
    const ew_status status = ew_plan_create(r->world, &huge, NULL, &plan);
    setrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, handler);
    expect_refused(__LINE__, "a plan of 2 PiB", status, EW_ERR_MEMORY, "bytes", true);
    expect_usable(r);
    leave(r);
}

static void wrong_config_fields(void **state)
{
    (void)state;
    room *r = enter();
    ew_plan *plan = (ew_plan *)1;
    ew_config bad = {0};
    REFUSED_WITH_FIX(ew_plan_create(r->world, &r->problem, &bad, &plan), ERR_ARGUMENT,
                     "not initialised");
#define BAD_FIELD(field, value, status, text)                                      \
    do {                                                                           \
        bad = (ew_config)EW_CONFIG_INIT;                                           \
        bad.field = value;                                                         \
        REFUSED(ew_plan_create(r->world, &r->problem, &bad, &plan), status, text); \
    } while (0)
    BAD_FIELD(backend, EW_BACKEND_CUDA, ERR_UNSUPPORTED, "cuda");
    BAD_FIELD(backend, (ew_backend)9, ERR_CONFIG, "9");
    BAD_FIELD(backend, (ew_backend)-1, ERR_CONFIG, "backend");
    BAD_FIELD(block_m, 100, ERR_CONFIG, "100");
    BAD_FIELD(block_m, -128, ERR_CONFIG, "-128");
    BAD_FIELD(block_n, 130, ERR_CONFIG, "130");
    BAD_FIELD(group, -1, ERR_CONFIG, "-1");
    BAD_FIELD(release, -3, ERR_CONFIG, "-3");
    BAD_FIELD(budget, -1, ERR_CONFIG, "-1");
    BAD_FIELD(batch, -5, ERR_CONFIG, "-5");
    BAD_FIELD(workers, -1, ERR_CONFIG, "-1");
    BAD_FIELD(workers, 100000, ERR_CONFIG, "100000");
    BAD_FIELD(transport, EW_TRANSPORT_PUSH, ERR_UNSUPPORTED, "transport=push");
    bad = (ew_config)EW_CONFIG_INIT;
    bad.pool = EW_POOL_STATIC;
    bad.workers = 1;
    REFUSED_WITH_FIX(ew_plan_create(r->world, &r->problem, &bad, &plan), ERR_CONFIG,
                     "pool=static");
    bad.workers = 2;
    bad.budget = 2;
    REFUSED_WITH_FIX(ew_plan_create(r->world, &r->problem, &bad, &plan), ERR_CONFIG, "x=2");
    bad = (ew_config)EW_CONFIG_INIT;
    bad.producer = EW_PRODUCER_BLAS;
    bad.release = 1;
    REFUSED_WITH_FIX(ew_plan_create(r->world, &r->problem, &bad, &plan), ERR_CONFIG,
                     "producer=blas");
    ew_problem half = r->problem;
    half.dtype = EW_BF16;
    bad.release = 0;
    REFUSED_WITH_FIX(ew_plan_create(r->world, &half, &bad, &plan), ERR_UNSUPPORTED, "bf16");
    assert_ptr_equal(plan, (ew_plan *)1);
    expect_usable(r);
    leave(r);
}

/* Values that no enumerator has. */
static void wrong_config_enums(void **state)
{
    (void)state;
    room *r = enter();
    ew_plan *plan = (ew_plan *)1;
    ew_config bad = EW_CONFIG_INIT;
    BAD_FIELD(transport, (ew_transport)9, ERR_CONFIG, "9");
    BAD_FIELD(producer, (ew_producer)9, ERR_CONFIG, "9");
    BAD_FIELD(order, (ew_order)9, ERR_CONFIG, "9");
    BAD_FIELD(order, (ew_order)-1, ERR_CONFIG, "order");
    BAD_FIELD(pool, (ew_pool)9, ERR_CONFIG, "9");
#undef BAD_FIELD
    expect_usable(r);
    leave(r);
}

static void wrong_config_texts(void **state)
{
    static const struct {
        const char *text, *value;
    } cases[] = {
        {"stale2", "'stale2'"},
        {"y=1", "'y'"},
        {"x=0", "x=0"},
        {"x=-1", "x=-1"},
        {"x=", "x="},
        {"x=1.5", "x=1.5"},
        {"x=99999999999", "x=9"},
        {"b=two", "b=two"},
        {"block=128", "block=128"},
        {"block=x128", "x128"},
        {"block=0x128", "0x128"},
        {"block=128x128x1", "128x128x1"},
        {"order=random", "random"},
        {"release=none", "none"},
        {"release=-1", "release=-1"},
        {"pool=", "pool="},
        {"=1", "''"},
        {",", "''"},
        {"x=1,", "comma"},
        {"x=1,,b=1", "''"},
        {"x=1;b=1", "x=1;b=1"},
        {" x=1", "' x'"},
        {"X=1", "'X'"},
        {"backend=gpu", "gpu"},
        {"workers=1 ", "workers=1 "},
    };
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    config.budget = 77;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSED_WITH_FIX(ew_config_parse(cases[i].text, &config), ERR_CONFIG,
                         cases[i].value);
    REFUSED(ew_config_parse(NULL, &config), ERR_ARGUMENT, "text");
    REFUSED(ew_config_parse("x=1", NULL), ERR_ARGUMENT, "config");
    assert_int_equal(config.budget, 77);
    char text[EW_CONFIG_TEXT_BYTES];
    REFUSED(ew_config_print(NULL, text, sizeof text), ERR_ARGUMENT, "config");
    REFUSED(ew_config_print(&config, NULL, 8), ERR_ARGUMENT, "buffer");
    REFUSED_WITH_FIX(ew_config_print(&config, text, 3), ERR_ARGUMENT, "3 bytes");
    REFUSED_WITH_FIX(ew_config_print(&config, text, 0), ERR_ARGUMENT, "0 bytes");
}

/* ---- Calls ---- */

static void wrong_calls(void **state)
{
    (void)state;
    room *r = enter();
    float *A = r->A, *B = r->B, *C = r->C;
    REFUSED(ew_gemm_rs(NULL, 8, A, B, C, NULL), ERR_ARGUMENT, "plan");
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, 9, A, B, C, NULL), ERR_SHAPE, "m=9");
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, -1, A, B, C, NULL), ERR_SHAPE, "m=-1");
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, INT64_MAX, A, B, C, NULL), ERR_SHAPE, "m=9223");
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, INT64_MIN, A, B, C, NULL), ERR_SHAPE, "m=-9223");
    REFUSED(ew_gemm_rs(r->plan, 8, NULL, B, C, NULL), ERR_ARGUMENT, "needs A");
    REFUSED(ew_gemm_rs(r->plan, 8, A, B, NULL, NULL), ERR_ARGUMENT, "needs C");
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, 8, A, NULL, C, NULL), ERR_ARGUMENT, "no weight");
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, 8, A, B, C, (ew_stream)r), ERR_ARGUMENT, "stream");
    REFUSED(ew_plan_set_weight(NULL, B), ERR_ARGUMENT, "plan");
    REFUSED(ew_plan_set_weight(r->plan, NULL), ERR_ARGUMENT, "weight");
    REFUSED(ew_plan_wait(NULL), ERR_ARGUMENT, "plan");
    assert_int_equal(ew_gemm_rs(r->plan, 0, NULL, B, NULL, NULL), EW_OK);
    expect_usable(r);

    ew_config config = EW_CONFIG_INIT;
    char text[EW_EXPLAIN_BYTES];
    REFUSED(ew_plan_config(NULL, &config), ERR_ARGUMENT, "plan");
    REFUSED(ew_plan_config(r->plan, NULL), ERR_ARGUMENT, "config");
    REFUSED(ew_plan_explain(NULL, text, sizeof text), ERR_ARGUMENT, "plan");
    REFUSED(ew_plan_explain(r->plan, NULL, 9), ERR_ARGUMENT, "buffer");
    REFUSED(ew_plan_explain(r->plan, text, 0), ERR_ARGUMENT, "buffer");
    REFUSED_WITH_FIX(ew_plan_explain(r->plan, text, 9), ERR_ARGUMENT, "9 bytes");
    ew_timing timing;
    size_t count;
    REFUSED(ew_plan_timing(NULL, &timing), ERR_ARGUMENT, "plan");
    REFUSED(ew_plan_timing(r->plan, NULL), ERR_ARGUMENT, "timing");
    REFUSED(ew_plan_trace_enable(NULL), ERR_ARGUMENT, "plan");
    REFUSED(ew_plan_trace(NULL, NULL, 0, &count), ERR_ARGUMENT, "plan");
    REFUSED(ew_plan_trace(r->plan, NULL, 4, &count), ERR_ARGUMENT, "places");
    REFUSED(ew_plan_trace(r->plan, NULL, 0, NULL), ERR_ARGUMENT, "places");
    expect_usable(r);
    leave(r);
}

/* The weight bound by set_weight is still the plan's after a refused call, and a weight
 * passed with one call does not take its place. */
static void weights_are_what_was_said(void **state)
{
    (void)state;
    room *r = enter();
    ew_check check;
    float other[128];
    ew_exact_fill_b(EW_FP32, 2, 0, EW_WEIGHT_NK, 16, 8, other);
    assert_int_equal(ew_plan_set_weight(r->plan, r->B), EW_OK);
    REFUSED_WITH_FIX(ew_gemm_rs(r->plan, 99, r->A, other, r->C, NULL), ERR_SHAPE, "m=99");
    assert_int_equal(ew_gemm_rs(r->plan, 8, r->A, NULL, r->C, NULL), EW_OK);
    ew_exact_verify(&r->problem, 1, 0, 1, 8, r->C, &check);
    assert_int_equal(check.wrong, 0);
    assert_int_equal(ew_gemm_rs(r->plan, 8, r->A, other, r->C, NULL), EW_OK);
    assert_int_equal(ew_gemm_rs(r->plan, 8, r->A, NULL, r->C, NULL), EW_OK);
    ew_exact_verify(&r->problem, 1, 0, 1, 8, r->C, &check);
    if (check.wrong != 0)
        fail_msg("the weight of one call silently replaced the one bound to the plan");
    leave(r);
}

static void wrong_rows_and_exact_inputs(void **state)
{
    (void)state;
    int64_t first, count;
    float data[8];
    ew_check check;
    const ew_problem problem = EW_PROBLEM(8, 16, 8, EW_FP32);
    REFUSED(ew_owned_rows(-1, 2, 0, &first, &count), ERR_ARGUMENT, "m=-1");
    REFUSED(ew_owned_rows(8, 0, 0, &first, &count), ERR_ARGUMENT, "of 0");
    REFUSED(ew_owned_rows(8, 2, 2, &first, &count), ERR_ARGUMENT, "rank 2");
    REFUSED(ew_owned_rows(8, 2, -1, &first, &count), ERR_ARGUMENT, "rank -1");
    REFUSED(ew_owned_rows(8, 2, 0, NULL, &count), ERR_ARGUMENT, "rows");
    REFUSED(ew_owned_rows(8, 2, 0, &first, NULL), ERR_ARGUMENT, "rows");
    REFUSED(ew_exact_fill_a((ew_dtype)0, 1, 0, 1, 1, 8, data), ERR_ARGUMENT, "1x8");
    REFUSED(ew_exact_fill_a(EW_FP32, 1, 0, 0, 1, 8, data), ERR_ARGUMENT, "0 ranks");
    REFUSED(ew_exact_fill_a(EW_FP32, 1, 2, 1, 1, 8, data), ERR_ARGUMENT, "rank 2 of 1");
    REFUSED(ew_exact_fill_a(EW_FP32, 1, -1, 1, 1, 8, data), ERR_ARGUMENT, "rank -1 of 1");
    REFUSED(ew_exact_fill_a(EW_FP32, 1, 0, 1, -1, 8, data), ERR_ARGUMENT, "-1x8");
    REFUSED(ew_exact_fill_a(EW_FP32, 1, 0, 1, 1, 8, NULL), ERR_ARGUMENT, "1x8");
    REFUSED(ew_exact_fill_b(EW_FP32, 1, 0, EW_WEIGHT_NK, 0, 8, data), ERR_ARGUMENT, "0x8");
    REFUSED(ew_exact_fill_b(EW_FP32, 1, 0, EW_WEIGHT_NK, 1, 8, NULL), ERR_ARGUMENT, "1x8");
    REFUSED(ew_exact_verify(NULL, 1, 0, 1, 8, data, &check), ERR_ARGUMENT, "problem");
    REFUSED(ew_exact_verify(&problem, 1, 0, 1, 8, data, NULL), ERR_ARGUMENT, "check");
    REFUSED(ew_exact_verify(&problem, 1, 3, 2, 8, data, &check), ERR_ARGUMENT, "rank 3");
}

/* ---- What takes anything ---- */

static void nulls_and_nonsense_are_fine(void **state)
{
    (void)state;
    ew_plan_destroy(NULL);
    ew_world_destroy(NULL);
    ew_world_abort(NULL);
    assert_string_equal(ew_status_name((ew_status)12345), "EW_UNKNOWN");
    assert_non_null(ew_status_text((ew_status)-99));
    assert_string_equal(ew_dtype_name((ew_dtype)99), "unknown");
    assert_int_equal(ew_dtype_bytes((ew_dtype)99), 0);
    assert_non_null(ew_last_error());
    assert_non_null(ew_version());
}

static void enough_was_tried(void **state)
{
    (void)state;
    assert_true(tried >= 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_worlds),
        cmocka_unit_test(wrong_runs),
        cmocka_unit_test(wrong_timeout_variable),
        cmocka_unit_test(wrong_problems),
        cmocka_unit_test(problems_beyond_memory),

        cmocka_unit_test(wrong_config_fields),
        cmocka_unit_test(wrong_config_enums),
        cmocka_unit_test(wrong_config_texts),
        cmocka_unit_test(wrong_calls),
        cmocka_unit_test(weights_are_what_was_said),
        cmocka_unit_test(wrong_rows_and_exact_inputs),
        cmocka_unit_test(nulls_and_nonsense_are_fine),
        cmocka_unit_test(enough_was_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
