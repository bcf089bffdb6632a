/* The GEMM for Hopper where a rank has several pieces of K. */
#include "backend/cuda/kernels/gemm_sm90.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

ewx_cuda_entry ewx_cuda_gemm_sm90_pieces(ew_op op, ew_dtype dtype, int block_n, int cluster)
{
    if (dtype == EW_FP32)
        return {};
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<in_pieces<op_gemm_rs>>(dtype, block_n, cluster);
    case EW_OP_GEMM_AR:
        return entry_of<in_pieces<op_gemm_ar>>(dtype, block_n, cluster);
    case EW_OP_AG_GEMM:
        break;
    }
    return {};
}
