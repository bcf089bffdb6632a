/* AllGather, then GEMM.  Every rank has some rows of A and columns of the weight of its
 * own, and multiplies all rows with them: nothing is summed.  What crosses are rows of A;
 * each rank keeps its own in the heap, and the GEMMs of the others wait for them.  A part
 * of the grid is one rank's rows. */
#include <string.h>

#include "plan/ops/op.h"

static int64_t cols_k(const ew_problem *problem)
{
    return problem->k;
}

static int part_per_rank(int num_ranks)
{
    return num_ranks;
}

/* The rows of all others, averaged over the ranks. */
static double remote_bytes(const ew_problem *problem, int64_t m, int num_ranks)
{
    return (double)(num_ranks - 1) / num_ranks * (double)m * (double)problem->k *
           (double)ew_dtype_bytes(problem->dtype);
}

/* Every rank's exact A has rows 0, 1, ... of its own. */
static void expect_row(const ew_problem *problem, const ewx_exact_call *call, int64_t row,
                       int32_t *sums_out)
{
    memset(sums_out, 0, (size_t)problem->n * sizeof *sums_out);
    for (int src = 0; src < call->num_ranks; src++) {
        const ewx_rows rows = ewx_rows_dealt(call->m, call->num_ranks, src);
        if (row >= rows.first && row < rows.first + rows.count)
            ewx_expect_add(problem, call, src, row - rows.first, call->rank, sums_out);
    }
}

const ewx_op ewx_op_ag_gemm = {.id = EW_OP_AG_GEMM,
                               .name = "ag-gemm",
                               .function = "ew_ag_gemm",
                               .rows_a = ewx_rows_dealt,
                               .rows_c = ewx_rows_all,
                               .exchanged_cols = cols_k,
                               .num_parts = part_per_rank,
                               .gemm_waits = true,
                               .remote_bytes = remote_bytes,
                               .expect_row = expect_row};
