/* The sum over ranks.  One pass: the sums of a run of elements stay in registers while
 * all contributions are added, in fp32 and in the order given, and are written once.
 * Vectors by hand, because loops over a buffer of sums reload what they just stored and
 * lose more than half the bandwidth. */
#include "backend/cpu/gemm.h"

#include "backend/cpu/kernels/bfcvt.h"
#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/convert_avx512.h"
#include "base/dtype.h"

enum { RUN = 2 * EWX_OCTET, ROWS_AHEAD = 4, CACHE_LINE = 64 };

/* The functions below are compiled once for each element type. */
#define SPECIALISED static inline __attribute__((always_inline))

SPECIALISED ewx_octet add(ewx_octet x, ewx_octet y)
{
    return (ewx_octet){x.low + y.low, x.high + y.high};
}

/* Rounds eight sums and writes them. */
typedef void store_octet(ewx_octet sum, void *dst, int64_t at);

SPECIALISED void store_fp32(ewx_octet sum, void *dst, int64_t at)
{
    ewx_octet_store(EW_FP32, sum, dst, at);
}

SPECIALISED void store_bf16(ewx_octet sum, void *dst, int64_t at)
{
    ewx_octet_store(EW_BF16, sum, dst, at);
}

SPECIALISED void store_fp16(ewx_octet sum, void *dst, int64_t at)
{
    ewx_octet_store(EW_FP16, sum, dst, at);
}

EWX_BF16_CODE static inline void store_bfcvt(ewx_octet sum, void *dst, int64_t at)
{
    const ewx_halves half = ewx_bfcvt(sum);
    memcpy((uint16_t *)dst + at, &half, sizeof half);
}

SPECIALISED void sum_octets(ew_dtype dtype, store_octet *store, const void *const *src,
                            int num_ranks, int64_t src_at, void *dst, int64_t dst_at)
{
    ewx_octet sum0 = ewx_octet_load(dtype, src[0], src_at);
    ewx_octet sum1 = ewx_octet_load(dtype, src[0], src_at + EWX_OCTET);
    for (int rank = 1; rank < num_ranks; rank++) {
        sum0 = add(sum0, ewx_octet_load(dtype, src[rank], src_at));
        sum1 = add(sum1, ewx_octet_load(dtype, src[rank], src_at + EWX_OCTET));
    }
    store(sum0, dst, dst_at);
    store(sum1, dst, dst_at + EWX_OCTET);
}

/* Adds up RUN elements of all contributions. */
typedef void sum_run(const void *const *src, int num_ranks, int64_t src_at, void *dst,
                     int64_t dst_at);

SPECIALISED void run_fp32(const void *const *src, int num_ranks, int64_t src_at, void *dst,
                          int64_t dst_at)
{
    sum_octets(EW_FP32, store_fp32, src, num_ranks, src_at, dst, dst_at);
}

SPECIALISED void run_bf16(const void *const *src, int num_ranks, int64_t src_at, void *dst,
                          int64_t dst_at)
{
    sum_octets(EW_BF16, store_bf16, src, num_ranks, src_at, dst, dst_at);
}

SPECIALISED void run_fp16(const void *const *src, int num_ranks, int64_t src_at, void *dst,
                          int64_t dst_at)
{
    sum_octets(EW_FP16, store_fp16, src, num_ranks, src_at, dst, dst_at);
}

EWX_BF16_CODE static inline void run_bfcvt(const void *const *src, int num_ranks,
                                           int64_t src_at, void *dst, int64_t dst_at)
{
    sum_octets(EW_BF16, store_bfcvt, src, num_ranks, src_at, dst, dst_at);
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

#if defined(__aarch64__)
/* Whether DC ZVA is permitted and clears exactly a cache line. */
static inline bool can_clear_lines(void)
{
    uint64_t id;
    __asm__("mrs %0, dczid_el0" : "=r"(id));
    return (4u << (id & 31)) == CACHE_LINE;
}
#else
static inline bool can_clear_lines(void)
{
    return false;
}
#endif

/* Makes ready a line that will be written whole.  Clearing it spares the read from memory
 * that any other store to a cold line begins with. */
static inline void claim_line(char *line, bool clear)
{
#if defined(__aarch64__)
    if (clear) {
        __asm__ volatile("dc zva, %0" ::"r"(line) : "memory");
        return;
    }
#endif
    (void)clear;
    __builtin_prefetch(line, 1);
}

/* The output's rows lie far apart, which no hardware prefetcher follows: claiming them a
 * few rows ahead makes the sum a quarter to a third faster.  Only lines that lie whole
 * inside the row are ours to claim. */
static void claim_row(char *first, size_t bytes, bool clear)
{
    const size_t skipped = -(uintptr_t)first % CACHE_LINE;
    for (size_t at = skipped; at + CACHE_LINE <= bytes; at += CACHE_LINE)
        claim_line(first + at, clear);
}

SPECIALISED void sum_rows(ew_dtype dtype, sum_run *run, const void *const *src,
                          int num_ranks, int64_t src_stride, int64_t rows, int64_t cols,
                          void *dst, int64_t dst_stride)
{
    const bool clear = can_clear_lines();
    const size_t elem = dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t);
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = i * src_stride, to = i * dst_stride;
        int64_t j = 0;
        if (i + ROWS_AHEAD < rows)
            claim_row((char *)dst + (size_t)(to + ROWS_AHEAD * dst_stride) * elem,
                      (size_t)cols * elem, clear);
        for (; j + RUN <= cols; j += RUN)
            run(src, num_ranks, from + j, dst, to + j);
        for (; j < cols; j++)
            sum_one(dtype, src, num_ranks, from + j, dst, to + j);
    }
}

