/* Operations as values: what each says of rows, bytes and results must fit together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "entwine/measure.h"
#include "plan/spec.h"

enum { SEED = 3, N = 24, K = 16 };

static void rows_of_c_cover_the_output_once(void **state)
{
    (void)state;
    for (int W = 1; W <= 9; W++)
        for (int64_t m = 0; m <= 40; m++) {
            int64_t next = 0;
            for (int rank = 0; rank < W; rank++) {
                const ewx_rows rows = ewx_op_gemm_rs.rows_c(m, W, rank);
                int64_t first, count;
                assert_int_equal(rows.first, next);
                next += rows.count;
                assert_int_equal(ew_owned_rows(m, W, rank, &first, &count), EW_OK);
                assert_int_equal(rows.first, first);
                assert_int_equal(rows.count, count);
                assert_int_equal(ewx_op_gemm_rs.rows_a(m, W, rank).count, m);
            }
            assert_int_equal(next, m);
        }
}

/* What each rank gets from the others, averaged: all but its own contribution. */
static void remote_bytes_are_those_of_the_owned_rows(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(64, N, K, EW_BF16);
    for (int W = 1; W <= 8; W *= 2) {
        double bytes = 0;
        for (int rank = 0; rank < W; rank++)
            bytes += (double)(ewx_op_gemm_rs.rows_c(64, W, rank).count * N * 2 * (W - 1));
        assert_true(ewx_op_gemm_rs.remote_bytes(&problem, 64, W) == bytes / W);
    }
}

static void check_oracle(int64_t bytes)
{
    enum { W = 3, M = 5 };
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const ewx_exact_call call = {SEED, W, 0, M, ewx_exact_cache_create(&problem, W, bytes)};
    float A[W][M * K], B[W][N * K];
    for (int rank = 0; rank < W; rank++) {
        assert_int_equal(ew_exact_fill_a(EW_FP32, SEED, rank, W, M, K, A[rank]), EW_OK);
        assert_int_equal(ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B[rank]),
                         EW_OK);
    }
    for (int row = 0; row < M; row++) {
        int32_t sums[N];
        ewx_op_gemm_rs.expect_row(&problem, &call, row, sums);
        for (int n = 0; n < N; n++) {
            float sum = 0;
            for (int rank = 0; rank < W; rank++)
                for (int k = 0; k < K; k++)
                    sum += A[rank][row * K + k] * B[rank][n * K + k];
            assert_true(sum == (float)sums[n]);
        }
    }
    free(call.cache);
}

/* Whether every row of B has a place of its own in the cache, or all share one. */
static void the_oracle_is_the_product(void **state)
{
    (void)state;
    check_oracle(1 << 20);
    check_oracle(0);
}

/* Every rank has rows of its own, and its own columns of the product. */
static void the_oracle_of_gathered_rows(void **state)
{
    (void)state;
    enum { W = 3, M = 5 };
    ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    problem.op = EW_OP_AG_GEMM;
    float A[M * K], B[N * K];
    for (int rank = 0; rank < W; rank++) {
        const ewx_rows rows = ewx_op_ag_gemm.rows_a(M, W, rank);
        assert_int_equal(ewx_op_ag_gemm.rows_c(M, W, rank).count, M);
        assert_int_equal(
            ew_exact_fill_a(EW_FP32, SEED, rank, W, rows.count, K, A + rows.first * K),
            EW_OK);
    }
    ewx_exact_call call = {SEED, W, 0, M, ewx_exact_cache_create(&problem, W, 1 << 20)};
    for (int rank = 0; rank < W; rank++) {
        call.rank = rank;
        assert_int_equal(ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B),
                         EW_OK);
        for (int row = 0; row < M; row++) {
            int32_t sums[N];
            ewx_op_ag_gemm.expect_row(&problem, &call, row, sums);
            for (int n = 0; n < N; n++) {
                float sum = 0;
                for (int k = 0; k < K; k++)
                    sum += A[row * K + k] * B[n * K + k];
                assert_true(sum == (float)sums[n]);
            }
        }
    }
    free(call.cache);
    assert_true(ewx_op_ag_gemm.remote_bytes(&problem, 6, W) == 4.0 * K * 4);
}

