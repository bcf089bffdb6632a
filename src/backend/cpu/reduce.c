/* The sum over ranks.  One pass: each run of elements is summed over all contributions,
 * in fp32 and in the order given, and written once. */
#include "backend/cpu/gemm.h"

#include "base/dtype.h"

/* Elements summed together: few enough that the sums stay in L1. */
enum { RUN = 512 };

/* The functions below are compiled once for each element type. */
#define SPECIALISED static inline __attribute__((always_inline))

SPECIALISED float load(ew_dtype dtype, const void *src, int64_t at)
{
    if (dtype == EW_FP32)
        return ((const float *)src)[at];
    const uint16_t half = ((const uint16_t *)src)[at];
    return dtype == EW_BF16 ? ewx_f32_from_bf16(half) : ewx_f32_from_fp16(half);
}

SPECIALISED void store(ew_dtype dtype, float value, void *dst, int64_t at)
{
    if (dtype == EW_FP32)
        ((float *)dst)[at] = value;
    else
        ((uint16_t *)dst)[at] =
            dtype == EW_BF16 ? ewx_bf16_from_f32(value) : ewx_fp16_from_f32(value);
}

/* `sum` and `dst` overlap no contribution, which the compiler must know to use vectors. */
SPECIALISED void sum_run(ew_dtype dtype, int64_t length, const void *const *src,
                         int num_ranks, int64_t src_at, void *restrict dst, int64_t dst_at)
{
    float sum[RUN];
    const void *restrict from = src[0];
    for (int64_t i = 0; i < length; i++)
        sum[i] = load(dtype, from, src_at + i);
    for (int rank = 1; rank < num_ranks; rank++) {
        from = src[rank];
        for (int64_t i = 0; i < length; i++)
            sum[i] += load(dtype, from, src_at + i);
    }
    for (int64_t i = 0; i < length; i++)
        store(dtype, sum[i], dst, dst_at + i);
}

SPECIALISED void sum_rows(ew_dtype dtype, const void *const *src, int num_ranks,
                          int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                          int64_t dst_stride)
{
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = i * src_stride, to = i * dst_stride;
        for (int64_t j = 0; j < cols; j += RUN)
            sum_run(dtype, cols - j < RUN ? cols - j : RUN, src, num_ranks, from + j, dst,
                    to + j);
    }
}

void ewx_reduce_tile(ew_dtype dtype, const void *const *contributions, int num_ranks,
                     int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                     int64_t dst_stride)
{
    switch (dtype) {
    case EW_FP32:
        sum_rows(EW_FP32, contributions, num_ranks, src_stride, rows, cols, dst, dst_stride);
        break;
    case EW_BF16:
        sum_rows(EW_BF16, contributions, num_ranks, src_stride, rows, cols, dst, dst_stride);
        break;
    case EW_FP16:
        sum_rows(EW_FP16, contributions, num_ranks, src_stride, rows, cols, dst, dst_stride);
        break;
    }
}
