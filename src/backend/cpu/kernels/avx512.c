/* fp32 kernel for x86-64 with AVX-512; empty elsewhere. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "backend/cpu/kernels/convert_avx512.h"
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

/* B's columns at one k. */
AVX512 static inline __attribute__((always_inline)) row load_columns(ew_dtype type,
                                                                     const char *b)
{
    const uint16_t *half = (const uint16_t *)(const void *)b;
    if (type == EW_BF16)
        return (row){ewx_sixteen_load_bf16(half), ewx_sixteen_load_bf16(half + 16)};
    if (type == EW_FP16)
        return (row){ewx_sixteen_load_fp16(half), ewx_sixteen_load_fp16(half + 16)};
    return (row){_mm512_loadu_ps(b), _mm512_loadu_ps(b + 64)};
}

AVX512 static inline row multiply_row(row sum, float a, row b)
{
    const __m512 value = _mm512_set1_ps(a);
    return (row){_mm512_fmadd_ps(value, b.left, sum.left),
                 _mm512_fmadd_ps(value, b.right, sum.right)};
}

/* Called for every k, of which `share` bytes, a line at most, of what lies ahead fall to
 * each, so that loads find room beside them; where B is a stream, all of its lines. */
static inline __attribute__((always_inline)) void fetch(ewx_ahead *ahead, size_t share,
                                                        const char *b, size_t bytes)
{
    enum { TO_L1 = 3 };
    if (!share) {
        ewx_prefetch_stream(*ahead, b, bytes, AHEAD);
        return;
    }
    __builtin_prefetch(ahead->at, 0, TO_L1);
    ahead->at += share;
}

/* The first four rows of a panel, and the other four where there are `all`, with a B of
 * that type.  Inlined with constants, so that each form keeps its sums in registers. */
AVX512 static inline __attribute__((always_inline)) void multiply_rows(
    bool all, ew_dtype type, int64_t depth, const void *a, const void *b, float *acc,
    int64_t stride, bool accumulate, ewx_ahead ahead)
{
    const size_t share = ahead.bytes / (size_t)depth;
    const size_t columns = NR * (type == EW_FP32 ? sizeof(float) : sizeof(uint16_t));
    const float *pa = a;
    const char *pb = b;
    float *lower = all ? acc + FEW_ROWS * stride : acc;
    row sum0 = load_row(acc, accumulate);
    row sum1 = load_row(acc + stride, accumulate);
    row sum2 = load_row(acc + 2 * stride, accumulate);
    row sum3 = load_row(acc + 3 * stride, accumulate);
    row sum4 = load_row(lower, all && accumulate);
    row sum5 = load_row(lower + stride, all && accumulate);
    row sum6 = load_row(lower + 2 * stride, all && accumulate);
    row sum7 = load_row(lower + 3 * stride, all && accumulate);
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += columns) {
        fetch(&ahead, share, pb, columns);
        const row at_k = load_columns(type, pb);
        sum0 = multiply_row(sum0, pa[0], at_k);
        sum1 = multiply_row(sum1, pa[1], at_k);
        sum2 = multiply_row(sum2, pa[2], at_k);
        sum3 = multiply_row(sum3, pa[3], at_k);
        if (!all)
            continue;
        sum4 = multiply_row(sum4, pa[4], at_k);
        sum5 = multiply_row(sum5, pa[5], at_k);
        sum6 = multiply_row(sum6, pa[6], at_k);
        sum7 = multiply_row(sum7, pa[7], at_k);
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

#define MULTIPLY(name, all, type)                                                    \
    AVX512 static void name(int64_t depth, const void *a, const void *b, float *acc, \
                            int64_t stride, bool accumulate, ewx_ahead ahead)        \
    {                                                                                \
        multiply_rows(all, type, depth, a, b, acc, stride, accumulate, ahead);       \
    }

MULTIPLY(multiply, true, EW_FP32)
MULTIPLY(multiply_few, false, EW_FP32)
MULTIPLY(multiply_bf16, true, EW_BF16)
MULTIPLY(multiply_few_bf16, false, EW_BF16)
MULTIPLY(multiply_fp16, true, EW_FP16)
MULTIPLY(multiply_few_fp16, false, EW_FP16)

EWX_AVX512_CODE static void widen_bf16(const uint16_t *src, int64_t count, float *dst)
{
    for (int64_t i = 0; i < count; i += EWX_SIXTEEN)
        _mm512_store_ps(dst + i, ewx_sixteen_load_bf16(src + i));
}

EWX_AVX512_CODE static void widen_fp16(const uint16_t *src, int64_t count, float *dst)
{
    for (int64_t i = 0; i < count; i += EWX_SIXTEEN)
        _mm512_store_ps(dst + i, ewx_sixteen_load_fp16(src + i));
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
    .bf16 = {multiply_bf16, multiply_few_bf16, widen_bf16},
    .fp16 = {multiply_fp16, multiply_few_fp16, widen_fp16},
};

#endif
