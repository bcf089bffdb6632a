/* The conversions of base/dtype.h with AVX-512, sixteen elements at a time.  Elsewhere
 * ewx_has_avx512 is false and the rest is not there. */
#ifndef EWX_CPU_CONVERT_AVX512_H
#define EWX_CPU_CONVERT_AVX512_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__x86_64__)

#include <immintrin.h>

#define EWX_AVX512_CODE __attribute__((target("avx512f")))

enum { EWX_SIXTEEN = 16 };

static inline bool ewx_has_avx512(void)
{
    return __builtin_cpu_supports("avx512f");
}

EWX_AVX512_CODE static inline __m512 ewx_sixteen_load_bf16(const uint16_t *src)
{
    const __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)src);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

EWX_AVX512_CODE static inline __m512 ewx_sixteen_load_fp16(const uint16_t *src)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)src));
}

/* By integers: VCVTNEPS2BF16 makes subnormals zero, and not all have it. */
EWX_AVX512_CODE static inline void ewx_sixteen_store_bf16(__m512 value, uint16_t *dst)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i chosen =
        _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    _mm256_storeu_si256((__m256i *)(void *)dst,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}

EWX_AVX512_CODE static inline void ewx_sixteen_store_fp16(__m512 value, uint16_t *dst)
{
    _mm256_storeu_si256(
        (__m256i *)(void *)dst,
        _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#else

static inline bool ewx_has_avx512(void)
{
    return false;
}

#endif

#endif
