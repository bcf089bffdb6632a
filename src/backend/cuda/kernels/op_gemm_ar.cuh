/* GEMM-AllReduce as the GEMM kernels see it: see op_gemm_rs.cuh.  A tile stays in the heap
 * of the rank that made it.  In two shots it is published to the rank that sums it, in one
 * shot to all. */
#ifndef EWX_CUDA_OP_GEMM_AR_CUH
#define EWX_CUDA_OP_GEMM_AR_CUH

#include "backend/cuda/kernels/gemm_block.cuh"
#include "backend/cuda/kernels/protocol.cuh"

struct op_gemm_ar {
    static __device__ __forceinline__ bool await(const ewx_cuda_call &, uint32_t,
                                                 const gemm_block &)
    {
        return true;
    }

    /* When all ranks are done with the call before the last, its owners' sums have been
     * stored in our slots, by ordinary stores of theirs, and we have copied them. */
    static __device__ __forceinline__ bool may_store(const ewx_cuda_operands &,
                                                     const ewx_cuda_call &call,
                                                     uint32_t epoch, int lane)
    {
        return await_storing_readers(call, epoch, lane);
    }

    static __device__ __forceinline__ int home(const ewx_cuda_operands &,
                                               const ewx_cuda_call &call, int)
    {
        return call.rank;
    }

    static __device__ __forceinline__ int64_t slot(const ewx_cuda_operands &,
                                                   const ewx_cuda_call &call,
                                                   const gemm_block &block)
    {
        return slot_of(call, block.part, block.tile);
    }

    /* A unit of several tiles has several owners: then all ranks learn of it. */
    static __device__ __forceinline__ void deliver(const ewx_cuda_operands &,
                                                   const ewx_cuda_call &call,
                                                   uint32_t epoch, int part, int64_t task)
    {
        const int64_t unit = release_unit_of(call, part, task);
        if (call.ownership == EWX_OWNS_PART) /* rows are dealt out as in GEMM-RS */
            publish(call, epoch, part, task);
        else if (call.release.size == 1 && call.ownership == EWX_OWNS_TILES)
            st_release_sys(
                flag_of(call, ewx_task_owner(call.num_ranks, task), unit, call.rank),
                epoch);
        else if (call.release.size == 1 || completes_unit(call, part, unit))
            publish_to_all(call, epoch, unit);
        stamp_published(call.trace.produced, produced_at(call, part, task));
    }
};

#endif
