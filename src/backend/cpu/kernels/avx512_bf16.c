/* bf16 kernel for x86-64 with AVX512_BF16; empty elsewhere.  VDPBF16PS adds two products
 * to each sum.  It ignores MXCSR: subnormal inputs, intermediates and results count as
 * zero, and how the two additions are rounded is the instruction's own business, so
 * results differ from an fp32 kernel in the last bits. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "backend/cpu/kernels/portable.h"
#include "backend/cpu/kernels/store_avx512.h"

enum { MR = 8, NR = 32, KR = 2 };

#define AVX512BF16 __attribute__((target("avx512f,avx512bf16")))

/* One row of the register tile. */
typedef struct row {
    __m512 left, right;
} row;

AVX512BF16 static inline row load_row(const float *acc, bool accumulate)
{
    if (!accumulate)
        return (row){_mm512_setzero_ps(), _mm512_setzero_ps()};
    return (row){_mm512_loadu_ps(acc), _mm512_loadu_ps(acc + 16)};
}

AVX512BF16 static inline void store_row(row sum, float *acc)
{
    _mm512_storeu_ps(acc, sum.left);
    _mm512_storeu_ps(acc + 16, sum.right);
}

/* `a` is the pair of k's of one row of A. */
AVX512BF16 static inline row multiply_row(row sum, const uint16_t *a, __m512bh left,
                                          __m512bh right)
{
    int32_t pair;
    memcpy(&pair, a, sizeof pair);
    const __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
    return (row){_mm512_dpbf16_ps(sum.left, value, left),
                 _mm512_dpbf16_ps(sum.right, value, right)};
}

AVX512BF16 static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                                int64_t stride, bool accumulate, ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    const uint16_t *pa = a, *pb = b;
    row sum0 = load_row(acc, accumulate);
    row sum1 = load_row(acc + stride, accumulate);
    row sum2 = load_row(acc + 2 * stride, accumulate);
    row sum3 = load_row(acc + 3 * stride, accumulate);
    row sum4 = load_row(acc + 4 * stride, accumulate);
    row sum5 = load_row(acc + 5 * stride, accumulate);
    row sum6 = load_row(acc + 6 * stride, accumulate);
    row sum7 = load_row(acc + 7 * stride, accumulate);
    for (int64_t k = 0; k < depth; k += KR, pa += MR * KR, pb += NR * KR) {
        const __m512bh left = (__m512bh)_mm512_loadu_si512(pb);
        const __m512bh right = (__m512bh)_mm512_loadu_si512(pb + 16 * KR);
        sum0 = multiply_row(sum0, pa, left, right);
        sum1 = multiply_row(sum1, pa + KR, left, right);
        sum2 = multiply_row(sum2, pa + 2 * KR, left, right);
        sum3 = multiply_row(sum3, pa + 3 * KR, left, right);
        sum4 = multiply_row(sum4, pa + 4 * KR, left, right);
        sum5 = multiply_row(sum5, pa + 5 * KR, left, right);
        sum6 = multiply_row(sum6, pa + 6 * KR, left, right);
        sum7 = multiply_row(sum7, pa + 7 * KR, left, right);
    }
    store_row(sum0, acc);
    store_row(sum1, acc + stride);
    store_row(sum2, acc + 2 * stride);
    store_row(sum3, acc + 3 * stride);
    store_row(sum4, acc + 4 * stride);
    store_row(sum5, acc + 5 * stride);
    store_row(sum6, acc + 6 * stride);
    store_row(sum7, acc + 7 * stride);
}

static bool available(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
}

/* Intel's cores issue VDPBF16PS at a quarter of the rate of FMA: on a Xeon with AMX the
 * fp32 kernel was 1.5 times as fast on bf16 data (103 against 68 GF/s of one core). */
static bool pays(void)
{
    return !__builtin_cpu_is("intel");
}

const ewx_kernel ewx_kernel_avx512_bf16 = {
    .name = "avx512-8x32-bf16",
    .packs = EW_BF16,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .max_chunk = 256,
    .stream_panels = 3,
    .available = available,
    .pays = pays,
    .multiply = multiply,
    .store_bf16 = ewx_store_bf16_avx512,
    .store_fp16 = ewx_store_fp16_avx512,
};

#endif
