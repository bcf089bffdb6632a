/* Segments as sealed memfds between processes, as plain shared pages between threads. */
#include "backend/cpu/cpu_heap.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend/cpu/cpu_engine.h"
#include "base/memory.h"
#include "base/status.h"
#include "plan/policy.h"

#define PIECE_BYTES ((size_t)1 << 20)

static ew_status fail_segment(const char *what, size_t bytes)
{
    const ew_status status =
        errno == ENOMEM || errno == ENOSPC ? EW_ERR_MEMORY : EW_ERR_SYSTEM;
    const bool is_full = errno == EMFILE || errno == ENFILE;
    return ewx_fail(status, "%s of a heap segment of %zu bytes failed: %s\n  fix: %s", what,
                    bytes, strerror(errno),
                    is_full ? "raise the limit of open files (ulimit -n)"
                            : "free memory, or plan for fewer rows (max_m)");
}

/* ---- Processes ---- */

/* In pieces, because a signal makes some kernels give up the whole request. */
static int allocate_pages(int fd, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        const size_t piece = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        if (fallocate(fd, 0, (off_t)at, (off_t)piece) == 0)
            at += piece;
        else if (errno != EINTR)
            return -1;
    }
    return 0;
}

/* Our own segment: allocated in full now (a clean error instead of a later SIGBUS),
 * writable through this one mapping only, of fixed size for ever. */
