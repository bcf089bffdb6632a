/* The macro-kernel: multiplies a tile out of packed panels, a chunk of K at a time, and
 * rounds it once.  Every element is one chain of sums over k, continued exactly from
 * chunk to chunk, so its bits depend neither on the blocking nor on its place in the
 * tile. */
#include "backend/cpu/gemm.h"

#include <string.h>

enum { CHUNKS_IN_PLACE = 2, CACHE_LINE = 64 };
enum { DIRECT_ROWS = 16 };     /* with more of them a panel of B is widened once for all */
enum { CHUNKS_PER_SIGN = 16 }; /* a sign of life: tiles with fewer chunks need none */

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
    /* Chunks of equal length: a short last one would load and store as many sums. */
    gemm.chunk = round_up((gemm.padded_depth + chunks - 1) / chunks, kernel->kr);
    return gemm;
}

/* Rows or columns of (part of) a group with the last panel made whole. */
static int64_t whole_panels(int64_t lanes, int width, int narrow)
{
    const int64_t rest = lanes % width;
    return lanes - rest + (rest ? ewx_panel_width(rest, width, narrow) : 0);
}

static size_t packed_bytes(const ewx_gemm *gemm, int64_t lanes, int width, int narrow,
                           size_t elem)
{
    const int64_t groups = lanes / EWX_PACK_GROUP, rest = lanes % EWX_PACK_GROUP;
    const int64_t padded = groups * whole_panels(EWX_PACK_GROUP, width, narrow) +
                           whole_panels(rest, width, narrow);
    return (size_t)padded * (size_t)gemm->padded_depth * elem;
}

size_t ewx_packed_a_bytes(const ewx_gemm *gemm, int64_t rows)
{
    return packed_bytes(gemm, rows, gemm->kernel->mr, 0, ewx_packed_a_elem_bytes(gemm));
}

size_t ewx_packed_b_bytes(const ewx_gemm *gemm, int64_t cols)
{
    return packed_bytes(gemm, cols, gemm->kernel->nr, gemm->kernel->narrow_nr,
                        ewx_packed_b_elem_bytes(gemm));
}

size_t ewx_gemm_scratch_bytes(const ewx_gemm *gemm, int64_t rows, int64_t cols)
{
    return (size_t)round_up(min(rows, EWX_PACK_GROUP), gemm->kernel->mr) *
           (size_t)round_up(min(cols, EWX_PACK_GROUP), gemm->kernel->nr) * sizeof(float);
}

/* The product of one group of rows and one group of columns. */
typedef struct block {
    const char *a; /* the chunk's packed rows */
    size_t a_step; /* bytes of all rows at one k */
    int64_t rows, cols;
    void *dst;
    int64_t dst_stride;
    float *scratch;   /* NULL: shape and type allow the sums to grow in dst itself */
    int64_t sum_step; /* floats from one register tile's sums to those below it */
    ewx_multiply_round *round; /* the last k's of a whole register tile; NULL: as any */
} block;

/* Where the sums of one register tile grow between chunks. */
typedef struct sums {
    float *at;
    int64_t stride;
} sums;

static bool is_single(const ewx_gemm *gemm)
{
    return gemm->chunk >= gemm->padded_depth;
}

static int64_t sum_step(const ewx_gemm *gemm, const block *out)
{
    if (!out->scratch)
        return gemm->kernel->mr * out->dst_stride;
    return is_single(gemm) ? 0 : gemm->kernel->mr * round_up(out->cols, gemm->kernel->nr);
}

static ewx_multiply_round *choose_round(const ewx_gemm *gemm, const ewx_gemm_rows *rows,
                                        int64_t dst_stride)
{
    const ewx_kernel *kernel = gemm->kernel;
    if (gemm->dtype != kernel->packs)
        return NULL;
    const bool has_whole_lines =
        ((uintptr_t)rows->dst | (uintptr_t)dst_stride * ew_dtype_bytes(gemm->dtype)) %
            CACHE_LINE ==
        0;
    return rows->rests && has_whole_lines && kernel->multiply_stream
               ? kernel->multiply_stream
               : kernel->multiply_round;
}

