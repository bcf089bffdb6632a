/* The public memory of a backend. */
#include "backend/backend.h"
#include "base/status.h"
#include "entwine/measure.h"

ew_status ew_memory_alloc(ew_world *world, ew_backend backend, size_t bytes,
                          void **memory_out)
{
    const ewx_backend *found = NULL;
    if (!world || !memory_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_memory_alloc needs a world and a place");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_memory_alloc"));
    EW_TRY(ewx_backend_find(backend, &found));
    return found->memory.allocate(world, bytes, memory_out);
}

void ew_memory_free(ew_world *world, ew_backend backend, void *memory)
{
    const ewx_backend *found = NULL;
    if (world && memory &&
        ewx_handle_check(world, EWX_KIND_WORLD, "ew_memory_free") == EW_OK &&
        ewx_backend_find(backend, &found) == EW_OK)
        found->memory.release(world, memory);
}

ew_status ew_memory_copy(ew_world *world, ew_backend backend, void *to, const void *from,
                         size_t bytes)
{
    const ewx_backend *found = NULL;
    if (bytes == 0)
        return EW_OK;
    if (!world || !to || !from)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_memory_copy needs a world and two buffers");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_memory_copy"));
    EW_TRY(ewx_backend_find(backend, &found));
    return found->memory.copy(world, to, from, bytes);
}

ew_status ew_memory_fill(ew_world *world, ew_backend backend, void *to, int byte,
                         size_t bytes)
{
    const ewx_backend *found = NULL;
    if (bytes == 0)
        return EW_OK;
    if (!world || !to)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_memory_fill needs a world and a buffer");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_memory_fill"));
    EW_TRY(ewx_backend_find(backend, &found));
    return found->memory.fill(world, to, byte, bytes);
}
