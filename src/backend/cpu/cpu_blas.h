/* A packaged BLAS, found at run time and never required: the baseline's GEMM. */
#ifndef EWX_CPU_BLAS_H
#define EWX_CPU_BLAS_H

#include "entwine/entwine.h"

/* File name of the BLAS in use, or NULL. */
const char *ewx_blas_name(void);

/* EW_ERR_UNSUPPORTED where there is none, or not the one that ENTWINE_BLAS asks for. */
ew_status ewx_blas_check(void);

void ewx_blas_set_threads(int threads);

/* C[m x n], row stride c_stride, = A[m x k] * B, B as the layout says; row-major fp32. */
ew_status ewx_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                        const float *A, const float *B, float *C, int64_t c_stride);

#endif
