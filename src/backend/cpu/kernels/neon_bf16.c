/* bf16 kernel for 64-bit ARM with the BFMMLA instruction.  It multiplies bf16 operands
 * exactly and sums four products at a time in fp32; unless the machine has FEAT_EBF16,
 * those sums are rounded to odd and subnormals are flushed to zero, so results differ
 * from an fp32 kernel in the last bits. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>

#include "backend/cpu/kernels/bfcvt.h"
#include "backend/cpu/kernels/portable.h"

/* 12 columns at a time, and 8 where no more are left: 128 is ten times 12 and 8. */
enum { MR = 8, NR = 12, NARROW_NR = 8, FEW_ROWS = 4, KR = 4, OCTET = 8 };

/* How far ahead of its use B is fetched when it passes by as a stream: into L3, and from
 * there into L1. */
enum { STREAM_AHEAD = 16384, STREAM_NEAR = 768 };
enum { TO_L3 = 1, LINE = 64 };

/* What lies ahead, or B itself where it is a stream. */
static inline ewx_ahead find_ahead(ewx_ahead ahead, const void *b, int64_t depth, int width)
{
    if (ahead.bytes)
        return ahead;
    return (ewx_ahead){(const char *)b + STREAM_AHEAD,
                       (size_t)depth * (size_t)width * sizeof(uint16_t)};
}

/* ---- 8 x 12 ---------------------------------------------------------------------- */

/* 24 sums of 2 x 2, 4 vectors of A and 4 of B are all 32 registers.  Assembly for the
 * reason that neon.c gives, and with the same rule: one other instruction after every
 * fourth multiplication.  A step of four k's has ten vectors to load for 24
 * multiplications, so they come in pairs, which leaves room for one more instruction.  A
 * step takes the ideal 6.0 cycles; with single loads, or with two others in a row, 6.5. */
/* clang-format off */

/* Four rows of four columns: a0 and a1 hold two rows each, b0 and b1 two columns each. */
#define BLOCK(sum0, sum1, sum2, sum3, a0, a1, b0, b1)    \
    "bfmmla v" #sum0 ".4s, v" #a0 ".8h, v" #b0 ".8h\n\t" \
    "bfmmla v" #sum1 ".4s, v" #a0 ".8h, v" #b1 ".8h\n\t" \
    "bfmmla v" #sum2 ".4s, v" #a1 ".8h, v" #b0 ".8h\n\t" \
    "bfmmla v" #sum3 ".4s, v" #a1 ".8h, v" #b1 ".8h\n\t"

/* Four columns, and before each half of the rows an instruction for later. */
#define LEFT(b0, b1, first, second) \
    first BLOCK(8, 12, 9, 13, 0, 1, b0, b1) second BLOCK(10, 14, 11, 15, 2, 3, b0, b1)
#define MIDDLE(b0, b1, first, second) \
    first BLOCK(16, 20, 17, 21, 0, 1, b0, b1) second BLOCK(18, 22, 19, 23, 2, 3, b0, b1)
#define RIGHT(b0, b1, first, second) \
    first BLOCK(24, 28, 25, 29, 0, 1, b0, b1) second BLOCK(26, 30, 27, 31, 2, 3, b0, b1)

/* STEP also moves the panel's pointer to what it loads. */
#define LOAD(reg0, reg1, panel, offset) \
    "ldp q" #reg0 ", q" #reg1 ", [%[" #panel "], #" #offset "]\n\t"
#define STEP(reg0, reg1, panel, offset) \
    "ldp q" #reg0 ", q" #reg1 ", [%[" #panel "], #" #offset "]!\n\t"

/* Memory to L2 for later calls, or to L3 where B is a stream (one_row.h).  And to L1: A, or
 * the stream. */
#define FETCH(offset) "prfm pldl2keep, [%[ahead], #" #offset "]\n\t"
#define FETCH_STREAM(offset) "prfm pldl3keep, [%[ahead], #" #offset "]\n\t"
#define MOVE_AHEAD "add %[ahead], %[ahead], %[pace]\n\t"
#define NEAR_A(offset) "prfm pldl1keep, [%[a], #" #offset "]\n\t"
#define NEAR_B(offset) "prfm pldl1keep, [%[b], #" #offset "]\n\t"

