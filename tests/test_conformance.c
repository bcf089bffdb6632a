/* The CPU engine against exact results, bit for bit: every pair of option values meets in
 * at least one trial, random combinations follow, and a plain integer product vouches for
 * the exact inputs themselves. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "conformance.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))

/* ---- Trials ---- */

static void run_it(void *context, const trial *t)
{
    (void)context;
    trial_run(t);
}

static void every_pair_of_options(void **state)
{
    (void)state;
    const int trials = conformance_every_pair(&conformance_cpu, run_it, NULL);
    print_message("%d trials cover every pair\n", trials);
}

static void random_combinations(void **state)
{
    (void)state;
    conformance_random(&conformance_cpu, 100, run_it, NULL);
}

static void whole_output_through_blas(void **state)
{
    (void)state;
    if (!ew_blas_name())
        skip();
    for (int W = 1; W <= 3; W++)
        for (int layout = EW_WEIGHT_NK; layout <= EW_WEIGHT_KN; layout++)
            for (int way = 0; way < 3; way++) {
                trial t = {.kind = EW_RANKS_AS_PROCESSES,
                           .num_ranks = W,
                           .problem = EW_PROBLEM(131 * W + 1, 150, 40, EW_FP32),
                           .config = EW_CONFIG_INIT,
                           .weight_per_call = way == 1,
                           .weight_bound = way == 2,
                           .seed = 5,
                           .num_calls = 4,
                           .rows = {131 * W + 1, 1, 0, 130 * W}};
                t.problem.weight_layout = (ew_weight_layout)layout;
                t.config.producer = EW_PRODUCER_BLAS;
                t.config.workers = 1;
                trial_run(&t);
            }
}

/* ---- Without ew_exact_*: a plain integer product ---- */

typedef struct plain_case {
    ew_problem problem;
    uint64_t seed;
} plain_case;

/* In {-1, 0, 1}: at most W * K <= 256 in magnitude, which every type holds. */
static int plain_value(uint64_t seed, int rank, int operand, int64_t row, int64_t k)
{
    harness_random random = harness_seed(
        seed * 1000003u + (uint64_t)rank * 10007u + (uint64_t)operand * 77777777u +
        (uint64_t)row * 1299709u + (uint64_t)k * 15485863u);
    return (int)harness_between(&random, -1, 1);
}

static void put(ew_dtype dtype, void *base, int64_t at, int value)
{
    if (dtype == EW_FP32)
        ((float *)base)[at] = (float)value;
    else
        ((uint16_t *)base)[at] = dtype == EW_BF16 ? ewx_bf16_from_f32((float)value)
                                                  : ewx_fp16_from_f32((float)value);
}

static double get(ew_dtype dtype, const void *base, int64_t at)
{
    if (dtype == EW_FP32)
        return ((const float *)base)[at];
    const uint16_t half = ((const uint16_t *)base)[at];
    return dtype == EW_BF16 ? ewx_f32_from_bf16(half) : ewx_f32_from_fp16(half);
}

static int plain_expected(const plain_case *pc, int W, int64_t row, int64_t col)
{
    int sum = 0;
    for (int rank = 0; rank < W; rank++)
        for (int64_t k = 0; k < pc->problem.k; k++)
            sum += plain_value(pc->seed, rank, 0, row, k) *
                   plain_value(pc->seed, rank, 1, col, k);
    return sum;
}

static int plain_body(ew_world *world, void *argument)
{
    const plain_case *pc = argument;
    const ew_problem *p = &pc->problem;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    const size_t elem = ew_dtype_bytes(p->dtype);
    const bool nk = p->weight_layout == EW_WEIGHT_NK;
    int64_t first, count;
    RANK_OK(ew_owned_rows(p->max_m, W, rank, &first, &count));
    guarded A, B, C;
    RANK_TRY(
        guarded_create(&A, world, EW_BACKEND_CPU, (size_t)(p->max_m * p->k) * elem, elem));
    RANK_TRY(guarded_create(&B, world, EW_BACKEND_CPU, (size_t)(p->n * p->k) * elem, elem));
    RANK_TRY(
        guarded_create(&C, world, EW_BACKEND_CPU, (size_t)(count * p->n) * elem, elem));
    for (int64_t k = 0; k < p->k; k++) {
        for (int64_t row = 0; row < p->max_m; row++)
            put(p->dtype, A.data, row * p->k + k, plain_value(pc->seed, rank, 0, row, k));
        for (int64_t col = 0; col < p->n; col++)
            put(p->dtype, B.data, nk ? col * p->k + k : k * p->n + col,
                plain_value(pc->seed, rank, 1, col, k));
    }
    RANK_TRY(guarded_poison(&C));
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, p, NULL, &plan));
    RANK_OK(ew_gemm_rs(plan, p->max_m, A.data, B.data, C.data, NULL));
    for (int64_t row = 0; row < count; row++)
        for (int64_t col = 0; col < p->n; col++) {
            const int want = plain_expected(pc, W, first + row, col);
            const double got = get(p->dtype, C.data, row * p->n + col);
            RANK_CHECK(got == want, "row %lld column %lld: got %g, want %d",
                       (long long)(first + row), (long long)col, got, want);
        }
    RANK_TRY(guarded_check(&C, "C"));
    ew_plan_destroy(plan);
    guarded_destroy(&A);
    guarded_destroy(&B);
    guarded_destroy(&C);
    return 0;
}

