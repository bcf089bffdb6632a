/* AllGather, then GEMM.  First what other ranks wait for, this rank's rows; then blocks
 * whose rows are there. */
#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/ops/cpu_ops.h"

static ewx_ownership no_sum(const ewx_spec *spec, const ewx_call *asked)
{
    (void)spec, (void)asked;
    return EWX_OWNS_NOTHING;
}

const ewx_cpu_op ewx_cpu_ag_gemm = {
    .id = EW_OP_AG_GEMM,
    .ownership = no_sum,
    .num_work = 2,
    .work = {&ewx_share_rows_work, &ewx_gathered_gemm_work},
};
