/* A call among several hosts: what leaves, what comes, and when it is over. */
#include "backend/cuda/carrier.h"

#include "backend/cuda/engine.h"
#include "plan/epoch.h"

/* ---- Geometry ---- */

static int64_t slots(const ewx_cuda_engine *engine)
{
    return engine->spec->layout.slots_per_part;
}

/* Inside the partition of dst. */
static int64_t slot_of(const ewx_cuda_engine *engine, int dst, int64_t task)
{
    return ewx_layout_slot(&engine->spec->layout, 0,
                           ewx_task_tile(&engine->carrier.grid, dst, task));
}

static int64_t unit_of(const ewx_cuda_engine *engine, int64_t task)
{
    return ewx_release_unit(engine->spec->config.release, task);
}

static uint32_t *flag_of(const ewx_cuda_engine *engine, int owner, int64_t unit, int source)
{
    return (uint32_t *)(void *)(engine->heap.segments[owner] +
                                engine->spec->layout.flags_offset) +
           unit * engine->spec->num_ranks + source;
}

/* ---- Sending ---- */

/* Of cudaStreamQuery and cudaEventQuery. */
static bool has_ended(ewx_cuda_engine *engine, cudaError_t answer)
{
    if (answer == cudaErrorNotReady)
        (void)cudaGetLastError(); /* which is no error */
    else if (answer != cudaSuccess)
        ewx_carrier_fail(engine, ewx_cuda_fail(answer, "a call among several hosts"));
    return answer == cudaSuccess;
}

/* Stored by the kernel behind the tile (release, system-wide), in host memory.  Whoever
 * acquires it may have the tile read: by a copy engine, or, where the fabric takes device
 * memory, by whatever this uses (copies of its own, a peer's mapping, a NIC), as these read
 * where a system-wide release has brought the tile.  No stream orders the two. */
static bool is_published(const ewx_cuda_engine *engine, int dst, int64_t task)
{
    const uint32_t *flag = flag_of(engine, dst, unit_of(engine, task), engine->world->rank);
#if EW_MUTANT == 19 /* planted bug: tiles leave before they are there */
    return flag != NULL;
#endif
    return ewx_epoch_reached(__atomic_load_n(flag, __ATOMIC_ACQUIRE),
                             engine->carrier.epoch);
}

/* Where the producer wrote it. */
static const unsigned char *produced(const ewx_cuda_engine *engine, int dst, int64_t slot,
                                     uint32_t epoch)
{
    return engine->heap.segments[engine->world->rank] +
           engine->spec->layout.slice_offset[epoch & 1] +
           (size_t)(dst * slots(engine) + slot) * EWX_CUDA_TILE_BYTES;
}

static unsigned char *outbox_slot(const ewx_cuda_engine *engine, int remote, int64_t slot)
{
    return engine->carrier.outbox +
           (size_t)(remote * slots(engine) + slot) * EWX_CUDA_TILE_BYTES;
}

const unsigned char *ewx_carrier_outgoing(const ewx_cuda_engine *engine, int remote,
                                          int64_t slot, uint32_t epoch)
{
    return engine->device->direct
               ? produced(engine, engine->carrier.remotes[remote].rank, slot, epoch)
               : outbox_slot(engine, remote, slot);
}

static size_t bytes_of(const ewx_cuda_engine *engine, int dst, int64_t task)
{
    const ewx_grid *grid = &engine->carrier.grid;
    return (size_t)ewx_tile_height(grid, dst, ewx_task_tile(grid, dst, task)) * EWX_TILE_N *
           2;
}

static cudaError_t copy_out(const ewx_cuda_engine *engine, int remote, int64_t task)
{
    const int dst = engine->carrier.remotes[remote].rank;
    const int64_t slot = slot_of(engine, dst, task);
    return cudaMemcpyAsync(outbox_slot(engine, remote, slot),
                           produced(engine, dst, slot, engine->carrier.epoch),
                           bytes_of(engine, dst, task), cudaMemcpyDeviceToHost,
                           engine->device->carrying);
}

