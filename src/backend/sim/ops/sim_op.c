#include "backend/sim/ops/sim_op.h"

/* By operation: for GPUs, for CPUs. */
static const ewx_sim_op *const programs[][2] = {
    [EW_OP_GEMM_RS] = {&ewx_sim_gemm_rs, &ewx_sim_gemm_rs},
    [EW_OP_GEMM_AR] = {&ewx_sim_gemm_ar, &ewx_sim_gemm_ar},
    [EW_OP_AG_GEMM] = {&ewx_sim_ag_push, &ewx_sim_ag_gemm}};

const ewx_sim_op *ewx_sim_op_of(const ewx_spec *spec, bool is_cpu)
{
    const size_t id = (size_t)spec->op->id;
    return id < sizeof programs / sizeof *programs ? programs[id][is_cpu] : NULL;
}