/* Two steps, what they have room for, and what the next two begin with.  Four columns of B
 * are loaded while those before are multiplied, and half of A's rows while the other half
 * is. */
#define TWO_STEPS(first, second, next_b, next_a)        \
    LEFT(4, 5, LOAD(2, 3, a, 32), LOAD(6, 7, b, 32))    \
    MIDDLE(6, 7, LOAD(4, 5, b, 64), first)              \
    RIGHT(4, 5, LOAD(6, 7, b, 96), LOAD(0, 1, a, 64))   \
    LEFT(6, 7, LOAD(2, 3, a, 96), LOAD(4, 5, b, 128))   \
    MIDDLE(4, 5, LOAD(6, 7, b, 160), second)            \
    RIGHT(6, 7, next_b, next_a)
#define TWO_MORE_STEPS(first, second) \
    TWO_STEPS(first, second, STEP(4, 5, b, 192), STEP(0, 1, a, 128))

/* Two rows of sums are six blocks of 2 x 2: columns 0 and 1, 2 and 3, ... of either row. */
#define ALL_ROWS(move)                                        \
    move(8, 12, 16, 20, 24, 28) move(9, 13, 17, 21, 25, 29)   \
    move(10, 14, 18, 22, 26, 30) move(11, 15, 19, 23, 27, 31)
#define NEXT(row, stride) "add %[" #row "], %[" #row "], %[" #stride "]\n\t"
#define ZIP(to0, to1, from0, from1)                                \
    "zip1 v" #to0 ".2d, v" #from0 ".2d, v" #from1 ".2d\n\t"        \
    "zip2 v" #to1 ".2d, v" #from0 ".2d, v" #from1 ".2d\n\t"
#define LOAD_ROWS(s0, s1, s2, s3, s4, s5)                              \
    "ldp q0, q1, [%[row]]\n\tldr q2, [%[row], #32]\n\t" NEXT(row, stride) \
    "ldp q3, q4, [%[row]]\n\tldr q5, [%[row], #32]\n\t" NEXT(row, stride) \
    ZIP(s0, s1, 0, 3) ZIP(s2, s3, 1, 4) ZIP(s4, s5, 2, 5)
#define STORE_ROWS(s0, s1, s2, s3, s4, s5)                             \
    ZIP(0, 3, s0, s1) ZIP(1, 4, s2, s3) ZIP(2, 5, s4, s5)              \
    "stp q0, q1, [%[row]]\n\tstr q2, [%[row], #32]\n\t" NEXT(row, stride) \
    "stp q3, q4, [%[row]]\n\tstr q5, [%[row], #32]\n\t" NEXT(row, stride)
#define ROUND(to, from0, from1)            \
    "bfcvtn v" #to ".4h, v" #from0 ".4s\n\t" \
    "bfcvtn2 v" #to ".8h, v" #from1 ".4s\n\t"
#define ROUND_ROWS(s0, s1, s2, s3, s4, s5)                               \
    ROUND(0, s0, s1) ROUND(1, s2, s3) ROUND(2, s4, s5)                   \
    "uzp1 v3.4s, v0.4s, v1.4s\n\tuzp1 v5.4s, v2.4s, v2.4s\n\t"           \
    "uzp2 v4.4s, v0.4s, v1.4s\n\tuzp2 v6.4s, v2.4s, v2.4s\n\t"           \
    "str q3, [%[dst]]\n\tstr d5, [%[dst], #16]\n\t" NEXT(dst, dst_stride) \
    "str q4, [%[dst]]\n\tstr d6, [%[dst], #16]\n\t" NEXT(dst, dst_stride)

