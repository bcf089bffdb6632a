#include "backend/cuda/cuda_heap.h"

#include <string.h>

#include "base/epoch.h"

#define CLOSE_PATIENCE_NS 2000000000

_Static_assert(sizeof(ewx_cuda_segment) <= EWX_CUDA_HEADER_BYTES,
               "the head of a segment fits the layout");

/* What a rank sends the others about its segment. */
typedef struct handle {
    cudaIpcMemHandle_t ipc;
    void *address; /* ranks as threads */
    int32_t ordinal;
} handle;

static ew_status create_segment(ewx_cuda_heap *heap, const ewx_device *device, handle *mine)
{
    void *segment;
    EW_CUDA_TRY(cudaMalloc(&segment, heap->segment_bytes), "allocating the heap");
    heap->segments[heap->world->rank] = segment;
    /* Flags and words start at epoch 0; contributions need no value. */
    EW_CUDA_TRY(cudaMemset(segment, 0, heap->segment_bytes), "clearing the heap");
    EW_CUDA_TRY(cudaDeviceSynchronize(), "clearing the heap");
    mine->address = segment;
    mine->ordinal = device->ordinal;
    if (!heap->world->in_threads && heap->world->num_locals > 1)
        EW_CUDA_TRY(cudaIpcGetMemHandle(&mine->ipc, segment), "exporting the heap");
    return EW_OK;
}

static ew_status fail_peer(const ewx_cuda_heap *heap, int rank, cudaError_t error)
{
    (void)cudaGetLastError();
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "rank %d cannot reach the GPU memory of rank %d: %s\n"
                    "  fix: use GPUs with peer access (NVLink or one PCIe root), see "
                    "entwine doctor",
                    heap->world->rank, rank, cudaGetErrorString(error));
}

/* Ranks as threads on different GPUs: pointers are common, access is not. */
static ew_status enable_peer(const ewx_cuda_heap *heap, int rank, int mine, int theirs)
{
    if (mine == theirs)
        return EW_OK;
    const cudaError_t error = cudaDeviceEnablePeerAccess(theirs, 0);
    if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled)
        return fail_peer(heap, rank, error);
    (void)cudaGetLastError();
    return EW_OK;
}

static ew_status map_peer(ewx_cuda_heap *heap, int rank, const handle *theirs,
                          int my_ordinal)
{
    if (heap->world->in_threads) {
        EW_TRY(enable_peer(heap, rank, my_ordinal, theirs->ordinal));
        heap->segments[rank] = theirs->address;
        return EW_OK;
    }
    void *mapped;
    const cudaError_t error =
        cudaIpcOpenMemHandle(&mapped, theirs->ipc, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess)
        return fail_peer(heap, rank, error);
    heap->segments[rank] = mapped;
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
    handle mine = {.address = NULL}, all[EWX_MAX_RANKS];
    EW_TRY(
        ewx_world_agree(world, create_segment(heap, device, &mine), "allocate its heap"));
    EW_TRY(ewx_world_allgather(world, &mine, all, sizeof mine));
    ew_status status = EW_OK;
    for (int rank = 0; rank < world->num_ranks && status == EW_OK; rank++)
        if (rank != world->rank)
            status = ewx_world_is_local(world, rank)
                         ? map_peer(heap, rank, &all[rank], device->ordinal)
                         : create_replica(heap, rank, layout);
    return ewx_world_agree(world, status, "map the heaps of its peers");
}

static bool all_have_read(const ewx_cuda_heap *heap, uint32_t epoch)
{
    const ewx_cuda_segment *mine = (const void *)heap->segments[heap->world->rank];
    uint32_t done[EWX_MAX_RANKS];
    if (cudaMemcpy(done, mine->done, sizeof done, cudaMemcpyDeviceToHost) != cudaSuccess)
        return false;
    for (int rank = 0; rank < heap->world->num_ranks; rank++)
        if (ewx_world_is_local(heap->world, rank) && !ewx_epoch_reached(done[rank], epoch))
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
        EWX_AWAIT(read, &wait, all_have_read(heap, epoch));
    }
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
        else if (rank == world->rank && read == EW_OK && !heap->stays)
            cudaFree(segment);
        else if (rank != world->rank && !world->in_threads)
            cudaIpcCloseMemHandle(segment);
    }
    (void)cudaGetLastError();
}
