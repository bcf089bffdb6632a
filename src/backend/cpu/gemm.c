/* The macro-kernel: multiplies a tile out of packed panels, a chunk of K at a time, and
 * rounds it once.  Every element is one chain of sums over k, continued exactly from
 * chunk to chunk, so its bits depend neither on the blocking nor on its place in the
 * tile. */
#include "backend/cpu/gemm.h"

#include <string.h>

enum { MIN_PREFETCH_PARTS = 4 };
enum { CHUNKS_PER_SIGN = 16 }; /* of life: tiles that are done sooner need none */

static int64_t min(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t round_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

ewx_gemm ewx_gemm_build(const ewx_kernel *kernel, ew_dtype dtype, int64_t depth)
{
    ewx_gemm gemm = {kernel, dtype, depth, round_up(depth, kernel->kr), 0, NULL};
    const int64_t chunks = (gemm.padded_depth + kernel->max_chunk - 1) / kernel->max_chunk;
    /* Of equal length: a short last chunk would load and store as many sums. */
    gemm.chunk = round_up((gemm.padded_depth + chunks - 1) / chunks, kernel->kr);
    return gemm;
}

/* Rows or columns of (part of) a group with the last panel made whole. */
static int64_t whole_panels(int64_t lanes, int width, int narrow)
{
    const int64_t rest = lanes % width;
    return lanes - rest + (rest ? ewx_panel_width(rest, width, narrow) : 0);
}

static size_t packed_bytes(const ewx_gemm *gemm, int64_t lanes, int width, int narrow)
{
    const int64_t groups = lanes / EWX_PACK_GROUP, rest = lanes % EWX_PACK_GROUP;
    const int64_t padded = groups * whole_panels(EWX_PACK_GROUP, width, narrow) +
                           whole_panels(rest, width, narrow);
    return (size_t)padded * (size_t)gemm->padded_depth * ewx_packed_elem_bytes(gemm);
}

size_t ewx_packed_a_bytes(const ewx_gemm *gemm, int64_t rows)
{
    return packed_bytes(gemm, rows, gemm->kernel->mr, 0);
}

size_t ewx_packed_b_bytes(const ewx_gemm *gemm, int64_t cols)
{
    return packed_bytes(gemm, cols, gemm->kernel->nr, gemm->kernel->narrow_nr);
}

size_t ewx_gemm_scratch_bytes(const ewx_gemm *gemm, int64_t rows, int64_t cols)
{
    return (size_t)round_up(min(rows, EWX_PACK_GROUP), gemm->kernel->mr) *
           (size_t)round_up(min(cols, EWX_PACK_GROUP), gemm->kernel->nr) * sizeof(float);
}

/* Part of a tile: the product of one group of rows and one group of columns. */
typedef struct block {
    int64_t rows, cols;
    void *dst;
    int64_t dst_stride;
    float *scratch; /* NULL: shape and type allow the sums to grow in dst itself */
} block;

/* Where the sums of one register tile grow between chunks. */
typedef struct sums {
    float *at;
    int64_t stride;
} sums;

static block block_build(const ewx_gemm *gemm, int64_t rows, int64_t cols, void *dst,
                         int64_t dst_stride, void *scratch)
{
    const ewx_kernel *kernel = gemm->kernel;
    const bool whole = rows == whole_panels(rows, kernel->mr, 0) &&
                       cols == whole_panels(cols, kernel->nr, kernel->narrow_nr);
    const bool in_place = gemm->dtype == EW_FP32 && whole;
    return (block){rows, cols, dst, dst_stride, in_place ? NULL : scratch};
}

/* Register tiles lie one after the other in scratch; with a single chunk nothing needs
 * to last and they all use the first place, which stays in L1. */
static sums sums_find(const ewx_gemm *gemm, const block *out, int64_t i, int64_t j)
{
    if (!out->scratch)
        return (sums){(float *)out->dst + i * out->dst_stride + j, out->dst_stride};
    const bool single = gemm->chunk >= gemm->padded_depth;
    const int64_t before = i * round_up(out->cols, gemm->kernel->nr) + j * gemm->kernel->mr;
    return (sums){out->scratch + (single ? 0 : before), gemm->kernel->nr};
}

/* Rounds the register tile at (i, j), still in L1, into its place. */
static void store(const ewx_gemm *gemm, const block *out, int64_t i, int64_t j, sums sum)
{
    const ewx_kernel *kernel = gemm->kernel;
    const int rows = (int)min(out->rows - i, kernel->mr);
    const int cols = (int)min(out->cols - j, kernel->nr);
    const int64_t at = i * out->dst_stride + j;
    if (gemm->dtype != EW_FP32) {
        ewx_store_half *half =
            gemm->dtype == EW_BF16 ? kernel->store_bf16 : kernel->store_fp16;
        half(sum.at, sum.stride, rows, cols, (uint16_t *)out->dst + at, out->dst_stride);
    } else {
        for (int row = 0; row < rows; row++)
            memcpy((float *)out->dst + at + row * out->dst_stride,
                   sum.at + row * sum.stride, (size_t)cols * sizeof(float));
    }
}

static ewx_multiply *choose(const ewx_kernel *kernel, int width, int64_t rows_left)
{
    if (width != kernel->nr)
        return kernel->multiply_narrow;
    return rows_left <= kernel->few_rows ? kernel->multiply_few : kernel->multiply;
}

/* One chunk of a group of rows and a group of columns.  The panel of B stays in L1
 * while the panels of A pass by; meanwhile the next panel of B comes in, from as far as
 * memory.  Without that the first use of each panel costs up to 10 %. */
static void multiply_chunk(const ewx_gemm *gemm, const char *a, const char *b,
                           int64_t first, int64_t depth, const block *out)
{
    const ewx_kernel *kernel = gemm->kernel;
    const size_t lane = (size_t)depth * ewx_packed_elem_bytes(gemm);
    const size_t a_step = lane * (size_t)kernel->mr;
    const int64_t panels = (out->rows + kernel->mr - 1) / kernel->mr;
    /* With few panels of A the parts would be bursts, and B passes by so fast that the
     * hardware sees the stream. */
    const size_t part =
        panels < MIN_PREFETCH_PARTS ? 0 : lane * (size_t)kernel->nr / (size_t)panels;
    const bool last = first + depth == gemm->padded_depth && out->scratch;

    for (int64_t j = 0; j < out->cols;) {
        const int width = ewx_panel_width(out->cols - j, kernel->nr, kernel->narrow_nr);
        const char *next = b + lane * (size_t)width;
        for (int64_t panel = 0; panel < panels; panel++) {
            const int64_t i = panel * kernel->mr;
            const ewx_ahead ahead = {next + part * (size_t)panel, part};
            const sums sum = sums_find(gemm, out, i, j);
            ewx_multiply *multiply = choose(kernel, width, out->rows - i);
            multiply(depth, a + a_step * (size_t)panel, b, sum.at, sum.stride, first > 0,
                     ahead);
            if (last)
                store(gemm, out, i, j, sum);
        }
        b = next;
        j += width;
    }
}

static void multiply_block(const ewx_gemm *gemm, const char *a, const char *b,
                           const block *out)
{
    const size_t a_step = ewx_packed_a_bytes(gemm, out->rows) / (size_t)gemm->padded_depth;
    const size_t b_step = ewx_packed_b_bytes(gemm, out->cols) / (size_t)gemm->padded_depth;
    for (int64_t first = 0; first < gemm->padded_depth; first += gemm->chunk) {
        const int64_t depth = min(gemm->chunk, gemm->padded_depth - first);
        multiply_chunk(gemm, a + a_step * (size_t)first, b + b_step * (size_t)first, first,
                       depth, out);
        if (gemm->progress && first / gemm->chunk % CHUNKS_PER_SIGN == CHUNKS_PER_SIGN - 1)
            atomic_fetch_add_explicit(gemm->progress, 1, memory_order_relaxed);
    }
}

void ewx_gemm_tile(const ewx_gemm *gemm, const void *packed_a, const void *packed_b,
                   int64_t rows, int64_t cols, void *dst, int64_t dst_stride, void *scratch)
{
    const size_t elem = ew_dtype_bytes(gemm->dtype);
    if (gemm->kernel->enter)
        gemm->kernel->enter();
    for (int64_t i = 0; i < rows; i += EWX_PACK_GROUP) {
        const char *a = (const char *)packed_a + ewx_packed_a_bytes(gemm, i);
        for (int64_t j = 0; j < cols; j += EWX_PACK_GROUP) {
            const char *b = (const char *)packed_b + ewx_packed_b_bytes(gemm, j);
            const block out = block_build(
                gemm, min(rows - i, EWX_PACK_GROUP), min(cols - j, EWX_PACK_GROUP),
                (char *)dst + (size_t)(i * dst_stride + j) * elem, dst_stride, scratch);
            multiply_block(gemm, a, b, &out);
        }
    }
    if (gemm->kernel->leave)
        gemm->kernel->leave();
}
