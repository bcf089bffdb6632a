/* Making room for tiles that travel: boxes, places, the channel, and a first message. */
#include <stdlib.h>

#include "backend/cuda/cuda_engine.h"

ew_status ewx_carrier_check(const ew_world *world, const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    if (world->num_hosts == 1)
        return EW_OK;
    if (spec->problem.op != EW_OP_GEMM_RS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%s with GPUs on %d hosts is not supported\n"
                        "  fix: use gemm-rs, start all ranks on one host, or use "
                        "backend=cpu",
                        spec->op->name, world->num_hosts);
    if (config->producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "producer=blas with GPUs on %d hosts is not supported\n"
                        "  fix: use producer=own, or start all ranks on one host",
                        world->num_hosts);
    if (config->transport != EW_TRANSPORT_PULL)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=%s with GPUs on %d hosts is not supported\n"
                        "  fix: use transport=pull, or start all ranks on one host",
                        ewx_transport_name(config->transport), world->num_hosts);
    if (config->levels == 2)
        return ewx_fail(
            EW_ERR_UNSUPPORTED,
            "levels=2 with GPUs on %d hosts is not supported\n  fix: use levels=1",
            world->num_hosts);
    return EW_OK;
}

const unsigned char *ewx_carrier_source(const ewx_cuda_engine *engine, int src)
{
    const ewx_layout *layout = &engine->spec->layout;
    return engine->carrier.inbox +
           (src - engine->world->rank) * layout->slots_per_part *
               (int64_t)layout->slot_bytes -
           (int64_t)layout->slice_offset[0];
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
    const size_t partition_bytes = (size_t)layout->slots_per_part * layout->slot_bytes;
    const int num_remotes = engine->world->num_ranks - engine->world->num_locals;
    const size_t inbox_bytes = layout->segment_bytes - layout->slice_offset[0] + 1;
    c->arrived = calloc(1, ewx_carrier_counts_bytes(engine->spec) + 1);
    if (!c->arrived)
        return ewx_fail(EW_ERR_MEMORY, "no memory to count tiles of other hosts");
    EW_CUDA_TRY(engine->device->direct
                    ? cudaMalloc((void **)&c->inbox, inbox_bytes)
                    : cudaHostAlloc((void **)&c->inbox, inbox_bytes, reachable),
                "allocating for tiles of other hosts");
    if (engine->device->direct)
        return EW_OK;
    EW_CUDA_TRY(cudaHostAlloc((void **)&c->outbox,
                              (size_t)num_remotes * partition_bytes + 1, reachable),
                "allocating for tiles to other hosts");
    EW_CUDA_TRY(cudaEventCreateWithFlags(&c->copied, cudaEventDisableTiming),
                "creating an event");
    return EW_OK;
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

/* ---- Open and close ---- */

/* Before any kernel waits: some of what a fabric does for the first message of a kind, such
 * as registering memory, waits for the whole GPU. */
static ew_status in_fabric(ewx_cuda_engine *engine, ew_status (*action)(ewx_cuda_engine *))
{
    if (!ewx_carrier_enter_fabric(engine))
        return engine->carrier.status;
    const ew_status status = action(engine);
    ewx_carrier_leave_fabric(engine);
    return status;
}

/* Also by a rank that cannot enter the fabric: all ranks open a channel, or none does. */
static ew_status open_exchange(ewx_cuda_engine *engine, ew_status ready)
{
    ewx_carrier *c = &engine->carrier;
    const bool entered = ready == EW_OK && ewx_carrier_enter_fabric(engine);
    const ew_status status =
        ewx_exchange_open(&c->exchange, engine->world, engine->spec, &ewx_carrier_boxes,
                          engine, false, ready == EW_OK ? c->status : ready);
    if (entered)
        ewx_carrier_leave_fabric(engine);
    return status;
}

static ew_status rehearse(ewx_cuda_engine *engine)
{
    return ewx_exchange_rehearse(&engine->carrier.exchange);
}

ew_status ewx_carrier_open(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    if (engine->world->num_hosts == 1)
        return EW_OK;
    c->listener = (ewx_listener){.handle = ewx_carrier_hear, .context = engine};
    ewx_remotes_listen(engine->world, &c->listener);
    ew_status status = open_exchange(engine, allocate_boxes(engine));
    if (status == EW_OK)
        status = warm_copies(engine);
    /* No rank sends before all listen. */
    EW_TRY(ewx_world_agree(engine->world, status, "make room for tiles of other hosts"));
    return ewx_world_agree(engine->world, in_fabric(engine, rehearse), "reach other hosts");
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
    if (!c->listener.handle) /* one host, or nothing was opened */
        return;
    const bool entered = ewx_carrier_enter_fabric(engine);
    ewx_remotes_progress(world);
    ewx_remotes_unlisten(world, &c->listener);
    const bool closed = ewx_exchange_close(&c->exchange);
    if (entered)
        ewx_carrier_leave_fabric(engine);
    if (c->copied)
        cudaEventDestroy(c->copied);
    if (closed)
        free_boxes(engine);
    else /* the fabric may still read or write there */
        engine->heap.stays = engine->device->direct;
    free(c->arrived);
    c->listener.handle = NULL;
}
