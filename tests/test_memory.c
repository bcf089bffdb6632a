/* A plan takes the memory that its forecast promises: what all ranks hold together
 * (proportional set size, so that a shared page counts once), before the plan exists and
 * after its first call. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

enum { RANKS = 2 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

typedef struct account {
    ew_problem problem;
    ew_config config;
    long before_kib[RANKS], after_kib[RANKS];
} account;

static long pss_kib(void)
{
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    char line[256];
    long kib = -1;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Pss: %ld kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib;
}

/* All ranks stand still while any of them counts. */
static int count_pss(ew_world *world, long *kib_out)
{
    RANK_OK(ew_world_barrier(world));
    *kib_out = pss_kib();
    RANK_OK(ew_world_barrier(world));
    RANK_CHECK(*kib_out > 0, "no Pss in smaps_rollup");
    return 0;
}

static int body(ew_world *world, void *argument)
{
    account *a = argument;
    const ew_problem *p = &a->problem;
    const int rank = ew_world_rank(world);
    const size_t elem = ew_dtype_bytes(p->dtype);
    void *A = malloc((size_t)(p->max_m * p->k) * elem);
    void *B = malloc((size_t)(p->n * p->k) * elem);
    void *C = malloc((size_t)(p->max_m / RANKS * p->n) * elem);
    RANK_CHECK(A && B && C, "no memory");
    RANK_OK(ew_exact_fill_a(p->dtype, 1, rank, RANKS, p->max_m, p->k, A));
    RANK_OK(ew_exact_fill_b(p->dtype, 1, rank, p->weight_layout, p->n, p->k, B));
    memset(C, 0xff, (size_t)(p->max_m / RANKS * p->n) * elem);
    RANK_TRY(count_pss(world, &a->before_kib[rank]));
    ew_plan *plan;
    ew_check check;
    RANK_OK(ew_plan_create(world, p, &a->config, &plan));
    RANK_OK(ew_plan_set_weight(plan, B));
    RANK_OK(ew_gemm_rs(plan, p->max_m, A, NULL, C, NULL));
    RANK_TRY(count_pss(world, &a->after_kib[rank]));
    RANK_OK(ew_exact_verify(p, 1, rank, RANKS, p->max_m, C, &check));
    RANK_CHECK(check.wrong == 0, "%lld wrong", (long long)check.wrong);
    ew_plan_destroy(plan);
    free(A);
    free(B);
    free(C);
    return 0;
}

static void check_memory(const ew_problem *problem, int32_t workers)
{
    if (IS_SANITIZED)
        skip(); /* a sanitizer's shadow is memory too */
    account *a = harness_share(sizeof *a);
    ew_forecast forecast;
    *a = (account){.problem = *problem, .config = EW_CONFIG_INIT};
    a->config.workers = workers;
    assert_int_equal(ew_forecast_build(problem, RANKS, &a->config, &forecast), EW_OK);
    assert_true(forecast.total_bytes >= (size_t)64 << 20);
    harness_run(EW_RANKS_AS_PROCESSES, RANKS, body, a);
    double taken = 0;
    for (int rank = 0; rank < RANKS; rank++)
        taken += 1024.0 * (double)(a->after_kib[rank] - a->before_kib[rank]);
    const double promised = (double)RANKS * (double)forecast.total_bytes;
    print_message("%s: promised %.1f MiB, taken %.1f MiB (%+.2f %%)\n",
                  ew_dtype_name(problem->dtype), promised / 1048576, taken / 1048576,
                  100 * (taken / promised - 1));
    assert_true(taken > 0.95 * promised && taken < 1.05 * promised);
    harness_unshare(a, sizeof *a);
}

static void a_large_output_in_fp32(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(4096, 2048, 256, EW_FP32);
    check_memory(&problem, 1);
}

static void a_large_output_in_bf16(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(4096, 4096, 256, EW_BF16);
    check_memory(&problem, 2);
}

/* ---- One weight of 64 MiB in plans for 1 to 1025 rows ---- */

enum { SIDE = 4096, MOST_ROWS = 1025, MAX_PLANS = 16 };

typedef struct weight_account {
    double weight_mib, copies, left_copies;
} weight_account;

