/* cuBLAS, found at run time: the vendor's GEMM as a producer. */
#ifndef EWX_CUDA_BLAS_H
#define EWX_CUDA_BLAS_H

#include "backend/cuda/blas_search.h"

typedef struct ewx_cuda_blas {
    void *handle;
    void *workspace;
    ewx_blas_choice choice; /* for calls of this many rows; others get cuBLAS's own */
} ewx_cuda_blas;

/* EW_ERR_UNSUPPORTED when there is none. */
ew_status ewx_cuda_blas_check(void);

/* The device is entered. */
ew_status ewx_cuda_blas_open(ewx_cuda_blas *blas, const ewx_device *device);
void ewx_cuda_blas_close(ewx_cuda_blas *blas); /* half-open is fine */

/* Collective.  Finds the fastest algorithm for the shape: reads A and B and overwrites C.
 */
ew_status ewx_cuda_blas_tune(ewx_cuda_blas *blas, ew_world *world, const ewx_device *device,
                             ewx_blas_shape shape, const void *A, const void *B, void *C);

/* C[m x n] = A[m x k] * B[n x k]^T, all row-major, enqueued on the stream. */
ew_status ewx_cuda_blas_gemm(const ewx_cuda_blas *blas, ew_dtype dtype, int64_t m,
                             int64_t n, int64_t k, const void *A, const void *B, void *C,
                             cudaStream_t stream);

/* C[m x n] = A[k x m]^T * B[k x n], likewise: the gradient of a weight, for benchmarks of
 * training. */
ew_status ewx_cuda_blas_gradient(const ewx_cuda_blas *blas, ew_dtype dtype, int64_t m,
                                 int64_t n, int64_t k, const void *A, const void *B,
                                 void *C, cudaStream_t stream);

#endif
