#include "backend/cpu/kernels/store_avx512.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/kernels/portable.h"

enum { LANES = 16 };

#define AVX512 __attribute__((target("avx512f")))

/* By integers: VCVTNEPS2BF16 makes subnormals zero, and not all have it. */
AVX512 static inline __m256i bf16_from(__m512 value)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i chosen =
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16));
}

AVX512 static inline __m256i fp16_from(__m512 value)
{
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

AVX512 void ewx_store_bf16_avx512(const float *acc, int64_t stride, int rows, int cols,
                                  uint16_t *dst, int64_t dst_stride)
{
    const int whole = cols - cols % LANES;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < whole; j += LANES)
            _mm256_storeu_si256((__m256i *)(void *)(dst + i * dst_stride + j),
                                bf16_from(_mm512_loadu_ps(acc + i * stride + j)));
    ewx_store_bf16(acc + whole, stride, rows, cols - whole, dst + whole, dst_stride);
}

AVX512 void ewx_store_fp16_avx512(const float *acc, int64_t stride, int rows, int cols,
                                  uint16_t *dst, int64_t dst_stride)
{
    const int whole = cols - cols % LANES;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < whole; j += LANES)
            _mm256_storeu_si256((__m256i *)(void *)(dst + i * dst_stride + j),
                                fp16_from(_mm512_loadu_ps(acc + i * stride + j)));
    ewx_store_fp16(acc + whole, stride, rows, cols - whole, dst + whole, dst_stride);
}

#endif
