/* fp16 kernel for 64-bit ARM with FMLAL (FEAT_FHM) under Linux; empty elsewhere.  FMLAL
 * multiplies fp16 operands exactly, adds the product to an fp32 sum and rounds once: the
 * bits of an fp32 kernel, at its rate, from half the bytes. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__aarch64__) && defined(__linux__)

#include <arm_neon.h>
#include <sys/auxv.h>

#include "backend/cpu/kernels/portable.h"

#ifndef HWCAP_ASIMDFHM
#define HWCAP_ASIMDFHM (1 << 23)
#endif

/* Marks functions that use such instructions. */
#if defined(__clang__)
#define FHM_CODE __attribute__((target("fp16fml")))
#else
#define FHM_CODE __attribute__((target("arch=armv8.2-a+fp16fml")))
#endif

/* Many columns for few rows, so that even the sums of one or two rows are enough to hide
 * the latency of an addition.  128 is five times 24 and 8. */
enum { MR = 4, NR = 24, NARROW_NR = 8, FEW_ROWS = 2 };

/* How far ahead of its use B is fetched when it passes by as a stream. */
enum { STREAM_AHEAD = 16384 };

/* ---- 4 x 24 and 2 x 24 ----------------------------------------------------------- */

/* 24 sums, 2 vectors of A and 6 of B are all 32 registers.  A vector of A holds four rows
 * at two k's; three of B hold a k.  Assembly for the reason that neon.c gives, and with the
 * same rule: one other instruction after every fourth multiplication. */
/* clang-format off */

/* Four columns, the low or the high half of b, of the first two rows or the others; those
 * are the elements `row` and `next` of a. */
#define LOW(sum0, sum1, b, a, row, next)                       \
    "fmlal v" #sum0 ".4s, v" #b ".4h, v" #a ".h[" #row "]\n\t" \
    "fmlal v" #sum1 ".4s, v" #b ".4h, v" #a ".h[" #next "]\n\t"
#define HIGH(sum0, sum1, b, a, row, next)                       \
    "fmlal2 v" #sum0 ".4s, v" #b ".4h, v" #a ".h[" #row "]\n\t" \
    "fmlal2 v" #sum1 ".4s, v" #b ".4h, v" #a ".h[" #next "]\n\t"

/* A k of 24 columns, four rows or two, and an instruction for later before each fourth of
 * the multiplications. */
#define FOUR_ROWS(b0, b1, b2, a, r0, r1, r2, r3, i0, i1, i2, i3, i4, i5)       \
    i0 LOW(8, 14, b0, a, r0, r1) LOW(20, 26, b0, a, r2, r3)                    \
    i1 HIGH(9, 15, b0, a, r0, r1) HIGH(21, 27, b0, a, r2, r3)                  \
    i2 LOW(10, 16, b1, a, r0, r1) LOW(22, 28, b1, a, r2, r3)                   \
    i3 HIGH(11, 17, b1, a, r0, r1) HIGH(23, 29, b1, a, r2, r3)                 \
    i4 LOW(12, 18, b2, a, r0, r1) LOW(24, 30, b2, a, r2, r3)                   \
    i5 HIGH(13, 19, b2, a, r0, r1) HIGH(25, 31, b2, a, r2, r3)
#define TWO_ROWS(b0, b1, b2, a, r0, r1, r2, r3, i0, i1, i2, i3, i4, i5) \
    i0 LOW(8, 14, b0, a, r0, r1) i1 HIGH(9, 15, b0, a, r0, r1)          \
    i2 LOW(10, 16, b1, a, r0, r1) i3 HIGH(11, 17, b1, a, r0, r1)        \
    i4 LOW(12, 18, b2, a, r0, r1) i5 HIGH(13, 19, b2, a, r0, r1)

#define LOAD(reg, panel, offset) "ldr q" #reg ", [%[" #panel "], #" #offset "]\n\t"
#define STEP(reg, panel, offset) "ldr q" #reg ", [%[" #panel "], #" #offset "]!\n\t"

/* Memory to L2 for later calls, or to L3 where B is a stream (one_row.h); and to L1. */
#define FETCH(offset) "prfm %[into], [%[ahead], #" #offset "]\n\t"
#define NEAR(offset) "prfm pldl1keep, [%[b], #" #offset "]\n\t"

