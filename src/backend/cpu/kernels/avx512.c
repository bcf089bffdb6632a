/* fp32 kernel for x86-64 with AVX-512; empty elsewhere. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/kernels/portable.h"
#include "backend/cpu/kernels/store_avx512.h"

/* 16 accumulators cover two FMA pipes with a latency of 4 cycles twice over. */
enum { MR = 8, NR = 32, AHEAD = 2048 };
/* With fewer rows the latency of the sums takes as long as four rows do. */
enum { FEW_ROWS = 4 };

#define AVX512 __attribute__((target("avx512f")))

/* One row of the register tile. */
typedef struct row {
    __m512 left, right;
} row;

AVX512 static inline row load_row(const float *acc, bool accumulate)
{
    if (!accumulate)
        return (row){_mm512_setzero_ps(), _mm512_setzero_ps()};
    return (row){_mm512_loadu_ps(acc), _mm512_loadu_ps(acc + 16)};
}

AVX512 static inline void store_row(row sum, float *acc)
{
    _mm512_storeu_ps(acc, sum.left);
    _mm512_storeu_ps(acc + 16, sum.right);
}

AVX512 static inline row multiply_row(row sum, float a, __m512 left, __m512 right)
{
    const __m512 value = _mm512_set1_ps(a);
    return (row){_mm512_fmadd_ps(value, left, sum.left),
                 _mm512_fmadd_ps(value, right, sum.right)};
}

/* Called for every k, of which `share` bytes, a line at most, of what lies ahead fall to
 * each, so that loads find room beside them; where B is a stream, all of its lines. */
static inline __attribute__((always_inline)) void fetch(ewx_ahead *ahead, size_t share,
                                                        const float *b)
{
    enum { TO_L1 = 3 };
    if (!share) {
        ewx_prefetch_stream(*ahead, b, NR * sizeof *b, AHEAD);
        return;
    }
    __builtin_prefetch(ahead->at, 0, TO_L1);
    ahead->at += share;
}

/* The first four rows of a panel, and the other four where there are `all`.  Inlined with a
 * constant, so that each form keeps its sums in registers. */
AVX512 static inline __attribute__((always_inline)) void multiply_rows(
    bool all, int64_t depth, const void *a, const void *b, float *acc, int64_t stride,
    bool accumulate, ewx_ahead ahead)
{
    const size_t share = ahead.bytes / (size_t)depth;
    const float *pa = a, *pb = b;
    float *lower = all ? acc + FEW_ROWS * stride : acc;
    row sum0 = load_row(acc, accumulate);
    row sum1 = load_row(acc + stride, accumulate);
    row sum2 = load_row(acc + 2 * stride, accumulate);
    row sum3 = load_row(acc + 3 * stride, accumulate);
    row sum4 = load_row(lower, all && accumulate);
    row sum5 = load_row(lower + stride, all && accumulate);
    row sum6 = load_row(lower + 2 * stride, all && accumulate);
    row sum7 = load_row(lower + 3 * stride, all && accumulate);
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += NR) {
        fetch(&ahead, share, pb);
        const __m512 left = _mm512_loadu_ps(pb), right = _mm512_loadu_ps(pb + 16);
        sum0 = multiply_row(sum0, pa[0], left, right);
        sum1 = multiply_row(sum1, pa[1], left, right);
        sum2 = multiply_row(sum2, pa[2], left, right);
        sum3 = multiply_row(sum3, pa[3], left, right);
        if (!all)
            continue;
        sum4 = multiply_row(sum4, pa[4], left, right);
        sum5 = multiply_row(sum5, pa[5], left, right);
        sum6 = multiply_row(sum6, pa[6], left, right);
        sum7 = multiply_row(sum7, pa[7], left, right);
    }
    store_row(sum0, acc);
    store_row(sum1, acc + stride);
    store_row(sum2, acc + 2 * stride);
    store_row(sum3, acc + 3 * stride);
    if (!all)
        return;
    store_row(sum4, lower);
    store_row(sum5, lower + stride);
    store_row(sum6, lower + 2 * stride);
    store_row(sum7, lower + 3 * stride);
}

AVX512 static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                            int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_rows(true, depth, a, b, acc, stride, accumulate, ahead);
}

AVX512 static void multiply_few(int64_t depth, const void *a, const void *b, float *acc,
                                int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_rows(false, depth, a, b, acc, stride, accumulate, ahead);
}

static bool available(void)
{
    return __builtin_cpu_supports("avx512f");
}

const ewx_kernel ewx_kernel_avx512 = {
    .name = "avx512-8x32-fp32",
    .packs = EW_FP32,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .few_rows = FEW_ROWS,
    .max_chunk = 128,
    .stream_panels = 1,
    .available = available,
    .multiply = multiply,
    .multiply_few = multiply_few,
    .store_bf16 = ewx_store_bf16_avx512,
    .store_fp16 = ewx_store_fp16_avx512,
};

#endif
