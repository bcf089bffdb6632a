/* GEMM, then AllReduce.  First what other ranks wait for: rows that this one normalises,
 * tiles that it sums, then blocks; last the others' results. */
#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/ops/cpu_ops.h"
#include "plan/policy.h"

/* Rows whose residual only one rank may have are finished there; a rank without rows need
 * not have one. */
static ewx_ownership ownership(const ewx_spec *spec, const ewx_call *asked)
{
    const ew_epilogue *epilogue = asked->epilogue;
    if (epilogue && epilogue->norm_weight && epilogue->residual_rows == EW_RESIDUAL_OWNED)
        return EWX_OWNS_ROWS;
    return ewx_spec_ownership(spec, asked->m);
}

const ewx_cpu_op ewx_cpu_gemm_ar = {
    .id = EW_OP_GEMM_AR,
    .ownership = ownership,
    .num_work = 4,
    .work = {{.role = EWX_ROLE_REDUCE,
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
              .is_done = ewx_gemm_stage_is_done},
             {.role = EWX_ROLE_REDUCE,
              .prepare = ewx_collect_stage_prepare,
              .some = ewx_collect_stage_some,
              .is_done = ewx_collect_stage_is_done}},
};
