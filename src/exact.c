/* Inputs whose results are known exactly.  A has a few entries of +-1 per row at random
 * places, B is dense in {-1, 0, 1}, both computed from (seed, rank, index), so any rank
 * can work out any element of the result cheaply and without the other ranks' data.
 * Partial results stay below 256 in magnitude, which all element types hold exactly. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/status.h"
#include "entwine/measure.h"

#define LARGEST_EXACT 256 /* the largest count up to which bf16 holds every integer */
#define MOST_ENTRIES 16

static uint32_t mix(uint32_t h)
{
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    h ^= h >> 12;
    h *= 0x297a2d39u;
    h ^= h >> 15;
    return h;
}

static uint32_t salt_of(uint32_t seed, int rank)
{
    return mix(seed * 0x9e3779b1u + (uint32_t)rank * 0x7feb352du + 1u);
}

typedef struct entry {
    int64_t k;
    int32_t sign;
} entry;

static int entries_per_row(int num_ranks)
{
    const int most = LARGEST_EXACT / num_ranks;
    return most > MOST_ENTRIES ? MOST_ENTRIES : most;
}

/* Entry s of a row of A.  Two entries may meet in one place and then add up. */
static entry a_entry(uint32_t salt, int64_t row, int s, int64_t depth)
{
    const uint32_t h = mix(salt ^ mix((uint32_t)row * 0x85ebca77u + (uint32_t)s));
    return (entry){(int64_t)(mix(h) % (uint64_t)depth), h & 1 ? 1 : -1};
}

static inline int32_t b_value(uint32_t salt, uint32_t n, uint32_t k_hash)
{
    const uint32_t h = (salt ^ k_hash ^ (n * 0x9e3779b1u)) * 0x2c1b3c6du;
    return (int32_t)(((h >> 16) * 3u) >> 16) - 1;
}

static uint32_t k_hash_of(int64_t k)
{
    return mix((uint32_t)k + 0x51ed270bu);
}

/* Inlined always: AddressSanitizer makes the frame of a function per element too dear. */
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

ew_status ew_exact_fill_a(ew_dtype dtype, uint32_t seed, int rank, int num_ranks, int64_t m,
                          int64_t k, void *A)
{
    if (!ew_dtype_bytes(dtype) || num_ranks < 1 || num_ranks > LARGEST_EXACT || m < 0 ||
        k < 1 || (m > 0 && !A))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "no exact A of %" PRId64 "x%" PRId64 " for %d ranks", m, k,
                        num_ranks);
    if (m > 0) /* A may be NULL otherwise */
        memset(A, 0, (size_t)(m * k) * ew_dtype_bytes(dtype));
    const uint32_t salt = salt_of(seed, rank);
    for (int64_t row = 0; row < m; row++)
        for (int s = 0; s < entries_per_row(num_ranks); s++) {
            const entry e = a_entry(salt, row, s, k);
            const int64_t index = row * k + e.k;
            store(dtype, A, index, load(dtype, A, index) + (float)e.sign);
        }
    return EW_OK;
}

ew_status ew_exact_fill_b(ew_dtype dtype, uint32_t seed, int rank, ew_weight_layout layout,
                          int64_t n, int64_t k, void *B)
{
    if (!ew_dtype_bytes(dtype) || n < 1 || k < 1 || !B)
        return ewx_fail(EW_ERR_ARGUMENT, "no exact B of %" PRId64 "x%" PRId64, n, k);
    const uint32_t salt = salt_of(seed, rank);
    for (int64_t col = 0; col < n; col++)
        for (int64_t depth = 0; depth < k; depth++)
            store(dtype, B, layout == EW_WEIGHT_NK ? col * k + depth : depth * n + col,
                  (float)b_value(salt, (uint32_t)col, k_hash_of(depth)));
    return EW_OK;
}

ew_status ew_random_fill(ew_dtype dtype, uint32_t seed, int64_t count, void *values)
{
    if (!ew_dtype_bytes(dtype) || count < 0 || (count > 0 && !values))
        return ewx_fail(EW_ERR_ARGUMENT, "no %" PRId64 " random values", count);
    const uint32_t salt = mix(seed + 0x2545f491u);
    for (int64_t i = 0; i < count; i++)
        store(dtype, values, i,
              (float)((int32_t)(mix(salt ^ (uint32_t)i * 0x9e3779b1u) >> 16) - 32768) *
                  0x1p-17f);
    return EW_OK;
}

static void expect_row(const ew_problem *problem, uint32_t seed, int num_ranks, int64_t row,
                       int32_t *sums)
{
    memset(sums, 0, (size_t)problem->n * sizeof *sums);
    for (int rank = 0; rank < num_ranks; rank++) {
        const uint32_t salt = salt_of(seed, rank);
        for (int s = 0; s < entries_per_row(num_ranks); s++) {
            const entry e = a_entry(salt, row, s, problem->k);
            const uint32_t k_hash = k_hash_of(e.k);
            for (int64_t n = 0; n < problem->n; n++)
                sums[n] += e.sign * b_value(salt, (uint32_t)n, k_hash);
        }
    }
}

ew_status ew_exact_verify(const ew_problem *problem, uint32_t seed, int rank, int num_ranks,
                          int64_t m, const void *C, ew_check *check_out)
{
    int64_t first, count;
    if (!problem || !check_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_exact_verify needs a problem and a check");
    EW_TRY(ew_owned_rows(m, num_ranks, rank, &first, &count));
    int32_t *sums = malloc((size_t)problem->n * sizeof *sums);
    if (!sums)
        return ewx_fail(EW_ERR_MEMORY, "no memory to verify %" PRId64 " columns",
                        problem->n);
    ew_check check = {0};
    for (int64_t row = 0; row < count; row++) {
        expect_row(problem, seed, num_ranks, first + row, sums);
        for (int64_t n = 0; n < problem->n; n++) {
            const double got = load(problem->dtype, C, row * problem->n + n);
            const double error = fabs(got - (double)sums[n]);
            check.wrong += got != (double)sums[n] || (got == 0.0 && signbit(got));
            if (error > check.max_abs_err || error != error)
                check.max_abs_err = error;
        }
    }
    free(sums);
    *check_out = check;
    return EW_OK;
}
