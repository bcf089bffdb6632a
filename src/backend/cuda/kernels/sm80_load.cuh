/* How k-tiles of A and B come into the stages of gemm_sm80.cu: cp.async of all threads. */
#ifndef EWX_CUDA_SM80_LOAD_CUH
#define EWX_CUDA_SM80_LOAD_CUH

#include "backend/cuda/kernels/ampere.cuh"
#include "backend/cuda/kernels/sm80_cta.cuh"

namespace
{

/* Where a chunk of a row lies in a k-tile.  Eight lanes at a time, ldmatrix reads the same
 * chunk of eight rows and cp.async writes all chunks of two: neither meets a bank twice. */
__device__ __forceinline__ uint32_t swizzled(int row, int chunk)
{
    return row * ROW_BYTES + (chunk ^ (row >> 1 & 3)) * CHUNK_BYTES;
}

/* What one thread loads: a chunk of every ROWS_PER_PASS-th row of A, then of B. */
struct sources {
    /* The first row's chunk, in the next k-tile to load; with several weights, of B its
     * distance from a stripe's first row. */
    const unsigned char *a, *b;
    int left;                 /* k-tiles to load; below 0: turns since there was none */
    uint32_t to;              /* place of the first row's chunk in a stage */
    uint32_t rows, last_rows; /* a bit for each pass: this chunk exists */
};

template <class OP, int BLOCK_N>
__device__ __forceinline__ sources find_sources(const ewx_cuda_operands &operands,
                                                const work<OP> &item)
{
    const int row = thread_index() / CHUNKS;
    const int k = thread_index() % CHUNKS * (CHUNK_BYTES / 2);
    sources from;
    const int64_t first = item.piece * operands.piece_k + k;
    from.a = item.a + (row * operands.k + first) * 2;
    from.b = HAS_PRODUCTS<OP> ? (const unsigned char *)((row * operands.k + first) * 2)
                              : (const unsigned char *)operands.b +
                                    ((item.block.b_row + row) * operands.k + first) * 2;
    from.left = (int)ewx_div_up(operands.piece_k, DEPTH);
    from.to = swizzled(row, thread_index() % CHUNKS);
    from.rows = 0;
#pragma unroll
    for (int pass = 0; pass < shape<BLOCK_N>::PASSES; pass++) {
        bool exists = row + pass * ROWS_PER_PASS < item.block.rows;
        if (pass >= A_PASSES) {
            if constexpr (HAS_PRODUCTS<OP>)
                exists = row < item.b.counts[pass - A_PASSES];
            else
                exists = row + (pass - A_PASSES) * ROWS_PER_PASS < item.block.cols;
        }
        from.rows |= exists << pass;
    }
#if EW_MUTANT == 82 /* planted bug: columns of the next piece */
    from.last_rows = first < operands.k - (from.left - 1) * (int64_t)DEPTH ? from.rows : 0;
#else
    from.last_rows =
        k < operands.piece_k - (from.left - 1) * (int64_t)DEPTH ? from.rows : 0;
#endif
    return from;
}

/* Always commits a group, if need be an empty one: waits count them.  What does not exist
 * is not read, wherever its address may point, and becomes zero. */
template <class OP, int BLOCK_N>
__device__ __forceinline__ void load_k_tile(uint32_t stage, sources &from,
                                            const work<OP> &item, int64_t depth)
{
    if (from.left > 0) {
        const uint32_t rows = from.left > 1 ? from.rows : from.last_rows;
#pragma unroll
        for (int pass = 0; pass < shape<BLOCK_N>::PASSES; pass++) {
            const int row = (pass < A_PASSES ? pass : pass - A_PASSES) * ROWS_PER_PASS;
            const unsigned char *first = pass < A_PASSES ? from.a : from.b;
            first += row * depth * 2;
            if constexpr (HAS_PRODUCTS<OP>)
                if (pass >= A_PASSES)
                    first = item.b.first[pass - A_PASSES] + (intptr_t)from.b;
            cp_async_16(stage + from.to + pass * ROWS_PER_PASS * ROW_BYTES, first,
                        rows >> pass & 1 ? CHUNK_BYTES : 0);
        }
        from.a += ROW_BYTES;
        from.b += ROW_BYTES;
    }
    from.left--;
    cp_async_commit();
}

/* Fills all stages but one, which the first turn of the main loop fills. */
template <class OP, int BLOCK_N>
__device__ __forceinline__ void start_loads(sources &from, uint32_t ring,
                                            const ewx_cuda_operands &operands,
                                            const work<OP> &item)
{
    if (item.block.num_tiles == 0)
        return;
    from = find_sources<OP, BLOCK_N>(operands, item);
    for (int stage = 0; stage < shape<BLOCK_N>::STAGES - 1; stage++)
        load_k_tile<OP, BLOCK_N>(ring + stage * shape<BLOCK_N>::STAGE_BYTES, from, item,
                                 operands.k);
}

} // namespace
#endif