static void take_published(ewx_cuda_engine *engine, int remote)
{
    ewx_carrier *c = &engine->carrier;
    ewx_carrier_remote *r = &c->remotes[remote];
    const int64_t tasks = ewx_part_tiles(&c->grid, r->rank);
    while (r->taken < tasks && c->num_batch < EWX_CARRIER_BATCH &&
           is_published(engine, r->rank, r->taken)) {
        c->batch[c->num_batch].remote = remote;
        c->batch[c->num_batch++].task = r->taken++;
    }
}

static void take_batch(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    /* Another one first each time, so that none waits for the others' last tiles. */
    for (int i = 0; i < c->num_remotes; i++)
        take_published(engine, (int)((c->moves + i) % c->num_remotes));
}

static void copy_batch(ewx_cuda_engine *engine)
{
    const ewx_carrier *c = &engine->carrier;
    cudaError_t error = cudaSuccess;
    if (c->num_batch == 0)
        return;
    for (int i = 0; i < c->num_batch && error == cudaSuccess; i++)
        error = copy_out(engine, c->batch[i].remote, c->batch[i].task);
    if (error == cudaSuccess)
        error = cudaEventRecord(c->copied, engine->device->carrying);
    if (error != cudaSuccess)
        ewx_carrier_fail(engine, ewx_cuda_fail(error, "copying a tile"));
}

static void put(ewx_cuda_engine *engine, int remote, int64_t task)
{
    ewx_carrier *c = &engine->carrier;
    ew_world *world = engine->world;
    const int dst = c->remotes[remote].rank;
    const int64_t slot = slot_of(engine, dst, task);
    const size_t bytes = bytes_of(engine, dst, task);
    /* The last one to each rank says when all have arrived. */
    const bool last = ++c->remotes[remote].put == ewx_part_tiles(&c->grid, dst);
    world->traffic.tile_bytes += (int64_t)bytes;
    world->traffic.tile_messages++;
    *(engine->device->direct ? &world->traffic.device_bytes
                             : &world->traffic.staged_bytes) += (int64_t)bytes;
    c->moves++;
    if (world->fabric->put(c->channel, dst, ewx_carrier_number(slot, c->epoch),
                           ewx_carrier_outgoing(engine, remote, slot, c->epoch), bytes,
                           last))
        ewx_hosts_fail(world);
}

static void put_batch(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    for (int i = 0; i < c->num_batch && ewx_hosts_reachable(engine->world); i++)
        put(engine, c->batch[i].remote, c->batch[i].task);
    c->num_batch = 0;
}

static void send_tiles(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    if (engine->device->direct) {
        take_batch(engine);
        put_batch(engine);
    } else {
        if (c->num_batch > 0 && has_ended(engine, cudaEventQuery(c->copied)))
            put_batch(engine);
        if (c->num_batch == 0) {
            take_batch(engine);
            copy_batch(engine);
        }
    }
    const size_t before = c->unsent;
    if (engine->world->fabric->unsent(c->channel, &c->unsent, &c->unsent_to))
        ewx_hosts_fail(engine->world);
    c->moves += c->unsent != before;
}

/* ---- Receiving ---- */

static size_t list_awaited(const ewx_cuda_engine *engine, int remote, size_t *asked)
{
    const ewx_carrier *c = &engine->carrier;
    const ewx_carrier_remote *r = &c->remotes[remote];
    const int64_t tasks = ewx_part_tiles(&c->grid, engine->world->rank);
    size_t count = 0;
    for (int i = 0; i < EWX_CARRIER_WINDOW && r->arrived + i < tasks; i++)
        if (!(r->ahead >> i & 1))
            asked[count++] = ewx_carrier_place(
                slots(engine), remote, slot_of(engine, engine->world->rank, r->arrived + i),
                c->epoch);
    return count;
}