/* Four k's, and the first vectors of the next ones. */
#define FOUR_KS(rows)                                                               \
    rows(2, 3, 4, 0, 0, 1, 2, 3, LOAD(5, b, 48), LOAD(6, b, 64), LOAD(7, b, 80),    \
         FETCH(0), NEAR(1472), LOAD(1, a, 16))                                       \
    rows(5, 6, 7, 0, 4, 5, 6, 7, LOAD(2, b, 96), LOAD(3, b, 112), LOAD(4, b, 128),  \
         FETCH(64), NEAR(1536), "")                                                 \
    rows(2, 3, 4, 1, 0, 1, 2, 3, LOAD(5, b, 144), LOAD(6, b, 160), LOAD(7, b, 176), \
         FETCH(128), NEAR(1600), "")                                                \
    rows(5, 6, 7, 1, 4, 5, 6, 7, STEP(2, b, 192), LOAD(3, b, 16), LOAD(4, b, 32),   \
         "add %[ahead], %[ahead], %[pace]\n\t", STEP(0, a, 32), "")
/* One k; of A its elements alone. */
#define ONE_K(rows)                                                               \
    "ldr d0, [%[a]], #8\n\t" LOAD(2, b, 0) LOAD(3, b, 16) LOAD(4, b, 32)          \
    rows(2, 3, 4, 0, 0, 1, 2, 3, "add %[b], %[b], #48\n\t", "", "", "", "", "")

/* Loads ("ld") or stores ("st") a row of sums. */
#define ROW(move, s0, s1, s2, s3, s4, s5)                                            \
    move "p q" #s0 ", q" #s1 ", [%[row]]\n\t" move "p q" #s2 ", q" #s3 ", [%[row], #32]\n\t" \
    move "p q" #s4 ", q" #s5 ", [%[row], #64]\n\tadd %[row], %[row], %[stride]\n\t"
#define MOVE_TWO_ROWS(move) \
    ROW(move, 8, 9, 10, 11, 12, 13) ROW(move, 14, 15, 16, 17, 18, 19)
#define MOVE_FOUR_ROWS(move) \
    MOVE_TWO_ROWS(move) ROW(move, 20, 21, 22, 23, 24, 25) ROW(move, 26, 27, 28, 29, 30, 31)

#define MULTIPLY(rows, move_rows, back, prfm)                                            \
    __asm__ volatile(                                                                    \
        ".irp r,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t" \
        "movi v\\r\\().4s, #0\n\t"                                                       \
        ".endr\n\t"                                                                      \
        "cbz %w[accumulate], 1f\n\t"                                                     \
        move_rows("ld")                                                                  \
        "sub %[row], %[row], %[stride], lsl #" #back "\n"                                \
        "1:\n\t"                                                                         \
        "cbz %[quads], 3f\n\t"                                                           \
        LOAD(0, a, 0) LOAD(2, b, 0) LOAD(3, b, 16) LOAD(4, b, 32)         \
        "2:\n\t"                                                                         \
        FOUR_KS(rows)                                                                    \
        "subs %[quads], %[quads], #1\n\t"                                                \
        "b.ne 2b\n"                                                                      \
        "3:\n\t"                                                                         \
        ONE_K(rows)                                                                      \
        "subs %[rest], %[rest], #1\n\t"                                                  \
        "b.ne 3b\n\t"                                                                    \
        move_rows("st")                                                                  \
        : [a] "+r"(a), [b] "+r"(b), [row] "+r"(acc), [ahead] "+r"(ahead.at),             \
          [quads] "+r"(quads), [rest] "+r"(rest)                                         \
        : [stride] "r"(stride * (int64_t)sizeof *acc), [accumulate] "r"(accumulate),     \
          [pace] "r"(pace), [into] "i"(prfm)                                             \
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",      \
          "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22",   \
          "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory")
/* clang-format on */

/* The main loop reads up to two k's beyond its four, so the end is left at least two, if
 * there are. */
#define MULTIPLY_ALL(rows, move_rows, back)                                    \
    const bool stream = ahead.bytes == 0; /* B itself passes by */             \
    if (stream)                                                                \
        ahead = (ewx_ahead){(const char *)b + STREAM_AHEAD,                    \
                            (size_t)depth * NR * sizeof(uint16_t)};            \
    const int64_t pace = (int64_t)ahead.bytes * 4 / depth;                     \
    int64_t quads = depth < 2 ? 0 : (depth - 2) / 4, rest = depth - 4 * quads; \
    if (stream)                                                                \
        MULTIPLY(rows, move_rows, back, EWX_PLDL3KEEP);                        \
    else                                                                       \
        MULTIPLY(rows, move_rows, back, EWX_PLDL2KEEP)

FHM_CODE static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                              int64_t stride, bool accumulate, ewx_ahead ahead)
{
    MULTIPLY_ALL(FOUR_ROWS, MOVE_FOUR_ROWS, 2);
}

