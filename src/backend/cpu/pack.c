/* Packing: copies rows of A or columns of B into the panels that kernel.h describes,
 * widening to fp32 where the kernel has no instructions for the element type. */
#include "backend/cpu/gemm.h"

#include <string.h>

#include "base/dtype.h"

/* k's packed before moving to the next row: keeps the strided side in L1. */
enum { STRIP = 64 };

static int64_t min(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

/* A strip of one row: `count` elements, `k_stride` apart. */
static void widen_fp32(const float *src, int64_t k_stride, int64_t count, int width,
                       float *dst)
{
    for (int64_t k = 0; k < count; k++)
        dst[k * width] = src[k * k_stride];
}

static void widen_bf16(const uint16_t *src, int64_t k_stride, int64_t count, int width,
                       float *dst)
{
    for (int64_t k = 0; k < count; k++)
        dst[k * width] = ewx_f32_from_bf16(src[k * k_stride]);
}

static void widen_fp16(const uint16_t *src, int64_t k_stride, int64_t count, int width,
                       float *dst)
{
    for (int64_t k = 0; k < count; k++)
        dst[k * width] = ewx_f32_from_fp16(src[k * k_stride]);
}

/* Groups of kr k's lie together; groups of one row are width * kr apart. */
static void group_halves(const uint16_t *src, int64_t k_stride, int64_t count, int width,
                         int kr, uint16_t *dst)
{
    int64_t k = 0;
    if (k_stride == 1 && kr == 2) /* a fixed size makes the copy one move, or a few */
        for (; k + 2 <= count; k += 2)
            memcpy(dst + k * width, src + k, 2 * sizeof *dst);
    else if (k_stride == 1 && kr == 4)
        for (; k + 4 <= count; k += 4)
            memcpy(dst + k * width, src + k, 4 * sizeof *dst);
    else if (k_stride == 1 && kr == 32)
        for (; k + 32 <= count; k += 32)
            memcpy(dst + k * width, src + k, 32 * sizeof *dst);
    for (; k < count; k += kr)
        for (int64_t i = 0; i < min(count - k, kr); i++)
            dst[k * width + i] = src[(k + i) * k_stride];
}

/* What is packed: rows of A or columns of B, and how the kernel wants them.  Where a panel
 * holds several `side`s, `strip` k's of each lie one after the other. */
typedef struct source {
    bool halves;   /* elements stay as they are, in 16 bits */
    size_t packed; /* bytes of one, as it is packed */
    const char *data;
    int64_t stride, k_stride;
    int64_t rows;
    int width, narrow, kr;
    int side, strip;
} source;

/* Packs `count` k's of one row, beginning at `first`, into its lane of a panel. */
static void pack_strip(const ewx_gemm *gemm, const source *src, int64_t row, int64_t first,
                       int64_t count, int width, void *dst)
{
    const int64_t at = row * src->stride + first * src->k_stride;
    const void *from = src->data + (size_t)at * ew_dtype_bytes(gemm->dtype);
    if (src->halves)
        group_halves(from, src->k_stride, count, width, src->kr, dst);
    else if (gemm->dtype == EW_FP32)
        widen_fp32(from, src->k_stride, count, width, dst);
    else if (gemm->dtype == EW_BF16)
        widen_bf16(from, src->k_stride, count, width, dst);
    else
        widen_fp16(from, src->k_stride, count, width, dst);
}

typedef float quad __attribute__((vector_size(16)));

static inline quad load_quad(const float *src)
{
    quad value;
    memcpy(&value, src, sizeof value);
    return value;
}

static inline void store_quad(quad value, float *dst)
{
    memcpy(dst, &value, sizeof value);
}

/* Four rows of four k's, turned: the scalar loop takes twice as long. */
static void turn_block(const float *src, int64_t stride, int width, float *dst)
{
    const quad a = load_quad(src), b = load_quad(src + stride);
    const quad c = load_quad(src + 2 * stride), d = load_quad(src + 3 * stride);
    const quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const quad ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const quad cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    store_quad(__builtin_shufflevector(ab0, cd0, 0, 1, 4, 5), dst);
    store_quad(__builtin_shufflevector(ab0, cd0, 2, 3, 6, 7), dst + width);
    store_quad(__builtin_shufflevector(ab1, cd1, 0, 1, 4, 5), dst + 2 * width);
    store_quad(__builtin_shufflevector(ab1, cd1, 2, 3, 6, 7), dst + 3 * width);
}

/* A full panel of fp32 rows whose k's lie side by side, the common case of A and of a
 * weight as torch keeps it.  Returns how many k's it has packed: all but the last few. */
static int64_t pack_turned(const float *src, int64_t stride, int width, int64_t depth,
                           float *dst)
{
    const int64_t turned = depth - depth % 4;
    for (int64_t k = 0; k < turned; k += 4)
        for (int lane = 0; lane < width; lane += 4)
            turn_block(src + lane * stride + k, stride, width, dst + k * width + lane);
    return turned;
}

typedef uint16_t halves __attribute__((vector_size(16)));
typedef uint32_t words __attribute__((vector_size(16)));
typedef uint64_t pair __attribute__((vector_size(16)));

static inline halves load_halves(const uint16_t *src)
{
    halves value;
    memcpy(&value, src, sizeof value);
    return value;
}

/* Two k's of four rows. */
static inline void store_two(halves rows01, halves rows23, bool upper, int width,
                             uint16_t *dst)
{
    const words x = (words)rows01, y = (words)rows23;
    const pair both = (pair)(upper ? __builtin_shufflevector(x, y, 2, 6, 3, 7)
                                   : __builtin_shufflevector(x, y, 0, 4, 1, 5));
    const uint64_t first = both[0], second = both[1];
    memcpy(dst, &first, sizeof first);
    memcpy(dst + width, &second, sizeof second);
}

/* Four rows of eight k's, turned. */
static void turn_halves(const uint16_t *src, int64_t stride, int width, uint16_t *dst)
{
    const halves a = load_halves(src), b = load_halves(src + stride);
    const halves c = load_halves(src + 2 * stride), d = load_halves(src + 3 * stride);
    const halves ab0 = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    const halves ab1 = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    const halves cd0 = __builtin_shufflevector(c, d, 0, 8, 1, 9, 2, 10, 3, 11);
    const halves cd1 = __builtin_shufflevector(c, d, 4, 12, 5, 13, 6, 14, 7, 15);
    store_two(ab0, cd0, false, width, dst);
    store_two(ab0, cd0, true, width, dst + 2 * width);
    store_two(ab1, cd1, false, width, dst + 4 * width);
    store_two(ab1, cd1, true, width, dst + 6 * width);
}

/* The same for 16-bit rows of which each k lies alone. */
static int64_t pack_turned_halves(const uint16_t *src, int64_t stride, int width,
                                  int64_t depth, uint16_t *dst)
{
    const int64_t turned = depth - depth % 8;
    for (int64_t k = 0; k < turned; k += 8)
        for (int lane = 0; lane < width; lane += 4)
            turn_halves(src + lane * stride + k, stride, width, dst + k * width + lane);
    return turned;
}

/* The same for 16-bit rows of which four k's lie together: two rows of eight k's become two
 * pairs of four. */
static int64_t pack_paired(const uint16_t *src, int64_t stride, int width, int64_t depth,
                           uint16_t *dst)
{
    enum { GROUP = 4, TWO_GROUPS = 8 };
    const int64_t paired = depth - depth % TWO_GROUPS;
    for (int64_t k = 0; k < paired; k += TWO_GROUPS)
        for (int lane = 0; lane < width; lane += 2) {
            const uint16_t *from = src + lane * stride + k;
            uint16_t *to = dst + k * width + lane * GROUP;
            pair upper, lower, first, second;
            memcpy(&upper, from, sizeof upper);
            memcpy(&lower, from + stride, sizeof lower);
            first = __builtin_shufflevector(upper, lower, 0, 2);
            second = __builtin_shufflevector(upper, lower, 1, 3);
            memcpy(to, &first, sizeof first);
            memcpy(to + GROUP * width, &second, sizeof second);
        }
    return paired;
}

/* Most k's of a full panel whose k's lie side by side, where there is a quick way.  Returns
 * how many. */
static int64_t pack_whole(const ewx_gemm *gemm, const source *src, int64_t row, int width,
                          int64_t first, int64_t depth, char *dst)
{
    const int64_t at = row * src->stride + first;
    if (gemm->dtype == EW_FP32 && width % 4 == 0)
        return pack_turned((const float *)src->data + at, src->stride, width, depth,
                           (float *)dst);
    if (src->halves && src->kr == 1 && width % 4 == 0)
        return pack_turned_halves((const uint16_t *)src->data + at, src->stride, width,
                                  depth, (uint16_t *)dst);
    if (src->halves && src->kr == 4 && width % 2 == 0)
        return pack_paired((const uint16_t *)src->data + at, src->stride, width, depth,
                           (uint16_t *)dst);
    return 0;
}

/* One panel's part of a chunk: `lanes` rows from `row` on, k's first..first + depth. */
static void pack_panel(const ewx_gemm *gemm, const source *src, int64_t row, int lanes,
                       int width, int64_t first, int64_t depth, char *dst)
{
    const int64_t filled = min(depth, gemm->depth - first);
    if (lanes < width || filled < depth)
        memset(dst, 0, (size_t)depth * (size_t)width * src->packed);
    int64_t k = lanes == width && src->k_stride == 1
                    ? pack_whole(gemm, src, row, width, first, filled, dst)
                    : 0;
    const int side = src->side ? src->side : width;
    for (; k < filled; k += src->strip) {
        for (int lane = 0; lane < lanes; lane++) {
            const int64_t at = k * width + (int64_t)(lane / side) * side * src->strip +
                               (int64_t)(lane % side) * src->kr;
            pack_strip(gemm, src, row + lane, first + k, min(src->strip, filled - k), side,
                       dst + (size_t)at * src->packed);
        }
    }
}

static void pack(const ewx_gemm *gemm, const source *src, char *dst)
{
    for (int64_t group = 0; group < src->rows; group += EWX_PACK_GROUP) {
        const int64_t end = min(src->rows, group + EWX_PACK_GROUP);
        for (int64_t first = 0; first < gemm->padded_depth; first += gemm->chunk) {
            const int64_t depth = min(gemm->chunk, gemm->padded_depth - first);
            for (int64_t row = group; row < end;) {
                const int width = ewx_panel_width(end - row, src->width, src->narrow);
                const int lanes = (int)min(width, end - row);
                pack_panel(gemm, src, row, lanes, width, first, depth, dst);
                dst += (size_t)depth * (size_t)width * src->packed;
                row += width;
            }
        }
    }
}

void ewx_pack_a(const ewx_gemm *gemm, const void *src, int64_t stride, int64_t k_stride,
                int64_t rows, void *dst)
{
    const source from = {.halves = gemm->kernel->packs != EW_FP32,
                         .packed = ewx_packed_a_elem_bytes(gemm),
                         .data = src,
                         .stride = stride,
                         .k_stride = k_stride,
                         .rows = rows,
                         .width = gemm->kernel->mr,
                         .kr = gemm->kernel->kr,
                         .strip = STRIP};
    pack(gemm, &from, dst);
}

void ewx_pack_b(const ewx_gemm *gemm, const void *src, int64_t stride, int64_t k_stride,
                int64_t cols, void *dst)
{
    const ewx_kernel *kernel = gemm->kernel;
    const source from = {.halves = kernel->packs != EW_FP32 || ewx_gemm_mixed(gemm),
                         .packed = ewx_packed_b_elem_bytes(gemm),
                         .data = src,
                         .stride = stride,
                         .k_stride = k_stride,
                         .rows = cols,
                         .width = kernel->nr,
                         .narrow = kernel->narrow_nr,
                         .kr = kernel->kr_b ? kernel->kr_b : kernel->kr,
                         .side = kernel->side_b,
                         .strip = kernel->side_b ? kernel->kr : STRIP};
    pack(gemm, &from, dst);
}
