/* bf16 and fp16 kernels for x86-64 with AMX under Linux; empty elsewhere.  One instruction
 * adds 32 k's of 16 x 16 products.  It sums the even and the odd ones apart, adds the two
 * sums, and adds that to what was there, each time rounding to nearest even.  bf16
 * operands, intermediates and results that are subnormal count as zero, whatever MXCSR
 * says.  So results differ from an fp32 kernel in the last bits; few rows and many use the
 * same instruction, and have the same ones. */
#include "backend/cpu/kernels/kernel.h"

#if defined(__x86_64__) && defined(__linux__)

#include <cpuid.h>
#include <errno.h>
#include <immintrin.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "backend/cpu/kernels/portable.h"
#include "backend/cpu/kernels/store_avx512.h"

/* 2 x 2 tiles of sums, so that a tile of A or B is loaded for two multiplications.  Of a
 * row of A 32 k's lie together and are a tile's row; a tile's row of B is a pair of k's of
 * 16 columns.  All tiles lie in memory as they are loaded: B often comes from there. */
enum { SIDE = 16, MR = 2 * SIDE, NR = 2 * SIDE, KR = 32, KR_B = 2 };
enum { ROW_BYTES = 64, TILE_BYTES = SIDE * ROW_BYTES, STEP_BYTES = 2 * TILE_BYTES };
enum { LINE = 64, TO_L2 = 2 };
enum { AHEAD = 1024 };

/* ---- Instructions ---- */

/* Assembly, because the compilers' intrinsics do not say what memory they read and write.
 * Tiles 0 to 3 are sums, 4 and 5 of A, 6 and 7 of B. */
#define LOAD(tile, at, stride)                                                            \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(at), "r"((int64_t)(stride)) \
                     : "memory")
/* The same for what is read once in a while and should not drive the rest out of L1. */
#define LOAD_PASSING(tile, at, stride)                               \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #tile ::"r"(at), \
                     "r"((int64_t)(stride))                          \
                     : "memory")
#define STORE(tile, at, stride)                                        \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(at), \
                     "r"((int64_t)(stride))                            \
                     : "memory")
#define ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile ::)
/* TDPFP16PS by its bytes: assemblers of 2022 do not know the name. */
#define ADD_PRODUCTS(dtype, sums, a, b)                                             \
    do {                                                                            \
        if ((dtype) == EW_BF16)                                                     \
            __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sums ::); \
        else                                                                        \
            __asm__ volatile(".byte 0xc4, 0xe2, (15 - " #b                          \
                             ") * 8 + 3, 0x5c, 0xc0 + " #sums " * 8 + " #a ::);     \
    } while (0)

/* What LDTILECFG reads. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

#define EIGHT(x)               \
    {                          \
        x, x, x, x, x, x, x, x \
    }
static const tile_config config = {1, 0, {0}, EIGHT(ROW_BYTES), EIGHT(SIDE)};

static void enter(void)
{
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

/* Leaves the tiles as other code expects them, and keeps context switches cheap.  Results
 * that were streamed precede what is stored from now on, a release too. */
static void leave(void)
{
    __asm__ volatile("tilerelease\n\tsfence" ::: "memory");
}

/* ---- Multiplication ---- */

/* Where sums will be rounded to.  Stores of whole matrices go to memory, and their lines
 * had better be in the cache by then. */
typedef struct target {
    const uint16_t *next; /* NULL: none */
    int64_t stride;
} target;

static inline __attribute__((always_inline)) void fetch_target(target *dst, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++, dst->next += dst->stride)
        __builtin_prefetch(dst->next, 0, TO_L2);
}

/* The upper row of tiles, and the lower one where there are `all`.  Inlined with constants.
 */
