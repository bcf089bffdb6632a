/* Exact inputs and their check, on the host. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/versioned.h"
#include "entwine/measure.h"
#include "plan/exact.h"
#include "plan/spec.h"

/* Stays in a core's own cache, and hardly counts beside C. */
#define CACHE_BYTES (256 << 10)

/* Always inlined: with AddressSanitizer a call per element would be too slow. */
#define INLINE static inline __attribute__((always_inline))

INLINE void store(ew_dtype dtype, void *base, int64_t index, float value)
{
    if (dtype == EW_FP32)
        ((float *)base)[index] = value;
    else
        ((uint16_t *)base)[index] =
            dtype == EW_BF16 ? ewx_bf16_from_f32(value) : ewx_fp16_from_f32(value);
}

INLINE float load(ew_dtype dtype, const void *base, int64_t index)
{
    if (dtype == EW_FP32)
        return ((const float *)base)[index];
    const uint16_t half = ((const uint16_t *)base)[index];
    return dtype == EW_BF16 ? ewx_f32_from_bf16(half) : ewx_f32_from_fp16(half);
}

/* Whether so many elements can be counted, and their bytes. */
static bool is_countable(ew_dtype dtype, int64_t rows, int64_t cols)
{
    const ewx_size elems = ewx_size_mul(ewx_size_of(rows), ewx_size_of(cols));
    return ewx_size_mul(elems, (ewx_size){ew_dtype_bytes(dtype), true}).ok;
}

ew_status ew_exact_fill_a(ew_dtype dtype, uint32_t seed, int rank, int num_ranks, int64_t m,
                          int64_t k, void *A)
{
    if (!ew_dtype_bytes(dtype) || num_ranks < 1 || num_ranks > EWX_LARGEST_EXACT ||
        rank < 0 || rank >= num_ranks || m < 0 || k < 1 || (m > 0 && !A) ||
        !is_countable(dtype, m, k))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "no exact A of %" PRId64 "x%" PRId64
                        " at %p for rank %d of %d ranks, type %s\n"
                        "  fix: use 1 to %d ranks, a rank below that, m from 0 and k from "
                        "1, and memory for "
                        "them",
                        m, k, A, rank, num_ranks, ew_dtype_name(dtype), EWX_LARGEST_EXACT);
    if (m > 0) /* A may be NULL otherwise */
        memset(A, 0, (size_t)(m * k) * ew_dtype_bytes(dtype));
    const uint32_t salt = ewx_exact_salt(seed, rank);
    for (int64_t row = 0; row < m; row++)
        for (int s = 0; s < ewx_exact_entries(num_ranks); s++) {
            const ewx_exact_entry e = ewx_exact_a(salt, row, s, k);
            const int64_t index = row * k + e.k;
            store(dtype, A, index, load(dtype, A, index) + (float)e.sign);
        }
    return EW_OK;
}

ew_status ew_exact_fill_b(ew_dtype dtype, uint32_t seed, int rank, ew_weight_layout layout,
                          int64_t n, int64_t k, void *B)
{
    if (!ew_dtype_bytes(dtype) || n < 1 || k < 1 || !B || !is_countable(dtype, n, k) ||
        (layout != EW_WEIGHT_NK && layout != EW_WEIGHT_KN))
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "no exact B of %" PRId64 "x%" PRId64 " at %p, layout %d, type %s\n"
            "  fix: use n and k from 1, EW_WEIGHT_NK or EW_WEIGHT_KN, and memory "
            "for them",
            n, k, B, (int)layout, ew_dtype_name(dtype));
    const uint32_t salt = ewx_exact_salt(seed, rank);
    for (int64_t col = 0; col < n; col++)
        for (int64_t depth = 0; depth < k; depth++)
            store(dtype, B, layout == EW_WEIGHT_NK ? col * k + depth : depth * n + col,
                  (float)ewx_exact_b(salt, (uint32_t)col, ewx_exact_k_hash(depth)));
    return EW_OK;
}

ew_status ew_random_fill(ew_dtype dtype, uint32_t seed, int64_t count, void *values)
{
    if (!ew_dtype_bytes(dtype) || count < 0 || (count > 0 && !values))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "no %" PRId64 " random values at %p, type %s\n"
                        "  fix: use 0 or more, and memory for them",
                        count, values, ew_dtype_name(dtype));
    const uint32_t salt = ewx_random_salt(seed);
    for (int64_t i = 0; i < count; i++)
        store(dtype, values, i, ewx_random_value(salt, i));
    return EW_OK;
}

ew_status ew_exact_verify(const ew_problem *problem, uint32_t seed, int rank, int num_ranks,
                          int64_t m, const void *C, ew_check *check_out)
{
    ew_problem p;
    if (!check_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_exact_verify needs a place for its check");
    EW_TRY(ewx_problem_take(&p, problem));
    EW_TRY(ewx_problem_check(&p, num_ranks));
    EW_TRY(ewx_place_check(m, num_ranks, rank));
    const ewx_op *op = ewx_op_of(&p);
    const ewx_rows rows = op->rows_c(m, num_ranks, rank);
    if (rows.count > 0 && !C)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_exact_verify needs C for %" PRId64 " rows\n"
                        "  fix: pass what the call has written",
                        rows.count);
    const ewx_exact_call call = {seed, num_ranks, rank, m,
                                 ewx_exact_cache_create(&p, num_ranks, CACHE_BYTES)};
    int32_t *sums = malloc((size_t)p.n * sizeof *sums);
    if (!sums || !call.cache) {
        free(call.cache);
        free(sums);
        return ewx_fail(EW_ERR_MEMORY, "no memory to verify %" PRId64 " columns", p.n);
    }
    ew_check check = {0};
    for (int64_t row = 0; row < rows.count; row++) {
        op->expect_row(&p, &call, rows.first + row, sums);
        for (int64_t n = 0; n < p.n; n++) {
            const double got = load(p.dtype, C, row * p.n + n);
            const double error = fabs(got - (double)sums[n]);
            check.wrong += got != (double)sums[n] || (got == 0.0 && signbit(got));
            if (error > check.max_abs_err || error != error)
                check.max_abs_err = error;
        }
    }
    free(call.cache);
    free(sums);
    *check_out = check;
    return EW_OK;
}
