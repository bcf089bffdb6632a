#include "backend/cuda/cuda_symmetric.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/capture.h"
#include "backend/cuda/cuda_peers.h"

/* A place in one word: the number of the allocation, then the offset in it. */
#define OFFSET_BITS 40
/* A handle between processes opens the whole block that CUDA took the memory from: this is
 * one block, so that no two allocations share it. */
#define BLOCK_BYTES ((size_t)2 << 20)
#define SMALLEST_BYTES sizeof(stamp)

typedef struct allocation {
    struct allocation *next;
    uint64_t number; /* from 1 on, the same on all ranks */
    size_t bytes;
    bool imported; /* by ew_import: its owner frees it */
    unsigned char *addresses[EWX_MAX_RANKS];
} allocation;

struct ewx_symmetric_list {
    allocation *first;
    uint64_t made; /* ever */
};

/* ---- The list ---- */

static ew_status create(const ewx_device *device, size_t bytes, bool imported,
                        allocation **allocation_out)
{
    ewx_symmetric_list *list = device->symmetric;
    allocation *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a list of allocations");
    *fresh = (allocation){.number = list->made + 1, .bytes = bytes, .imported = imported};
    *allocation_out = fresh;
    if (bytes >> OFFSET_BITS || fresh->number >> (64 - OFFSET_BITS))
        return ewx_fail(EW_ERR_MEMORY,
                        "%zu bytes as symmetric allocation %" PRIu64 " are too many\n"
                        "  fix: use fewer and smaller ones",
                        bytes, fresh->number);
    return EW_OK;
}

static void add(const ewx_device *device, allocation *fresh)
{
    ewx_symmetric_list *list = device->symmetric;
    list->made = fresh->number;
    fresh->next = list->first;
    list->first = fresh;
}

static allocation **find(const ewx_device *device, int rank, const void *memory)
{
    allocation **at = &device->symmetric->first;
    while (*at && (*at)->addresses[rank] != memory)
        at = &(*at)->next;
    return at;
}

ewx_cuda_symmetric ewx_cuda_symmetric_find(const ew_world *world, const ewx_device *device,
                                           const void *matrix, size_t bytes)
{
    ewx_cuda_symmetric found = {.place = 0};
    for (const allocation *at = device->symmetric->first; at; at = at->next) {
        const uintptr_t mine = (uintptr_t)at->addresses[world->rank];
        const uintptr_t offset = (uintptr_t)matrix - mine;
        if (bytes == 0 || offset >= at->bytes || bytes > at->bytes - offset)
            continue;
        found.place = at->number << OFFSET_BITS | offset;
        for (int rank = 0; rank < world->num_ranks; rank++)
            found.apart[rank] = (int64_t)((uintptr_t)at->addresses[rank] - mine);
    }
    return found;
}

ew_status ewx_cuda_symmetric_open(ewx_symmetric_list **list_out)
{
    *list_out = calloc(1, sizeof **list_out);
    return *list_out ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for a device");
}

void ewx_cuda_symmetric_close(ewx_symmetric_list *list)
{
    for (allocation *at = list ? list->first : NULL, *next; at; at = next) {
        next = at->next;
        free(at);
    }
    free(list);
}

/* ---- Allocations of our own ---- */

/* Collective, when no kernel uses the memory any more.  Where a rank does not come, its
 * mapping of our memory may still be there, and then so must the memory. */
static ew_status dismantle(ew_world *world, const ewx_device *device, allocation *gone)
{
    ew_status status = EW_OK;
    if (!gone->imported) {
        ewx_peers_unmap(world, gone->addresses);
        status = ewx_world_barrier(world);
        if (status == EW_OK)
            cudaFree(gone->addresses[world->rank]);
        (void)cudaGetLastError();
        /* cudaFree may wait for the GPU, hence for calls that a rank that is through has
         * made: none is before all have freed theirs. */
        if (status == EW_OK && world->in_threads && device->sharers > 1)
            status = ewx_world_barrier(world);
    }
    free(gone);
    return status;
}

static ew_status take_memory(const ewx_device *device, size_t bytes, int rank,
                             allocation **fresh_out)
{
    EW_TRY(ewx_check_not_captured(device, "symmetric memory is allocated"));
    EW_TRY(create(device, bytes, false, fresh_out));
    const size_t rounded = (bytes / BLOCK_BYTES + 1) * BLOCK_BYTES;
    EW_CUDA_TRY(cudaMalloc((void **)&(*fresh_out)->addresses[rank], rounded),
                "allocating symmetric memory");
    return EW_OK;
}