/* Rounds into dst, or where there is none stores into acc. */
EWX_BF16_CODE static inline __attribute__((always_inline)) void multiply_whole(
    int64_t depth, const void *a, const void *b, float *acc, int64_t stride,
    bool accumulate, ewx_ahead ahead, uint16_t *dst, int64_t dst_stride)
{
    const bool stream = ahead.bytes == 0;
    ahead = find_ahead(ahead, b, depth, NR);
    const int64_t steps = depth / KR, pace = (int64_t)ahead.bytes * 2 / steps;
    int64_t pairs = steps / 2;
    __asm__ volatile(
        ".irp r,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"
        "movi v\\r\\().4s, #0\n\t"
        ".endr\n\t"
        "cbz %w[accumulate], 1f\n\t"
        ALL_ROWS(LOAD_ROWS)
        "sub %[row], %[row], %[stride], lsl #3\n"
        "1:\n\t"
        LOAD(0, 1, a, 0) LOAD(4, 5, b, 0)
        "subs %[pairs], %[pairs], #1\n\t"
        "b.mi 5f\n\t"
        "b.eq 4f\n\t"
        "cbnz %w[stream], 3f\n"
        "2:\n\t"
        TWO_MORE_STEPS(FETCH(0), NEAR_A(512)) NEAR_A(448) MOVE_AHEAD
        "subs %[pairs], %[pairs], #1\n\t"
        "b.ne 2b\n\t"
        "b 4f\n"
        "3:\n\t"
        TWO_MORE_STEPS(FETCH_STREAM(0), FETCH_STREAM(64)) FETCH_STREAM(128)
        NEAR_B(1536) NEAR_B(1600) NEAR_B(1664) MOVE_AHEAD
        "subs %[pairs], %[pairs], #1\n\t"
        "b.ne 3b\n"
        "4:\n\t"
        TWO_STEPS("", "", "add %[b], %[b], #192\n\t", "add %[a], %[a], #128\n\t")
        "tbz %[steps], #0, 6f\n\t"
        LOAD(0, 1, a, 0) LOAD(4, 5, b, 0)
        "5:\n\t"
        LEFT(4, 5, LOAD(2, 3, a, 32), LOAD(6, 7, b, 32))
        MIDDLE(6, 7, LOAD(4, 5, b, 64), "")
        RIGHT(4, 5, "", "")
        "6:\n\t"
        "cbnz %[dst], 7f\n\t"
        ALL_ROWS(STORE_ROWS)
        "b 8f\n"
        "7:\n\t"
        ALL_ROWS(ROUND_ROWS)
        "8:\n\t"
        : [a] "+r"(a), [b] "+r"(b), [row] "+r"(acc), [ahead] "+r"(ahead.at),
          [pairs] "+r"(pairs), [dst] "+r"(dst)
        : [stride] "r"(stride * (int64_t)sizeof *acc), [accumulate] "r"(accumulate),
          [steps] "r"(steps), [stream] "r"(stream), [pace] "r"(pace),
          [dst_stride] "r"(dst_stride * (int64_t)sizeof *dst)
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",
          "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory");
}
/* clang-format on */

EWX_BF16_CODE static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                                   int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_whole(depth, a, b, acc, stride, accumulate, ahead, NULL, 0);
}

EWX_BF16_CODE static void multiply_round(int64_t depth, const void *a, const void *b,
                                         float *acc, int64_t stride, bool accumulate,
                                         ewx_ahead ahead, uint16_t *dst, int64_t dst_stride)
{
    multiply_whole(depth, a, b, acc, stride, accumulate, ahead, dst, dst_stride);
}

/* ---- 8 x 8, and few rows: 4 x 12 ------------------------------------------------- */

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

/* Four rows and four columns of sums, as 2 x 2 blocks of the upper and lower rows and the
 * left and right columns.  Named members, because GCC keeps arrays in memory here. */
typedef struct block {
    float32x4_t upper_left, upper_right, lower_left, lower_right;
} block;

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

