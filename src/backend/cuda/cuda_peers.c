#include "backend/cuda/cuda_peers.h"

/* What a rank sends the others about its memory. */
typedef struct handle {
    cudaIpcMemHandle_t ipc;
    void *address; /* ranks as threads */
    int32_t ordinal;
} handle;

static ew_status export_memory(const ew_world *world, const ewx_device *device,
                               void *memory, handle *mine)
{
    *mine = (handle){.address = memory, .ordinal = device->ordinal};
    if (!world->in_threads && world->num_locals > 1)
        EW_CUDA_TRY(cudaIpcGetMemHandle(&mine->ipc, memory), "exporting memory");
    return EW_OK;
}

static ew_status fail_peer(const ew_world *world, int rank, cudaError_t error)
{
    (void)cudaGetLastError();
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "rank %d cannot reach the GPU memory of rank %d: %s\n"
                    "  fix: use GPUs with peer access (NVLink or one PCIe root), see "
                    "entwine doctor",
                    world->rank, rank, cudaGetErrorString(error));
}

/* Ranks as threads on different GPUs: pointers are common, access is not. */
static ew_status enable_peer(const ew_world *world, int rank, int mine, int theirs)
{
    if (mine == theirs)
        return EW_OK;
    const cudaError_t error = cudaDeviceEnablePeerAccess(theirs, 0);
    if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled)
        return fail_peer(world, rank, error);
    (void)cudaGetLastError();
    return EW_OK;
}

static ew_status map_peer(const ew_world *world, int rank, const handle *theirs,
                          int my_ordinal, unsigned char **address_out)
{
    void *mapped = theirs->address;
    if (world->in_threads)
        EW_TRY(enable_peer(world, rank, my_ordinal, theirs->ordinal));
    else {
        const cudaError_t error =
            cudaIpcOpenMemHandle(&mapped, theirs->ipc, cudaIpcMemLazyEnablePeerAccess);
        if (error != cudaSuccess)
            return fail_peer(world, rank, error);
    }
    *address_out = mapped;
    return EW_OK;
}

ew_status ewx_peers_map(ew_world *world, const ewx_device *device, void *memory,
                        const char *what, unsigned char *addresses[EWX_MAX_RANKS])
{
    handle mine, all[EWX_MAX_RANKS];
    char task[64];
    ewx_text text = ewx_text_in(task, sizeof task);
    ewx_text_add(&text, "map the %s of its peers", what);
    EW_TRY(ewx_world_agree(world, export_memory(world, device, memory, &mine),
                           "export its memory"));
    EW_TRY(ewx_world_allgather(world, &mine, all, sizeof mine));
    ew_status status = EW_OK;
    addresses[world->rank] = memory;
    for (int rank = 0; rank < world->num_ranks && status == EW_OK; rank++)
        if (ewx_is_peer(world, rank))
            status = map_peer(world, rank, &all[rank], device->ordinal, &addresses[rank]);
    return ewx_world_agree(world, status, task);
}

void ewx_peers_unmap(const ew_world *world, unsigned char *addresses[EWX_MAX_RANKS])
{
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (!ewx_is_peer(world, rank) || !addresses[rank])
            continue;
        if (!world->in_threads)
            cudaIpcCloseMemHandle(addresses[rank]);
        addresses[rank] = NULL;
    }
    (void)cudaGetLastError();
}
