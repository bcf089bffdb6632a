/* The emulated link: every rank's transfers take their turn on its two directions. */
#ifndef EWX_CUDA_LINK_CUH
#define EWX_CUDA_LINK_CUH

#include "backend/cuda/kernels/protocol.cuh"

__device__ __forceinline__ bool is_paced(const ewx_cuda_call &call)
{
    return call.link.ns_per_byte > 0;
}

/* Waits for the time at which an emulated transfer would end. */
__device__ __forceinline__ void await_time(unsigned long long until_ns)
{
    for (unsigned long long now = global_timer_ns(); now < until_ns;
         now = global_timer_ns())
        __nanosleep((unsigned)min(until_ns - now, (unsigned long long)LONG_SLEEP_NS));
}

__device__ __forceinline__ unsigned long long link_ns(const ewx_cuda_call &call,
                                                      int64_t bytes)
{
    return (unsigned long long)(bytes * call.link.ns_per_byte + 0.5);
}

/* Takes the next `cost_ns` of one direction of a link; returns when they end. */
__device__ __forceinline__ unsigned long long reserve(unsigned long long *free_ns,
                                                      unsigned long long now,
                                                      unsigned long long cost_ns)
{
    atomicMax(free_ns, now);
    return atomicAdd(free_ns, cost_ns) + cost_ns;
}

/* When the remote contributions to a tile are on the link, for an owner that pulls. */
struct transfer {
    unsigned long long begin_ns, end_ns;
};

/* One warp: a tile to each of the others, or one from each. */
__device__ __forceinline__ transfer book_all(const ewx_cuda_call &call, int64_t tile_bytes,
                                             bool sends, int lane)
{
    const int num_ranks = call.num_ranks;
    const unsigned long long now = global_timer_ns();
    const unsigned long long cost = link_ns(call, tile_bytes);
    const unsigned long long all = cost * (num_ranks - 1);
    unsigned long long end = now + all;
    if (lane == 0) {
        ewx_cuda_segment *mine = segment_of(call, call.rank);
        end = reserve(sends ? &mine->egress_free_ns : &mine->ingress_free_ns, now, all);
    }
    for (int rank = lane; rank < num_ranks; rank += 32)
        if (rank != call.rank) {
            ewx_cuda_segment *theirs = segment_of(call, rank);
            end =
                max(end, reserve(sends ? &theirs->ingress_free_ns : &theirs->egress_free_ns,
                                 now, cost));
        }
    for (int distance = 16; distance > 0; distance /= 2)
        end = max(end, __shfl_xor_sync(~0u, end, distance));
    return {end - all + call.link.latency_ns, end + call.link.latency_ns};
}

/* One warp.  The bytes come one after the other while the tile is being reduced, so that
 * its sum can begin with the first of them and end with the last.  A rank's contributions
 * are as many as it has pieces of K. */
__device__ __forceinline__ transfer book_pull(const ewx_cuda_call &call, int64_t tile_bytes,
                                              int lane)
{
    return book_all(call, tile_bytes * call.num_pieces, false, lane);
}

/* One warp, between a sum that its CTA wrote into the memory of all others and its
 * publication; as await_push. */
__device__ __forceinline__ void await_result_push(const ewx_cuda_call &call,
                                                  int64_t tile_bytes, int lane)
{
    if (is_paced(call))
        await_time(book_all(call, tile_bytes, true, lane).end_ns);
}

/* One thread: bytes from this rank to dst.  Returns when they leave the link, a latency
 * before they are there. */
__device__ __forceinline__ unsigned long long book_push(const ewx_cuda_call &call, int dst,
                                                        int64_t bytes)
{
    const unsigned long long now = global_timer_ns(), cost = link_ns(call, bytes);
    const unsigned long long sent =
        reserve(&segment_of(call, call.rank)->egress_free_ns, now, cost);
    const unsigned long long received =
        reserve(&segment_of(call, dst)->ingress_free_ns, now, cost);
    return max(sent, received);
}

/* One thread, between what it wrote into the memory of dst and its publication.  Until then
 * it does nothing else, as if the link were pushing back. */
__device__ __forceinline__ void await_push(const ewx_cuda_call &call, int dst,
                                           int64_t bytes)
{
    if (is_paced(call) && dst != call.rank)
        await_time(book_push(call, dst, bytes) + call.link.latency_ns);
}

#endif