static void a_rank_keeps_its_own_rows(void **state)
{
    (void)state;
    const ew_config config = {.backend = EW_BACKEND_CPU, .producer = EW_PRODUCER_OWN};
    ew_problem problem = EW_PROBLEM(1000, 300, 70, EW_BF16);
    ewx_layout layout;
    problem.op = EW_OP_AG_GEMM;
    assert_int_equal(ewx_layout_build(&problem, 3, &config, &layout), EW_OK);
    assert_int_equal(layout.num_parts, 3);
    assert_int_equal(layout.num_slots, 3);      /* panels of 334 rows */
    assert_int_equal(layout.slots_per_part, 9); /* tiles of the output */
    assert_int_equal(layout.tile_stride, 70);
    assert_true(layout.segment_bytes - layout.slice_offset[1] >= 334 * 70 * 2);
    assert_true(layout.segment_bytes - layout.slice_offset[1] < 334 * 70 * 2 + 4096);
}

/* A GPU has room for everyone's rows and flags for each of their panels. */
static void a_gpu_keeps_all_rows(void **state)
{
    (void)state;
    ew_config config = {.backend = EW_BACKEND_CUDA, .producer = EW_PRODUCER_OWN};
    ew_problem problem = EW_PROBLEM(1000, 304, 72, EW_BF16);
    const size_t slice = (1000 * 72 * 2 + 32767) / 32768 * 32768;
    ewx_layout layout;
    problem.op = EW_OP_AG_GEMM;
    assert_int_equal(ewx_layout_build(&problem, 3, &config, &layout), EW_OK);
    assert_int_equal(layout.num_slots, 9);
    assert_int_equal(layout.num_chunks, 1);
    assert_int_equal(layout.slice_offset[1] - layout.slice_offset[0], slice);
    assert_int_equal(layout.segment_bytes - layout.slice_offset[1], slice);
    config.producer = EW_PRODUCER_BLAS; /* which does not count calls */
    assert_int_equal(ewx_layout_build(&problem, 3, &config, &layout), EW_OK);
    assert_int_equal(layout.slice_offset[1], layout.slice_offset[0]);
    problem.k = 1048576; /* flags of 2048 chunks have room before the rows */
    assert_int_equal(ewx_layout_build(&problem, 3, &config, &layout), EW_OK);
    assert_int_equal(layout.num_chunks, 2048);
    assert_true(layout.slice_offset[0] >=
                layout.flags_offset + 9 * 2048 * sizeof(uint32_t));
}

static void operations_are_found_by_value_and_others_refused(void **state)
{
    (void)state;
    ew_problem problem = EW_PROBLEM(8, N, K, EW_FP32);
    assert_ptr_equal(ewx_op_of(&problem), &ewx_op_gemm_rs);
    assert_string_equal(ew_op_name(problem.op), "gemm-rs");
    problem.op = (ew_op)77;
    assert_null(ewx_op_find(problem.op));
    assert_string_equal(ew_op_name(problem.op), "unknown");
    assert_int_equal(ewx_problem_check(&problem, 2), EW_ERR_ARGUMENT);
    assert_non_null(strstr(ew_last_error(), "operation 77"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_c_cover_the_output_once),
        cmocka_unit_test(remote_bytes_are_those_of_the_owned_rows),
        cmocka_unit_test(the_oracle_is_the_product),
        cmocka_unit_test(the_oracle_of_gathered_rows),
        cmocka_unit_test(a_rank_keeps_its_own_rows),
        cmocka_unit_test(a_gpu_keeps_all_rows),
        cmocka_unit_test(operations_are_found_by_value_and_others_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