static ew_status create_segment(ewx_heap *heap, int *fd_out)
{
    EW_TRY(ewx_memory_check_shared("the plan's heap", heap->segment_bytes));
    const int fd = memfd_create("entwine-heap", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fail_segment("memfd_create", heap->segment_bytes);
    *fd_out = fd;
    if (allocate_pages(fd, heap->segment_bytes) != 0)
        return fail_segment("fallocate", heap->segment_bytes);
    void *address = mmap(NULL, heap->segment_bytes, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED)
        return fail_segment("mmap", heap->segment_bytes);
    heap->segments[heap->world->rank] = address;
    if (fchmod(fd, 0600) != 0)
        return fail_segment("fchmod", heap->segment_bytes);
    if (fcntl(fd, F_ADD_SEALS,
              F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
        return fail_segment("sealing", heap->segment_bytes);
    return EW_OK;
}

static ew_status map_peer(ewx_heap *heap, int rank, int fd)
{
    struct stat info;
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &info) != 0)
        return fail_segment("inspection", heap->segment_bytes);
    if ((size_t)info.st_size != heap->segment_bytes || !(seals & F_SEAL_SHRINK))
        return ewx_fail(EW_ERR_MISMATCH,
                        "the heap segment of rank %d is not the size agreed on", rank);
    void *address =
        mmap(NULL, heap->segment_bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (address == MAP_FAILED)
        return fail_segment("mmap", heap->segment_bytes);
    heap->segments[rank] = address;
    return EW_OK;
}

/* Address space; pages come when a tile does. */
static ew_status map_replica(ewx_heap *heap, int rank)
{
    void *address = mmap(NULL, heap->replica_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
        return fail_segment("mmap", heap->replica_bytes);
    heap->segments[rank] = address;
    return EW_OK;
}

static ew_status open_between_processes(ewx_heap *heap)
{
    ew_world *world = heap->world;
    int mine = -1, fds[EWX_MAX_RANKS];
    ew_status status = create_segment(heap, &mine);
    /* All ranks must learn of a failure before any rank waits for a descriptor. */
    EW_TRY_TO(status, ewx_world_agree(world, status, "allocate its heap"), out);
    EW_TRY_TO(status, ewx_world_exchange_fds(world, mine, fds), out);
    for (int rank = 0; rank < world->num_ranks; rank++) {
        if (status == EW_OK && rank != world->rank)
            status = ewx_world_is_local(world, rank) ? map_peer(heap, rank, fds[rank])
                                                     : map_replica(heap, rank);
        if (fds[rank] >= 0)
            close(fds[rank]);
    }
out:
    if (mine >= 0)
        close(mine);
    return status;
}

/* ---- Threads ---- */

static ew_status create_shared_pages(const ewx_heap *heap, void **pages_out)
{
    void *pages = mmap(NULL, heap->segment_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (pages == MAP_FAILED)
        return fail_segment("mmap", heap->segment_bytes);
    atomic_store(&((ewx_segment_header *)pages)->users, heap->world->num_ranks);
    *pages_out = pages;
    return EW_OK;
}

static ew_status open_between_threads(ewx_heap *heap)
{
    ew_world *world = heap->world;
    void *mine = NULL, *all[EWX_MAX_RANKS];
    ew_status status = create_shared_pages(heap, &mine);
    status = ewx_world_agree(world, status, "allocate its heap");
    if (status == EW_OK)
        status = ewx_world_allgather(world, &mine, all, sizeof mine);
    /* When all ranks know that one could not, none uses the pages.  If an abort came at
     * this very moment, one might: better to leak them than to unmap them. */
    if (status != EW_OK && mine && ewx_world_check(world) == EW_OK)
        munmap(mine, heap->segment_bytes);
    for (int rank = 0; status == EW_OK && rank < world->num_ranks; rank++)
        heap->segments[rank] = all[rank];
    return status;
}

/* What is used of all replicas, in segments.  Contributions to a rank's share, and results
 * of the others' shares, are each at most as much as a segment; in one shot the share is
 * everything.  Of rows that are gathered a segment has one rank's, and all are used. */
static int64_t replicas_used(const ew_world *world, const ewx_spec *spec)
{
    if (world->num_hosts == 1)
        return 0;
    if (spec->op->gemm_waits)
        return world->num_ranks - world->num_locals;
    if (spec->layout.num_parts > 1)
        return 1;
    return ewx_allreduce_shots(spec, spec->problem.max_m) == 1
               ? world->num_ranks - world->num_locals + 1
               : 2;
}

ewx_size ewx_heap_bytes(const ew_world *world, const ewx_spec *spec)
{
    const size_t bytes = spec->layout.segment_bytes;
    const ewx_size segment = {bytes, true};
    const ewx_size tables = {bytes / EWX_BYTES_PER_TABLE_BYTE, true};
    return ewx_size_add(
        ewx_size_mul(segment, ewx_size_of(1 + replicas_used(world, spec))),
        ewx_size_mul(tables, ewx_size_of(world->in_threads ? 1 : world->num_locals)));
}

static size_t replica_bytes(const ewx_layout *layout)
{
    const size_t slice = layout->slice_offset[1] - layout->slice_offset[0];
    return layout->segment_bytes + (layout->num_parts == 1 ? 2 * slice : 0);
}

ew_status ewx_heap_open(ewx_heap *heap, ew_world *world, const ewx_layout *layout)
{
    *heap = (ewx_heap){.world = world,
                       .segment_bytes = layout->segment_bytes,
                       .replica_bytes = replica_bytes(layout),
                       .flags_offset = layout->flags_offset};
    return world->in_threads ? open_between_threads(heap) : open_between_processes(heap);
}

void ewx_heap_close(ewx_heap *heap)
{
    if (!heap->world || heap->is_abandoned)
        return;
    for (int rank = 0; rank < heap->world->num_ranks; rank++) {
        if (!heap->segments[rank])
            continue;
        /* The last thread to leave unmaps: a peer may still be reading. */
        if (!heap->world->in_threads ||
            atomic_fetch_sub(&ewx_heap_header(heap, rank)->users, 1) == 1)
            munmap(heap->segments[rank], ewx_world_is_local(heap->world, rank)
                                             ? heap->segment_bytes
                                             : heap->replica_bytes);
        heap->segments[rank] = NULL;
    }
}

void ewx_heap_abandon(ewx_heap *heap)
{
    heap->is_abandoned = true;
}

/* ---- The route ---- */

bool ewx_heap_ready(const ewx_cpu_engine *engine, int src, int64_t slot)
{
    return ewx_flag_reached(ewx_heap_flag(&engine->heap, src, slot), engine->call.epoch);
}

void ewx_heap_post(ewx_cpu_engine *engine, int part, ewx_tile tile)
{
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, part, tile);
    ewx_flag_publish(ewx_heap_flag(&engine->heap, engine->world->rank, slot),
                     engine->call.epoch);
}

void ewx_route_nothing(ewx_cpu_engine *engine)
{
    (void)engine;
}

const ewx_route ewx_route_heap = {.post = ewx_heap_post,
                                  .ready = ewx_heap_ready,
                                  .progress = ewx_route_nothing,
                                  .close = ewx_route_nothing};
