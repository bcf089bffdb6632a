/* Random operands for tests that need more than exact integers: any rank can work out any
 * element of any other rank's inputs. */
#ifndef TESTS_RANDOM_INPUTS_H
#define TESTS_RANDOM_INPUTS_H

#include "base/dtype.h"
#include "entwine/entwine.h"
#include "harness.h"

enum { OPERAND_A, OPERAND_B };

/* Inlined always: AddressSanitizer makes the frame of a function per element too dear. */
#define EACH_ELEMENT static inline __attribute__((always_inline))

EACH_ELEMENT void element_put(ew_dtype dtype, void *base, int64_t at, float value)
{
    if (dtype == EW_FP32)
        ((float *)base)[at] = value;
    else
        ((uint16_t *)base)[at] =
            dtype == EW_BF16 ? ewx_bf16_from_f32(value) : ewx_fp16_from_f32(value);
}

EACH_ELEMENT float element_get(ew_dtype dtype, const void *base, int64_t at)
{
    if (dtype == EW_FP32)
        return ((const float *)base)[at];
    const uint16_t half = ((const uint16_t *)base)[at];
    return dtype == EW_BF16 ? ewx_f32_from_bf16(half) : ewx_f32_from_fp16(half);
}

/* rows x cols values in (-1, 1), of both signs and several magnitudes, row-major. */
static inline void fill_random(ew_dtype dtype, uint64_t seed, int rank, int operand,
                               int64_t rows, int64_t cols, void *base)
{
    harness_random random =
        harness_seed(seed * 64 + (uint64_t)rank * 2 + (uint64_t)operand);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float value = (float)(int32_t)harness_next(&random) * 0x1p-31f;
        element_put(dtype, base, i, value);
    }
}

#endif
