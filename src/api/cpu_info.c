/* The public view of what the CPU backend has: its own kernels, the BLAS it has found, and
 * domains. */
#include <inttypes.h>

#include "backend/cpu/cpu_blas.h"
#include "backend/cpu/kernels/kernel.h"
#include "base/limits.h"
#include "base/status.h"
#include "entwine/measure.h"
#include "world/places.h"

const char *ew_cpu_kernel_name(ew_dtype dtype)
{
    const ewx_kernel *kernel =
        ew_dtype_bytes(dtype) > 0 ? ewx_kernel_select(dtype, NULL) : NULL;
    return kernel ? kernel->name : "none";
}

const char *ew_cpu_kernel_refusal(ew_dtype dtype)
{
    return ewx_kernel_refusal(dtype);
}

ew_status ew_numa_describe(int num_ranks, ew_numa *numa_out)
{
    int all = 0, most = 0;
    if (!numa_out || num_ranks < 1 || num_ranks > EWX_MAX_RANKS)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_numa_describe needs a place for its answer and 1 to %d ranks, "
                        "not %d",
                        EWX_MAX_RANKS, num_ranks);
    (void)ewx_places_forecast(1, &all);
    (void)ewx_places_forecast(num_ranks, &most);
    *numa_out = (ew_numa){
        .domains = all, .domains_per_rank = most, .unknown = ewx_domains_find()->why};
    return EW_OK;
}

const char *ew_blas_name(void)
{
    return ewx_blas_name();
}

/* What a BLAS would answer with a line on stderr, or not at all. */
static ew_status check_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                                 int64_t c_stride)
{
    if (layout != EW_WEIGHT_NK && layout != EW_WEIGHT_KN)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "weight layout %d is unknown\n  fix: use EW_WEIGHT_NK or EW_WEIGHT_KN",
            (int)layout);
    if (m < 0 || n < 1 || k < 1)
        return ewx_fail(EW_ERR_SHAPE,
                        "ew_blas_gemm cannot multiply m=%" PRId64 ", n=%" PRId64
                        ", k=%" PRId64 "\n  fix: use m from 0, n and k from 1",
                        m, n, k);
    if (c_stride < n)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "c_stride=%" PRId64 " is less than the n=%" PRId64
                        " elements of a row\n  fix: use n or more",
                        c_stride, n);
    return EW_OK;
}

ew_status ew_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                       const float *A, const float *B, float *C, int64_t c_stride)
{
    EW_TRY(check_blas_gemm(layout, m, n, k, c_stride));
    if (m == 0)
        return EW_OK;
    if (!A || !B || !C)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "ew_blas_gemm needs A, B and C for m=%" PRId64 "\n  fix: pass all three", m);
    return ewx_blas_gemm(layout, m, n, k, A, B, C, c_stride);
}
