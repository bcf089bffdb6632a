/* The sum over ranks.  One pass: the sums of a run of elements stay in registers while
 * all contributions are added, in fp32 and in the order given, and are written once.
 * Vectors by hand, because loops over a buffer of sums reload what they just stored and
 * lose more than half the bandwidth. */
#include "backend/cpu/gemm.h"

#include "backend/cpu/kernels/convert.h"
#include "base/dtype.h"

enum { RUN = 2 * EWX_OCTET, ROWS_AHEAD = 4, CACHE_LINE = 64 };

/* The functions below are compiled once for each element type. */
#define SPECIALISED static inline __attribute__((always_inline))

SPECIALISED ewx_octet add(ewx_octet x, ewx_octet y)
{
    return (ewx_octet){x.low + y.low, x.high + y.high};
}

SPECIALISED void sum_run(ew_dtype dtype, const void *const *src, int num_ranks,
                         int64_t src_at, void *dst, int64_t dst_at)
{
    ewx_octet sum0 = ewx_octet_load(dtype, src[0], src_at);
    ewx_octet sum1 = ewx_octet_load(dtype, src[0], src_at + EWX_OCTET);
    for (int rank = 1; rank < num_ranks; rank++) {
        sum0 = add(sum0, ewx_octet_load(dtype, src[rank], src_at));
        sum1 = add(sum1, ewx_octet_load(dtype, src[rank], src_at + EWX_OCTET));
    }
    ewx_octet_store(dtype, sum0, dst, dst_at);
    ewx_octet_store(dtype, sum1, dst, dst_at + EWX_OCTET);
}

SPECIALISED float load_one(ew_dtype dtype, const void *src, int64_t at)
{
    if (dtype == EW_FP32)
        return ((const float *)src)[at];
    const uint16_t half = ((const uint16_t *)src)[at];
    return dtype == EW_BF16 ? ewx_f32_from_bf16(half) : ewx_f32_from_fp16(half);
}

SPECIALISED void sum_one(ew_dtype dtype, const void *const *src, int num_ranks,
                         int64_t src_at, void *dst, int64_t dst_at)
{
    float sum = load_one(dtype, src[0], src_at);
    for (int rank = 1; rank < num_ranks; rank++)
        sum += load_one(dtype, src[rank], src_at);
    if (dtype == EW_FP32)
        ((float *)dst)[dst_at] = sum;
    else
        ((uint16_t *)dst)[dst_at] =
            dtype == EW_BF16 ? ewx_bf16_from_f32(sum) : ewx_fp16_from_f32(sum);
}

/* The output's rows lie far apart, which no hardware prefetcher follows: fetching them
 * for writing a few rows ahead makes the whole sum a quarter faster. */
SPECIALISED void prefetch_row(size_t elem, void *dst, int64_t at, int64_t cols)
{
    char *first = (char *)dst + (size_t)at * elem;
    for (size_t byte = 0; byte < (size_t)cols * elem; byte += CACHE_LINE)
        __builtin_prefetch(first + byte, 1);
}

SPECIALISED void sum_rows(ew_dtype dtype, const void *const *src, int num_ranks,
                          int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                          int64_t dst_stride)
{
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = i * src_stride, to = i * dst_stride;
        int64_t j = 0;
        if (i + ROWS_AHEAD < rows)
            prefetch_row(dtype == EW_FP32 ? 4 : 2, dst, to + ROWS_AHEAD * dst_stride, cols);
        for (; j + RUN <= cols; j += RUN)
            sum_run(dtype, src, num_ranks, from + j, dst, to + j);
        for (; j < cols; j++)
            sum_one(dtype, src, num_ranks, from + j, dst, to + j);
    }
}

void ewx_reduce_tile(ew_dtype dtype, const void *const *contributions, int num_ranks,
                     int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                     int64_t dst_stride)
{
    switch (dtype) {
    case EW_FP32:
        sum_rows(EW_FP32, contributions, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
        break;
    case EW_BF16:
        sum_rows(EW_BF16, contributions, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
        break;
    case EW_FP16:
        sum_rows(EW_FP16, contributions, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
        break;
    }
}
