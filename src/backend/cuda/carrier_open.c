/* Making room for tiles that travel: boxes, places, the channel. */
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
           (src - engine->world->rank) * layout->slots_per_rank * EWX_CUDA_TILE_BYTES -
           (int64_t)layout->slice_offset[0];
}

static void find_remotes(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    for (int rank = 0; rank < engine->world->num_ranks; rank++)
        if (!ewx_world_is_local(engine->world, rank))
            c->remotes[c->num_remotes++].rank = rank;
}

/* The inbox lies as contributions do that are pushed: kernels find a slice where it is in a
 * segment.  Of the outbox there is one, since a call ends when all of it has arrived. */
static ew_status allocate_boxes(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_layout *layout = &engine->spec->layout;
    const unsigned reachable = cudaHostAllocMapped | cudaHostAllocPortable;
    const size_t partition_bytes = (size_t)layout->slots_per_rank * EWX_CUDA_TILE_BYTES;
    EW_CUDA_TRY(cudaHostAlloc((void **)&c->inbox,
                              layout->segment_bytes - layout->slice_offset[0] + 1,
                              reachable),
                "allocating for tiles of other hosts");
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
    const int64_t slots = layout->slots_per_rank;
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
    const ew_status status = ewx_hosts_open_channel(
        world, places, count, "plan for fewer rows (max_m), or use fewer plans",
        &c->channel);
    free(places);
    return status;
}

/* A copy, before any kernel waits: the driver prepares for the first of a kind. */
static ew_status warm_copies(const ewx_cuda_engine *engine)
{
    EW_CUDA_TRY(cudaMemcpyAsync(engine->carrier.outbox,
                                engine->heap.segments[engine->world->rank], 1,
                                cudaMemcpyDeviceToHost, engine->device->carrying),
                "copying a tile");
    EW_CUDA_TRY(cudaStreamSynchronize(engine->device->carrying), "copying a tile");
    return EW_OK;
}

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
    return ewx_world_agree(engine->world, status, "make room for tiles of other hosts");
}

void ewx_carrier_close(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    ew_world *world = engine->world;
    if (!c->is_open)
        return;
    ewx_hosts_progress(world);
    ewx_hosts_unlisten(world, &c->listener);
    const bool broken = world->fabric_failed || atomic_load(&world->control->abort) != 0;
    if (c->copied)
        cudaEventDestroy(c->copied);
    if (!c->channel || world->fabric->channel_close(c->channel, broken)) {
        cudaFreeHost(c->inbox);
        cudaFreeHost(c->outbox);
    } /* else the fabric may still read or write there */
    c->is_open = false;
}
