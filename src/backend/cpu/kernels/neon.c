/* fp32 kernel for 64-bit ARM.  Advanced SIMD is part of the base architecture, so this
 * kernel is always available there; elsewhere the file is empty. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include "backend/cpu/kernels/portable.h"

/* 12 columns at a time, and 8 where no more are left: 128 is ten times 12 and 8. */
enum { MR = 8, NR = 12, NARROW_NR = 8, FEW_ROWS = 4 };

/* How far ahead of its use B is fetched when it passes by as a stream: into L3, and from
 * there into L1. */
enum { STREAM_AHEAD = 16384, STREAM_NEAR = 1536 };

/* ---- 8 x 12 ---------------------------------------------------------------------- */

/* 24 sums, 4 vectors of A and 4 of B are all 32 registers.  Assembly, because the order of
 * instructions decides: a Neoverse V1 starts four FMAs in every cycle only while other
 * instructions come singly between them; what FMAs lose to several in a row they never
 * make up for.  A k takes 6.7 cycles with its loads together, which is what compilers do,
 * and the ideal 6.0 with one after every fourth FMA. */
/* clang-format off */

/* Rows 0 to 3 or 4 to 7 of four columns of sums; `a` holds these rows, `b` the columns. */
#define HALF(sum0, sum1, sum2, sum3, b, a)             \
    "fmla v" #sum0 ".4s, v" #b ".4s, v" #a ".s[0]\n\t" \
    "fmla v" #sum1 ".4s, v" #b ".4s, v" #a ".s[1]\n\t" \
    "fmla v" #sum2 ".4s, v" #b ".4s, v" #a ".s[2]\n\t" \
    "fmla v" #sum3 ".4s, v" #b ".4s, v" #a ".s[3]\n\t"

/* Four columns at one k, and between the halves an instruction for later. */
#define LEFT(b, a0, a1, between) \
    HALF(8, 9, 10, 11, b, a0) between HALF(12, 13, 14, 15, b, a1)
#define MIDDLE(b, a0, a1, between) \
    HALF(16, 17, 18, 19, b, a0) between HALF(20, 21, 22, 23, b, a1)
#define RIGHT(b, a0, a1, between) \
    HALF(24, 25, 26, 27, b, a0) between HALF(28, 29, 30, 31, b, a1)

/* STEP also moves the panel's pointer to what it loads. */
#define LOAD(reg, panel, offset) "ldr q" #reg ", [%[" #panel "], #" #offset "]\n\t"
#define STEP(reg, panel, offset) "ldr q" #reg ", [%[" #panel "], #" #offset "]!\n\t"

/* Memory to L2 for later calls, or to L3 where B is a stream (one_row.h): a few rows of A
 * times all of B.  And to L1 four quads of k's ahead, which matters only to a stream. */
#define FETCH(offset) "prfm %[into], [%[ahead], #" #offset "]\n\t"
#define NEAR(offset) "prfm pldl1keep, [%[b], #" #offset "]\n\t"

/* Loads ("ld") or stores ("st") all sums, a row at a time. */
#define ROW(move, left, middle, right)              \
    move "p q" #left ", q" #middle ", [%[row]]\n\t" \
    move "r q" #right ", [%[row], #32]\n\t"         \
    "add %[row], %[row], %[stride]\n\t"
#define ROWS(move)                              \
    ROW(move, 8, 16, 24) ROW(move, 9, 17, 25)   \
    ROW(move, 10, 18, 26) ROW(move, 11, 19, 27) \
    ROW(move, 12, 20, 28) ROW(move, 13, 21, 29) \
    ROW(move, 14, 22, 30) ROW(move, 15, 23, 31)

/* A's rows alternate between two pairs of registers.  B's columns take turns in four: each
 * is loaded three columns ahead, into the register that the column before has just left. */