/* What no other rank has mapped. */
static void discard(allocation *fresh, int rank)
{
    if (!fresh)
        return;
    cudaFree(fresh->addresses[rank]);
    (void)cudaGetLastError();
    free(fresh);
}

static ew_status allocate_entered(ew_world *world, const ewx_device *device, size_t bytes,
                                  void **memory_out)
{
    allocation *fresh = NULL;
    ew_status status =
        ewx_world_agree(world, take_memory(device, bytes, world->rank, &fresh),
                        "allocate symmetric memory");
    if (status != EW_OK) {
        discard(fresh, world->rank);
        return status;
    }
    status = ewx_peers_map(world, device, fresh->addresses[world->rank], "symmetric memory",
                           fresh->addresses);
    if (status == EW_OK) {
        add(device, fresh);
        *memory_out = fresh->addresses[world->rank];
    } else {
        char why[1024];
        ewx_text text = ewx_text_in(why, sizeof why);
        ewx_text_add(&text, "%s", ew_last_error());
        (void)dismantle(world, device, fresh);
        return ewx_fail(status, "%s", why);
    }
    return status;
}

static ew_status allocate(ew_world *world, size_t bytes, void **memory_out)
{
    const ewx_device *device;
    EW_TRY(ewx_device_of(world, &device));
    EW_TRY(ewx_device_enter(device));
    const ew_status status = allocate_entered(world, device, bytes, memory_out);
    ewx_device_leave(device);
    return status;
}

/* ---- Imports ---- */

/* What a rank writes into its memory for a moment: who finds it has the right address. */
typedef struct stamp {
    char text[8];
    int32_t rank;
    uint32_t number;
} stamp;

static stamp stamp_of(const allocation *fresh, int rank)
{
    return (stamp){.text = "entwine", .rank = rank, .number = (uint32_t)fresh->number};
}

static ew_status copy_stamp(const ewx_device *device, void *to, const void *from,
                            const char *what)
{
    EW_CUDA_TRY(
        cudaMemcpyAsync(to, from, sizeof(stamp), cudaMemcpyDefault, device->producing),
        what);
    EW_CUDA_TRY(cudaStreamSynchronize(device->producing), what);
    return EW_OK;
}

static ew_status check_kind(int rank, const void *pointer)
{
    struct cudaPointerAttributes attributes;
    const cudaError_t error = cudaPointerGetAttributes(&attributes, pointer);
    (void)cudaGetLastError();
    if (error != cudaSuccess || attributes.type != cudaMemoryTypeDevice ||
        (uintptr_t)pointer % sizeof(stamp) != 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "pointers[%d]=%p is not GPU memory at a multiple of %zu bytes\n"
                        "  fix: pass the address at which this process reaches the memory "
                        "of rank %d",
                        rank, pointer, sizeof(stamp), rank);
    return EW_OK;
}

/* Only for the rank's own memory: every rank checks its own. */
static ew_status check_size(const ewx_device *device, int rank, const void *pointer,
                            size_t bytes)
{
    const CUdeviceptr first = (CUdeviceptr)(uintptr_t)pointer;
    CUdeviceptr base = first;
    size_t size = 0;
    EW_DRIVER_TRY(device->driver->cuMemGetAddressRange(&base, &size, first),
                  "asking for the size of imported memory");
    if (base + size - first >= bytes)
        return EW_OK;
    return ewx_fail(EW_ERR_ARGUMENT,
                    "pointers[%d]=%p has %zu bytes, not %zu\n"
                    "  fix: pass the size of the smallest rank's memory",
                    rank, pointer, (size_t)(base + size - first), bytes);
}

static ew_status check_pointers(const ew_world *world, const ewx_device *device,
                                void *const *pointers, size_t bytes)
{
    if (bytes < SMALLEST_BYTES)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%zu bytes are too few to import\n  fix: import at least %zu",
                        bytes, SMALLEST_BYTES);
    EW_TRY(ewx_check_not_captured(device, "memory is imported"));
    for (int at = 0; at < world->num_locals; at++)
        EW_TRY(check_kind(world->locals[at], pointers[world->locals[at]]));
    return check_size(device, world->rank, pointers[world->rank], bytes);
}

