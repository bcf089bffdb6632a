/* Symmetric memory on the CPU, where it is plain memory: ranks agree on it as they do where
 * it matters, and calls take it like any other. */
#include "harness.h"

#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

enum { W = 3, M = 130, N = 40, K = 24 };
#define CPU EW_BACKEND_CPU

static int expect_status(ew_world *world, ew_status status, ew_status wanted,
                         const char *part)
{
    RANK_CHECK(status == wanted && (wanted == EW_OK || strstr(ew_last_error(), part)),
               "%s: %s", ew_status_name(status), status ? ew_last_error() : "no error");
    return 0;
}

static int refuse(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world);
    void *memory = NULL, *pointers[W] = {NULL};
    (void)argument;
    RANK_TRY(expect_status(world, ew_alloc(world, CPU, rank == 1 ? 96 : 64, &memory),
                           EW_ERR_MISMATCH, "for 64"));
    RANK_CHECK(!memory, "memory was written");
    RANK_CHECK(strstr(ew_last_error(), "rank 1") && strstr(ew_last_error(), "96"),
               "%s does not name both", ew_last_error());
    RANK_TRY(expect_status(world, ew_alloc(world, CPU, 64, rank == 2 ? NULL : &memory),
                           EW_ERR_ARGUMENT, rank == 2 ? "a place" : "rank 2"));
    RANK_TRY(expect_status(world, ew_alloc(world, (ew_backend)77, 64, &memory),
                           EW_ERR_CONFIG, "backend=77"));
    RANK_TRY(expect_status(world, ew_import(world, CPU, pointers, 64), EW_ERR_UNSUPPORTED,
                           "as it is"));
    RANK_OK(ew_free(world, CPU, NULL));
    RANK_OK(ew_world_barrier(world)); /* it is as usable as before */
    return 0;
}

static void test_refusals(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, W, refuse, NULL);
    harness_run(EW_RANKS_AS_PROCESSES, W, refuse, NULL);
}

static int compute(ew_world *world, void *argument)
{
    static float A[W][M * K], B[W][N * K];
    const int rank = ew_world_rank(world);
    ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_plan *plan;
    ew_check check;
    void *C;
    (void)argument;
    problem.op = EW_OP_GEMM_AR;
    RANK_OK(ew_exact_fill_a(EW_FP32, 1, rank, W, M, K, A[rank]));
    RANK_OK(ew_exact_fill_b(EW_FP32, 1, rank, EW_WEIGHT_NK, N, K, B[rank]));
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    RANK_OK(ew_alloc(world, CPU, M * N * sizeof(float), &C));
    memset(C, 0xff, M * N * sizeof(float));
    RANK_OK(ew_gemm_ar(plan, M, A[rank], B[rank], C, NULL));
    RANK_OK(ew_exact_verify(&problem, 1, rank, W, M, C, &check));
    RANK_CHECK(check.wrong == 0, "%lld wrong", (long long)check.wrong);
    RANK_OK(ew_free(world, CPU, C));
    ew_plan_destroy(plan);
    return 0;
}

static void test_output(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, W, compute, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_output)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
