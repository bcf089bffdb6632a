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
    .work = {{.role = EWX_ROLE_REDUCE,
              .prepare = ewx_host_sum_prepare,
              .some = ewx_host_sum_some,
              .is_done = ewx_host_sum_is_done},
             {.role = EWX_ROLE_REDUCE,
              .prepare = ewx_epilogue_stage_prepare,
              .some = ewx_epilogue_stage_some,
              .is_done = ewx_epilogue_stage_is_done},
             {.role = EWX_ROLE_REDUCE,
              .prepare = ewx_reduce_stage_prepare,
              .some = ewx_reduce_stage_some,
              .is_done = ewx_reduce_stage_is_done},
             {.role = EWX_ROLE_COMPUTE,
              .prepare = ewx_gemm_stage_prepare,
              .some = ewx_gemm_stage_some,
              .is_done = ewx_gemm_stage_is_done}},
};