#define MULTIPLY(prfm)                                                                    \
    __asm__ volatile(                                                                     \
        ".irp r,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n\t"\
        "movi v\\r\\().4s, #0\n\t"                                                        \
        ".endr\n\t"                                                                       \
        "cbz %w[accumulate], 1f\n\t"                                                      \
        ROWS("ld")                                                                        \
        "sub %[row], %[row], %[stride], lsl #3\n"                                         \
        "1:\n\t"                                                                          \
        "cbz %[quads], 3f\n\t"                                                            \
        LOAD(0, a, 0) LOAD(1, a, 16) LOAD(4, b, 0) LOAD(5, b, 16) LOAD(6, b, 32)          \
        "2:\n\t"                                                                          \
        LOAD(7, b, 48)  LEFT(4, 0, 1, LOAD(2, a, 32))                                     \
        LOAD(4, b, 64)  MIDDLE(5, 0, 1, LOAD(3, a, 48))                                   \
        LOAD(5, b, 80)  RIGHT(6, 0, 1, FETCH(0))                                          \
        LOAD(6, b, 96)  LEFT(7, 2, 3, LOAD(0, a, 64))                                     \
        LOAD(7, b, 112) MIDDLE(4, 2, 3, LOAD(1, a, 80) NEAR(768))                         \
        LOAD(4, b, 128) RIGHT(5, 2, 3, FETCH(64))                                         \
        LOAD(5, b, 144) LEFT(6, 0, 1, LOAD(2, a, 96))                                     \
        LOAD(6, b, 160) MIDDLE(7, 0, 1, LOAD(3, a, 112) NEAR(832))                        \
        LOAD(7, b, 176) RIGHT(4, 0, 1, FETCH(128))                                        \
        STEP(4, b, 192) LEFT(5, 2, 3, STEP(0, a, 128))                                    \
        LOAD(5, b, 16)  MIDDLE(6, 2, 3, LOAD(1, a, 16) NEAR(704))                         \
        LOAD(6, b, 32)  RIGHT(7, 2, 3, "add %[ahead], %[ahead], %[pace]\n\t")             \
        "subs %[quads], %[quads], #1\n\t"                                                 \
        "b.ne 2b\n"                                                                       \
        "3:\n\t"                                                                          \
        LOAD(0, a, 0) LOAD(4, b, 0)                                                       \
        "subs %[rest], %[rest], #1\n\t"                                                   \
        LOAD(1, a, 16)                                                                    \
        "add %[a], %[a], #32\n\t"                                                         \
        LEFT(4, 0, 1, LOAD(5, b, 16))                                                     \
        LOAD(6, b, 32)                                                                    \
        MIDDLE(5, 0, 1, "add %[b], %[b], #48\n\t")                                        \
        RIGHT(6, 0, 1, "")                                                                \
        "b.ne 3b\n\t"                                                                     \
        ROWS("st")                                                                        \
        : [a] "+r"(a), [b] "+r"(b), [row] "+r"(acc), [ahead] "+r"(ahead.at),              \
          [quads] "+r"(quads), [rest] "+r"(rest)                                          \
        : [stride] "r"(stride * (int64_t)sizeof(float)), [accumulate] "r"(accumulate),    \
          [pace] "r"(pace), [into] "i"(prfm)                                              \
        : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12",\
          "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23",    \
          "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc", "memory")
/* clang-format on */

static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                     int64_t stride, bool accumulate, ewx_ahead ahead)
{
    const bool stream = ahead.bytes == 0; /* B itself passes by */
    if (stream)
        ahead =
            (ewx_ahead){(const char *)b + STREAM_AHEAD, (size_t)depth * NR * sizeof(float)};
    /* The main loop reads one k beyond its four, so the end is left at least one. */
    int64_t quads = (depth - 1) / 4, rest = depth - 4 * quads;
    const int64_t pace = (int64_t)ahead.bytes * 4 / depth;
    if (stream)
        MULTIPLY(EWX_PLDL3KEEP);
    else
        MULTIPLY(EWX_PLDL2KEEP);
}

/* ---- 8 x 8 ----------------------------------------------------------------------- */

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

