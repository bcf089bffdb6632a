/* The GEMM for Hopper whose tiles are added to the sums of their owners: the templates of
 * gemm_sm90.cu for other operations, compiled beside them. */
#define EWX_SM90_ADDING
#include "backend/cuda/kernels/gemm_sm90.cu"
