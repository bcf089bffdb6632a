/* Symmetric memory: what all ranks must agree on, and the way down to the backend. */
#include "backend/backend.h"
#include "base/status.h"

/* What a rank asks for. */
typedef struct request {
    uint64_t bytes;
    int32_t backend; /* ew_backend */
    int32_t imports;
} request;

static const char *name_of(const request *asked)
{
    return asked->imports ? "ew_import" : "ew_alloc";
}

/* Collective: nobody goes on unless all can, and have asked for the same. */
static ew_status agree(ew_world *world, ew_status own, const request *mine)
{
    request all[EWX_MAX_RANKS];
    EW_TRY(ewx_world_agree(world, own, "allocate or import symmetric memory"));
    EW_TRY(ewx_world_allgather(world, mine, all, sizeof *mine));
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (all[rank].bytes != mine->bytes || all[rank].imports != mine->imports ||
            all[rank].backend != mine->backend)
            return ewx_fail(EW_ERR_MISMATCH,
                            "ranks disagree: rank %d called %s for %zu bytes of backend "
                            "%d, rank %d %s for %zu of backend %d\n"
                            "  fix: pass the same size on all ranks",
                            world->rank, name_of(mine), (size_t)mine->bytes, mine->backend,
                            rank, name_of(&all[rank]), (size_t)all[rank].bytes,
                            all[rank].backend);
    return EW_OK;
}

/* ---- ew_alloc ---- */

static ew_status check_place(ew_backend backend, void *const *memory_out,
                             const ewx_backend **found_out)
{
    if (!memory_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_alloc needs a place for the memory");
    return ewx_backend_find(backend, found_out);
}

/* Collective, as the other kind is. */
static ew_status allocate_plain(ew_world *world, const ewx_memory *memory, size_t bytes,
                                void **memory_out)
{
    void *fresh = NULL;
    const ew_status own = memory->allocate(world, bytes, &fresh);
    const ew_status status = ewx_world_agree(world, own, "allocate memory");
    if (status == EW_OK)
        *memory_out = fresh;
    else if (own == EW_OK)
        memory->release(world, fresh);
    return status;
}

static ew_status allocate(ew_world *world, ew_backend backend, size_t bytes,
                          void **memory_out)
{
    const ewx_backend *found = NULL;
    const request mine = {.bytes = bytes, .backend = (int32_t)backend};
    EW_TRY(agree(world, check_place(backend, memory_out, &found), &mine));
    return found->symmetric ? found->symmetric->allocate(world, bytes, memory_out)
                            : allocate_plain(world, &found->memory, bytes, memory_out);
}

ew_status ew_alloc(ew_world *world, ew_backend backend, size_t bytes, void **memory_out)
{
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_alloc"));
    EW_TRY(ewx_world_enter(world));
    const ew_status status = allocate(world, backend, bytes, memory_out);
    ewx_world_leave(world);
    return status;
}

/* ---- ew_import ---- */

static ew_status check_import(const ew_world *world, ew_backend backend,
                              void *const *pointers, const ewx_backend **found_out)
{
    EW_TRY(ewx_backend_find(backend, found_out));
    if (!(*found_out)->symmetric)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "only the cuda backend has a use for symmetric memory\n"
                        "  fix: pass the memory to calls as it is");
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (!pointers || (ewx_world_is_local(world, rank) && !pointers[rank]))
            return ewx_fail(EW_ERR_ARGUMENT,
                            "ew_import has no pointer to the memory of rank %d\n"
                            "  fix: pass one for each of the %d ranks",
                            rank, world->num_ranks);
    return EW_OK;
}

static ew_status import(ew_world *world, ew_backend backend, void *const *pointers,
                        size_t bytes)
{
    const ewx_backend *found = NULL;
    const request mine = {.bytes = bytes, .backend = (int32_t)backend, .imports = true};
    EW_TRY(agree(world, check_import(world, backend, pointers, &found), &mine));
    return found->symmetric->import(world, pointers, bytes);
}

ew_status ew_import(ew_world *world, ew_backend backend, void *const *pointers,
                    size_t bytes)
{
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_import"));
    EW_TRY(ewx_world_enter(world));
    const ew_status status = import(world, backend, pointers, bytes);
    ewx_world_leave(world);
    return status;
}

/* ---- ew_free ---- */

static ew_status release(ew_world *world, ew_backend backend, void *memory)
{
    const ewx_backend *found = NULL;
    EW_TRY(ewx_backend_find(backend, &found));
    if (found->symmetric)
        return found->symmetric->release(world, memory);
    found->memory.release(world, memory);
    return EW_OK;
}

ew_status ew_free(ew_world *world, ew_backend backend, void *memory)
{
    if (!memory)
        return EW_OK;
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_free"));
    EW_TRY(ewx_world_enter(world));
    const ew_status status = release(world, backend, memory);
    ewx_world_leave(world);
    return status;
}
