/* The GEMM for Ampere and later: blocks of 128 rows by 128 or 256 columns, in the order
 * of the plan, each tile published as soon as it is in memory.
 *
 * All eight warps load, multiply and store together.  cp.async brings a k-tile of A and B
 * into a ring of stages while earlier ones are multiplied; within a k-tile, ldmatrix brings
 * the next step's fragments while mma.sync works on this one's.  A finished block goes
 * through the same shared memory, so that it leaves in rows of 16-byte stores.  With
 * several pieces of K all this is done for each, and a tile is published with the last. */
#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"
#include "backend/cuda/kernels/sm80_multiply.cuh"
#include "backend/cuda/kernels/sm80_schedule.cuh"
#include "backend/cuda/kernels/sm80_store.cuh"

namespace
{

/* Opens the call and finds the first block, into `notice`. */
template <class OP>
__device__ __forceinline__ void begin(const ewx_cuda_operands &operands,
                                      const ewx_cuda_call &call,
                                      const products_of<OP, ewx_cuda_products> &products,
                                      block_source<OP> &blocks, notices<OP> &notice)
{
    if constexpr (GATHERS<OP>) {
        if (thread_index() == 0)
            notice.epoch = open_gathered(call);
        __syncthreads();
        /* At once: rows of another call may never come. */
        if (thread_index() < 32)
            notice.may_store =
                OP::may_store(operands, call, notice.epoch, thread_index()) &&
                OP::await_first(call, notice.epoch, thread_index());
    } else if (thread_index() == 0) {
        notice.epoch = open_producer(call, operands.opens);
    }
    if (thread_index() == 0) {
        bool is_taken = true;
        if constexpr (GATHERS<OP>)
            is_taken = notice.may_store;
        is_taken = is_taken && blocks.take(operands, call, notice.epoch, 1);
        notice.items[0] =
            next_work<OP>(operands, call, products, notice.epoch, blocks, is_taken);
        if constexpr (GATHERS<OP>)
            note_first_block(call);
    }
}

/* Each tile by a thread of its own, once the last piece of the block is stored. */
template <class OP>
__device__ __forceinline__ void publish_block(const ewx_cuda_operands &operands,
                                              const ewx_cuda_call &call, uint32_t epoch,
                                              const work<OP> &item, bool is_last)
{
#if EW_MUTANT == 81 /* planted bug: published with its first piece */
    const bool is_whole = item.piece == 0;
#else
    const bool is_whole = is_last;
#endif
    if constexpr (!GATHERS<OP>)
        if (thread_index() < item.block.num_tiles && is_whole)
            in_pieces<OP>::deliver(operands, call, epoch, item.block.part,
                                   item.block.task + thread_index());
}

template <class OP, class T, int BLOCK_N>
__global__ void __launch_bounds__(THREADS, shape<BLOCK_N>::CTAS_PER_SM)
    gemm(const __grid_constant__ ewx_cuda_operands operands,
         const __grid_constant__ ewx_cuda_call call,
         const __grid_constant__ products_of<OP, ewx_cuda_products> products)
{
    extern __shared__ __align__(128) unsigned char stages[];
    __shared__ notices<OP> notice;
    const uint32_t ring = shared_address(stages);
    /* Thread 0's; in shared memory where the main loop would lack the registers. */
    __shared__ block_source<OP> kept;
    block_source<OP> held, &blocks = GATHERS<OP> ? kept : held;
    begin<OP>(operands, call, products, blocks, notice);
    __syncthreads();
    sources from;
    start_loads<OP, BLOCK_N>(from, ring, operands, notice.items[0]);

    for (int turn = 0; notice.items[turn & 1].block.num_tiles > 0; turn++) {
        const work<OP> &item = notice.items[turn & 1];
        work<OP> &next = notice.items[~turn & 1];
        accumulators<BLOCK_N> sum;
        if (thread_index() < item.block.num_tiles && item.piece == 0)
            stamp_begin(call.trace.produced, produced_at(call, item.block.part,
                                                         item.block.task + thread_index()));
        multiply<OP, T, BLOCK_N>(sum, ring, from, item, operands.k);
        __syncthreads(); /* no thread reads the stages any more, not even unused parts */
        fill_images<T, BLOCK_N>(stages, sum);
        if (thread_index() < item.block.num_tiles)
            stamp_end(call.trace.produced,
                      produced_at(call, item.block.part, item.block.task + thread_index()));
        if (!GATHERS<OP> && turn == 0 && thread_index() < 32)
            notice.may_store = OP::may_store(operands, call, notice.epoch, thread_index());
        __syncthreads(); /* the images are full, the readers' word is everyone's */
        if (!notice.may_store)
            break;
        const bool is_last = is_last_piece<OP>(call, item);
        bool is_taken = false;
        if (thread_index() == 0 && operands.persistent && is_last)
            is_taken = blocks.take(operands, call, notice.epoch, 1); /* during the stores */
        if constexpr (HAS_PRODUCTS<OP>)
            store_products<OP, T>(products, item.block, stages);
        else
            store_block<OP, T>(call, item, stages);
        if (thread_index() == 0)
            next = is_last ? next_work<OP>(operands, call, products, notice.epoch, blocks,
                                           is_taken)
                           : next_piece<OP>(item);
        __syncthreads(); /* all stores of the CTA precede its releases, below */
        /* Before the releases, so that these loads fly while those wait. */
        start_loads<OP, BLOCK_N>(from, ring, operands, next);
        publish_block<OP>(operands, call, notice.epoch, item, is_last);
    }
    __syncthreads();
    if (thread_index() != 0)
        return;
    if constexpr (GATHERS<OP>)
        close_gathered(call, notice.epoch, operands.frees_slice);
    else
        close_producer(call, notice.epoch, operands.closes);
}

template <class OP, class T, int BLOCK_N>
ewx_cuda_entry entry()
{
    return {(const void *)gemm<OP, T, BLOCK_N>, THREADS, shape<BLOCK_N>::RING_BYTES, 0};
}

template <class OP, class T>
ewx_cuda_entry entry_of(int block_n)
{
    return block_n == 256 ? entry<OP, T, 256>() : entry<OP, T, 128>();
}

template <class OP>
ewx_cuda_entry entry_of(ew_dtype dtype, int block_n)
{
    return dtype == EW_BF16 ? entry_of<OP, __nv_bfloat16>(block_n)
                            : entry_of<OP, __half>(block_n);
}

} // namespace

ewx_cuda_entry ewx_cuda_gemm_sm80(ew_op op, ewx_cuda_form form, ew_dtype dtype, int block_n)
{
    if (dtype == EW_FP32 || (block_n != 128 && block_n != 256))
        return {};
    if (form != EWX_CUDA_ONE_WEIGHT && op != EW_OP_AG_GEMM)
        return {};
    if (form == EWX_CUDA_WEIGHTS)
        return entry_of<op_ag_gemm_multi>(dtype, block_n);
    if (form == EWX_CUDA_ACTIVATES)
        return entry_of<op_ag_gemm_act>(dtype, block_n);
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<op_gemm_rs>(dtype, block_n);
    case EW_OP_GEMM_AR:
        return entry_of<op_gemm_ar>(dtype, block_n);
    case EW_OP_AG_GEMM:
        return entry_of<op_ag_gemm>(dtype, block_n);
    }
    return {};
}

ewx_cuda_entry ewx_cuda_gemm_sm80_adding(ew_dtype dtype, int block_n)
{
    if (dtype != EW_FP16 || (block_n != 128 && block_n != 256))
        return {};
    return entry_of<op_gemm_rs_add, __half>(block_n);
}