static bool has_our_rows(const ewx_cuda_engine *engine, const ewx_carrier_remote *r)
{
    const ewx_carrier *c = &engine->carrier;
    return r->heard.calls[c->epoch % EWX_CUDA_CALLS] ==
           ((uint64_t)c->epoch << 32 | (uint32_t)c->grid.rows);
}

/* The tile of a place that is said to be filled, if that was asked about. */
static bool find_task(const ewx_cuda_engine *engine, int remote, size_t place,
                      int64_t *task_out)
{
    const ewx_carrier *c = &engine->carrier;
    const ewx_carrier_remote *r = &c->remotes[remote];
    const int rank = engine->world->rank;
    const int64_t end =
        ewx_min64(r->arrived + EWX_CARRIER_WINDOW, ewx_part_tiles(&c->grid, rank));
    for (int64_t task = r->arrived; task < end; task++)
        if (place == ewx_carrier_place(slots(engine), remote, slot_of(engine, rank, task),
                                       c->epoch)) {
            *task_out = task;
            return true;
        }
    return false;
}

static void mark_arrived(ewx_cuda_engine *engine, int remote, size_t place, size_t bytes)
{
    ewx_carrier *c = &engine->carrier;
    ewx_carrier_remote *r = &c->remotes[remote];
    int64_t task;
    if (!find_task(engine, remote, place, &task)) {
        ewx_hosts_fail(engine->world);
    } else if (bytes == bytes_of(engine, engine->world->rank, task)) {
        r->ahead |= (uint32_t)1 << (task - r->arrived);
        c->moves++;
    } else if (has_our_rows(engine, r)) { /* else the kernels say so */
        ewx_hosts_refuse(engine->world, r->rank);
    }
}

/* A unit's flag, when its last tile and all before have come. */
static void accept_arrived(ewx_cuda_engine *engine, ewx_carrier_remote *r)
{
    const int rank = engine->world->rank;
    const int64_t tasks = ewx_part_tiles(&engine->carrier.grid, rank);
    for (; r->ahead & 1; r->ahead >>= 1) {
        const int64_t unit = unit_of(engine, r->arrived++);
        if (r->arrived == tasks || unit_of(engine, r->arrived) != unit)
            ewx_carrier_write(engine, flag_of(engine, rank, unit, r->rank),
                              engine->carrier.epoch);
    }
}

static void receive_tiles(ewx_cuda_engine *engine, int remote)
{
    ewx_carrier *c = &engine->carrier;
    size_t asked[EWX_CARRIER_WINDOW], filled[EWX_CARRIER_WINDOW], bytes[EWX_CARRIER_WINDOW],
        num_filled = 0;
    const size_t num_asked = list_awaited(engine, remote, asked);
    if (num_asked == 0)
        return;
    if (engine->world->fabric->arrivals(c->channel, asked, num_asked, filled, bytes,
                                        &num_filled))
        ewx_hosts_fail(engine->world);
#if EW_MUTANT == 10 /* planted bug: what is expected counts as arrived */
    c->remotes[remote].ahead = UINT32_MAX >> (EWX_CARRIER_WINDOW - num_asked);
    num_filled = 0;
#endif
    for (size_t i = 0; i < num_filled && i < num_asked; i++)
        mark_arrived(engine, remote, filled[i], bytes[i]);
}

/* ---- The call ---- */

static void progress(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    if (!ewx_carrier_enter_fabric(engine))
        return;
    ewx_hosts_progress(engine->world);
    if (ewx_hosts_reachable(engine->world))
        ewx_carrier_pass_gate_on(engine);
    for (int i = 0; i < c->num_remotes && ewx_hosts_reachable(engine->world); i++)
        receive_tiles(engine, i);
    ewx_carrier_leave_fabric(engine);
    if (!ewx_hosts_reachable(engine->world))
        return;
    ewx_carrier_relay(engine);
    for (int i = 0; i < c->num_remotes; i++)
        accept_arrived(engine, &c->remotes[i]);
    ewx_carrier_flush(engine);
    if (!ewx_carrier_enter_fabric(engine))
        return;
    send_tiles(engine);
    ewx_carrier_leave_fabric(engine);
}