static void plain_integer_products(void **state)
{
    (void)state;
    static const struct {
        int W;
        int64_t m, n, k;
    } cases[] = {{1, 9, 11, 7}, {2, 150, 19, 31}, {3, 31, 140, 5}, {4, 7, 3, 64}};
    for (int i = 0; i < COUNT(cases); i++)
        for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++)
            for (int layout = EW_WEIGHT_NK; layout <= EW_WEIGHT_KN; layout++) {
                plain_case pc = {
                    EW_PROBLEM(cases[i].m, cases[i].n, cases[i].k, (ew_dtype)dtype),
                    (uint64_t)i + 1};
                pc.problem.weight_layout = (ew_weight_layout)layout;
                harness_context("plain case %d, %s, layout %d", i,
                                ew_dtype_name((ew_dtype)dtype), layout);
                harness_run(EW_RANKS_AS_PROCESSES, cases[i].W, plain_body, &pc);
            }
}

/* ---- The exact inputs themselves ---- */

enum { EM = 23, EN = 17, EK = 40, EW_ = 3 };

/* The product of what ew_exact_fill_* wrote, with nothing else of exact.c. */
static void multiply_filled(const ew_problem *p, uint32_t seed, int64_t *sums)
{
    const size_t elem = ew_dtype_bytes(p->dtype);
    memset(sums, 0, EM * EN * sizeof *sums);
    void *A = malloc(EM * EK * elem), *B = malloc(EN * EK * elem);
    for (int rank = 0; rank < EW_; rank++) {
        assert_int_equal(ew_exact_fill_a(p->dtype, seed, rank, EW_, EM, EK, A), EW_OK);
        assert_int_equal(ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, EN, EK, B),
                         EW_OK);
        for (int64_t row = 0; row < EM; row++)
            for (int64_t col = 0; col < EN; col++)
                for (int64_t k = 0; k < EK; k++)
                    sums[row * EN + col] +=
                        (int64_t)get(p->dtype, A, row * EK + k) *
                        (int64_t)get(p->dtype, B,
                                     p->weight_layout == EW_WEIGHT_NK ? col * EK + k
                                                                      : k * EN + col);
    }
    free(A);
    free(B);
}

static void exact_results_are_the_product_of_exact_inputs(void **state)
{
    (void)state;
    int64_t sums[EM * EN];
    unsigned char C[EM * EN * 4];
    for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++)
        for (int layout = EW_WEIGHT_NK; layout <= EW_WEIGHT_KN; layout++) {
            ew_problem p = EW_PROBLEM(EM, EN, EK, (ew_dtype)dtype);
            p.weight_layout = (ew_weight_layout)layout;
            multiply_filled(&p, 42, sums);
            int64_t nonzero = 0;
            for (int rank = 0; rank < EW_; rank++) {
                int64_t first, count;
                assert_int_equal(ew_owned_rows(EM, EW_, rank, &first, &count), EW_OK);
                for (int64_t i = 0; i < count * EN; i++) {
                    put(p.dtype, C, i, (int)sums[first * EN + i]);
                    nonzero += sums[first * EN + i] != 0;
                }
                ew_check check;
                assert_int_equal(ew_exact_verify(&p, 42, rank, EW_, EM, C, &check), EW_OK);
                assert_int_equal(check.wrong, 0);
                /* Each single change is seen, NaN too. */
                put(p.dtype, C, count * EN - 1, (int)sums[(first + count) * EN - 1] + 1);
                memset(C, 0xff, ew_dtype_bytes(p.dtype));
                assert_int_equal(ew_exact_verify(&p, 42, rank, EW_, EM, C, &check), EW_OK);
                assert_int_equal(check.wrong, 2);
                assert_true(check.max_abs_err != 0.0); /* NaN or at least 1 */
            }
            assert_true(nonzero > EM * EN / 2); /* not a test of zeroes */
        }
}

/* "Elements whose bits differ from the exact result": an exact zero is +0. */
static void negative_zero_is_a_wrong_result(void **state)
{
    (void)state;
    int64_t sums[EM * EN];
    float C[EM * EN];
    const ew_problem p = EW_PROBLEM(EM, EN, EK, EW_FP32);
    int64_t zeroes = 0;
    multiply_filled(&p, 42, sums);
    int64_t first, count;
    assert_int_equal(ew_owned_rows(EM, EW_, 0, &first, &count), EW_OK);
    for (int64_t i = 0; i < count * EN; i++) {
        C[i] = sums[i] == 0 ? -0.0f : (float)sums[i];
        zeroes += sums[i] == 0;
    }
    ew_check check;
    assert_int_equal(ew_exact_verify(&p, 42, 0, EW_, EM, C, &check), EW_OK);
    assert_true(zeroes > 0);
    assert_int_equal(check.wrong, zeroes);
}

static void exact_inputs_of_no_rows_need_no_memory(void **state)
{
    (void)state;
    assert_int_equal(ew_exact_fill_a(EW_FP32, 1, 0, 2, 0, 5, NULL), EW_OK);
    const ew_problem p = EW_PROBLEM(4, 5, 5, EW_FP32);
    ew_check check;
    assert_int_equal(ew_exact_verify(&p, 1, 1, 2, 0, NULL, &check), EW_OK);
    assert_int_equal(check.wrong, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_results_are_the_product_of_exact_inputs),
        cmocka_unit_test(negative_zero_is_a_wrong_result),
        cmocka_unit_test(exact_inputs_of_no_rows_need_no_memory),
        cmocka_unit_test(plain_integer_products),
        cmocka_unit_test(every_pair_of_options),
        cmocka_unit_test(random_combinations),
        cmocka_unit_test(whole_output_through_blas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
