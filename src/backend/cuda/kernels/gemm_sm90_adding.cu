/* The GEMM for Hopper where a rank has several pieces of K: the templates of gemm_sm90.cu
 * for other operations, compiled beside them. */
#define EWX_SM90_ADDING
#include "backend/cuda/kernels/gemm_sm90.cu"
