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

/* The time of the requests for `bytes` bytes, in the other direction.  They take their
 * share of it and do not wait, being short. */
__device__ __forceinline__ unsigned long long request_ns(const ewx_cuda_call &call,
                                                         int64_t bytes)
{
    return (unsigned long long)(bytes * call.link.asked_ns_per_byte + 0.5);
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

/* One warp: a tile to each of the others, or one from each.  They take their turn in this
 * rank's own direction, together; when it has come, in those of the others.  Not before:
 * a direction that is booked for later is closed to whoever could use it until then. */
__device__ __forceinline__ transfer book_all(const ewx_cuda_call &call, int64_t tile_bytes,
                                             bool sends, int lane)
{
    const int num_others = call.num_ranks - 1;
    const unsigned long long cost = link_ns(call, tile_bytes), all = cost * num_others;
    const unsigned long long asked = sends ? 0 : request_ns(call, tile_bytes);
    ewx_cuda_segment *mine = segment_of(call, call.rank);
    unsigned long long end = 0;
    if (lane == 0)
        end = reserve(sends ? &mine->egress_free_ns : &mine->ingress_free_ns,
                      global_timer_ns(), all);
    end = __shfl_sync(~0u, end, 0);
    const unsigned long long begin = end - all;
    await_time(begin);
    if (lane == 0 && asked > 0)
        reserve(&mine->egress_free_ns, begin, asked * num_others);
    for (int rank = lane; rank < call.num_ranks; rank += 32)
        if (rank != call.rank) {
            ewx_cuda_segment *theirs = segment_of(call, rank);
            end =
                max(end, reserve(sends ? &theirs->ingress_free_ns : &theirs->egress_free_ns,
                                 begin, cost));
            if (asked > 0)
                reserve(&theirs->ingress_free_ns, begin, asked);
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

/* One thread: what it sends to dst has its turn on this rank's way out when this returns;
 * the result is when it will have arrived. */
__device__ __forceinline__ unsigned long long book_push(const ewx_cuda_call &call, int dst,
                                                        int64_t bytes)
{
    const unsigned long long cost = link_ns(call, bytes);
    const unsigned long long sent =
        reserve(&segment_of(call, call.rank)->egress_free_ns, global_timer_ns(), cost);
    await_time(sent - cost); /* as in book_all */
    const unsigned long long received =
        reserve(&segment_of(call, dst)->ingress_free_ns, sent - cost, cost);
    return max(sent, received) + call.link.latency_ns;
}

/* One thread, between what it wrote into the memory of dst and its publication.  Until then
 * it does nothing else, as if the link were pushing back. */
__device__ __forceinline__ void await_push(const ewx_cuda_call &call, int dst,
                                           int64_t bytes)
{
    if (is_paced(call) && dst != call.rank)
        await_time(book_push(call, dst, bytes));
}

#endif