/* Rounding by shifts and masks takes as long as all the rest. */
EWX_BF16_CODE static void sum_rows_bfcvt(const void *const *src, int num_ranks,
                                         int64_t src_stride, int64_t rows, int64_t cols,
                                         void *dst, int64_t dst_stride)
{
    sum_rows(EW_BF16, run_bfcvt, src, num_ranks, src_stride, rows, cols, dst, dst_stride);
}

#if defined(__x86_64__)

EWX_AVX512_CODE static inline void run_bf16_avx512(const void *const *src, int num_ranks,
                                                   int64_t src_at, void *dst,
                                                   int64_t dst_at)
{
    __m512 sum = ewx_sixteen_load_bf16((const uint16_t *)src[0] + src_at);
    for (int rank = 1; rank < num_ranks; rank++)
        sum =
            _mm512_add_ps(sum, ewx_sixteen_load_bf16((const uint16_t *)src[rank] + src_at));
    ewx_sixteen_store_bf16(sum, (uint16_t *)dst + dst_at);
}

EWX_AVX512_CODE static inline void run_fp16_avx512(const void *const *src, int num_ranks,
                                                   int64_t src_at, void *dst,
                                                   int64_t dst_at)
{
    __m512 sum = ewx_sixteen_load_fp16((const uint16_t *)src[0] + src_at);
    for (int rank = 1; rank < num_ranks; rank++)
        sum =
            _mm512_add_ps(sum, ewx_sixteen_load_fp16((const uint16_t *)src[rank] + src_at));
    ewx_sixteen_store_fp16(sum, (uint16_t *)dst + dst_at);
}

/* fp32 needs no conversion, and vectors of any width wait for memory. */
EWX_AVX512_CODE static void sum_rows_avx512(ew_dtype dtype, const void *const *src,
                                            int num_ranks, int64_t src_stride, int64_t rows,
                                            int64_t cols, void *dst, int64_t dst_stride)
{
    if (dtype == EW_BF16)
        sum_rows(EW_BF16, run_bf16_avx512, src, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
    else
        sum_rows(EW_FP16, run_fp16_avx512, src, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
}

#else

static void sum_rows_avx512(ew_dtype dtype, const void *const *src, int num_ranks,
                            int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                            int64_t dst_stride)
{
    (void)dtype, (void)src, (void)num_ranks, (void)src_stride, (void)rows, (void)cols;
    (void)dst, (void)dst_stride;
}

#endif

static void sum_rows_halves(ew_dtype dtype, const void *const *src, int num_ranks,
                            int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                            int64_t dst_stride)
{
    if (ewx_has_avx512())
        sum_rows_avx512(dtype, src, num_ranks, src_stride, rows, cols, dst, dst_stride);
    else if (dtype == EW_FP16)
        sum_rows(EW_FP16, run_fp16, src, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
    else if (ewx_has_bfcvt())
        sum_rows_bfcvt(src, num_ranks, src_stride, rows, cols, dst, dst_stride);
    else
        sum_rows(EW_BF16, run_bf16, src, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
}

void ewx_reduce_tile(ew_dtype dtype, const void *const *contributions, int num_ranks,
                     int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                     int64_t dst_stride)
{
    if (dtype == EW_FP32)
        sum_rows(EW_FP32, run_fp32, contributions, num_ranks, src_stride, rows, cols, dst,
                 dst_stride);
    else
        sum_rows_halves(dtype, contributions, num_ranks, src_stride, rows, cols, dst,
                        dst_stride);
}
