/* GPUs and kernels as tools show them.  Nothing here is needed to compute. */
#ifndef EWX_CUDA_GPU_INFO_H
#define EWX_CUDA_GPU_INFO_H

#include "entwine/measure.h"

/* What the public functions of the same names promise. */
int ewx_cuda_gpu_count(void);
ew_status ewx_cuda_gpu_describe(int index, ew_gpu *gpu_out);
ew_status ewx_cuda_gpu_kernels(int index, ew_gpu_kernel *kernels, int capacity,
                               int *count_out);

#endif
