#include "backend/cpu/kernels/store_avx512.h"

#if defined(__x86_64__)

#include "backend/cpu/kernels/convert_avx512.h"
#include "backend/cpu/kernels/portable.h"

EWX_AVX512_CODE void ewx_store_bf16_avx512(const float *acc, int64_t stride, int rows,
                                           int cols, uint16_t *dst, int64_t dst_stride)
{
    const int whole = cols - cols % EWX_SIXTEEN;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < whole; j += EWX_SIXTEEN)
            ewx_sixteen_store_bf16(_mm512_loadu_ps(acc + i * stride + j),
                                   dst + i * dst_stride + j);
    ewx_store_bf16(acc + whole, stride, rows, cols - whole, dst + whole, dst_stride);
}

EWX_AVX512_CODE void ewx_store_fp16_avx512(const float *acc, int64_t stride, int rows,
                                           int cols, uint16_t *dst, int64_t dst_stride)
{
    const int whole = cols - cols % EWX_SIXTEEN;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < whole; j += EWX_SIXTEEN)
            ewx_sixteen_store_fp16(_mm512_loadu_ps(acc + i * stride + j),
                                   dst + i * dst_stride + j);
    ewx_store_fp16(acc + whole, stride, rows, cols - whole, dst + whole, dst_stride);
}

#endif