static inline __attribute__((always_inline)) void multiply_rows(
    ew_dtype dtype, bool all, int64_t depth, const void *a, const void *b, float *acc,
    int64_t stride, bool accumulate, ewx_ahead ahead, target dst)
{
    const char *pa = a, *pb = b;
    const int64_t pitch = stride * (int64_t)sizeof *acc;
    float *lower = acc + SIDE * stride;
    if (accumulate) {
        LOAD(0, acc, pitch);
        LOAD(1, acc + SIDE, pitch);
        if (all) {
            LOAD(2, lower, pitch);
            LOAD(3, lower + SIDE, pitch);
        }
    } else {
        ZERO(0);
        ZERO(1);
        ZERO(2);
        ZERO(3);
    }
    const int64_t dst_rows = dst.next ? MR / (depth / KR) : 0; /* of most steps */
    const size_t share = (ahead.bytes / (size_t)(depth / KR) + LINE - 1) / LINE * LINE;
    for (int64_t k = 0; k < depth; k += KR, pa += STEP_BYTES, pb += STEP_BYTES) {
        ewx_prefetch_stream(ahead, pb, STEP_BYTES, AHEAD);
        for (const char *end = ahead.at + share; ahead.at < end; ahead.at += LINE)
            __builtin_prefetch(ahead.at, 0, TO_L2);
        fetch_target(&dst, dst_rows);
        LOAD(6, pb, ROW_BYTES);
        LOAD_PASSING(4, pa, ROW_BYTES);
        ADD_PRODUCTS(dtype, 0, 4, 6);
        LOAD(7, pb + TILE_BYTES, ROW_BYTES);
        ADD_PRODUCTS(dtype, 1, 4, 7);
        if (!all)
            continue;
        LOAD_PASSING(5, pa + TILE_BYTES, ROW_BYTES);
        ADD_PRODUCTS(dtype, 2, 5, 6);
        ADD_PRODUCTS(dtype, 3, 5, 7);
    }
    STORE(0, acc, pitch);
    STORE(1, acc + SIDE, pitch);
    if (!all)
        return;
    STORE(2, lower, pitch);
    STORE(3, lower + SIDE, pitch);
}

static void multiply_bf16(int64_t depth, const void *a, const void *b, float *acc,
                          int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_rows(EW_BF16, true, depth, a, b, acc, stride, accumulate, ahead, (target){0});
}

static void multiply_few_bf16(int64_t depth, const void *a, const void *b, float *acc,
                              int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_rows(EW_BF16, false, depth, a, b, acc, stride, accumulate, ahead, (target){0});
}

static void multiply_fp16(int64_t depth, const void *a, const void *b, float *acc,
                          int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_rows(EW_FP16, true, depth, a, b, acc, stride, accumulate, ahead, (target){0});
}

static void multiply_few_fp16(int64_t depth, const void *a, const void *b, float *acc,
                              int64_t stride, bool accumulate, ewx_ahead ahead)
{
    multiply_rows(EW_FP16, false, depth, a, b, acc, stride, accumulate, ahead, (target){0});
}

/* All processors with AMX have AVX512_BF16.  Its conversion makes subnormals zero, and
 * there are none among the sums. */
__attribute__((target("avx512f,avx512bf16"))) static void store_bf16(
    const float *acc, int64_t stride, int rows, int cols, uint16_t *dst, int64_t dst_stride)
{
    if (cols < NR) {
        ewx_store_bf16_avx512(acc, stride, rows, cols, dst, dst_stride);
        return;
    }
    for (int i = 0; i < rows; i++, acc += stride, dst += dst_stride) {
        const __m512 left = _mm512_loadu_ps(acc), right = _mm512_loadu_ps(acc + SIDE);
        _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(right, left));
    }
}

/* Ordered by leave(). */
__attribute__((target("avx512f,avx512bf16"))) static inline void stream(
    ew_dtype dtype, const float *acc, int64_t stride, uint16_t *dst, int64_t dst_stride)
{
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    for (int i = 0; i < MR; i++, acc += stride, dst += dst_stride) {
        const __m512 left = _mm512_loadu_ps(acc), right = _mm512_loadu_ps(acc + SIDE);
        const __m512i line =
            dtype == EW_BF16
                ? (__m512i)_mm512_cvtne2ps_pbh(right, left)
                : _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtps_ph(left, NEAREST)),
                                     _mm512_cvtps_ph(right, NEAREST), 1);
        _mm512_stream_si512((void *)dst, line);
    }
}

static void multiply_round_bf16(int64_t depth, const void *a, const void *b, float *acc,
                                int64_t stride, bool accumulate, ewx_ahead ahead,
                                uint16_t *dst, int64_t dst_stride)
{
    multiply_rows(EW_BF16, true, depth, a, b, acc, stride, accumulate, ahead,
                  (target){dst, dst_stride});
    store_bf16(acc, stride, MR, NR, dst, dst_stride);
}

