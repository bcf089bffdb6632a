/* GEMM-ReduceScatter as the GEMM kernels see it.  A kernel is a template of such an
 * operation: what must be there before a block is loaded, where its tiles go, and what
 * happens when one has been stored.
 *
 * Here the rows of A are the caller's, so nothing is awaited; a tile goes into the sender's
 * heap, its owner's (push) or an outbox (copy), and is then published to its owner. */
#ifndef EWX_CUDA_OP_GEMM_RS_CUH
#define EWX_CUDA_OP_GEMM_RS_CUH

#include "backend/cuda/kernels/gemm_block.cuh"
#include "backend/cuda/kernels/link.cuh"

struct op_gemm_rs {
    /* One thread, before the block is given to whoever loads it; false: the call is given
     * up. */
    static __device__ __forceinline__ bool await(const ewx_cuda_call &, uint32_t,
                                                 const gemm_block &)
    {
        return true;
    }

    /* One warp, before the first store of a call; false: the call is given up. */
    static __device__ __forceinline__ bool may_store(const ewx_cuda_operands &operands,
                                                     const ewx_cuda_call &call,
                                                     uint32_t epoch, int lane)
    {
        return operands.outbox || await_readers(call, epoch, lane);
    }

    /* Whose slice a part's tiles go to; the number of ranks stands for the outbox. */
    static __device__ __forceinline__ int home(const ewx_cuda_operands &operands,
                                               const ewx_cuda_call &call, int part)
    {
        return operands.outbox ? call.num_ranks : call.pushed ? part : call.rank;
    }

    /* The slot there of a block's first tile. */
    static __device__ __forceinline__ int64_t slot(const ewx_cuda_operands &operands,
                                                   const ewx_cuda_call &call,
                                                   const gemm_block &block)
    {
        const bool by_source = !operands.outbox && call.pushed;
        return slot_of(call, by_source ? call.rank : block.part, block.tile);
    }

    /* One thread, after the tile's bytes are in memory: see publish. */
    static __device__ __forceinline__ void deliver(const ewx_cuda_operands &operands,
                                                   const ewx_cuda_call &call,
                                                   uint32_t epoch, int part, int64_t task)
    {
        deliver_pieces(operands, call, epoch, part, task, 1);
    }

    /* The same for a tile whose slot holds this many contributions. */
    static __device__ __forceinline__ void deliver_pieces(const ewx_cuda_operands &operands,
                                                          const ewx_cuda_call &call,
                                                          uint32_t epoch, int part,
                                                          int64_t task, int pieces)
    {
        if (!operands.outbox) {
            if (call.pushed && is_paced(call))
                await_push(call, part,
                           pieces * ewx_tile_bytes(&call.grid, part,
                                                   ewx_task_tile(&call.grid, part, task),
                                                   2));
            publish(call, epoch, part, task);
        }
        stamp_published(call.trace.produced, produced_at(call, part, task));
    }
};

/* The same where tiles are added to sums in their owners' heaps (add, tma-add): a tile has
 * one slot there, whoever contributes to it. */
struct op_gemm_rs_add : op_gemm_rs {
    /* When all ranks are done with the call before the last, they have set its sums to
     * zero, by ordinary stores. */
    static __device__ __forceinline__ bool may_store(const ewx_cuda_operands &,
                                                     const ewx_cuda_call &call,
                                                     uint32_t epoch, int lane)
    {
        return await_storing_readers(call, epoch, lane);
    }

    static __device__ __forceinline__ int64_t slot(const ewx_cuda_operands &,
                                                   const ewx_cuda_call &call,
                                                   const gemm_block &block)
    {
        return slot_of(call, block.part, block.tile);
    }
};

struct op_gemm_rs_tma_add : op_gemm_rs_add {
};

template <>
constexpr placing PLACING<op_gemm_rs_add> = placing::ADDED;
template <>
constexpr placing PLACING<op_gemm_rs_tma_add> = placing::BULK_ADDED;

template <>
struct in_pieces<op_gemm_rs> : op_gemm_rs {
    static __device__ __forceinline__ void deliver(const ewx_cuda_operands &operands,
                                                   const ewx_cuda_call &call,
                                                   uint32_t epoch, int part, int64_t task)
    {
        deliver_pieces(operands, call, epoch, part, task, call.num_pieces);
    }
};

#endif
