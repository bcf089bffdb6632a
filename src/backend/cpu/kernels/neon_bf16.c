/* bf16 kernel for 64-bit ARM with the BFMMLA instruction.  It multiplies bf16 operands
 * exactly and sums four products at a time in fp32; unless the machine has FEAT_EBF16,
 * those sums are rounded to odd and subnormals are flushed to zero, so results differ
 * from an fp32 kernel in the last bits. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>

#include "backend/cpu/kernels/bfcvt.h"
#include "backend/cpu/kernels/portable.h"

/* 24 sums, 4 vectors of A and 4 of B are all 32 registers.  The 16 sums of 8 x 8 are too
 * few to keep four units busy: 12 columns gain 5 to 13 %, although a group of 128 then
 * multiplies 4 columns of padding. */
enum { MR = 8, NR = 12, KR = 4, OCTET = 8 };

/* Assembly for the reason that bfcvt.h gives. */
EWX_BF16_CODE static inline float32x4_t bfmmla(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(sum) : "w"(a), "w"(b));
    return sum;
}

EWX_BF16_CODE static inline uint16x4_t bfcvt_low(float32x4_t x)
{
    uint16x4_t half;
    __asm__("bfcvtn %0.4h, %1.4s" : "=w"(half) : "w"(x));
    return half;
}

/* Eight rows and four columns of sums: 2 x 2 blocks of the left and of the right columns.
 * Named members, because GCC keeps arrays in memory here. */
typedef struct columns {
    float32x4_t left0, left1, left2, left3;
    float32x4_t right0, right1, right2, right3;
} columns;

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

static inline columns load_columns(const float *acc, int64_t stride)
{
    const float32x4_t row0 = vld1q_f32(acc), row1 = vld1q_f32(acc + stride);
    const float32x4_t row2 = vld1q_f32(acc + 2 * stride),
                      row3 = vld1q_f32(acc + 3 * stride);
    const float32x4_t row4 = vld1q_f32(acc + 4 * stride),
                      row5 = vld1q_f32(acc + 5 * stride);
    const float32x4_t row6 = vld1q_f32(acc + 6 * stride),
                      row7 = vld1q_f32(acc + 7 * stride);
    return (columns){zip_low(row0, row1),  zip_low(row2, row3),  zip_low(row4, row5),
                     zip_low(row6, row7),  zip_high(row0, row1), zip_high(row2, row3),
                     zip_high(row4, row5), zip_high(row6, row7)};
}

static inline void store_rows(float32x4_t left, float32x4_t right, float *acc,
                              int64_t stride)
{
    vst1q_f32(acc, zip_low(left, right));
    vst1q_f32(acc + stride, zip_high(left, right));
}

static inline void store_columns(columns sum, float *acc, int64_t stride)
{
    store_rows(sum.left0, sum.right0, acc, stride);
    store_rows(sum.left1, sum.right1, acc + 2 * stride, stride);
    store_rows(sum.left2, sum.right2, acc + 4 * stride, stride);
    store_rows(sum.left3, sum.right3, acc + 6 * stride, stride);
}

EWX_BF16_CODE static inline columns multiply_columns(columns sum, uint16x8_t a0,
                                                     uint16x8_t a1, uint16x8_t a2,
                                                     uint16x8_t a3, const uint16_t *b)
{
    const uint16x8_t left = vld1q_u16(b), right = vld1q_u16(b + 8);
    sum.left0 = bfmmla(sum.left0, a0, left);
    sum.left1 = bfmmla(sum.left1, a1, left);
    sum.left2 = bfmmla(sum.left2, a2, left);
    sum.left3 = bfmmla(sum.left3, a3, left);
    sum.right0 = bfmmla(sum.right0, a0, right);
    sum.right1 = bfmmla(sum.right1, a1, right);
    sum.right2 = bfmmla(sum.right2, a2, right);
    sum.right3 = bfmmla(sum.right3, a3, right);
    return sum;
}

EWX_BF16_CODE static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                                   int64_t stride, bool accumulate, ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    const uint16_t *pa = a, *pb = b;
    const float32x4_t zero = vdupq_n_f32(0.0f);
    const columns none = {zero, zero, zero, zero, zero, zero, zero, zero};
    columns sum0 = accumulate ? load_columns(acc, stride) : none;
    columns sum1 = accumulate ? load_columns(acc + 4, stride) : none;
    columns sum2 = accumulate ? load_columns(acc + 8, stride) : none;
    const uint16_t *const end = pa + depth * MR;
    do { /* at least once: with a path around the loop GCC spills most sums */
        const uint16x8_t a0 = vld1q_u16(pa), a1 = vld1q_u16(pa + 8);
        const uint16x8_t a2 = vld1q_u16(pa + 16), a3 = vld1q_u16(pa + 24);
        sum0 = multiply_columns(sum0, a0, a1, a2, a3, pb);
        sum1 = multiply_columns(sum1, a0, a1, a2, a3, pb + 16);
        sum2 = multiply_columns(sum2, a0, a1, a2, a3, pb + 32);
        pa += MR * KR;
        pb += NR * KR;
    } while (pa < end);
    store_columns(sum0, acc, stride);
    store_columns(sum1, acc + 4, stride);
    store_columns(sum2, acc + 8, stride);
}

EWX_BF16_CODE static void store_bf16(const float *acc, int64_t stride, int rows, int cols,
                                     uint16_t *dst, int64_t dst_stride)
{
    if (cols < OCTET) {
        ewx_store_bf16(acc, stride, rows, cols, dst, dst_stride);
        return;
    }
    for (int i = 0; i < rows; i++) {
        const ewx_halves half = ewx_bfcvt(ewx_octet_load(EW_FP32, acc, i * stride));
        vst1q_u16(dst + i * dst_stride, (uint16x8_t)half);
    }
    if (cols == NR)
        for (int i = 0; i < rows; i++)
            vst1_u16(dst + i * dst_stride + OCTET,
                     bfcvt_low(vld1q_f32(acc + i * stride + OCTET)));
    else if (cols > OCTET)
        ewx_store_bf16(acc + OCTET, stride, rows, cols - OCTET, dst + OCTET, dst_stride);
}

const ewx_kernel ewx_kernel_neon_bf16 = {
    .name = "neon-8x12-bf16",
    .packs = EW_BF16,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .max_chunk = 680,
    .available = ewx_has_bfcvt,
    .multiply = multiply,
    .store_bf16 = store_bf16,
    .store_fp16 = ewx_store_fp16,
};

#endif
