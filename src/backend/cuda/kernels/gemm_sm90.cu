/* The GEMM for Hopper, with one weight or several.  Two more forms are compiled beside it:
 * gemm_sm90_pieces.cu and gemm_sm90_adding.cu. */
#include "backend/cuda/kernels/gemm_sm90.cuh"
#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

ewx_cuda_entry ewx_cuda_gemm_sm90(ew_op op, ewx_cuda_form form, ew_dtype dtype, int block_n,
                                  int cluster)
{
    if (dtype == EW_FP32 || (block_n != 128 && block_n != 256) || cluster < 1 ||
        cluster > 2)
        return {};
    if (form != EWX_CUDA_ONE_WEIGHT && op != EW_OP_AG_GEMM)
        return {};
    if (form == EWX_CUDA_WEIGHTS)
        return entry_of<op_ag_gemm_multi>(dtype, block_n, cluster);
    if (form == EWX_CUDA_ACTIVATES)
        return entry_of<op_ag_gemm_act>(dtype, block_n, cluster);
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<op_gemm_rs>(dtype, block_n, cluster);
    case EW_OP_GEMM_AR:
        return entry_of<op_gemm_ar>(dtype, block_n, cluster);
    case EW_OP_AG_GEMM:
        return entry_of<op_ag_gemm>(dtype, block_n, cluster);
    }
    return {};
}
