/* The public view of the CPU backend's GEMMs: its own kernels, and the BLAS it has found.
 */
#include "backend/cpu/cpu_blas.h"
#include "backend/cpu/kernels/kernel.h"
#include "entwine/measure.h"

const char *ew_cpu_kernel_name(ew_dtype dtype)
{
    const ewx_kernel *kernel = ewx_kernel_select(dtype, NULL);
    return kernel ? kernel->name : "none";
}

const char *ew_cpu_kernel_refusal(ew_dtype dtype)
{
    return ewx_kernel_refusal(dtype);
}

const char *ew_blas_name(void)
{
    return ewx_blas_name();
}

ew_status ew_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                       const float *A, const float *B, float *C, int64_t c_stride)
{
    return ewx_blas_gemm(layout, m, n, k, A, B, C, c_stride);
}
