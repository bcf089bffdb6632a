/* A call among several hosts: what leaves, what comes, and when it is over. */
#include "backend/cuda/carrier.h"

#include <string.h>

#include "backend/cuda/cuda_engine.h"
#include "base/epoch.h"

/* ---- Geometry ---- */

static unsigned char *outbox_slot(const ewx_cuda_engine *engine, int dst, int64_t slot)
{
    const ewx_carrier *c = &engine->carrier;
    return c->outbox +
           (size_t)(c->exchange.index_of[dst] * engine->spec->layout.slots_per_part +
                    slot) *
               engine->spec->layout.slot_bytes;
}

/* Where the producer wrote it. */
static const unsigned char *produced(const ewx_cuda_engine *engine, int dst, int64_t slot,
                                     int parity)
{
    const ewx_layout *layout = &engine->spec->layout;
    return engine->heap.segments[engine->world->rank] + layout->slice_offset[parity] +
           (size_t)(dst * layout->slots_per_part + slot) * layout->slot_bytes;
}

static uint32_t *flag_of(const ewx_cuda_engine *engine, int owner, int64_t unit, int source)
{
    return (uint32_t *)(void *)(engine->heap.segments[owner] +
                                engine->spec->layout.flags_offset) +
           unit * engine->spec->num_ranks + source;
}

/* ---- The exchange's view of the boxes ---- */

static const unsigned char *outgoing(const void *context, int dst, int64_t slot, int parity)
{
    const ewx_cuda_engine *engine = context;
    return engine->device->direct ? produced(engine, dst, slot, parity)
                                  : outbox_slot(engine, dst, slot);
}

static unsigned char *incoming(const void *context, int src, ewx_cargo cargo, int64_t slot,
                               int parity)
{
    (void)cargo; /* the operations that a GPU has send contributions only */
    const ewx_cuda_engine *engine = context;
    const ewx_layout *layout = &engine->spec->layout;
    return engine->carrier.inbox +
           (layout->slice_offset[parity] - layout->slice_offset[0]) +
           (size_t)(src * layout->slots_per_part + slot) * layout->slot_bytes;
}

/* Writes the flag of a release unit when its last tile has come. */
static void arrived(void *context, int src, ewx_cargo cargo, int64_t slot, int64_t tiles)
{
    ewx_cuda_engine *engine = context;
    (void)cargo;
    ewx_carrier *c = &engine->carrier;
    const ewx_layout *layout = &engine->spec->layout;
    const ewx_release release = ewx_release_of(&engine->spec->config);
    const int rank = engine->world->rank;
    const int64_t owned = ewx_part_tiles(&c->grid, rank);
    int64_t *counts = c->arrived + src * layout->slots_per_part;
    for (int64_t at = slot; at < slot + tiles; at++) {
        const ewx_tile tile = {at / layout->tile_cols, at % layout->tile_cols};
        const int64_t unit =
            ewx_release_unit(release, owned, ewx_tile_task(&c->grid, rank, tile));
        const ewx_task_range tasks = ewx_release_tasks(&c->grid, release, rank, unit);
        if (++counts[unit] == tasks.end - tasks.first)
            ewx_carrier_write(engine, flag_of(engine, rank, unit, src), c->epoch);
    }
}

/* Where src has another m, the kernels report it. */
static bool agrees(const void *context, int src)
{
    const ewx_cuda_engine *engine = context;
    const ewx_carrier *c = &engine->carrier;
    return c->remotes[src].heard.calls[c->epoch % EWX_CUDA_CALLS] ==
           ((uint64_t)c->epoch << 32 | (uint32_t)c->grid.rows);
}

const ewx_exchange_backend ewx_carrier_boxes = {
    .outgoing = outgoing,
    .incoming = incoming,
    .arrived = arrived,
    .agrees = agrees,
    .fix = "plan for fewer rows (max_m), or use fewer plans; those that were destroyed "
           "count, too"};

/* ---- Sending ---- */

/* Interprets the result of cudaStreamQuery or cudaEventQuery. */
static bool has_ended(ewx_cuda_engine *engine, cudaError_t answer)
{
    if (answer == cudaErrorNotReady)
        (void)cudaGetLastError(); /* it is not an error */
    else if (answer != cudaSuccess)
        ewx_carrier_fail(engine, ewx_cuda_fail(answer, "a call among several hosts"));
    return answer == cudaSuccess;
}

