/* bf16 kernel for 64-bit ARM with the BFMMLA instruction.  It multiplies bf16 operands
 * exactly and sums four products at a time in fp32; unless the machine has FEAT_EBF16,
 * those sums are rounded to odd and subnormals are flushed to zero, so results differ
 * from an fp32 kernel in the last bits. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <sys/auxv.h>

#include "backend/cpu/kernels/portable.h"

#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif

enum { MR = 8, NR = 8, KR = 4 };

#if defined(__clang__)
#define BF16 __attribute__((target("bf16")))
#else
#define BF16 __attribute__((target("+bf16")))
#endif

/* Assembly, because clang 14 declares the intrinsics only when the whole file is
 * compiled for a machine that has them. */
BF16 static inline float32x4_t bfmmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

BF16 static inline uint16x8_t bfcvt(float32x4_t low, float32x4_t high)
{
    uint16x8_t half;
    __asm__("bfcvtn %0.4h, %1.4s\n\tbfcvtn2 %0.8h, %2.4s"
            : "=&w"(half)
            : "w"(low), "w"(high));
    return half;
}

/* Two rows of sums, as four 2 x 2 blocks.  Named members, because GCC keeps arrays in
 * memory here. */
typedef struct row_pair {
    float32x4_t block0, block1, block2, block3;
} row_pair;

static inline float32x4_t zip_low(float32x4_t x, float32x4_t y)
{
    return vreinterpretq_f32_f64(
        vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

static inline float32x4_t zip_high(float32x4_t x, float32x4_t y)
{
    return vreinterpretq_f32_f64(
        vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

static inline row_pair load_pair(const float *acc, int64_t stride, bool accumulate)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    if (!accumulate)
        return (row_pair){zero, zero, zero, zero};
    const float32x4_t left0 = vld1q_f32(acc), left1 = vld1q_f32(acc + stride);
    const float32x4_t right0 = vld1q_f32(acc + 4), right1 = vld1q_f32(acc + stride + 4);
    return (row_pair){zip_low(left0, left1), zip_high(left0, left1),
                      zip_low(right0, right1), zip_high(right0, right1)};
}

static inline void store_pair(row_pair sum, float *acc, int64_t stride)
{
    vst1q_f32(acc, zip_low(sum.block0, sum.block1));
    vst1q_f32(acc + 4, zip_low(sum.block2, sum.block3));
    vst1q_f32(acc + stride, zip_high(sum.block0, sum.block1));
    vst1q_f32(acc + stride + 4, zip_high(sum.block2, sum.block3));
}

BF16 static inline row_pair multiply_pair(row_pair sum, uint16x8_t a, uint16x8_t b0,
                                          uint16x8_t b1, uint16x8_t b2, uint16x8_t b3)
{
    sum.block0 = bfmmla(sum.block0, a, b0);
    sum.block1 = bfmmla(sum.block1, a, b1);
    sum.block2 = bfmmla(sum.block2, a, b2);
    sum.block3 = bfmmla(sum.block3, a, b3);
    return sum;
}

BF16 static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                          int64_t stride, bool accumulate)
{
    const uint16_t *pa = a, *pb = b;
    row_pair sum0 = load_pair(acc, stride, accumulate);
    row_pair sum1 = load_pair(acc + 2 * stride, stride, accumulate);
    row_pair sum2 = load_pair(acc + 4 * stride, stride, accumulate);
    row_pair sum3 = load_pair(acc + 6 * stride, stride, accumulate);
    for (int64_t k = 0; k < depth; k += KR, pa += MR * KR, pb += NR * KR) {
        const uint16x8_t b0 = vld1q_u16(pb), b1 = vld1q_u16(pb + 8);
        const uint16x8_t b2 = vld1q_u16(pb + 16), b3 = vld1q_u16(pb + 24);
        sum0 = multiply_pair(sum0, vld1q_u16(pa), b0, b1, b2, b3);
        sum1 = multiply_pair(sum1, vld1q_u16(pa + 8), b0, b1, b2, b3);
        sum2 = multiply_pair(sum2, vld1q_u16(pa + 16), b0, b1, b2, b3);
        sum3 = multiply_pair(sum3, vld1q_u16(pa + 24), b0, b1, b2, b3);
    }
    store_pair(sum0, acc, stride);
    store_pair(sum1, acc + 2 * stride, stride);
    store_pair(sum2, acc + 4 * stride, stride);
    store_pair(sum3, acc + 6 * stride, stride);
}

BF16 static void store_bf16(const float *acc, int64_t stride, int rows, int cols,
                            uint16_t *dst, int64_t dst_stride)
{
    if (cols != NR) {
        ewx_store_bf16(acc, stride, rows, cols, dst, dst_stride);
        return;
    }
    for (int i = 0; i < rows; i++) {
        const float *row = acc + i * stride;
        vst1q_u16(dst + i * dst_stride, bfcvt(vld1q_f32(row), vld1q_f32(row + 4)));
    }
}

static bool available(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}

const ewx_kernel ewx_kernel_neon_bf16 = {"neon-8x8-bf16", true,     MR,        NR, KR,
                                         available,       multiply, store_bf16};

#endif
