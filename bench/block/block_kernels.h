/* Kernels of block_bench: what the rivals need beside the library's, and the comparison of
 * results. */
#ifndef BLOCK_KERNELS_H
#define BLOCK_KERNELS_H

#include "backend/cuda/kernels/kernels.h"

typedef struct block_verdict {
    unsigned long long different; /* elements */
    unsigned worst_bits;          /* of the largest |difference|, a float ... */
    unsigned largest_bits;        /* ... and of the largest |other| */
} block_verdict;

#ifdef __cplusplus
extern "C" {
#endif
/* (const void *wide [rows x 2 cols], void *out [rows x cols], int64_t rows, int64_t cols):
 * in bf16; cols a multiple of 8 */
ewx_cuda_entry block_swiglu_kernel(void);
/* (const void *one, const void *other, int64_t count, block_verdict *): bf16; added to what
 * is there */
ewx_cuda_entry block_compare_kernel(void);
#ifdef __cplusplus
}
#endif

#endif