static ew_status read_stamps(const ew_world *world, const ewx_device *device,
                             const allocation *fresh)
{
    for (int at = 0; at < world->num_locals; at++) {
        const int rank = world->locals[at];
        const stamp wanted = stamp_of(fresh, rank);
        stamp seen = {.rank = -1};
        EW_TRY(copy_stamp(device, &seen, fresh->addresses[rank],
                          "reading the memory of another rank"));
        if (memcmp(&seen, &wanted, sizeof seen) != 0)
            return ewx_fail(EW_ERR_ARGUMENT,
                            "pointers[%d]=%p on rank %d is not what rank %d passes as its "
                            "own\n  fix: pass the ranks' memory in the order of the ranks, "
                            "and the same allocation on all",
                            rank, (void *)fresh->addresses[rank], world->rank, rank);
    }
    return EW_OK;
}

/* Collective: leaves the memory as it was. */
static ew_status check_stamps(ew_world *world, const ewx_device *device,
                              const allocation *fresh)
{
    unsigned char *mine = fresh->addresses[world->rank];
    const stamp my_stamp = stamp_of(fresh, world->rank);
    stamp before;
    ew_status status = copy_stamp(device, &before, mine, "reading imported memory");
    const bool written = status == EW_OK;
    if (written)
        status = copy_stamp(device, mine, &my_stamp, "writing imported memory");
    status = ewx_world_agree(world, status, "write its imported memory");
    if (status == EW_OK)
        status = ewx_world_agree(world, read_stamps(world, device, fresh),
                                 "find the imported memory of all ranks");
    if (written)
        (void)copy_stamp(device, mine, &before, "restoring imported memory");
    return status;
}

static ew_status import_entered(ew_world *world, const ewx_device *device,
                                void *const *pointers, size_t bytes)
{
    allocation *fresh = NULL;
    ew_status status = check_pointers(world, device, pointers, bytes);
    if (status == EW_OK)
        status = create(device, bytes, true, &fresh);
    status = ewx_world_agree(world, status, "import memory");
    if (status == EW_OK) {
        for (int rank = 0; rank < world->num_ranks; rank++)
            fresh->addresses[rank] = pointers[rank];
        status = check_stamps(world, device, fresh);
    }
    if (status == EW_OK)
        add(device, fresh);
    else
        free(fresh);
    return status;
}

static ew_status import(ew_world *world, void *const *pointers, size_t bytes)
{
    const ewx_device *device;
    EW_TRY(ewx_device_of(world, &device));
    EW_TRY(ewx_device_enter(device));
    const ew_status status = import_entered(world, device, pointers, bytes);
    ewx_device_leave(device);
    return status;
}

/* ---- The end of both ---- */

/* Collective: all ranks are done with the calls they have enqueued, and mean the same
 * allocation. */
static ew_status agree_to_free(ew_world *world, uint64_t number)
{
    uint64_t all[EWX_MAX_RANKS];
    EW_TRY(ewx_world_allgather(world, &number, all, sizeof number));
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (all[rank] != number)
            return ewx_fail(EW_ERR_MISMATCH,
                            "ranks disagree: rank %d frees symmetric allocation %" PRIu64
                            ", rank %d %" PRIu64 " (0: none)\n"
                            "  fix: free the same memory in the same order on all ranks",
                            world->rank, number, rank, all[rank]);
    return number > 0 ? EW_OK
                      : ewx_fail(EW_ERR_ARGUMENT,
                                 "ew_free of memory that neither ew_alloc nor ew_import "
                                 "knows\n  fix: pass what ew_alloc gave, or this rank's "
                                 "pointer of ew_import");
}

static ew_status release_entered(ew_world *world, const ewx_device *device, void *memory)
{
    allocation **at = find(device, world->rank, memory), *gone = *at;
    EW_TRY(ewx_world_agree(world,
                           ewx_check_not_captured(device, "symmetric memory is freed"),
                           "free symmetric memory"));
    cudaStreamSynchronize(device->producing); /* a fault is another call's to report */
    cudaStreamSynchronize(device->reducing);
    (void)cudaGetLastError();
    EW_TRY(agree_to_free(world, gone ? gone->number : 0));
    *at = gone->next;
    return dismantle(world, device, gone);
}

static ew_status release(ew_world *world, void *memory)
{
    const ewx_device *device;
    EW_TRY(ewx_device_of(world, &device));
    EW_TRY(ewx_device_enter(device));
    const ew_status status = release_entered(world, device, memory);
    ewx_device_leave(device);
    return status;
}

const ewx_symmetric_memory ewx_cuda_symmetric_memory = {
    .allocate = allocate, .import = import, .release = release};
