/* The main loop of gemm_sm80.cu: fragments from the stages, mma.sync, the loads ahead. */
#ifndef EWX_CUDA_SM80_MULTIPLY_CUH
#define EWX_CUDA_SM80_MULTIPLY_CUH

#include "backend/cuda/kernels/sm80_load.cuh"

namespace
{

template <int BLOCK_N>
struct accumulators {
    float c[MMAS_DOWN][shape<BLOCK_N>::MMAS_ACROSS][4];
};

struct a_fragments {
    uint32_t rows[MMAS_DOWN][4];
};

template <int BLOCK_N>
struct b_fragments {
    uint32_t pairs[shape<BLOCK_N>::MMAS_ACROSS / 2][4]; /* of two mmas side by side */
};

/* The first rows of A and B whose addresses this lane gives to ldmatrix, in a stage, at one
 * step.  The others follow at multiples of 16 rows, over which the swizzle repeats. */
struct addresses {
    uint32_t a, b;
};

template <int BLOCK_N>
__device__ __forceinline__ addresses find_addresses(uint32_t ring)
{
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const int a_row = warp % WARPS_DOWN * WARP_ROWS;
    const int b_row = EWX_TILE_M + warp / WARPS_DOWN * shape<BLOCK_N>::WARP_COLS;
    /* The four matrices of A: rows 0-7 and 8-15 at depth 0-7, then both at 8-15.  Of B:
     * depth 0-7 and 8-15 of columns 0-7, then of 8-15. */
    return {ring + swizzled(a_row + lane % 16, lane / 16),
            ring + swizzled(b_row + lane / 16 * 8 + lane % 8, lane / 8 % 2)};
}

__device__ __forceinline__ addresses at(const addresses &first, uint32_t stage, int step)
{
    /* Two chunks on, under the swizzle: stages and rows begin at multiples of 64 bytes. */
    const uint32_t flip = step * 2 * CHUNK_BYTES;
    return {(first.a + stage) ^ flip, (first.b + stage) ^ flip};
}

/* Row i of A and, if there are as many, pair i of B. */
template <int BLOCK_N>
__device__ __forceinline__ void load_fragments(a_fragments &a, b_fragments<BLOCK_N> &b,
                                               int i, const addresses &from)
{
    if (i < shape<BLOCK_N>::MMAS_ACROSS / 2)
        ldmatrix_x4(b.pairs[i], from.b + i * 16 * ROW_BYTES);
    ldmatrix_x4(a.rows[i], from.a + i * 16 * ROW_BYTES);
}

/* Loads the next step's fragments meanwhile: of B into registers of their own, of A into
 * those of the row that has just been used. */
template <class T, int BLOCK_N>
__device__ __forceinline__ void multiply_step(accumulators<BLOCK_N> &sum, a_fragments &a,
                                              const b_fragments<BLOCK_N> &b,
                                              b_fragments<BLOCK_N> &next_b,
                                              const addresses &next)
{
    constexpr int ACROSS = shape<BLOCK_N>::MMAS_ACROSS;
#pragma unroll
    for (int i = 0; i < MMAS_DOWN; i++) {
#pragma unroll
        for (int there = 0; there < ACROSS; there++) {
            /* and back again, so that neighbours in time share a fragment */
            const int j = i % 2 == 0 ? there : ACROSS - 1 - there;
            const uint32_t *column = &b.pairs[j / 2][j % 2 * 2];
            mma<T>(sum.c[i][j], a.rows[i], column[0], column[1]);
        }
        load_fragments<BLOCK_N>(a, next_b, i, next);
    }
}

/* Expects start_loads; leaves no cp.async in flight.  At the top of a turn, this k-tile has
 * arrived and the fragments of its first step are in registers.  The stage that the turn
 * refills is the previous turn's, whose fragments all warps had loaded before they passed
 * the barrier in its middle.  The last turn ends by loading fragments from a stage that was
 * not filled; they are not used. */
template <class OP, class T, int BLOCK_N>
__device__ __forceinline__ void multiply(accumulators<BLOCK_N> &sum, uint32_t ring,
                                         sources &from, const work<OP> &item, int64_t depth)
{
    using S = shape<BLOCK_N>;
    const addresses first = find_addresses<BLOCK_N>(ring);
    uint32_t stage = 0;
    a_fragments a;
    b_fragments<BLOCK_N> b, b_too;
    sum = {};
    cp_async_wait<S::STAGES - 2>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MMAS_DOWN; i++)
        load_fragments<BLOCK_N>(a, b, i, first);
#pragma unroll 1
    while (from.left > 1 - S::STAGES) { /* that far ahead are the loads */
        const uint32_t refill = (stage == 0 ? S::RING_BYTES : stage) - S::STAGE_BYTES;
        load_k_tile<OP, BLOCK_N>(ring + refill, from, item, depth);
        multiply_step<T, BLOCK_N>(sum, a, b, b_too, at(first, stage, 1));
        stage = stage + S::STAGE_BYTES == S::RING_BYTES ? 0 : stage + S::STAGE_BYTES;
        cp_async_wait<S::STAGES - 2>();
        __syncthreads();
        multiply_step<T, BLOCK_N>(sum, a, b_too, b, at(first, stage, 0));
    }
}

} // namespace
#endif
