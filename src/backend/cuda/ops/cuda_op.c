/* All operations that run on GPUs. */
#include "backend/cuda/ops/cuda_op.h"

static const ewx_cuda_op *const ops[] = {&ewx_cuda_op_gemm_rs, &ewx_cuda_op_gemm_ar,
                                         &ewx_cuda_op_ag_gemm};

const ewx_cuda_op *ewx_cuda_op_find(ew_op id)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i]->id == id)
            return ops[i];
    return NULL;
}
