/* fp32 kernel for 64-bit ARM.  Advanced SIMD is part of the base architecture, so this
 * kernel is always available there; elsewhere the file is empty. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "backend/cpu/kernels/portable.h"

/* 16 accumulators hide the latency of 4 FMA pipes and leave 16 registers for operands. */
enum { MR = 8, NR = 8 };

/* A 4 x 4 block of sums.  Named members, because GCC keeps arrays in memory here. */
typedef struct block {
    float32x4_t row0, row1, row2, row3;
} block;

static inline block load_block(const float *acc, int64_t stride, bool accumulate)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    if (!accumulate)
        return (block){zero, zero, zero, zero};
    return (block){vld1q_f32(acc), vld1q_f32(acc + stride), vld1q_f32(acc + 2 * stride),
                   vld1q_f32(acc + 3 * stride)};
}

static inline void store_block(block sum, float *acc, int64_t stride)
{
    vst1q_f32(acc, sum.row0);
    vst1q_f32(acc + stride, sum.row1);
    vst1q_f32(acc + 2 * stride, sum.row2);
    vst1q_f32(acc + 3 * stride, sum.row3);
}

static inline block multiply_block(block sum, float32x4_t a, float32x4_t b)
{
    sum.row0 = vfmaq_laneq_f32(sum.row0, b, a, 0);
    sum.row1 = vfmaq_laneq_f32(sum.row1, b, a, 1);
    sum.row2 = vfmaq_laneq_f32(sum.row2, b, a, 2);
    sum.row3 = vfmaq_laneq_f32(sum.row3, b, a, 3);
    return sum;
}

static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                     int64_t stride, bool accumulate)
{
    const float *pa = a, *pb = b;
    float *lower = acc + 4 * stride;
    block sum00 = load_block(acc, stride, accumulate);
    block sum01 = load_block(acc + 4, stride, accumulate);
    block sum10 = load_block(lower, stride, accumulate);
    block sum11 = load_block(lower + 4, stride, accumulate);
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += NR) {
        const float32x4_t a0 = vld1q_f32(pa), a1 = vld1q_f32(pa + 4);
        const float32x4_t b0 = vld1q_f32(pb), b1 = vld1q_f32(pb + 4);
        sum00 = multiply_block(sum00, a0, b0);
        sum01 = multiply_block(sum01, a0, b1);
        sum10 = multiply_block(sum10, a1, b0);
        sum11 = multiply_block(sum11, a1, b1);
    }
    store_block(sum00, acc, stride);
    store_block(sum01, acc + 4, stride);
    store_block(sum10, lower, stride);
    store_block(sum11, lower + 4, stride);
}

const ewx_kernel ewx_kernel_neon = {
    .name = "neon-8x8-fp32",
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .available = ewx_always_available,
    .multiply = multiply,
    .store_bf16 = ewx_store_bf16,
};

#endif