FHM_CODE static void multiply_few(int64_t depth, const void *a, const void *b, float *acc,
                                  int64_t stride, bool accumulate, ewx_ahead ahead)
{
    MULTIPLY_ALL(TWO_ROWS, MOVE_TWO_ROWS, 1);
}

/* ---- 4 x 8 and 2 x 8 ------------------------------------------------------------- */

/* clang-format off */
#define NARROW_FOUR_ROWS(b, a, r0, r1, r2, r3)           \
    LOW(8, 10, b, a, r0, r1) LOW(12, 14, b, a, r2, r3)   \
    HIGH(9, 11, b, a, r0, r1) HIGH(13, 15, b, a, r2, r3)
#define NARROW_TWO_ROWS(b, a, r0, r1, r2, r3)               \
    LOW(8, 10, b, a, r0, r1) HIGH(9, 11, b, a, r0, r1)

#define NARROW_ROW(move, s0, s1) \
    move "p q" #s0 ", q" #s1 ", [%[row]]\n\tadd %[row], %[row], %[stride]\n\t"
#define MOVE_NARROW_TWO_ROWS(move) NARROW_ROW(move, 8, 9) NARROW_ROW(move, 10, 11)
#define MOVE_NARROW_FOUR_ROWS(move) \
    MOVE_NARROW_TWO_ROWS(move) NARROW_ROW(move, 12, 13) NARROW_ROW(move, 14, 15)

/* As a stream B is fetched in any case: where it is none, it is in L1. */
#define MULTIPLY_NARROW(rows, move_rows, back)                                           \
    __asm__ volatile(                                                                    \
        ".irp r,8,9,10,11,12,13,14,15\n\tmovi v\\r\\().4s, #0\n\t.endr\n\t"              \
        "cbz %w[accumulate], 1f\n\t"                                                     \
        move_rows("ld")                                                                  \
        "sub %[row], %[row], %[stride], lsl #" #back "\n"                                \
        "1:\n\t"                                                                         \
        "cbz %[quads], 3f\n"                                                             \
        "2:\n\t"                                                                         \
        "ldp q0, q1, [%[a]], #32\n\tldp q2, q3, [%[b]], #32\n\t"                         \
        rows(2, 0, 0, 1, 2, 3)                                                           \
        "ldp q4, q5, [%[b]], #32\n\t"                                                    \
        rows(3, 0, 4, 5, 6, 7)                                                           \
        NEAR(1536)                                                                       \
        rows(4, 1, 0, 1, 2, 3)                                                           \
        "prfm pldl3keep, [%[b], %[far]]\n\t"                                             \
        rows(5, 1, 4, 5, 6, 7)                                                           \
        "subs %[quads], %[quads], #1\n\t"                                                \
        "b.ne 2b\n"                                                                      \
        "3:\n\t"                                                                         \
        "cbz %[rest], 5f\n"                                                              \
        "4:\n\t"                                                                         \
        "ldr d0, [%[a]], #8\n\tldr q2, [%[b]], #16\n\t"                                  \
        rows(2, 0, 0, 1, 2, 3)                                                           \
        "subs %[rest], %[rest], #1\n\t"                                                  \
        "b.ne 4b\n"                                                                      \
        "5:\n\t"                                                                         \
        move_rows("st")                                                                  \
        : [a] "+r"(a), [b] "+r"(b), [row] "+r"(acc), [quads] "+r"(quads),                \
          [rest] "+r"(rest)                                                              \
        : [stride] "r"(stride * (int64_t)sizeof *acc), [accumulate] "r"(accumulate),     \
          [far] "r"((int64_t)STREAM_AHEAD)                                               \
        : "v0", "v1", "v2", "v3", "v4", "v5", "v8", "v9", "v10", "v11", "v12", "v13",    \
          "v14", "v15", "cc", "memory")
/* clang-format on */