static void multiply_narrow(int64_t depth, const void *a, const void *b, float *acc,
                            int64_t stride, bool accumulate, ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    const float *pa = a, *pb = b;
    float *lower = acc + 4 * stride;
    block sum00 = load_block(acc, stride, accumulate);
    block sum01 = load_block(acc + 4, stride, accumulate);
    block sum10 = load_block(lower, stride, accumulate);
    block sum11 = load_block(lower + 4, stride, accumulate);
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += NARROW_NR) {
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

/* ---- Few rows: 4 x 12 and 4 x 8 --------------------------------------------------- */

enum { KS = 4 }; /* between prefetches, which are of whole lines then */

/* The next `bytes` of a stream.  Where B is none, it is in L1 already. */
static inline __attribute__((always_inline)) void fetch_stream(const float *b, int bytes)
{
    enum { LINE = 64, TO_L3 = 1 };
    for (int at = 0; at < bytes; at += LINE) {
        __builtin_prefetch((const char *)b + STREAM_AHEAD + at, 0, TO_L3);
        __builtin_prefetch((const char *)b + STREAM_NEAR + at);
    }
}

/* Four rows and `blocks` times four columns, with a constant; the last sum counts where
 * there are three. */
static inline __attribute__((always_inline)) void multiply_four_rows(
    int blocks, int64_t depth, const float *a, const float *b, float *acc, int64_t stride,
    bool accumulate)
{
    const int width = 4 * blocks;
    float *third = acc + (blocks == 3 ? 8 : 0);
    block sum0 = load_block(acc, stride, accumulate);
    block sum1 = load_block(acc + 4, stride, accumulate);
    block sum2 = load_block(third, stride, accumulate && blocks == 3);
    for (int64_t k = 0; k < depth; k++, a += MR, b += width) {
        if (k % KS == 0)
            fetch_stream(b, KS * width * (int)sizeof *b);
        const float32x4_t rows = vld1q_f32(a);
        sum0 = multiply_block(sum0, rows, vld1q_f32(b));
        sum1 = multiply_block(sum1, rows, vld1q_f32(b + 4));
        if (blocks == 3)
            sum2 = multiply_block(sum2, rows, vld1q_f32(b + 8));
    }
    store_block(sum0, acc, stride);
    store_block(sum1, acc + 4, stride);
    if (blocks == 3)
        store_block(sum2, third, stride);
}

static void multiply_few(int64_t depth, const void *a, const void *b, float *acc,
                         int64_t stride, bool accumulate, ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    multiply_four_rows(3, depth, a, b, acc, stride, accumulate);
}

static void multiply_narrow_few(int64_t depth, const void *a, const void *b, float *acc,
                                int64_t stride, bool accumulate, ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    multiply_four_rows(2, depth, a, b, acc, stride, accumulate);
}

/* ---- One row, two panels at a time: 1 x 24 ---------------------------------------- */

/* Twelve sums, or eight. */
typedef struct strip {
    float32x4_t left, middle, right;
} strip;

static inline strip load_strip(const float *acc, int width, bool accumulate)
{
    const float32x4_t zero = vdupq_n_f32(0.0f);
    if (!accumulate || width == 0)
        return (strip){zero, zero, zero};
    return (strip){vld1q_f32(acc), vld1q_f32(acc + 4),
                   width == NR ? vld1q_f32(acc + 8) : zero};
}

static inline void store_strip(strip sum, float *acc, int width)
{
    if (width == 0)
        return;
    vst1q_f32(acc, sum.left);
    vst1q_f32(acc + 4, sum.middle);
    if (width == NR)
        vst1q_f32(acc + 8, sum.right);
}

static inline strip multiply_strip(strip sum, float32x4_t a, const float *b, int width)
{
    if (width == 0)
        return sum;
    sum.left = vfmaq_f32(sum.left, vld1q_f32(b), a);
    sum.middle = vfmaq_f32(sum.middle, vld1q_f32(b + 4), a);
    if (width == NR)
        sum.right = vfmaq_f32(sum.right, vld1q_f32(b + 8), a);
    return sum;
}

typedef float element;
typedef float32x4_t row_vector;
#define load_row vld1q_dup_f32
#define ROW_CODE
enum { KR = 1, ROW_KS = 4 };
#include "backend/cpu/kernels/one_row.h"

const ewx_kernel ewx_kernel_neon = {
    .name = "neon-8x12-fp32",
    .packs = EW_FP32,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .few_rows = FEW_ROWS,
    .narrow_nr = NARROW_NR,
    .max_chunk = 512,
    .stream_panels = 3,
    .available = ewx_always_available,
    .multiply = multiply,
    .multiply_narrow = multiply_narrow,
    .multiply_few = multiply_few,
    .multiply_narrow_few = multiply_narrow_few,
    .multiply_row = multiply_row,
    .store_bf16 = ewx_store_bf16,
    .store_fp16 = ewx_store_fp16,
};

#endif
