/* Making room for tiles that travel: boxes, places, the channel, and a first message. */
#include <stdlib.h>

#include "backend/cuda/engine.h"

ew_status ewx_carrier_check(const ew_world *world, const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    if (world->num_hosts == 1)
        return EW_OK;
    if (config->producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "producer=blas among GPUs on %d hosts\n"
                        "  fix: use producer=own, or start all ranks on one host",
                        world->num_hosts);
    if (config->transport != EW_TRANSPORT_PULL)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=%s among GPUs on %d hosts\n"
                        "  fix: use transport=pull, or start all ranks on one host",
                        config->transport == EW_TRANSPORT_PUSH ? "push" : "copy",
                        world->num_hosts);
    if (config->levels == 2)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "levels=2 among GPUs on %d hosts\n  fix: use levels=1",
                        world->num_hosts);
    return EW_OK;
}

const unsigned char *ewx_carrier_source(const ewx_cuda_engine *engine, int src)
{
    const ewx_layout *layout = &engine->spec->layout;
    return engine->carrier.inbox +
           (src - engine->world->rank) * layout->slots_per_part * EWX_CUDA_TILE_BYTES -
           (int64_t)layout->slice_offset[0];
}

static void find_remotes(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    for (int rank = 0; rank < engine->world->num_ranks; rank++)
        if (!ewx_world_is_local(engine->world, rank))
            c->remotes[c->num_remotes++].rank = rank;
}

bool ewx_carrier_enter_fabric(ewx_cuda_engine *engine)
{
    const ewx_device *device = engine->device;
    if (!device->direct)
        return true;
    const CUresult result = device->driver->cuCtxPushCurrent(device->primary);
    if (result != CUDA_SUCCESS)
        ewx_carrier_fail(engine, ewx_driver_fail(result, "entering the GPU"));
    return result == CUDA_SUCCESS;
}

void ewx_carrier_leave_fabric(const ewx_cuda_engine *engine)
{
    if (engine->device->direct)
        ewx_device_leave(engine->device);
}

/* The inbox lies as contributions do that are pushed: kernels find a slice where it is in a
 * segment.  Of the outbox there is one, since a call ends when all of it has arrived. */
static ew_status allocate_boxes(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_layout *layout = &engine->spec->layout;
    const unsigned reachable = cudaHostAllocMapped | cudaHostAllocPortable;
    const size_t partition_bytes = (size_t)layout->slots_per_part * EWX_CUDA_TILE_BYTES;
    const size_t inbox_bytes = layout->segment_bytes - layout->slice_offset[0] + 1;
    EW_CUDA_TRY(engine->device->direct
                    ? cudaMalloc((void **)&c->inbox, inbox_bytes)
                    : cudaHostAlloc((void **)&c->inbox, inbox_bytes, reachable),
                "allocating for tiles of other hosts");
    if (engine->device->direct)
        return EW_OK;
    EW_CUDA_TRY(cudaHostAlloc((void **)&c->outbox,
                              (size_t)c->num_remotes * partition_bytes + 1, reachable),
                "allocating for tiles to other hosts");
    EW_CUDA_TRY(cudaEventCreateWithFlags(&c->copied, cudaEventDisableTiming),
                "creating an event");
    return EW_OK;
}

static ew_status open_channel(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    ew_world *world = engine->world;
    const ewx_layout *layout = &engine->spec->layout;
    const int64_t slots = layout->slots_per_part;
    const size_t count = (size_t)(c->num_remotes * slots * 2);
    ew_place *places = calloc(count + 1, sizeof *places);
    if (!places)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %zu messages", count);
    for (int remote = 0; remote < c->num_remotes; remote++)
        for (int64_t slot = 0; slot < slots; slot++)
            for (uint32_t parity = 0; parity < 2; parity++) {
                const int src = c->remotes[remote].rank;
                places[ewx_carrier_place(slots, remote, slot, parity)] = (ew_place){
                    .src = src,
                    .number = ewx_carrier_number(slot, parity),
                    .address = c->inbox +
                               (layout->slice_offset[parity] - layout->slice_offset[0]) +
                               (size_t)(src * slots + slot) * EWX_CUDA_TILE_BYTES,
                    .bytes = EWX_CUDA_TILE_BYTES};
            }
    if (ewx_carrier_enter_fabric(engine)) {
        c->status = ewx_hosts_open_channel(
            world, places, count, "plan for fewer rows (max_m), or use fewer plans",
            &c->channel);
        ewx_carrier_leave_fabric(engine);
    }
    free(places);
    return c->status;
}

/* A copy, before any kernel waits: the driver prepares for the first of a kind. */
static ew_status warm_copies(const ewx_cuda_engine *engine)
{
    if (engine->device->direct)
        return EW_OK;
    EW_CUDA_TRY(cudaMemcpyAsync(engine->carrier.outbox,
                                engine->heap.segments[engine->world->rank], 1,
                                cudaMemcpyDeviceToHost, engine->device->carrying),
                "copying a tile");
    EW_CUDA_TRY(cudaStreamSynchronize(engine->device->carrying), "copying a tile");
    return EW_OK;
}

/* ---- A first message ---- */

