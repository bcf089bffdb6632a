/* All operations that the CPU engine has. */
#include "backend/cpu/ops/cpu_ops.h"

static const ewx_cpu_op *const ops[] = {&ewx_cpu_gemm_rs, &ewx_cpu_gemm_ar,
                                        &ewx_cpu_ag_gemm};

const ewx_cpu_op *ewx_cpu_op_find(ew_op id)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i]->id == id)
            return ops[i];
    return NULL;
}
