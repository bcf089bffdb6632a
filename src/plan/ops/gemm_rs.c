/* GEMM, then ReduceScatter.  Every rank multiplies all m rows of its A with its B; the sum
 * over the ranks is scattered by rows.  What crosses are contributions, m x N of each rank:
 * those to a part are awaited by the rank that owns it. */
#include "plan/ops/op.h"

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

const ewx_op ewx_op_gemm_rs = {.id = EW_OP_GEMM_RS,
                               .name = "gemm-rs",
                               .function = "ew_gemm_rs",
                               .rows_a = ewx_rows_all,
                               .rows_c = ewx_rows_dealt,
                               .exchanged_cols = ewx_cols_n,
                               .num_parts = part_per_rank,
                               .gemm_waits = false,
                               .remote_bytes = remote_bytes,
                               .expect_row = ewx_expect_sum};
