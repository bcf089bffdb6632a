/* GEMM, then ReduceScatter.  First the sums that another host waits for; then rows of the
 * epilogue and owned tiles, as soon as they can be finished; blocks whenever there is none
 * of that. */
#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/ops/cpu_ops.h"

static ewx_ownership part_per_rank(const ewx_spec *spec, const ewx_call *asked)
{
    (void)spec, (void)asked;
    return EWX_OWNS_PART;
}

const ewx_cpu_op ewx_cpu_gemm_rs = {
    .id = EW_OP_GEMM_RS,
    .ownership = part_per_rank,
    .num_work = 4,
    .work = {&ewx_host_sum_work, &ewx_epilogue_work, &ewx_reduce_work, &ewx_gemm_work},
};