static inline block load_block(const float *acc, int64_t stride, bool accumulate)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    if (!accumulate)
        return (block){zero, zero, zero, zero};
    const float32x4_t row0 = vld1q_f32(acc), row1 = vld1q_f32(acc + stride);
    const float32x4_t row2 = vld1q_f32(acc + 2 * stride),
                      row3 = vld1q_f32(acc + 3 * stride);
    return (block){zip_low(row0, row1), zip_high(row0, row1), zip_low(row2, row3),
                   zip_high(row2, row3)};
}

static inline void store_block(block sum, float *acc, int64_t stride)
{
    vst1q_f32(acc, zip_low(sum.upper_left, sum.upper_right));
    vst1q_f32(acc + stride, zip_high(sum.upper_left, sum.upper_right));
    vst1q_f32(acc + 2 * stride, zip_low(sum.lower_left, sum.lower_right));
    vst1q_f32(acc + 3 * stride, zip_high(sum.lower_left, sum.lower_right));
}

EWX_BF16_CODE static inline block multiply_block(block sum, const uint16_t *a,
                                                 const uint16_t *b)
{
    const uint16x8_t upper = vld1q_u16(a), lower = vld1q_u16(a + OCTET);
    const uint16x8_t left = vld1q_u16(b), right = vld1q_u16(b + OCTET);
    return (block){
        bfmmla(sum.upper_left, upper, left), bfmmla(sum.upper_right, upper, right),
        bfmmla(sum.lower_left, lower, left), bfmmla(sum.lower_right, lower, right)};
}

enum { BLOCK_SIDE = 4, BLOCK_ELEMS = BLOCK_SIDE * KR };

EWX_BF16_CODE static void multiply_narrow(int64_t depth, const void *a, const void *b,
                                          float *acc, int64_t stride, bool accumulate,
                                          ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    const uint16_t *pa = a, *pb = b;
    float *lower = acc + BLOCK_SIDE * stride;
    block sum00 = load_block(acc, stride, accumulate);
    block sum01 = load_block(acc + BLOCK_SIDE, stride, accumulate);
    block sum10 = load_block(lower, stride, accumulate);
    block sum11 = load_block(lower + BLOCK_SIDE, stride, accumulate);
    const uint16_t *const end = pa + depth * MR;
    do { /* at least once: with a path around the loop GCC spills most sums */
        __builtin_prefetch((const char *)pb + STREAM_AHEAD, 0, TO_L3);
        __builtin_prefetch((const char *)pb + STREAM_NEAR);
        sum00 = multiply_block(sum00, pa, pb);
        sum01 = multiply_block(sum01, pa, pb + BLOCK_ELEMS);
        sum10 = multiply_block(sum10, pa + BLOCK_ELEMS, pb);
        sum11 = multiply_block(sum11, pa + BLOCK_ELEMS, pb + BLOCK_ELEMS);
        pa += MR * KR;
        pb += NARROW_NR * KR;
    } while (pa < end);
    store_block(sum00, acc, stride);
    store_block(sum01, acc + BLOCK_SIDE, stride);
    store_block(sum10, lower, stride);
    store_block(sum11, lower + BLOCK_SIDE, stride);
}