static void multiply_round_fp16(int64_t depth, const void *a, const void *b, float *acc,
                                int64_t stride, bool accumulate, ewx_ahead ahead,
                                uint16_t *dst, int64_t dst_stride)
{
    multiply_rows(EW_FP16, true, depth, a, b, acc, stride, accumulate, ahead,
                  (target){dst, dst_stride});
    ewx_store_fp16_avx512(acc, stride, MR, NR, dst, dst_stride);
}

static void multiply_stream_bf16(int64_t depth, const void *a, const void *b, float *acc,
                                 int64_t stride, bool accumulate, ewx_ahead ahead,
                                 uint16_t *dst, int64_t dst_stride)
{
    multiply_bf16(depth, a, b, acc, stride, accumulate, ahead);
    stream(EW_BF16, acc, stride, dst, dst_stride);
}

static void multiply_stream_fp16(int64_t depth, const void *a, const void *b, float *acc,
                                 int64_t stride, bool accumulate, ewx_ahead ahead,
                                 uint16_t *dst, int64_t dst_stride)
{
    multiply_fp16(depth, a, b, acc, stride, accumulate, ahead);
    stream(EW_FP16, acc, stride, dst, dst_stride);
}

/* ---- Whether the processor can and Linux lets us ---- */

static bool processor_has(int subleaf, bool in_eax, int bit)
{
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid_count(7, (unsigned int)subleaf, &eax, &ebx, &ecx, &edx) &&
           ((in_eax ? eax : edx) >> bit & 1u);
}

static bool processor_has_bf16(void)
{
    enum { AMX_BF16 = 22, AMX_TILE = 24 };
    return processor_has(0, false, AMX_TILE) && processor_has(0, false, AMX_BF16) &&
           __builtin_cpu_supports("avx512bf16");
}

static bool processor_has_fp16(void)
{
    enum { AMX_FP16 = 21 };
    return processor_has_bf16() && processor_has(1, true, AMX_FP16);
}

/* Linux gives a process the 8 KiB of tiles per thread only if it asks.  Asked once: plans
 * and weights made at different times must agree.  0 when granted, or an errno. */
static int permission(void)
{
    enum { UNKNOWN = -1, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    static _Atomic int answer = UNKNOWN;
    int known = atomic_load_explicit(&answer, memory_order_relaxed);
    if (known == UNKNOWN) {
        const int saved = errno;
        known =
            syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) ? errno : 0;
        errno = saved;
        atomic_store_explicit(&answer, known, memory_order_relaxed);
    }
    return known;
}

static bool available_bf16(void)
{
    return processor_has_bf16() && permission() == 0;
}

static bool available_fp16(void)
{
    return processor_has_fp16() && permission() == 0;
}

static const char *refusal(void)
{
    if (!processor_has_bf16() || permission() == 0)
        return NULL;
    return permission() == ENOSPC ? "a signal stack of this process is too small for AMX"
                                  : "Linux refuses AMX to this process";
}

const ewx_kernel ewx_kernel_amx_bf16 = {
    .name = "amx-32x32-bf16",
    .packs = EW_BF16,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .kr_b = KR_B,
    .side_b = SIDE,
    .few_rows = SIDE,
    .max_chunk = 512,
    .stream_panels = 3,
    .block_side = 256,
    .available = available_bf16,
    .refusal = refusal,
    .enter = enter,
    .leave = leave,
    .multiply = multiply_bf16,
    .multiply_few = multiply_few_bf16,
    .multiply_round = multiply_round_bf16,
    .multiply_stream = multiply_stream_bf16,
    .store_bf16 = store_bf16,
    .store_fp16 = ewx_store_fp16_avx512,
};

const ewx_kernel ewx_kernel_amx_fp16 = {
    .name = "amx-32x32-fp16",
    .packs = EW_FP16,
    .mr = MR,
    .nr = NR,
    .kr = KR,
    .kr_b = KR_B,
    .side_b = SIDE,
    .few_rows = SIDE,
    .max_chunk = 512,
    .stream_panels = 3,
    .block_side = 256,
    .available = available_fp16,
    .refusal = refusal,
    .enter = enter,
    .leave = leave,
    .multiply = multiply_fp16,
    .multiply_few = multiply_few_fp16,
    .multiply_round = multiply_round_fp16,
    .multiply_stream = multiply_stream_fp16,
    .store_bf16 = ewx_store_bf16_avx512,
    .store_fp16 = ewx_store_fp16_avx512,
};

#endif