/* What the plan of that size takes without a weight, and the plan. */
static int open_plan(ew_world *world, int64_t rows, ew_plan **plan_out, size_t *bytes)
{
    const ew_problem problem = EW_PROBLEM(rows, SIDE, SIDE, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    ew_forecast forecast;
    config.workers = 1;
    RANK_OK(ew_forecast_build(&problem, 1, &config, &forecast));
    RANK_OK(ew_plan_create(world, &problem, &config, plan_out));
    *bytes += forecast.total_bytes - forecast.weight_bytes;
    return 0;
}

static int use_in_plans(ew_world *world, ew_weight *weight, const float *A, float *C,
                        ew_plan **plans, size_t *plans_bytes)
{
    const ew_problem problem = EW_PROBLEM(MOST_ROWS, SIDE, SIDE, EW_FP32);
    int count = 0;
    for (int64_t rows = 1; rows <= MOST_ROWS; rows = rows == 1024 ? 1025 : 2 * rows) {
        ew_check check;
        RANK_TRY(open_plan(world, rows, &plans[count], plans_bytes));
        RANK_OK(ew_plan_bind_weight(plans[count], weight));
        RANK_OK(ew_gemm_rs(plans[count++], rows, A, NULL, C, NULL));
        RANK_OK(ew_exact_verify(&problem, 1, 0, 1, rows, C, &check));
        RANK_CHECK(check.wrong == 0, "%lld rows: %lld wrong", (long long)rows,
                   (long long)check.wrong);
    }
    return 0;
}

static int weight_body(ew_world *world, void *argument)
{
    weight_account *a = argument;
    const ew_problem problem = EW_PROBLEM(1, SIDE, SIDE, EW_FP32);
    const size_t bytes = (size_t)SIDE * SIDE * sizeof(float);
    float *A = malloc(MOST_ROWS * SIDE * sizeof *A), *B = malloc(bytes);
    float *C = calloc(MOST_ROWS * SIDE, sizeof *C);
    ew_plan *plans[MAX_PLANS] = {0};
    ew_weight *weight;
    size_t plans_bytes = 0;
    long before_kib, with_kib, without_kib;
    RANK_CHECK(A && B && C, "no memory");
    RANK_OK(ew_exact_fill_a(EW_FP32, 1, 0, 1, MOST_ROWS, SIDE, A));
    RANK_OK(ew_exact_fill_b(EW_FP32, 1, 0, EW_WEIGHT_NK, SIDE, SIDE, B));
    memset(C, 0xff, MOST_ROWS * SIDE * sizeof *C);
    RANK_TRY(count_pss(world, &before_kib));
    RANK_OK(ew_weight_create(world, &problem, NULL, B, &weight));
    RANK_TRY(use_in_plans(world, weight, A, C, plans, &plans_bytes));
    RANK_TRY(count_pss(world, &with_kib));
    const double packed = (double)ew_weight_bytes(weight);
    ew_weight_destroy(weight);
    RANK_TRY(count_pss(world, &without_kib));
    a->weight_mib = (double)bytes / 1048576;
    a->copies = (1024.0 * (double)(with_kib - before_kib) - (double)plans_bytes) / packed;
    a->left_copies =
        (1024.0 * (double)(without_kib - before_kib) - (double)plans_bytes) / packed;
    for (int i = 0; i < MAX_PLANS; i++)
        ew_plan_destroy(plans[i]);
    free(A);
    free(B);
    free(C);
    return 0;
}

static void one_weight_for_every_number_of_rows(void **state)
{
    (void)state;
    if (IS_SANITIZED)
        skip();
    weight_account *a = harness_share(sizeof *a);
    harness_run(EW_RANKS_AS_PROCESSES, 1, weight_body, a);
    print_message("a weight of %.0f MiB in 12 plans: %.2f packed copies, %.2f when it is "
                  "gone\n",
                  a->weight_mib, a->copies, a->left_copies);
    assert_true(a->copies > 0.9 && a->copies <= 1.1);
    assert_true(a->left_copies < 0.1);
    harness_unshare(a, sizeof *a);
}

/* Most of it is packed operands, not heap. */
static void deep_operands(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 1000, 8000, EW_FP32);
    check_memory(&problem, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_large_output_in_fp32),
        cmocka_unit_test(a_large_output_in_bf16),
        cmocka_unit_test(deep_operands),
        cmocka_unit_test(one_weight_for_every_number_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