EWX_BF16_CODE static void multiply_few(int64_t depth, const void *a, const void *b,
                                       float *acc, int64_t stride, bool accumulate,
                                       ewx_ahead ahead)
{
    ahead = find_ahead(ahead, b, depth, NR);
    const size_t pace = ahead.bytes * KR / (size_t)depth;
    const uint16_t *pa = a, *pb = b;
    block sum0 = load_block(acc, stride, accumulate);
    block sum1 = load_block(acc + BLOCK_SIDE, stride, accumulate);
    block sum2 = load_block(acc + 2 * BLOCK_SIDE, stride, accumulate);
    const uint16_t *const end = pa + depth * MR;
    do {
        __builtin_prefetch(ahead.at, 0, TO_L3);
        __builtin_prefetch(ahead.at + LINE, 0, TO_L3);
        __builtin_prefetch((const char *)pb + STREAM_NEAR);
        __builtin_prefetch((const char *)pb + STREAM_NEAR + LINE);
        ahead.at += pace;
        sum0 = multiply_block(sum0, pa, pb);
        sum1 = multiply_block(sum1, pa, pb + BLOCK_ELEMS);
        sum2 = multiply_block(sum2, pa, pb + 2 * BLOCK_ELEMS);
        pa += MR * KR;
        pb += NR * KR;
    } while (pa < end);
    store_block(sum0, acc, stride);
    store_block(sum1, acc + BLOCK_SIDE, stride);
    store_block(sum2, acc + 2 * BLOCK_SIDE, stride);
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

/* ---- One row, two panels at a time: 1 x 24 --------------------------------------- */

/* Twelve sums of a row, or eight: columns 0 and 1, 2 and 3, ...; the halves of the row
 * below, which there is none of, are zero. */
typedef struct strip {
    float32x4_t pair0, pair1, pair2, pair3, pair4, pair5;
} strip;

EWX_BF16_CODE static inline strip load_strip(const float *acc, int width, bool accumulate)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    const float32x2_t none = vdup_n_f32(0.0f);
    strip sum = {zero, zero, zero, zero, zero, zero};
    if (!accumulate || width == 0)
        return sum;
    sum.pair0 = vcombine_f32(vld1_f32(acc), none);
    sum.pair1 = vcombine_f32(vld1_f32(acc + 2), none);
    sum.pair2 = vcombine_f32(vld1_f32(acc + 4), none);
    sum.pair3 = vcombine_f32(vld1_f32(acc + 6), none);
    if (width == NR) {
        sum.pair4 = vcombine_f32(vld1_f32(acc + 8), none);
        sum.pair5 = vcombine_f32(vld1_f32(acc + 10), none);
    }
    return sum;
}

EWX_BF16_CODE static inline void store_strip(strip sum, float *acc, int width)
{
    if (width == 0)
        return;
    vst1_f32(acc, vget_low_f32(sum.pair0));
    vst1_f32(acc + 2, vget_low_f32(sum.pair1));
    vst1_f32(acc + 4, vget_low_f32(sum.pair2));
    vst1_f32(acc + 6, vget_low_f32(sum.pair3));
    if (width == NR) {
        vst1_f32(acc + 8, vget_low_f32(sum.pair4));
        vst1_f32(acc + 10, vget_low_f32(sum.pair5));
    }
}

EWX_BF16_CODE static inline strip multiply_strip(strip sum, uint16x8_t a, const uint16_t *b,
                                                 int width)
{
    enum { PAIR = 2 * KR };
    if (width == 0)
        return sum;
    sum.pair0 = bfmmla(sum.pair0, a, vld1q_u16(b));
    sum.pair1 = bfmmla(sum.pair1, a, vld1q_u16(b + PAIR));
    sum.pair2 = bfmmla(sum.pair2, a, vld1q_u16(b + 2 * PAIR));
    sum.pair3 = bfmmla(sum.pair3, a, vld1q_u16(b + 3 * PAIR));
    if (width == NR) {
        sum.pair4 = bfmmla(sum.pair4, a, vld1q_u16(b + 4 * PAIR));
        sum.pair5 = bfmmla(sum.pair5, a, vld1q_u16(b + 5 * PAIR));
    }
    return sum;
}

typedef uint16_t element;
typedef uint16x8_t row_vector; /* and the row below */
#define load_row vld1q_u16
#define ROW_CODE EWX_BF16_CODE
enum { ROW_KS = 8 };
#include "backend/cpu/kernels/one_row.h"

const ewx_kernel ewx_kernel_neon_bf16 = {
    .name = "neon-8x12-bf16",
    .packs = EW_BF16,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .few_rows = FEW_ROWS,
    .narrow_nr = NARROW_NR,
    .max_chunk = 1024,
    .stream_panels = 3,
    .available = ewx_has_bfcvt,
    .multiply = multiply,
    .multiply_round = multiply_round,
    .multiply_narrow = multiply_narrow,
    .multiply_few = multiply_few,
    .multiply_row = multiply_row,
    .store_bf16 = store_bf16,
    .store_fp16 = ewx_store_fp16,
};

#endif
