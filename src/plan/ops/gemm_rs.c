/* GEMM, then ReduceScatter.  Every rank multiplies all m rows of its A with its B; the sum
 * over the ranks is scattered by rows.  What crosses are contributions, m x N of each rank:
 * those to a part are awaited by the rank that owns it. */
#include <string.h>

#include "plan/exact.h"
#include "plan/ops/op.h"

static ewx_rows all_rows(int64_t m, int num_ranks, int rank)
{
    (void)num_ranks, (void)rank;
    return (ewx_rows){0, m};
}

static int64_t contribution_cols(const ew_problem *problem)
{
    return problem->n;
}

static int part_per_rank(int num_ranks)
{
    return num_ranks;
}

/* The paper's Eq. 2, averaged over the ranks. */
static double remote_bytes(const ew_problem *problem, int64_t m, int num_ranks)
{
    return (double)(num_ranks - 1) / num_ranks * (double)m * (double)problem->n *
           (double)ew_dtype_bytes(problem->dtype);
}

static void expect_row(const ew_problem *problem, uint32_t seed, int num_ranks, int64_t row,
                       int32_t *sums_out)
{
    memset(sums_out, 0, (size_t)problem->n * sizeof *sums_out);
    for (int rank = 0; rank < num_ranks; rank++) {
        const uint32_t salt = ewx_exact_salt(seed, rank);
        for (int s = 0; s < ewx_exact_entries(num_ranks); s++) {
            const ewx_exact_entry e = ewx_exact_a(salt, row, s, problem->k);
            const uint32_t k_hash = ewx_exact_k_hash(e.k);
            for (int64_t n = 0; n < problem->n; n++)
                sums_out[n] += e.sign * ewx_exact_b(salt, (uint32_t)n, k_hash);
        }
    }
}

const ewx_op ewx_op_gemm_rs = {.id = EW_OP_GEMM_RS,
                               .name = "gemm-rs",
                               .function = "ew_gemm_rs",
                               .rows_a = all_rows,
                               .rows_c = ewx_rows_dealt,
                               .exchanged_cols = contribution_cols,
                               .num_parts = part_per_rank,
                               .gemm_waits = false,
                               .remote_bytes = remote_bytes,
                               .expect_row = expect_row};
