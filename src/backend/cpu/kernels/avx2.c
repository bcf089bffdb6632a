/* fp32 kernel for x86-64 with AVX2 and FMA; empty elsewhere. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include "backend/cpu/kernels/portable.h"

/* 8 accumulators of 8 floats just cover two FMA pipes with a latency of 4 cycles.  The
 * tile of 6 x 16, which would have more to spare, does not divide 128. */
enum { MR = 4, NR = 16, AHEAD = 8192 };
/* Up to so many bytes are fetched at once: a prefetch for every k takes a seventh of the
 * loads that the core can do. */
enum { BURST = 512 };

#define AVX2 __attribute__((target("avx2,fma,f16c")))

/* One row of the register tile. */
typedef struct row {
    __m256 left, right;
} row;

AVX2 static inline row load_row(const float *acc, bool accumulate)
{
    if (!accumulate)
        return (row){_mm256_setzero_ps(), _mm256_setzero_ps()};
    return (row){_mm256_loadu_ps(acc), _mm256_loadu_ps(acc + 8)};
}

AVX2 static inline void store_row(row sum, float *acc)
{
    _mm256_storeu_ps(acc, sum.left);
    _mm256_storeu_ps(acc + 8, sum.right);
}

AVX2 static inline __m256 load_bf16(const uint16_t *src)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)src);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

AVX2 static inline __m256 load_fp16(const uint16_t *src)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)src));
}

/* B's columns at one k. */
AVX2 static inline __attribute__((always_inline)) row load_columns(ew_dtype type,
                                                                   const char *b)
{
    const uint16_t *half = (const uint16_t *)(const void *)b;
    const float *whole = (const float *)(const void *)b;
    if (type == EW_BF16)
        return (row){load_bf16(half), load_bf16(half + 8)};
    if (type == EW_FP16)
        return (row){load_fp16(half), load_fp16(half + 8)};
    return (row){_mm256_loadu_ps(whole), _mm256_loadu_ps(whole + 8)};
}

AVX2 static inline row multiply_row(row sum, const float *a, row b)
{
    const __m256 value = _mm256_broadcast_ss(a);
    return (row){_mm256_fmadd_ps(value, b.left, sum.left),
                 _mm256_fmadd_ps(value, b.right, sum.right)};
}

/* With a B of that type; inlined with a constant. */
AVX2 static inline __attribute__((always_inline)) void multiply_rows(
    ew_dtype type, int64_t depth, const void *a, const void *b, float *acc, int64_t stride,
    bool accumulate, ewx_ahead ahead)
{
    const size_t columns = NR * (type == EW_FP32 ? sizeof(float) : sizeof(uint16_t));
    const bool streams = !ahead.bytes;
    const char *spot = streams ? (const char *)b + AHEAD : ahead.at;
    const size_t step = streams               ? columns
                        : ahead.bytes > BURST ? ahead.bytes / (size_t)depth
                                              : 0;
    if (!step)
        ewx_prefetch(ahead);
    const float *pa = a;
    const char *pb = b;
    row sum0 = load_row(acc, accumulate);
    row sum1 = load_row(acc + stride, accumulate);
    row sum2 = load_row(acc + 2 * stride, accumulate);
    row sum3 = load_row(acc + 3 * stride, accumulate);
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += columns) {
        if (step) {
            __builtin_prefetch(spot);
            spot += step;
        }
        const row at_k = load_columns(type, pb);
        sum0 = multiply_row(sum0, pa, at_k);
        sum1 = multiply_row(sum1, pa + 1, at_k);
        sum2 = multiply_row(sum2, pa + 2, at_k);
        sum3 = multiply_row(sum3, pa + 3, at_k);
    }
    store_row(sum0, acc);
    store_row(sum1, acc + stride);
    store_row(sum2, acc + 2 * stride);
    store_row(sum3, acc + 3 * stride);
}

#define MULTIPLY(name, type)                                                       \
    AVX2 static void name(int64_t depth, const void *a, const void *b, float *acc, \
                          int64_t stride, bool accumulate, ewx_ahead ahead)        \
    {                                                                              \
        multiply_rows(type, depth, a, b, acc, stride, accumulate, ahead);          \
    }

MULTIPLY(multiply, EW_FP32)
MULTIPLY(multiply_bf16, EW_BF16)
MULTIPLY(multiply_fp16, EW_FP16)

AVX2 static void widen_bf16(const uint16_t *src, int64_t count, float *dst)
{
    for (int64_t i = 0; i < count; i += 8)
        _mm256_store_ps(dst + i, load_bf16(src + i));
}

AVX2 static void widen_fp16(const uint16_t *src, int64_t count, float *dst)
{
    for (int64_t i = 0; i < count; i += 8)
        _mm256_store_ps(dst + i, load_fp16(src + i));
}

/* A name that not every compiler's __builtin_cpu_supports knows. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static bool available(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

const ewx_kernel ewx_kernel_avx2 = {
    .name = "avx2-4x16-fp32",
    .packs = EW_FP32,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .max_chunk = 256,
    .stream_panels = 1,
    .available = available,
    .multiply = multiply,
    .store_bf16 = ewx_store_bf16,
    .store_fp16 = ewx_store_fp16,
    .bf16 = {multiply_bf16, NULL, widen_bf16},
    .fp16 = {multiply_fp16, NULL, widen_fp16},
};

#endif
