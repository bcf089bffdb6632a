/* The GEMM for Hopper whose tiles are added to the sums of their owners. */
#include "backend/cuda/kernels/gemm_sm90.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

ewx_cuda_entry ewx_cuda_gemm_sm90_adding(ew_transport transport, ew_dtype dtype,
                                         int block_n, int cluster)
{
    if (dtype == EW_FP32)
        return {};
    return transport == EW_TRANSPORT_TMA_ADD
               ? entry_of<op_gemm_rs_tma_add>(dtype, block_n, cluster)
               : entry_of<op_gemm_rs_add>(dtype, block_n, cluster);
}