static void put_first(ewx_cuda_engine *engine, int remote, uint32_t parity)
{
    ewx_carrier *c = &engine->carrier;
    if (engine->world->fabric->put(
            c->channel, c->remotes[remote].rank, ewx_carrier_number(0, parity),
            ewx_carrier_outgoing(engine, remote, 0, parity), EWX_CUDA_TILE_BYTES, parity))
        ewx_hosts_fail(engine->world);
}

static bool have_come(ewx_cuda_engine *engine, const size_t *places, size_t count)
{
    ewx_carrier *c = &engine->carrier;
    const ew_fabric *fabric = engine->world->fabric;
    size_t filled[2 * EWX_CUDA_MAX_RANKS], bytes[2 * EWX_CUDA_MAX_RANKS], num_filled = 0;
    const int64_t per_remote = engine->spec->layout.slots_per_part * 2;
    bool all = true;
    ewx_hosts_progress(engine->world);
    if (!ewx_hosts_reachable(engine->world))
        return true;
    if (fabric->arrivals(c->channel, places, count, filled, bytes, &num_filled) ||
        fabric->unsent(c->channel, &c->unsent, &c->unsent_to))
        ewx_hosts_fail(engine->world);
    for (size_t i = 0; i < num_filled && i < count; i++)
        if ((int64_t)filled[i] < c->num_remotes * per_remote)
            c->remotes[(int64_t)filled[i] / per_remote].arrived++;
    for (int remote = 0; remote < c->num_remotes; remote++)
        all = all && c->remotes[remote].arrived == 2;
    return all && c->unsent == 0;
}

static void blame_silent(ewx_cuda_engine *engine)
{
    const ewx_carrier *c = &engine->carrier;
    int culprit = c->unsent_to;
    for (int remote = 0; remote < c->num_remotes; remote++)
        if (c->remotes[remote].arrived < 2)
            culprit = c->remotes[remote].rank;
    (void)ewx_world_raise(engine->world, &(ewx_fault){.status = EW_ERR_TIMEOUT,
                                                      .culprit = culprit,
                                                      .reporter = engine->world->rank,
                                                      .place = EWX_FAULT_MEETING});
}

/* A tile's bytes of no meaning to and from every rank of another host, with and without
 * confirmation: whatever a fabric, and the driver below it, do for the first of a kind,
 * they do before any kernel waits.  Some of it, such as registering memory, waits for the
 * whole GPU. */
static ew_status rehearse(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    ew_world *world = engine->world;
    size_t places[2 * EWX_CUDA_MAX_RANKS], count = 0;
    ew_status waited;
    if (engine->spec->layout.slots_per_part == 0) /* of a plan for no rows */
        return EW_OK;
    if (!ewx_carrier_enter_fabric(engine))
        return c->status;
    for (int remote = 0; remote < c->num_remotes; remote++)
        for (uint32_t parity = 0; parity < 2; parity++) {
            places[count++] =
                ewx_carrier_place(engine->spec->layout.slots_per_part, remote, 0, parity);
            put_first(engine, remote, parity);
        }
    ewx_wait wait = ewx_world_wait(world);
    EWX_AWAIT(waited, &wait, have_come(engine, places, count));
    if (waited == EW_ERR_TIMEOUT)
        blame_silent(engine);
    for (size_t i = 0; i < count && waited == EW_OK && ewx_hosts_reachable(world); i++)
        if (world->fabric->rearm(c->channel, places[i]))
            ewx_hosts_fail(world);
    ewx_carrier_leave_fabric(engine);
    return ewx_world_check(world);
}

/* ---- Open and close ---- */

ew_status ewx_carrier_open(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    if (engine->world->num_hosts == 1)
        return EW_OK;
    c->is_open = true;
    find_remotes(engine);
    c->listener = (ewx_listener){.hear = ewx_carrier_hear, .context = engine};
    ewx_hosts_listen(engine->world, &c->listener);
    ew_status status = allocate_boxes(engine);
    if (status == EW_OK)
        status = open_channel(engine);
    if (status == EW_OK)
        status = warm_copies(engine);
    /* Nobody sends before all listen. */
    EW_TRY(ewx_world_agree(engine->world, status, "make room for tiles of other hosts"));
    return ewx_world_agree(engine->world, rehearse(engine), "reach other hosts");
}

static void free_boxes(const ewx_cuda_engine *engine)
{
    const ewx_carrier *c = &engine->carrier;
    if (engine->device->direct) {
        cudaFree(c->inbox);
    } else {
        cudaFreeHost(c->inbox);
        cudaFreeHost(c->outbox);
    }
}

void ewx_carrier_close(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    ew_world *world = engine->world;
    if (!c->is_open)
        return;
    const bool entered = ewx_carrier_enter_fabric(engine);
    ewx_hosts_progress(world);
    ewx_hosts_unlisten(world, &c->listener);
    const bool broken = world->fabric_failed || atomic_load(&world->control->abort) != 0;
    const bool closed = !c->channel || world->fabric->channel_close(c->channel, broken);
    if (entered)
        ewx_carrier_leave_fabric(engine);
    if (c->copied)
        cudaEventDestroy(c->copied);
    if (closed)
        free_boxes(engine);
    else /* the fabric may still read or write there */
        engine->heap.stays = engine->device->direct;
    c->is_open = false;
}
