/* Values that no call can mean: sizes that overflow, numbers that are none, tables with
 * holes.  Each is refused with an error that names it, and neither taken for something else
 * nor passed on to code that would crash, hang or answer with wrong values. */
#include "harness.h"

#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/fabric.h"
#include "entwine/measure.h"
#include "entwine/sim.h"
#include "entwine/tune.h"

enum { M = 4, N = 3, K = 2 };

static ew_world *open_world(void)
{
    ew_world *world = NULL;
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    return world;
}

/* ---- Memory ---- */

static void sizes_that_overflow(void **state)
{
    static const ew_backend backends[] = {(ew_backend)0, EW_BACKEND_CPU};
    ew_world *world = open_world();
    (void)state;
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        for (size_t less = 0; less < ((size_t)4 << 20); less += (size_t)1 << 20) {
            void *memory = NULL;
            harness_expect_error(
                ew_memory_alloc(world, backends[i], SIZE_MAX - less, &memory),
                EW_ERR_MEMORY, "no memory for a matrix of 18446744073", "fix:");
            harness_expect_error(ew_alloc(world, backends[i], SIZE_MAX - less, &memory),
                                 EW_ERR_MEMORY, "no memory for a matrix of 18446744073",
                                 "fix:");
            assert_null(memory);
        }
    ew_world_destroy(world);
}

/* A simulated matrix of any size takes none: a program that takes it for memory must end
 * before it has overwritten something. */
static void simulated_memory_is_not_memory(void **state)
{
    ew_world *world = open_world();
    void *one = NULL, *other = NULL;
    int status = 0;
    (void)state;
    assert_int_equal(ew_memory_alloc(world, EW_BACKEND_SIM, SIZE_MAX, &one), EW_OK);
    assert_int_equal(ew_alloc(world, EW_BACKEND_SIM, SIZE_MAX, &other), EW_OK);
    assert_ptr_not_equal(one, other);
    const pid_t child = fork();
    assert_int_not_equal(child, -1);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* not that of cmocka or a sanitizer */
        *(volatile char *)one = 1;
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    ew_memory_free(world, EW_BACKEND_SIM, one);
    assert_int_equal(ew_free(world, EW_BACKEND_SIM, other), EW_OK);
    ew_world_destroy(world);
}

/* ---- Exact inputs ---- */

static void exact_inputs(void **state)
{
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    float values[M * N] = {0};
    ew_check check;
    (void)state;
    harness_expect_error(ew_exact_fill_a(EW_FP32, 1, 0, 1, INT64_MAX, INT64_MAX, values),
                         EW_ERR_ARGUMENT,
                         "no exact A of 9223372036854775807x9223372036854775807", "fix:");
    harness_expect_error(
        ew_exact_fill_a(EW_FP32, 1, 0, 1, (int64_t)1 << 31, (int64_t)1 << 31, values),
        EW_ERR_ARGUMENT, "no exact A of 2147483648x2147483648", "fix:");
    harness_expect_error(ew_exact_fill_b(EW_FP32, 1, 0, (ew_weight_layout)7, N, K, values),
                         EW_ERR_ARGUMENT, "layout 7", "fix:");
    harness_expect_error(ew_exact_fill_b(EW_FP32, 1, 0, EW_WEIGHT_KN, INT64_MAX, 3, values),
                         EW_ERR_ARGUMENT, "no exact B of 9223372036854775807x3", "fix:");
    harness_expect_error(ew_random_fill((ew_dtype)9, 1, 1, values), EW_ERR_ARGUMENT,
                         "type unknown", "fix:");
    harness_expect_error(ew_exact_verify(&problem, 1, 0, 1, M, NULL, &check),
                         EW_ERR_ARGUMENT, "needs C", "4 rows");
    assert_int_equal(ew_exact_verify(&problem, 1, 0, 1, 0, NULL, &check), EW_OK);
    assert_int_equal(check.wrong, 0);
    assert_string_equal(ew_cpu_kernel_name((ew_dtype)9), "none");
}

/* ---- BLAS ---- */