/* Stored by the kernel behind the tile (release, system-wide), in host memory.  Once it has
 * been acquired, the tile may be read: by a copy engine, or, where the fabric takes device
 * memory, by whatever this uses (copies of its own, a peer's mapping, a NIC), as these read
 * where a system-wide release has brought the tile.  No stream orders the two. */
static bool is_published(const ewx_cuda_engine *engine, int dst, int64_t task)
{
    const int64_t unit = ewx_release_unit(ewx_release_of(&engine->spec->config),
                                          ewx_part_tiles(&engine->carrier.grid, dst), task);
    const uint32_t *flag = flag_of(engine, dst, unit, engine->world->rank);
#if EW_MUTANT == 19 /* planted bug: tiles leave before they are there */
    return flag != NULL;
#endif
    return ewx_epoch_reached(__atomic_load_n(flag, __ATOMIC_ACQUIRE),
                             engine->carrier.epoch);
}

static void post_published(ewx_cuda_engine *engine, int dst)
{
    ewx_carrier *c = &engine->carrier;
    int64_t *task = &c->remotes[dst].taken;
    const int64_t tasks = ewx_part_tiles(&c->grid, dst);
    for (; *task < tasks && is_published(engine, dst, *task); ++*task)
        ewx_exchange_post(&c->exchange, dst,
                          ewx_layout_slot(&engine->spec->layout, dst,
                                          ewx_task_tile(&c->grid, dst, *task)));
}

static bool take_unit(ewx_carrier *c)
{
    return c->num_batch < EWX_CARRIER_BATCH &&
           ewx_exchange_take(&c->exchange, &c->batch[c->num_batch].dst,
                             &c->batch[c->num_batch].unit);
}

static void take_batch(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    for (int remote = 0; remote < c->exchange.num_remotes; remote++)
        post_published(engine, c->exchange.remotes[remote]);
    while (take_unit(c))
        c->num_batch++;
}

static cudaError_t copy_out(const ewx_cuda_engine *engine, int dst, int64_t unit)
{
    const ewx_exchange *exchange = &engine->carrier.exchange;
    const int64_t slot = unit * exchange->unit_slots;
    return cudaMemcpyAsync(outbox_slot(engine, dst, slot),
                           produced(engine, dst, slot, engine->carrier.epoch & 1),
                           ewx_exchange_unit_bytes(exchange, dst, unit),
                           cudaMemcpyDeviceToHost, engine->device->carrying);
}

static void copy_batch(ewx_cuda_engine *engine)
{
    const ewx_carrier *c = &engine->carrier;
    cudaError_t error = cudaSuccess;
    if (c->num_batch == 0)
        return;
    for (int i = 0; i < c->num_batch && error == cudaSuccess; i++)
        error = copy_out(engine, c->batch[i].dst, c->batch[i].unit);
    if (error == cudaSuccess)
        error = cudaEventRecord(c->copied, engine->device->carrying);
    if (error != cudaSuccess)
        ewx_carrier_fail(engine, ewx_cuda_fail(error, "copying a tile"));
}

static void put_batch(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    ew_traffic *traffic = &engine->world->traffic;
    int64_t *bytes =
        engine->device->direct ? &traffic->device_bytes : &traffic->staged_bytes;
    for (int i = 0; i < c->num_batch && ewx_remotes_reachable(engine->world); i++)
        *bytes +=
            (int64_t)ewx_exchange_put(&c->exchange, c->batch[i].dst, c->batch[i].unit);
    c->num_batch = 0;
}

static void send_tiles(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    if (engine->device->direct) {
        take_batch(engine);
        put_batch(engine);
        return;
    }
    if (c->num_batch > 0 && has_ended(engine, cudaEventQuery(c->copied)))
        put_batch(engine);
    if (c->num_batch == 0) {
        take_batch(engine);
        copy_batch(engine);
    }
}

/* ---- The call ---- */

static void progress(ewx_cuda_engine *engine)
{
    if (!ewx_carrier_enter_fabric(engine))
        return;
    ewx_remotes_progress(engine->world);
    if (ewx_remotes_reachable(engine->world))
        ewx_carrier_pass_gate_on(engine);
    ewx_exchange_receive(&engine->carrier.exchange);
    ewx_carrier_leave_fabric(engine);
    if (!ewx_remotes_reachable(engine->world))
        return;
    ewx_carrier_relay(engine);
    ewx_carrier_flush(engine);
    if (!ewx_carrier_enter_fabric(engine))
        return;
    send_tiles(engine);
    engine->carrier.is_idle = ewx_exchange_is_idle(&engine->carrier.exchange);
    ewx_carrier_leave_fabric(engine);
}

