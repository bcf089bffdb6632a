#include "backend/cuda/cuda_heap.h"

#include <string.h>

#include "backend/cuda/cuda_peers.h"
#include "base/epoch.h"

#define CLOSE_PATIENCE_NS 2000000000

_Static_assert(sizeof(ewx_cuda_segment) <= EWX_CUDA_HEADER_BYTES,
               "the head of a segment fits the layout");

static ew_status create_segment(ewx_cuda_heap *heap)
{
    void *segment;
    EW_CUDA_TRY(cudaMalloc(&segment, heap->segment_bytes), "allocating the heap");
    /* Flags and words start at epoch 0, and sums that contributions are added to at 0. */
    cudaError_t error = cudaMemset(segment, 0, heap->segment_bytes);
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    if (error != cudaSuccess) {
        cudaFree(segment);
        return ewx_cuda_fail(error, "clearing the heap");
    }
    heap->segments[heap->world->rank] = segment;
    return EW_OK;
}

/* Head and flags, in host memory at the same address for kernels. */
static ew_status create_replica(ewx_cuda_heap *heap, int rank, const ewx_layout *layout)
{
    const size_t bytes = layout->flags_offset + (size_t)layout->num_slots *
                                                    (size_t)layout->num_chunks *
                                                    sizeof(uint32_t);
    void *replica;
    EW_CUDA_TRY(cudaHostAlloc(&replica, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                "allocating flags");
    heap->segments[rank] = replica;
    memset(replica, 0, bytes);
    return EW_OK;
}

ew_status ewx_cuda_heap_open(ewx_cuda_heap *heap, ew_world *world, const ewx_device *device,
                             const ewx_layout *layout)
{
    *heap = (ewx_cuda_heap){.world = world, .segment_bytes = layout->segment_bytes};
    EW_TRY(ewx_world_agree(world, create_segment(heap), "allocate its heap"));
    EW_TRY(
        ewx_peers_map(world, device, heap->segments[world->rank], "heaps", heap->segments));
    if (world->num_hosts == 1)
        return EW_OK;
    ew_status status = EW_OK;
    for (int rank = 0; rank < world->num_ranks && status == EW_OK; rank++)
        if (!ewx_world_is_local(world, rank))
            status = create_replica(heap, rank, layout);
    return ewx_world_agree(world, status, "allocate flags");
}

/* Where a call has no rows, an exchange may be through before the GEMM of its rank has
 * announced the call, here too. */
static bool is_through(const ewx_cuda_segment *head, int rank, uint32_t epoch)
{
    const uint64_t note = head->calls[epoch % EWX_CUDA_CALLS][rank];
    return ewx_epoch_reached(head->done[rank], epoch) &&
           ewx_epoch_reached((uint32_t)(note >> 32), epoch);
}

static bool all_are_through(const ewx_cuda_heap *heap, uint32_t epoch)
{
    ewx_cuda_segment head;
    if (cudaMemcpy(&head, heap->segments[heap->world->rank], sizeof head,
                   cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (int rank = 0; rank < heap->world->num_ranks; rank++)
        if (ewx_world_is_local(heap->world, rank) && !is_through(&head, rank, epoch))
            return false;
    return true;
}

void ewx_cuda_heap_close(ewx_cuda_heap *heap, uint32_t epoch)
{
    ew_world *world = heap->world;
    if (!world)
        return;
    ew_status read = EW_ERR_TIMEOUT;
    if (heap->segments[world->rank]) {
        ewx_wait wait =
            ewx_wait_begin(&world->control->abort, CLOSE_PATIENCE_NS, world->spins);
        EWX_AWAIT(read, &wait, all_are_through(heap, epoch));
    }
    ewx_peers_unmap(world, heap->segments);
    for (int rank = 0; rank < world->num_ranks; rank++) {
        void *segment = heap->segments[rank];
        heap->segments[rank] = NULL;
        if (!segment)
            continue;
#if EW_MUTANT == 14 /* planted bug: heaps are not given back */
        if (rank == world->rank)
            continue;
#endif
        if (!ewx_world_is_local(world, rank))
            cudaFreeHost(segment);
        else if (read == EW_OK && !heap->stays)
            cudaFree(segment);
    }
    (void)cudaGetLastError();
}