static void blas_products(void **state)
{
    float A[M * K] = {0}, B[N * K] = {0}, C[M * N];
    (void)state;
    const struct {
        ew_weight_layout layout;
        int64_t m, n, k, stride;
        ew_status status;
        const char *text;
    } wrong[] = {
        {(ew_weight_layout)7, M, N, K, N, EW_ERR_ARGUMENT, "weight layout 7"},
        {EW_WEIGHT_NK, -1, N, K, N, EW_ERR_SHAPE, "m=-1"},
        {EW_WEIGHT_NK, M, 0, K, N, EW_ERR_SHAPE, "n=0"},
        {EW_WEIGHT_KN, M, N, 0, N, EW_ERR_SHAPE, "k=0"},
        {EW_WEIGHT_NK, M, N, K, N - 1, EW_ERR_ARGUMENT, "c_stride=2"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        harness_expect_error(ew_blas_gemm(wrong[i].layout, wrong[i].m, wrong[i].n,
                                          wrong[i].k, A, B, C, wrong[i].stride),
                             wrong[i].status, wrong[i].text, "fix:");
    harness_expect_error(ew_blas_gemm(EW_WEIGHT_NK, M, N, K, NULL, NULL, NULL, N),
                         EW_ERR_ARGUMENT, "ew_blas_gemm needs A, B and C", "m=4");
    assert_int_equal(ew_blas_gemm(EW_WEIGHT_NK, 0, N, K, NULL, NULL, NULL, N), EW_OK);
}

/* ---- Benchmarks, tuning ---- */

static ew_status bench(ew_world *world, const ew_bench_options *options,
                       ew_bench_layer layer)
{
    static ew_bench_result result;
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const ew_bench_entry entry = {.config = EW_CONFIG_INIT, .layer = layer};
    return ew_bench_run(world, &problem, options, &entry, 1, &result);
}

static void benchmark_options(void **state)
{
    static const double wrong[] = {-1, NAN, INFINITY, 1e18};
    ew_world *world = open_world();
    ew_bench_options options = EW_BENCH_OPTIONS_INIT;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options = (ew_bench_options)EW_BENCH_OPTIONS_INIT;
        options.gate_ms = wrong[i];
        harness_expect_error(bench(world, &options, EW_BENCH_BARE), EW_ERR_ARGUMENT,
                             "gate_ms=", "fix:");
        options.gate_ms = 0;
        options.idle = wrong[i];
        harness_expect_error(bench(world, &options, EW_BENCH_BARE), EW_ERR_ARGUMENT,
                             "idle=", "fix:");
        options.idle = 0;
        options.skew_us = wrong[i];
        harness_expect_error(bench(world, &options, EW_BENCH_BARE), EW_ERR_ARGUMENT,
                             "skew_us=", "fix:");
    }
    options = (ew_bench_options)EW_BENCH_OPTIONS_INIT;
    options.graph_calls = -1;
    harness_expect_error(bench(world, &options, EW_BENCH_BARE), EW_ERR_ARGUMENT,
                         "-1 calls of a graph", "fix:");
    options.graph_calls = 0;
    harness_expect_error(bench(world, &options, (ew_bench_layer)9), EW_ERR_ARGUMENT,
                         "layer 9", "fix:");
    ew_world_destroy(world);
}

static void tuning_budgets(void **state)
{
    static const double wrong[] = {-1, NAN};
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_world *world = open_world();
    ew_tune_options options = EW_TUNE_OPTIONS_INIT;
    ew_tune_result result;
    (void)state;
    options.store = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        options.budget_s = wrong[i];
        harness_expect_error(ew_tune(world, &problem, NULL, &options, &result),
                             EW_ERR_ARGUMENT, "a budget of", "fix:");
    }
    ew_world_destroy(world);
}

/* An entry that is stored must be one that plans can read. */
static void tuning_entries(void **state)
{
    const ew_tuning right = {
        .key = "op=gemm-rs,m=4", .config = EW_CONFIG_INIT, .time_us = 1, .default_us = 2};
    ew_tuning wrong[8];
    char text[EW_TUNING_TEXT_BYTES];
    (void)state;
    for (size_t i = 0; i < 8; i++)
        wrong[i] = right;
    memset(wrong[0].key, 'a', sizeof wrong[0].key); /* without an end */
    snprintf(wrong[1].key, sizeof wrong[1].key, "m=4");
    snprintf(wrong[2].key, sizeof wrong[2].key, "op=\"gemm-rs\"");
    memset(wrong[3].profile, 'a', sizeof wrong[3].profile);
    wrong[4].time_us = INFINITY;
    wrong[5].default_us = NAN;
    wrong[6].when = -1;
    wrong[7].config.order = (ew_order)99;
    for (size_t i = 0; i < 8; i++) {
        harness_expect_error(ew_tuning_print(&wrong[i], text, sizeof text),
                             i == 7 ? EW_ERR_CONFIG : EW_ERR_ARGUMENT,
                             i == 7  ? "order=99"
                             : i < 3 ? "the tuning entry's key is malformed"
                                     : "the tuning entry",
                             "fix:");
        assert_int_not_equal(ew_tuning_store(&wrong[i]), EW_OK);
    }
    assert_int_equal(ew_tuning_print(&right, text, sizeof text), EW_OK);
    assert_int_equal(ew_tuning_store(NULL), EW_ERR_ARGUMENT);
    assert_non_null(strstr(ew_last_error(), "ew_tuning_store"));
}

