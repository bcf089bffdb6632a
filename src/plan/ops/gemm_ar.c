/* GEMM, then AllReduce.  As GEMM-ReduceScatter, but every rank gets the whole sum, so its
 * rows need not be dealt out: the grid has one part, and ranks share its tiles as it suits
 * them (ownership.h).  What crosses are contributions, and in two shots the sums. */
#include "plan/ops/op.h"

static int only_part(int num_ranks)
{
    (void)num_ranks;
    return 1;
}

/* In two shots: contributions to this rank's tiles, and the sums of the others'. */
static double remote_bytes(const ew_problem *problem, int64_t m, int num_ranks)
{
    return 2.0 * (num_ranks - 1) / num_ranks * (double)m * (double)problem->n *
           (double)ew_dtype_bytes(problem->dtype);
}

const ewx_op ewx_op_gemm_ar = {.id = EW_OP_GEMM_AR,
                               .name = "gemm-ar",
                               .function = "ew_gemm_ar",
                               .rows_a = ewx_rows_all,
                               .rows_c = ewx_rows_all,
                               .exchanged_cols = ewx_cols_n,
                               .num_parts = only_part,
                               .gemm_waits = false,
                               .remote_bytes = remote_bytes,
                               .expect_row = ewx_expect_sum};