FHM_CODE static void multiply_narrow(int64_t depth, const void *a, const void *b,
                                     float *acc, int64_t stride, bool accumulate,
                                     ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    int64_t quads = depth / 4, rest = depth % 4;
    MULTIPLY_NARROW(NARROW_FOUR_ROWS, MOVE_NARROW_FOUR_ROWS, 2);
}

FHM_CODE static void multiply_narrow_few(int64_t depth, const void *a, const void *b,
                                         float *acc, int64_t stride, bool accumulate,
                                         ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    int64_t quads = depth / 4, rest = depth % 4;
    MULTIPLY_NARROW(NARROW_TWO_ROWS, MOVE_NARROW_TWO_ROWS, 1);
}

/* ---- One row, two panels at a time: 1 x 48 --------------------------------------- */

/* 24 sums, or eight.  Named members, because GCC keeps arrays in memory here. */
typedef struct strip {
    float32x4_t low0, high0, low1, high1, low2, high2;
} strip;

FHM_CODE static inline strip load_strip(const float *acc, int width, bool accumulate)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    strip sum = {zero, zero, zero, zero, zero, zero};
    if (!accumulate || width == 0)
        return sum;
    sum.low0 = vld1q_f32(acc);
    sum.high0 = vld1q_f32(acc + 4);
    if (width == NR) {
        sum.low1 = vld1q_f32(acc + 8);
        sum.high1 = vld1q_f32(acc + 12);
        sum.low2 = vld1q_f32(acc + 16);
        sum.high2 = vld1q_f32(acc + 20);
    }
    return sum;
}

FHM_CODE static inline void store_strip(strip sum, float *acc, int width)
{
    if (width == 0)
        return;
    vst1q_f32(acc, sum.low0);
    vst1q_f32(acc + 4, sum.high0);
    if (width == NR) {
        vst1q_f32(acc + 8, sum.low1);
        vst1q_f32(acc + 12, sum.high1);
        vst1q_f32(acc + 16, sum.low2);
        vst1q_f32(acc + 20, sum.high2);
    }
}

FHM_CODE static inline float32x4_t multiply_low(float32x4_t sum, uint16x8_t a, uint16x8_t b)
{
    __asm__("fmlal %0.4s, %1.4h, %2.h[0]" : "+w"(sum) : "w"(b), "x"(a));
    return sum;
}

FHM_CODE static inline float32x4_t multiply_high(float32x4_t sum, uint16x8_t a,
                                                 uint16x8_t b)
{
    __asm__("fmlal2 %0.4s, %1.4h, %2.h[0]" : "+w"(sum) : "w"(b), "x"(a));
    return sum;
}

FHM_CODE static inline strip multiply_strip(strip sum, uint16x8_t a, const uint16_t *b,
                                            int width)
{
    if (width == 0)
        return sum;
    const uint16x8_t b0 = vld1q_u16(b);
    sum.low0 = multiply_low(sum.low0, a, b0);
    sum.high0 = multiply_high(sum.high0, a, b0);
    if (width == NR) {
        const uint16x8_t b1 = vld1q_u16(b + 8), b2 = vld1q_u16(b + 16);
        sum.low1 = multiply_low(sum.low1, a, b1);
        sum.high1 = multiply_high(sum.high1, a, b1);
        sum.low2 = multiply_low(sum.low2, a, b2);
        sum.high2 = multiply_high(sum.high2, a, b2);
    }
    return sum;
}

typedef uint16_t element;
typedef uint16x8_t row_vector; /* and three rows below */
/* All of a register, because clang has no lower registers for halves of one. */
static inline uint16x8_t load_row(const uint16_t *a)
{
    return vcombine_u16(vld1_u16(a), vdup_n_u16(0));
}
#define ROW_CODE FHM_CODE
enum { KR = 1, ROW_KS = 4 };
#include "backend/cpu/kernels/one_row.h"

static bool available(void)
{
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDFHM) != 0;
}

const ewx_kernel ewx_kernel_neon_fp16 = {
    .name = "neon-4x24-fp16",
    .packs = EW_FP16,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .few_rows = FEW_ROWS,
    .narrow_nr = NARROW_NR,
    .max_chunk = 1024,
    .stream_panels = 3,
    .available = available,
    .multiply = multiply,
    .multiply_narrow = multiply_narrow,
    .multiply_few = multiply_few,
    .multiply_narrow_few = multiply_narrow_few,
    .multiply_row = multiply_row,
    .store_bf16 = ewx_store_bf16,
    .store_fp16 = ewx_store_fp16,
};

#endif