/* The kernels' own waits have deadlines; this one is for a rank that takes no tile of ours.
 * Every message counts as sent before a call is over, so that its memory, which may be the
 * slice that the next call but one writes, is the producer's again. */
static bool is_over(ewx_cuda_engine *engine, ewx_wait *wait)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_device *device = engine->device;
    const int64_t moves = c->moves + c->exchange.moves;
    progress(engine);
    const bool computes = c->exchange.unsent_to == engine->world->rank;
    if (c->moves + c->exchange.moves != moves || c->is_idle || computes)
        wait->timer.used_ns = 0;
    if (c->status != EW_OK || __atomic_load_n(&engine->report->place, __ATOMIC_ACQUIRE))
        return true;
    return c->is_idle && has_ended(engine, cudaStreamQuery(device->producing)) &&
           has_ended(engine, cudaStreamQuery(device->reducing));
}

static void blame_unsent(ewx_cuda_engine *engine)
{
    const ewx_carrier *c = &engine->carrier;
    const int dst = c->exchange.unsent_to;
    ewx_fault fault = {.status = EW_ERR_TIMEOUT,
                       .culprit = dst,
                       .reporter = engine->world->rank,
                       .code = EWX_FAULT_READERS,
                       .detail = {c->epoch},
                       .timeout_ms = ewx_timeout_ms(engine->timeout_ns),
                       .plan = engine->number};
    fault.detail[1] = c->remotes[dst].heard.done;
    (void)ewx_world_raise(engine->world, &fault);
}

/* Places are armed again before anyone learns that this rank is done. */
static void finish(ewx_cuda_engine *engine)
{
    if (!ewx_carrier_enter_fabric(engine))
        return;
    ewx_exchange_finish(&engine->carrier.exchange);
    ewx_carrier_tell(engine, engine->carrier.epoch);
    ewx_remotes_see_off(engine->world);
    ewx_carrier_leave_fabric(engine);
}

void ewx_carrier_begin(ewx_cuda_engine *engine, int64_t m)
{
    ewx_carrier *c = &engine->carrier;
    if (!c->exchange.is_open)
        return;
    c->grid = ewx_spec_grid(engine->spec, m);
    c->epoch++;
    ewx_exchange_begin(&c->exchange, &c->grid, EWX_OWNS_PART, c->epoch);
    c->is_idle = false;
    for (int rank = 0; rank < engine->spec->num_ranks; rank++)
        c->remotes[rank].taken = 0;
    memset(c->arrived, 0, ewx_carrier_counts_bytes(engine->spec));
    ewx_carrier_tell(engine, c->epoch - 1);
}

ew_status ewx_carrier_drive(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_device *device = engine->device;
    const cudaStream_t streams[] = {device->producing, device->reducing, device->carrying};
    ew_status waited;
    if (!c->exchange.is_open)
        return EW_OK;
    ewx_wait wait = ewx_wait_begin(&engine->world->control->abort, engine->timeout_ns,
                                   engine->world->spins);
    EWX_AWAIT(waited, &wait, is_over(engine, &wait));
    if (waited == EW_ERR_TIMEOUT)
        blame_unsent(engine);
    if (c->status != EW_OK) {
        ewx_world_give_up(engine->world,
                          c->status); /* which ends the waits of the kernels */
        return c->status;
    }
    for (int i = 0; i < 3; i++)
        EW_CUDA_TRY(cudaStreamSynchronize(streams[i]), "a call among several hosts");
    EW_TRY(ewx_cuda_collect_fault(engine));
    finish(engine);
    EW_TRY(c->status);
    return ewx_world_check(engine->world);
}

#ifdef EW_TESTING
void ewx_carrier_set_epoch(ewx_cuda_engine *engine, uint32_t epoch)
{
    ewx_carrier *c = &engine->carrier;
    for (int remote = 0; remote < c->exchange.num_remotes; remote++)
        for (int64_t unit = 0; unit < engine->spec->layout.slots_per_part; unit++)
            *flag_of(engine, c->exchange.remotes[remote], unit, engine->world->rank) =
                epoch;
    c->epoch = epoch;
}
#endif
