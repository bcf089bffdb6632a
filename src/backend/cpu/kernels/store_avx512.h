/* Rounding sums to 16-bit types with AVX-512, shared by the kernels of such machines. */
#ifndef EWX_CPU_STORE_AVX512_H
#define EWX_CPU_STORE_AVX512_H

#include <stdint.h>

/* ewx_kernel.store_bf16 and store_fp16. */
void ewx_store_bf16_avx512(const float *acc, int64_t stride, int rows, int cols,
                           uint16_t *dst, int64_t dst_stride);
void ewx_store_fp16_avx512(const float *acc, int64_t stride, int rows, int cols,
                           uint16_t *dst, int64_t dst_stride);

#endif
