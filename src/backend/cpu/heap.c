/* Segments as sealed memfds between processes, as plain shared pages between threads. */
#include "backend/cpu/heap.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

static ew_status fail_segment(const char *what, size_t bytes)
{
    const ew_status status =
        errno == ENOMEM || errno == ENOSPC ? EW_ERR_MEMORY : EW_ERR_SYSTEM;
    return ewx_fail(status,
                    "%s of a heap segment of %zu bytes failed: %s\n"
                    "  fix: free memory, or plan for fewer rows (max_m)",
                    what, bytes, strerror(errno));
}

/* ---- Processes ---- */

/* Our own segment: allocated in full now (a clean error instead of a later SIGBUS),
 * writable through this one mapping only, of fixed size for ever. */
static ew_status create_segment(ewx_heap *heap, int *fd_out)
{
    const int fd = memfd_create("entwine-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail_segment("memfd_create", heap->segment_bytes);
    *fd_out = fd;
    if (fallocate(fd, 0, 0, (off_t)heap->segment_bytes) != 0)
        return fail_segment("fallocate", heap->segment_bytes);
    void *address = mmap(NULL, heap->segment_bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED)
        return fail_segment("mmap", heap->segment_bytes);
    heap->segments[heap->world->rank] = address;
    if (fcntl(fd, F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
        return fail_segment("sealing", heap->segment_bytes);
    return EW_OK;
}

static ew_status map_peer(ewx_heap *heap, int rank, int fd)
{
    struct stat info;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (fstat(fd, &info) != 0 || (size_t)info.st_size != heap->segment_bytes || seals < 0 ||
        !(seals & F_SEAL_SHRINK))
        return ewx_fail(EW_ERR_MISMATCH,
                        "the heap segment of rank %d is not the size agreed on", rank);
    void *address =
        mmap(NULL, heap->segment_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED)
        return fail_segment("mmap", heap->segment_bytes);
    heap->segments[rank] = address;
    return EW_OK;
}

static ew_status open_between_processes(ewx_heap *heap)
{
    ew_world *world = heap->world;
    int mine = -1, fds[EWX_MAX_RANKS];
    ew_status status = create_segment(heap, &mine);
    /* Everyone must hear of a failure before anyone waits for a descriptor. */
    int32_t outcomes[EWX_MAX_RANKS];
    const int32_t outcome = status;
    const ew_status gathered =
        ew_world_allgather(world, &outcome, outcomes, sizeof outcome);
    for (int rank = 0; gathered == EW_OK && status == EW_OK && rank < world->num_ranks;
         rank++)
        if (outcomes[rank] != EW_OK)
            status = ewx_fail((ew_status)outcomes[rank],
                              "rank %d could not allocate its heap", rank);
    if (status == EW_OK)
        status = gathered;
    if (status == EW_OK)
        status = ewx_world_exchange_fds(world, mine, fds);
    if (status == EW_OK) {
        for (int rank = 0; rank < world->num_ranks; rank++) {
            if (status == EW_OK && rank != world->rank)
                status = map_peer(heap, rank, fds[rank]);
            close(fds[rank]);
        }
    }
    if (mine >= 0)
        close(mine);
    return status;
}

/* ---- Threads ---- */

static ew_status open_between_threads(ewx_heap *heap)
{
    ew_world *world = heap->world;
    void *address = mmap(NULL, heap->segment_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (address == MAP_FAILED)
        address = NULL;
    else
        atomic_store(&((ewx_segment_header *)address)->users, world->num_ranks);
    void *all[EWX_MAX_RANKS];
    EW_TRY(ew_world_allgather(world, &address, all, sizeof address));
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (!all[rank])
            return ewx_fail(EW_ERR_MEMORY,
                            "rank %d could not allocate its heap of %zu bytes", rank,
                            heap->segment_bytes);
    for (int rank = 0; rank < world->num_ranks; rank++)
        heap->segments[rank] = all[rank];
    return EW_OK;
}

ew_status ewx_heap_open(ewx_heap *heap, ew_world *world, const ewx_layout *layout)
{
    *heap = (ewx_heap){.world = world,
                       .segment_bytes = layout->segment_bytes,
                       .flags_offset = layout->flags_offset};
    return world->in_threads ? open_between_threads(heap) : open_between_processes(heap);
}

void ewx_heap_close(ewx_heap *heap)
{
    if (!heap->world)
        return;
    for (int rank = 0; rank < heap->world->num_ranks; rank++) {
        if (!heap->segments[rank])
            continue;
        /* The last thread to leave unmaps: a peer may still be reading. */
        if (!heap->world->in_threads ||
            atomic_fetch_sub(&ewx_heap_header(heap, rank)->users, 1) == 1)
            munmap(heap->segments[rank], heap->segment_bytes);
        heap->segments[rank] = NULL;
    }
}