/* ---- Simulations ---- */

static void simulation_options(void **state)
{
    static const double wrong[] = {-1, NAN, INFINITY};
    const ew_problem problem = EW_PROBLEM(512, 512, 512, EW_BF16);
    ew_sim_report report;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct {
            ew_sim_options options;
            const char *text;
        } cases[] = {
            {{sizeof(ew_sim_options), .link_gbs = wrong[i]}, "link_gbs="},
            {{sizeof(ew_sim_options), .link_gbs = 100, .link_us = wrong[i]}, "link_us="},
            {{sizeof(ew_sim_options), .link_gbs = 100, .link_header_bytes = wrong[i]},
             "link_header_bytes="},
            {{sizeof(ew_sim_options), .nic_gbs = wrong[i]}, "nic_gbs="},
            {{sizeof(ew_sim_options), .sampled_ranks = -1}, "sampled_ranks=-1"},
            {{sizeof(ew_sim_options), .nic_shared = 2}, "nic_shared=2"},
        };
        for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
            harness_expect_error(
                ew_sim_call(&problem, 8, NULL, &cases[at].options, &report),
                EW_ERR_ARGUMENT, cases[at].text, "fix:");
            harness_expect_error(
                ew_sim_search(&problem, 8, NULL, &cases[at].options, &report, NULL),
                EW_ERR_ARGUMENT, cases[at].text, "fix:");
        }
    }
}

/* ---- Variables ---- */

/* Whoever writes 0 or OFF means off, and would not notice that entries are still used. */
static void tuning_switched_off_wrongly(void **state)
{
    static const char *const wrong[] = {"0", "OFF", "no"};
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_world *world = open_world();
    ew_forecast forecast;
    ew_plan *plan = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        setenv("ENTWINE_TUNING", wrong[i], 1);
        harness_expect_error(ew_plan_create(world, &problem, NULL, &plan), EW_ERR_ARGUMENT,
                             "ENTWINE_TUNING=", wrong[i]);
        harness_expect_error(ew_forecast_build(&problem, 2, NULL, &forecast),
                             EW_ERR_ARGUMENT, "ENTWINE_TUNING=", wrong[i]);
    }
    static const char *const right[] = {"on", "", "off"};
    for (size_t i = 0; i < sizeof right / sizeof right[0]; i++) {
        setenv("ENTWINE_TUNING", right[i], 1);
        assert_int_equal(ew_plan_create(world, &problem, NULL, &plan), EW_OK);
        ew_plan_destroy(plan);
    }
    ew_world_destroy(world); /* it stays off, as it is for all tests */
}

static void ranks_beyond_the_last(void **state)
{
    ew_launcher launcher;
    (void)state;
    setenv("ENTWINE_RANK", "2", 1);
    setenv("ENTWINE_WORLD_SIZE", "2", 1);
    harness_expect_error(ew_launcher_detect(&launcher), EW_ERR_ARGUMENT, "ENTWINE_RANK=2",
                         "0 to 1");
    unsetenv("ENTWINE_RANK");
    unsetenv("ENTWINE_WORLD_SIZE");
}

/* ---- Tables ---- */

static void fabrics_with_holes(void **state)
{
    ew_fabric fabric = {.struct_size = sizeof fabric, .num_ranks = 2, .name = "a test"};
    ew_world *world = NULL;
    (void)state;
    harness_expect_error(ew_world_join(&fabric, NULL, &world), EW_ERR_ARGUMENT,
                         "the fabric a test has no all-gather", "fix:");
    fabric.num_ranks = 1;
    fabric.name = NULL;
    harness_expect_error(ew_world_join(&fabric, NULL, &world), EW_ERR_ARGUMENT,
                         "the fabric has no name", "fix:");
    assert_null(world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_that_overflow),
        cmocka_unit_test(simulated_memory_is_not_memory),
        cmocka_unit_test(exact_inputs),
        cmocka_unit_test(blas_products),
        cmocka_unit_test(benchmark_options),
        cmocka_unit_test(tuning_budgets),
        cmocka_unit_test(tuning_entries),
        cmocka_unit_test(simulation_options),
        cmocka_unit_test(tuning_switched_off_wrongly),
        cmocka_unit_test(ranks_beyond_the_last),
        cmocka_unit_test(fabrics_with_holes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
