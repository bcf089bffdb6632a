/* The fastest of cuBLASLt's algorithms for one shape.  cuBLAS takes the first that its
 * heuristics name; a baseline deserves the same effort as our own kernels, which are tuned.
 */
#ifndef EWX_CUDA_BLAS_SEARCH_H
#define EWX_CUDA_BLAS_SEARCH_H

#include "backend/cuda/device.h"

/* C[rows x n] = A[rows x k] * B[n x k]^T, all row-major. */
typedef struct ewx_blas_shape {
    ew_dtype dtype;
    int64_t rows, n, k;
} ewx_blas_shape;

typedef struct ewx_blas_operands {
    const void *A, *B;
    void *C;
    void *workspace;
    size_t workspace_bytes;
    cudaStream_t stream;
} ewx_blas_operands;

/* All zero: none was chosen. */
typedef struct ewx_blas_choice {
    int64_t rows;
    void *operation, *a, *b, *c; /* cuBLASLt's descriptions of it */
    uint64_t algorithm[8];
    int number, count; /* which of how many, from 1 */
    double part;       /* of the first one's time */
} ewx_blas_choice;

/* Collective, on ranks with one shape: all choose the same.  `handle` is cuBLAS's.  Leaves
 * the choice all zero where there is no cuBLASLt, or it knows no algorithm. */
ew_status ewx_blas_search(ew_world *world, const ewx_device *device, void *handle,
                          ewx_blas_shape shape, const ewx_blas_operands *operands,
                          ewx_blas_choice *choice_out);

/* Whether the choice is for these. */
bool ewx_blas_serves(const ewx_blas_choice *choice, int64_t rows,
                     const ewx_blas_operands *operands);

/* Enqueues it; a status of cuBLAS, 0 is success. */
int ewx_blas_launch(void *handle, const ewx_blas_choice *choice,
                    const ewx_blas_operands *operands);

void ewx_blas_forget(ewx_blas_choice *choice);

#endif