static block block_build(const ewx_gemm *gemm, int64_t first, const ewx_gemm_rows *rows,
                         int64_t cols, int64_t dst_stride)
{
    const ewx_kernel *kernel = gemm->kernel;
    const bool whole = rows->count == whole_panels(rows->count, kernel->mr, 0) &&
                       cols == whole_panels(cols, kernel->nr, kernel->narrow_nr);
    /* Sums whose rows lie far apart crowd a few sets of the caches.  Over few chunks that
     * costs less than copying them at the end. */
    const bool fits =
        dst_stride <= EWX_PACK_GROUP || gemm->padded_depth <= CHUNKS_IN_PLACE * gemm->chunk;
    const bool in_place = gemm->dtype == EW_FP32 && whole && fits;
    const size_t a_step =
        ewx_packed_a_bytes(gemm, rows->count) / (size_t)gemm->padded_depth;
    block out = {.a = (const char *)rows->packed + a_step * (size_t)first,
                 .a_step = a_step,
                 .rows = rows->count,
                 .cols = cols,
                 .dst = rows->dst,
                 .dst_stride = dst_stride,
                 .scratch = in_place ? NULL : rows->scratch,
                 .round = choose_round(gemm, rows, dst_stride)};
    out.sum_step = sum_step(gemm, &out);
    return out;
}

/* Those of the uppermost register tile at column j.  Register tiles lie one after the other
 * in scratch; with a single chunk nothing needs to last and they all use the first place,
 * which stays in L1. */
