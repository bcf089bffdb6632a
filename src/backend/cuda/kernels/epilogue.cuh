/* An epilogue on the device: bias, residual and squares of pieces, and the norm of
 * rows.  The order of summation is that of plan/layer.h, and what must not be fused into a
 * multiply-add is written with intrinsics: the bits are the CPU's. */
#ifndef EWX_CUDA_EPILOGUE_CUH
#define EWX_CUDA_EPILOGUE_CUH

#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/pieces.cuh"
#include "plan/layer.h"

constexpr int WARP = 32;

template <class T>
__device__ __forceinline__ uint4 rounded_sum(uint4 a, uint4 b)
{
    float x[PIECE];
    unpack<T>(x, a);
    add<T>(x, b);
    return rounded<T>(x);
}

/* ---- Squares ---- */

template <class T>
__device__ __forceinline__ float squares_of_piece(uint4 h)
{
    float s[PIECE];
    unpack<T>(s, h);
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        s[i] = __fmul_rn(s[i], s[i]);
    return __fadd_rn(__fadd_rn(__fadd_rn(s[0], s[4]), __fadd_rn(s[1], s[5])),
                     __fadd_rn(__fadd_rn(s[2], s[6]), __fadd_rn(s[3], s[7])));
}

/* A whole warp, whose two halves hold a row of a tile each. */
__device__ __forceinline__ float squares_of_tile(float piece)
{
#pragma unroll
    for (int apart = PIECES_PER_ROW / 2; apart > 0; apart /= 2)
        piece = __fadd_rn(piece, __shfl_xor_sync(~0u, piece, apart));
    return piece;
}

__device__ __forceinline__ float *squares_at(const ewx_cuda_epilogue &epilogue,
                                             const ewx_grid &grid, int64_t row)
{
    return epilogue.squares + row * grid.tile_cols;
}

/* Rows that this rank has an epilogue for. */
__device__ __forceinline__ int64_t owned_rows(const ewx_cuda_call &call)
{
    return ewx_share_of(&call.grid, (ewx_ownership)call.ownership, call.num_ranks,
                        call.rank)
        .num_rows;
}

/* ---- c and h of a piece ---- */

/* `at` is in bytes, from the first owned element; `column` from the row's. */
template <class T>
__device__ __forceinline__ uint4 finish_piece(const ewx_cuda_epilogue &epilogue, uint4 c,
                                              uint4 residual, int64_t at, int column)
{
    if (epilogue.bias)
        c = rounded_sum<T>(c,
                           *(const uint4 *)((const unsigned char *)epilogue.bias + column));
    if (epilogue.c)
        st_16((unsigned char *)epilogue.c + at, c, l2_evict_first());
    const uint4 h = epilogue.has_residual ? rounded_sum<T>(c, residual) : c;
    if (epilogue.stores_h) /* and soon read again */
        st_16((unsigned char *)epilogue.h + at, h, l2_evict_normal());
    return h;
}

/* ---- Norm ---- */

/* One warp: r of a row whose tiles are all there. */
__device__ __forceinline__ float scale_of_row(const ewx_cuda_epilogue &epilogue,
                                              const ewx_grid &grid, int64_t row, int lane)
{
    static_assert(EWX_ROW_SUMS == WARP, "one running sum per lane");
    const float *squares = squares_at(epilogue, grid, row);
    float sum = 0;
    for (int64_t tile = lane; tile < grid.tile_cols; tile += WARP)
        sum = __fadd_rn(sum, squares[tile]);
#pragma unroll
    for (int apart = WARP / 2; apart > 0; apart /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, apart));
    const float mean = __fdiv_rn(sum, (float)grid.cols);
    return __frcp_rn(__fsqrt_rn(__fadd_rn(mean, epilogue.eps)));
}

