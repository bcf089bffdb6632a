/* fp32 kernel for x86-64 with AVX2 and FMA; empty elsewhere. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/kernels/portable.h"

/* 8 accumulators of 8 floats just cover two FMA pipes with a latency of 4 cycles.  The
 * tile of 6 x 16, which would have more to spare, does not divide 128. */
enum { MR = 4, NR = 16, AHEAD = 8192 };
/* Up to so many bytes are fetched at once: a prefetch for every k takes a seventh of the
 * loads that the core can do. */
enum { BURST = 2048 };

#define AVX2 __attribute__((target("avx2,fma")))

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

AVX2 static inline row multiply_row(row sum, const float *a, __m256 left, __m256 right)
{
    const __m256 value = _mm256_broadcast_ss(a);
    return (row){_mm256_fmadd_ps(value, left, sum.left),
                 _mm256_fmadd_ps(value, right, sum.right)};
}

AVX2 static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                          int64_t stride, bool accumulate, ewx_ahead ahead)
{
    const bool streams = !ahead.bytes;
    const char *spot = streams ? (const char *)b + AHEAD : ahead.at;
    const size_t step = streams               ? NR * sizeof(float)
                        : ahead.bytes > BURST ? ahead.bytes / (size_t)depth
                                              : 0;
    if (!step)
        ewx_prefetch(ahead);
    const float *pa = a, *pb = b;
    row sum0 = load_row(acc, accumulate);
    row sum1 = load_row(acc + stride, accumulate);
    row sum2 = load_row(acc + 2 * stride, accumulate);
    row sum3 = load_row(acc + 3 * stride, accumulate);
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += NR) {
        if (step) {
            __builtin_prefetch(spot);
            spot += step;
        }
        const __m256 left = _mm256_loadu_ps(pb), right = _mm256_loadu_ps(pb + 8);
        sum0 = multiply_row(sum0, pa, left, right);
        sum1 = multiply_row(sum1, pa + 1, left, right);
        sum2 = multiply_row(sum2, pa + 2, left, right);
        sum3 = multiply_row(sum3, pa + 3, left, right);
    }
    store_row(sum0, acc);
    store_row(sum1, acc + stride);
    store_row(sum2, acc + 2 * stride);
    store_row(sum3, acc + 3 * stride);
}

static bool available(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
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
};

#endif
