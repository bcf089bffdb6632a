/* Thread 0 of gemm_sm80.cu: which block comes next, where its rows and its output lie. */
#ifndef EWX_CUDA_SM80_SCHEDULE_CUH
#define EWX_CUDA_SM80_SCHEDULE_CUH

#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/sm80_cta.cuh"

namespace
{

template <class OP>
__device__ __forceinline__ unsigned char *place_of(const ewx_cuda_operands &operands,
                                                   const ewx_cuda_call &call,
                                                   uint32_t epoch, const gemm_block &block)
{
    if constexpr (HAS_PRODUCTS<OP>) {
        return nullptr; /* each stripe has its own */
    } else if constexpr (GATHERS<OP>) {
        return (unsigned char *)operands.c +
               (block.a_row * call.grid.cols + block.b_row) * 2;
    } else {
        unsigned char *slice = operands.outbox
                                   ? operands.outbox
                                   : call.heaps[OP::home(operands, call, block.part)] +
                                         call.slice_offset[epoch & 1];
        return slice + slot_offset(call, OP::slot(operands, call, block));
    }
}

template <class OP>
__device__ __forceinline__ const unsigned char *rows_of(const ewx_cuda_operands &operands,
                                                        const ewx_cuda_call &call,
                                                        uint32_t epoch,
                                                        const gemm_block &block)
{
    const unsigned char *mine = (const unsigned char *)operands.a;
    if constexpr (GATHERS<OP>) {
        if (block.part == call.rank && !spans_owners(call))
            return mine + OP::slot(operands, call, block) * operands.k * 2;
        return call.heaps[call.rank] + call.slice_offset[epoch & 1] +
               block.a_row * operands.k * 2;
    } else {
        return mine + block.a_row * operands.k * 2;
    }
}

__device__ __forceinline__ void find_stripes(stripe_rows &rows,
                                             const ewx_cuda_products &products, int64_t k,
                                             int64_t b_row)
{
    for (int i = 0; i < MOST_STRIPES; i++) {
        const ewx_stripe stripe = stripe_at(products, b_row, 0, i);
        rows.first[i] =
            (const unsigned char *)products.b[stripe.product] + stripe.first * k * 2;
        rows.counts[i] = (int8_t)max(stripe.count, 0);
    }
}

/* The block taken last.  Of a GEMM that gathers the walk is long, and what nvcc keeps of it
 * across the main loop would, with several weights, be registers that movers need: from a
 * call that it cannot recognise it keeps nothing. */
template <class OP>
__device__ __forceinline__ gemm_block block_of(const ewx_cuda_call &call,
                                               const block_source<OP> &blocks)
{
    const ewx_cuda_call *same = &call;
    if constexpr (GATHERS<OP>)
        asm volatile("" : "+l"(same));
    return blocks.at(*same, 0);
}

template <class OP>
__device__ __forceinline__ work<OP> next_work(
    const ewx_cuda_operands &operands, const ewx_cuda_call &call,
    const products_of<OP, ewx_cuda_products> &products, uint32_t epoch,
    const block_source<OP> &blocks, bool is_taken)
{
    work<OP> item = {};
    if (!is_taken || has_stopped(call))
        return item;
    item.block = block_of<OP>(call, blocks);
    if (OP::await(call, epoch, item.block)) {
        item.a = rows_of<OP>(operands, call, epoch, item.block);
        item.out = place_of<OP>(operands, call, epoch, item.block);
        if constexpr (HAS_PRODUCTS<OP>)
            find_stripes(item.b, products, operands.k, item.block.b_row);
    } else {
        item.block.num_tiles = 0;
    }
    return item;
}

/* The same block's next piece. */
template <class OP>
__device__ __forceinline__ work<OP> next_piece(const work<OP> &item)
{
    work<OP> next = item;
    next.piece++;
    next.out += EWX_CUDA_TILE_BYTES;
    return next;
}

template <class OP>
__device__ __forceinline__ bool is_last_piece(const ewx_cuda_call &call,
                                              const work<OP> &item)
{
    return GATHERS<OP> || item.piece + 1 == call.num_pieces;
}

} // namespace
#endif
