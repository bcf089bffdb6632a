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
    .shares_steps = true,
    .num_work = 4,
    .work = {&ewx_epilogue_work, &ewx_reduce_work, &ewx_gemm_work, &ewx_collect_work},
};
