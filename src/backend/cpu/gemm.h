/* Packing, the macro-kernel around a micro-kernel, and the sum over ranks: the CPU
 * backend's arithmetic.  Pure functions of their arguments, but for a sign of life. */
#ifndef EWX_CPU_GEMM_H
#define EWX_CPU_GEMM_H

#include <stdatomic.h>

#include "backend/cpu/kernels/kernel.h"

/* One GEMM's fixed facts, built once per plan. */
typedef struct ewx_gemm {
    const ewx_kernel *kernel;
    ew_dtype dtype;
    int64_t depth;              /* K, at least 1 */
    int64_t padded_depth;       /* K rounded up to kr */
    int64_t chunk;              /* k's multiplied at a time; max_chunk at most */
    _Atomic uint32_t *progress; /* moves while a deep tile is computed; NULL: not wanted */
} ewx_gemm;

ewx_gemm ewx_gemm_build(const ewx_kernel *kernel, ew_dtype dtype, int64_t depth);

/* Rows of A, or columns of B, are packed in groups of this many, the last group as it
 * comes.  A group lies as [chunk][panel], exactly the order in which a tile reads it:
 * one stream for the prefetcher.  Its last panel is narrow where that suffices and the
 * kernel can, and padded where the width does not divide the group.  So a tile begins at a
 * multiple of a group within what one pack call wrote, and ends with a whole group. */
enum { EWX_PACK_GROUP = 128 };

/* Width of the next panel where `left` rows or columns of a group remain. */
static inline int ewx_panel_width(int64_t left, int width, int narrow)
{
    return left <= narrow ? narrow : width;
}

/* Bytes of a packed operand of `rows` rows of A or `cols` columns of B; for a multiple
 * of a group also the offset of the next row or column. */
size_t ewx_packed_a_bytes(const ewx_gemm *gemm, int64_t rows);
size_t ewx_packed_b_bytes(const ewx_gemm *gemm, int64_t cols);

/* How B is multiplied where it keeps 16 bits beside an A of fp32; NULL: it does not. */
static inline const ewx_mixed *ewx_gemm_mixed(const ewx_gemm *gemm)
{
    const ewx_mixed *mixed =
        gemm->dtype == EW_BF16 ? &gemm->kernel->bf16 : &gemm->kernel->fp16;
    return gemm->dtype != EW_FP32 && mixed->widen ? mixed : NULL;
}

static inline size_t ewx_packed_a_elem_bytes(const ewx_gemm *gemm)
{
    return ew_dtype_bytes(gemm->kernel->packs);
}

static inline size_t ewx_packed_b_elem_bytes(const ewx_gemm *gemm)
{
    return ew_dtype_bytes(ewx_gemm_mixed(gemm) ? gemm->dtype : gemm->kernel->packs);
}

/* Element (i, k) of src lies at i * stride + k * k_stride (in elements). */
void ewx_pack_a(const ewx_gemm *gemm, const void *src, int64_t stride, int64_t k_stride,
                int64_t rows, void *dst);
void ewx_pack_b(const ewx_gemm *gemm, const void *src, int64_t stride, int64_t k_stride,
                int64_t cols, void *dst);

/* dst[rows][cols] = packed A rows x packed B columns, rounded once to the element type.
 * `scratch` holds ewx_gemm_scratch_bytes(gemm, rows, cols). */
size_t ewx_gemm_scratch_bytes(const ewx_gemm *gemm, int64_t rows, int64_t cols);
void ewx_gemm_tile(const ewx_gemm *gemm, const void *packed_a, const void *packed_b,
                   int64_t rows, int64_t cols, void *dst, int64_t dst_stride,
                   void *scratch);

/* One group of packed rows, and where its part of a product goes. */
typedef struct ewx_gemm_rows {
    const void *packed;
    int64_t count;
    void *dst, *scratch;
    bool rests; /* nobody reads dst soon: it need not pass through the caches */
} ewx_gemm_rows;

/* The k's from `first` up to `end`, multiples of the chunk or the padded depth, of the
 * product of several groups of rows and one group of columns.  Until the last k was added,
 * each dst and scratch belong to it. */
enum { EWX_GROUPS_TOGETHER = 16 };
void ewx_gemm_rows_multiply(const ewx_gemm *gemm, int64_t first, int64_t end,
                            const ewx_gemm_rows *groups, int num_groups,
                            const void *packed_b, int64_t cols, int64_t dst_stride);

/* dst[rows][cols] = sum of num_ranks contributions in the order given, in fp32, rounded
 * once.  Strides in elements. */
void ewx_reduce_tile(ew_dtype dtype, const void *const *contributions, int num_ranks,
                     int64_t src_stride, int64_t rows, int64_t cols, void *dst,
                     int64_t dst_stride);

#endif
