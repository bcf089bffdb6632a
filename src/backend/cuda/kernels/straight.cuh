/* Results that go straight into outputs in symmetric memory: how ranks find out whether all
 * outputs lie at one place, and may be written.  docs/PROTOCOL.md says why that is safe. */
#ifndef EWX_CUDA_STRAIGHT_CUH
#define EWX_CUDA_STRAIGHT_CUH

#include "backend/cuda/kernels/protocol.cuh"

/* One warp of a rank's exchange kernel, before anything else: from now on the others may
 * store into this rank's output, as everything is over that the rank did with it before, up
 * to here in its streams.  Where the place is another than in the call before, all have
 * read that one by then.  False when the call is given up. */
__device__ __forceinline__ bool enter_with_output(const ewx_cuda_call &call, uint32_t epoch,
                                                  uint64_t place, int lane)
{
    const ewx_cuda_segment *mine = segment_of(call, call.rank);
    const bool moves = __any_sync(~0u, ld_relaxed_sys(&mine->places[call.rank]) != place);
    bool ok = true;
    for (int rank = lane; moves && rank < call.num_ranks && ok; rank += 32)
        ok =
            await_epoch(call, &mine->done[rank], epoch - 1, {EWX_CUDA_READERS, rank, 0, 0});
    if (!__all_sync(~0u, ok))
        return false;
    for (int rank = lane; rank < call.num_ranks; rank += 32) {
        ewx_cuda_segment *segment = segment_of(call, rank);
        st_relaxed_sys(&segment->places[call.rank], place);
        st_release_sys(&segment->entered[call.rank], epoch);
    }
    return true;
}

/* One warp, before its CTA's first store of a result: waits until all ranks have entered
 * the call; false when it is given up.  *straight_out: all have their output at this place.
 * All ranks find the same, since all read the same words; those whose output lies elsewhere
 * (place 0) need not look. */
__device__ __forceinline__ bool await_outputs(const ewx_cuda_call &call, uint32_t epoch,
                                              uint64_t place, int lane, bool *straight_out)
{
    const ewx_cuda_segment *segment = segment_of(call, call.rank);
    bool ok = true, same = place != 0;
    for (int rank = lane; place != 0 && rank < call.num_ranks && ok; rank += 32) {
#if EW_MUTANT != 76 /* planted bug: stores into outputs that their ranks still use */
        ok = await_epoch(call, &segment->entered[rank], epoch, {EWX_CUDA_CALL, rank, 0, 0});
#endif
#if EW_MUTANT != 78 /* planted bug: the others' outputs are taken to be where mine is */
        same = same && ld_relaxed_sys(&segment->places[rank]) == place;
#endif
    }
    *straight_out = __all_sync(~0u, same);
    return __all_sync(~0u, ok);
}

/* The whole CTA, at the start of an exchange kernel with results: whether all ranks are in
 * this call, and whether results go straight into the outputs. */
__device__ __forceinline__ bool meet_with_outputs(const ewx_cuda_call &call, uint32_t epoch,
                                                  uint64_t place, bool *straight_out)
{
    const int lane = threadIdx.x;
    bool ok = true, straight = false;
    if (lane < 32) {
        ok = (blockIdx.x > 0 || enter_with_output(call, epoch, place, lane)) &&
             calls_agree(call, epoch, lane) &&
             await_outputs(call, epoch, place, lane, &straight);
        if (blockIdx.x == 0 && lane == 0)
            call.report->straight = straight;
    }
    *straight_out = __syncthreads_or(straight);
    return __syncthreads_and(ok);
}

#endif