template <class T>
__device__ __forceinline__ uint4 normed_piece(uint4 h, float r, uint4 weight)
{
    float x[PIECE], w[PIECE];
    unpack<T>(x, h);
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        x[i] = __fmul_rn(x[i], r);
    unpack<T>(x, rounded<T>(x));
    unpack<T>(w, weight);
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        x[i] = __fmul_rn(x[i], w[i]);
    return rounded<T>(x);
}

/* The warps that do a row, and which of them this one is. */
struct row_warps {
    int count, mine;
};

/* Where the pieces of a row's norm go: into the caller's matrix alone. */
struct own_row {
    __device__ __forceinline__ void put(int, uint4) const
    {
    }
};

/* BATCH pieces of a lane are in flight at a time. */
template <class T, int BATCH, class OTHERS>
__device__ __forceinline__ void normalise_row(const ewx_cuda_epilogue &epilogue,
                                              const ewx_grid &grid, int64_t row,
                                              row_warps warps, int lane,
                                              const OTHERS &others)
{
    const int step = WARP * warps.count;
    const uint64_t once = l2_evict_first();
    const float r = scale_of_row(epilogue, grid, row, lane);
    const int pieces = (int)(grid.cols / PIECE);
    const int64_t at = row * grid.cols * 2;
    const unsigned char *from = (const unsigned char *)epilogue.h + at;
    unsigned char *to = (unsigned char *)epilogue.normed + at;
#pragma unroll 1
    for (int first = warps.mine * WARP + lane; first < pieces; first += step * BATCH) {
        uint4 h[BATCH], weight[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * step < pieces) {
                h[i] = ld_16(from + (first + i * step) * 16, once);
                weight[i] = ((const uint4 *)epilogue.norm_weight)[first + i * step];
            }
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            if (first + i * step < pieces) {
                const uint4 v = normed_piece<T>(h[i], r, weight[i]);
                st_16(to + (first + i * step) * 16, v, once);
                others.put(first + i * step, v);
            }
    }
}

/* ---- Strips: rows that are normalised while later tiles are still being summed ---- */

/* One thread, behind a block barrier that all writers of the tile's h and squares have
 * passed. */
__device__ __forceinline__ void count_tile(const ewx_cuda_epilogue &epilogue, int tile_row)
{
    __threadfence(); /* they come before the count; pairs with take_strip */
    atomicAdd(&epilogue.counters->row_tiles[tile_row], 1u);
}

/* One thread: the next of `count` strips, if all its tiles are there, else -1.  `per_block`
 * strips share their `tiles`.  It never waits: what is not ready between two tiles is left
 * for later. */
__device__ __forceinline__ int take_strip(const ewx_cuda_epilogue &epilogue, int count,
                                          int per_block, uint32_t tiles)
{
    ewx_cuda_epilogue_counters *counters = epilogue.counters;
    const uint32_t strip = *(volatile uint32_t *)&counters->next_strip;
    if (strip >= (uint32_t)count)
        return -1;
#if EW_MUTANT == 7 /* planted bug: rows are normalised before their last tile is there */
    tiles--;
#endif
    if (*(volatile uint32_t *)&counters->row_tiles[strip / per_block] < tiles)
        return -1;
    if (atomicCAS(&counters->next_strip, strip, strip + 1) != strip)
        return -1;
    __threadfence(); /* the counts were seen, before what they stand for is read */
    return (int)strip;
}

/* One thread of every CTA of the epilogue's last kernel, when the CTA has done everything.
 */
__device__ __forceinline__ void close_epilogue(const ewx_cuda_epilogue &epilogue,
                                               const ewx_cuda_call &call)
{
    ewx_cuda_epilogue_counters *counters = epilogue.counters;
    __threadfence();
    if (atomicAdd(&counters->exits, 1u) + 1 != gridDim.x)
        return;
    counters->exits = 0;
    counters->next_strip = 0;
    const int64_t tile_rows = ewx_div_up(owned_rows(call), EWX_TILE_M);
    for (int64_t row = 0; row < tile_rows; row++)
        counters->row_tiles[row] = 0;
    call.report->end_ns = global_timer_ns();
}

#endif