static bool all_is_put(const ewx_carrier *c)
{
    for (int remote = 0; remote < c->num_remotes; remote++)
        if (c->remotes[remote].put < ewx_part_tiles(&c->grid, c->remotes[remote].rank))
            return false;
    return true;
}

/* The kernels' own waits have deadlines; this one is for a rank that takes no tile of ours.
 * Every message counts as sent before a call is over, so that its memory, which may be the
 * slice that the next call but one writes, is the producer's again. */
static bool is_over(ewx_cuda_engine *engine, ewx_wait *wait)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_device *device = engine->device;
    const int64_t moves = c->moves;
    progress(engine);
    if (c->moves != moves || c->unsent == 0)
        wait->started_ns = 0;
    if (c->status != EW_OK || __atomic_load_n(&engine->report->place, __ATOMIC_ACQUIRE))
        return true;
    return all_is_put(c) && c->unsent == 0 &&
           has_ended(engine, cudaStreamQuery(device->producing)) &&
           has_ended(engine, cudaStreamQuery(device->reducing));
}

static void blame_unsent(ewx_cuda_engine *engine)
{
    const ewx_carrier *c = &engine->carrier;
    ewx_fault fault = {.status = EW_ERR_TIMEOUT,
                       .culprit = c->unsent_to,
                       .reporter = engine->world->rank,
                       .place = EWX_FAULT_READERS,
                       .detail = {c->epoch}};
    for (int remote = 0; remote < c->num_remotes; remote++)
        if (c->remotes[remote].rank == c->unsent_to)
            fault.detail[1] = c->remotes[remote].heard.done;
    (void)ewx_world_raise(engine->world, &fault);
}

/* Places are armed again before anyone hears that this rank is done. */
static void finish(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const int rank = engine->world->rank;
    const int64_t tasks = ewx_part_tiles(&c->grid, rank);
    if (!ewx_carrier_enter_fabric(engine))
        return;
    for (int remote = 0; remote < c->num_remotes; remote++)
        for (int64_t task = 0; task < tasks; task++)
            if (engine->world->fabric->rearm(
                    c->channel, ewx_carrier_place(slots(engine), remote,
                                                  slot_of(engine, rank, task), c->epoch)))
                ewx_hosts_fail(engine->world);
    ewx_carrier_tell(engine, c->epoch);
    ewx_carrier_leave_fabric(engine);
}

void ewx_carrier_begin(ewx_cuda_engine *engine, int64_t m)
{
    ewx_carrier *c = &engine->carrier;
    if (!c->is_open)
        return;
    c->grid = ewx_spec_grid(engine->spec, m);
    c->epoch++;
    for (int remote = 0; remote < c->num_remotes; remote++) {
        ewx_carrier_remote *r = &c->remotes[remote];
        r->taken = r->put = r->arrived = 0;
        r->ahead = 0;
    }
    ewx_carrier_tell(engine, c->epoch - 1);
}

ew_status ewx_carrier_drive(ewx_cuda_engine *engine)
{
    ewx_carrier *c = &engine->carrier;
    const ewx_device *device = engine->device;
    const cudaStream_t streams[] = {device->producing, device->reducing, device->carrying};
    ew_status waited;
    if (!c->is_open)
        return EW_OK;
    ewx_wait wait = ewx_world_wait(engine->world);
    EWX_AWAIT(waited, &wait, is_over(engine, &wait));
    if (waited == EW_ERR_TIMEOUT)
        blame_unsent(engine);
    if (c->status != EW_OK) {
        ew_world_abort(engine->world); /* which ends the waits of the kernels */
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
    for (int remote = 0; remote < c->num_remotes; remote++) {
        const int dst = c->remotes[remote].rank;
        for (int64_t unit = 0; unit < slots(engine); unit++)
            *flag_of(engine, dst, unit, engine->world->rank) = epoch;
    }
    c->epoch = epoch;
}
#endif