static sums sums_find(const ewx_gemm *gemm, const block *out, int64_t j)
{
    if (!out->scratch)
        return (sums){(float *)out->dst + j, out->dst_stride};
    return (sums){out->scratch + (is_single(gemm) ? 0 : j * gemm->kernel->mr),
                  gemm->kernel->nr};
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

/* `mixed` is NULL where the panel of B has the elements that A has. */
static ewx_multiply *choose(const ewx_kernel *kernel, const ewx_mixed *mixed, int width,
                            int64_t rows_left)
{
    const bool few = rows_left <= kernel->few_rows;
    if (mixed)
        return few ? mixed->multiply_few : mixed->multiply;
    if (width == kernel->nr)
        return few ? kernel->multiply_few : kernel->multiply;
    return few && kernel->multiply_narrow_few ? kernel->multiply_narrow_few
                                              : kernel->multiply_narrow;
}

/* A chunk of K: `depth` k's from `first` on. */
typedef struct chunk {
    int64_t first, depth;
    size_t row, col; /* bytes of a packed row, and of a packed column */
} chunk;

static int64_t count_panels(const ewx_gemm *gemm, const block *blocks, int num_blocks)
{
    int64_t panels = 0;
    for (int at = 0; at < num_blocks; at++)
        panels += (blocks[at].rows + gemm->kernel->mr - 1) / gemm->kernel->mr;
    return panels;
}

/* All rows of one block times a panel of B, `width` columns from j on.  Every panel of A
 * asks for as much of what lies ahead as `ahead` has bytes, and moves on. */
static void multiply_panel(const ewx_gemm *gemm, const ewx_mixed *mixed, chunk k,
                           const block *out, const char *b, int64_t j, int width,
                           ewx_ahead *ahead)
{
    const ewx_kernel *kernel = gemm->kernel;
    const bool last = k.first + k.depth == gemm->padded_depth && out->scratch;
    const char *a = out->a;
    const bool rounds = last && out->round && out->cols - j >= kernel->nr;
    sums sum = sums_find(gemm, out, j);
    for (int64_t i = 0; i < out->rows; i += kernel->mr, sum.at += out->sum_step) {
        if (rounds && out->rows - i >= kernel->mr) {
            out->round(k.depth, a, b, sum.at, sum.stride, k.first > 0, *ahead,
                       (uint16_t *)out->dst + i * out->dst_stride + j, out->dst_stride);
        } else {
            ewx_multiply *multiply = choose(kernel, mixed, width, out->rows - i);
            multiply(k.depth, a, b, sum.at, sum.stride, k.first > 0, *ahead);
            if (last)
                store(gemm, out, i, j, sum);
        }
        a += k.row * (size_t)kernel->mr;
        ahead->at += ahead->bytes;
    }
}

/* A single row and all panels of B; its sums lie side by side in scratch. */
static void multiply_row(const ewx_gemm *gemm, chunk k, const block *out, const char *b)
{
    const ewx_kernel *kernel = gemm->kernel;
    kernel->multiply_row(k.depth, out->a, b, out->cols, out->scratch, k.first > 0);
    if (k.first + k.depth < gemm->padded_depth)
        return;
    for (int64_t j = 0; j < out->cols; j += kernel->nr)
        store(gemm, out, 0, j, (sums){out->scratch + j, kernel->nr});
}

/* One chunk of groups of rows and a group of columns.  The panel of B stays in L1
 * while the panels of A pass by; meanwhile the next panel of B comes in, from as far as
 * memory.  Without that the first use of each panel costs up to 10 %. */
static void multiply_chunk(const ewx_gemm *gemm, chunk k, const block *blocks,
                           int num_blocks, const char *b)
{
    const ewx_kernel *kernel = gemm->kernel;
    const ewx_mixed *mixed = ewx_gemm_mixed(gemm);
    _Alignas(CACHE_LINE) float wide[EWX_WIDE_PANEL];
    const int64_t cols = blocks->cols;
    if (kernel->multiply_row && num_blocks == 1 && blocks->rows == 1) {
        multiply_row(gemm, k, blocks, b);
        return;
    }
    const int64_t panels = count_panels(gemm, blocks, num_blocks);
    const bool widens = mixed && panels * kernel->mr > DIRECT_ROWS;
    const size_t part =
        panels <= kernel->stream_panels ? 0 : k.col * (size_t)kernel->nr / (size_t)panels;
    for (int64_t j = 0; j < cols;) {
        const int width = ewx_panel_width(cols - j, kernel->nr, kernel->narrow_nr);
        const char *next = b + k.col * (size_t)width;
        ewx_ahead ahead = {next, part};
        if (widens)
            mixed->widen((const uint16_t *)(const void *)b, k.depth * width, wide);
        for (int at = 0; at < num_blocks; at++)
            multiply_panel(gemm, widens ? NULL : mixed, k, &blocks[at],
                           widens ? (const char *)wide : b, j, width, &ahead);
        b = next;
        j += width;
    }
}

void ewx_gemm_rows_multiply(const ewx_gemm *gemm, int64_t first, int64_t end,
                            const ewx_gemm_rows *groups, int num_groups,
                            const void *packed_b, int64_t cols, int64_t dst_stride)
{
    const size_t b_step = ewx_packed_b_bytes(gemm, cols) / (size_t)gemm->padded_depth;
    block blocks[EWX_GROUPS_TOGETHER];
    for (int at = 0; at < num_groups; at++)
        blocks[at] = block_build(gemm, first, &groups[at], cols, dst_stride);
    if (gemm->kernel->enter)
        gemm->kernel->enter();
    for (; first < end; first += gemm->chunk) {
        const int64_t depth = min(gemm->chunk, gemm->padded_depth - first);
        const chunk k = {first, depth, (size_t)depth * ewx_packed_a_elem_bytes(gemm),
                         (size_t)depth * ewx_packed_b_elem_bytes(gemm)};
        multiply_chunk(gemm, k, blocks, num_groups,
                       (const char *)packed_b + b_step * (size_t)first);
        for (int at = 0; at < num_groups; at++)
            blocks[at].a += blocks[at].a_step * (size_t)depth;
        if (gemm->progress && first / gemm->chunk % CHUNKS_PER_SIGN == CHUNKS_PER_SIGN - 1)
            atomic_fetch_add_explicit(gemm->progress, 1, memory_order_relaxed);
    }
    if (gemm->kernel->leave)
        gemm->kernel->leave();
}

void ewx_gemm_tile(const ewx_gemm *gemm, const void *packed_a, const void *packed_b,
                   int64_t rows, int64_t cols, void *dst, int64_t dst_stride, void *scratch)
{
    const size_t elem = ew_dtype_bytes(gemm->dtype);
    for (int64_t i = 0; i < rows; i += EWX_PACK_GROUP)
        for (int64_t j = 0; j < cols; j += EWX_PACK_GROUP) {
            const ewx_gemm_rows group = {
                (const char *)packed_a + ewx_packed_a_bytes(gemm, i),
                min(rows - i, EWX_PACK_GROUP),
                (char *)dst + (size_t)(i * dst_stride + j) * elem, scratch, false};
            ewx_gemm_rows_multiply(gemm, 0, gemm->padded_depth, &group, 1,
                                   (const char *)packed_b + ewx_packed_b_bytes(gemm, j),
                                   min(cols - j, EWX_PACK_GROUP), dst_stride);
        }
}
