/* The consumer: waits for every rank's contribution to a tile of ours, then sums them in
 * rank order.  Consumers poll and leave, so a waiting consumer holds no worker while
 * there are blocks to compute. */
#include "backend/cpu/engine.h"
#include "base/clock.h"
#include "base/epoch.h"
#include "base/probe.h"

void ewx_consume_prepare(ewx_cpu_engine *engine)
{
    ewx_cpu_call *call = &engine->call;
    call->num_tasks = ewx_part_tiles(&call->grid, engine->world->rank);
    atomic_store_explicit(&call->tasks_done, 0, memory_order_relaxed);
    for (int j = 0; j < engine->spec->config.budget; j++) {
        engine->consumers[j].step = 0;
        engine->consumers[j].src = 0;
    }
    for (int rank = 0; rank < engine->spec->num_ranks; rank++)
        atomic_store_explicit(&engine->peer_agrees[rank], 0, memory_order_relaxed);
}

/* ---- Readiness ---- */

/* Whether src has entered this call.  Checks once per call that it came with our m: a
 * rank with fewer rows would otherwise never publish the tile we wait for. */
static ew_status peer_in_call(ewx_cpu_engine *engine, int src, bool *in_call)
{
    const ewx_cpu_call *call = &engine->call;
    *in_call = true;
    if (atomic_load_explicit(&engine->peer_agrees[src], memory_order_relaxed))
        return EW_OK;
    const ewx_call_record *record =
        &ewx_heap_header(&engine->heap, src)->calls[call->epoch & 1];
    /* Acquire: pairs with the release in engine.c:announce_call, so rows is this call's. */
    *in_call = atomic_load_explicit(&record->epoch, memory_order_acquire) == call->epoch;
    if (!*in_call)
        return EW_OK;
    if (record->rows != call->grid.rows)
        return ewx_world_raise(
            engine->world,
            &(ewx_fault){.status = EW_ERR_MISMATCH,
                         .culprit = src,
                         .reporter = engine->world->rank,
                         .code = EWX_FAULT_ROWS,
                         .detail = {call->grid.rows, record->rows, call->epoch}});
    atomic_store_explicit(&engine->peer_agrees[src], 1, memory_order_relaxed);
    return EW_OK;
}

/* Whatever route it takes: its flag is stored. */
static bool is_published(const ewx_cpu_engine *engine, int src, int64_t slot)
{
    return ewx_heap_ready(engine, src, slot);
}

ew_status ewx_contribution_ready(ewx_cpu_engine *engine, int src, int64_t slot, bool *ready)
{
    const int rank = engine->world->rank;
    *ready = true;
    if (!ewx_exchange_sends(&engine->wire.exchange, src, slot))
        return EW_OK;
    const ew_status status = peer_in_call(engine, src, ready);
    if (status != EW_OK)
        return status;
    *ready = *ready && engine->from[src]->ready(engine, src, slot);
    /* A rank that has left publishes nothing more; look again, since it may have
     * published between our look and its leaving.  From another host its tiles may still
     * be on their way (judge_timeout). */
    if (!*ready && ewx_world_is_local(engine->world, src) &&
        ewx_world_departed(engine->world, src) && !is_published(engine, src, slot))
        return ewx_world_raise(engine->world, &(ewx_fault){.status = EW_ERR_PEER_DIED,
                                                           .culprit = src,
                                                           .reporter = rank,
                                                           .code = EWX_FAULT_TILE});
    return EW_OK;
}

static ew_status inputs_ready(ewx_cpu_engine *engine, ewx_consumer *consumer, ewx_tile tile,
                              bool *ready)
{
    *ready = true;
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, engine->world->rank, tile);
    while (consumer->src < engine->spec->num_ranks) {
        const ew_status status = ewx_contribution_ready(engine, consumer->src, slot, ready);
        if (status != EW_OK || !*ready)
            return status;
        consumer->src++;
    }
    return EW_OK;
}

/* ---- Reduction ---- */

/* What is added up, in this order: the ranks' contributions; with two levels the hosts'
 * sums, of which the own one is made here. */
static int list_addends(ewx_cpu_engine *engine, int worker, ewx_tile tile,
                        const void **addends)
{
    const ewx_spec *spec = engine->spec;
    const ew_world *world = engine->world;
    const int rank = world->rank;
    size_t offset = spec->layout.slice_offset[engine->call.epoch & 1] +
                    ewx_layout_tile_offset(spec, &engine->call.grid, rank, tile);
#if EW_MUTANT == 3 /* planted bug: the neighbour's tile */
    offset += tile.col + 1 < spec->layout.tile_cols ? spec->layout.slot_bytes : 0;
#endif
    if (engine->levels == 1) {
        for (int src = 0; src < spec->num_ranks; src++) {
#if EW_MUTANT == 4 /* planted bug: the owner's contribution first */
            addends[src] = engine->heap.segments[(rank + src) % spec->num_ranks] + offset;
#else
            addends[src] = engine->heap.segments[src] + offset;
#endif
        }
        return spec->num_ranks;
    }
    const int64_t slot = ewx_layout_slot(&spec->layout, rank, tile);
    for (int src = 0; src < spec->num_ranks; src++)
        if (!ewx_world_is_local(world, src) &&
            ewx_exchange_sends(&engine->wire.exchange, src, slot))
            addends[world->hosts[src]] = engine->heap.segments[src] + offset;
    addends[world->hosts[rank]] = ewx_combine_locals(engine, worker, rank, tile);
    return world->num_hosts;
}

static void reduce_tile(ewx_cpu_engine *engine, int worker, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const ewx_grid *grid = &engine->call.grid;
    const int rank = engine->world->rank;
    const void *addends[EWX_MAX_RANKS];
    const int count = list_addends(engine, worker, tile, addends);
    const int64_t first = tile.row * EWX_TILE_M * spec->problem.n + tile.col * EWX_TILE_N;
    unsigned char *out = engine->call.sum
                             ? engine->call.sum + (size_t)first * spec->elem_bytes
                             : engine->scratch + (size_t)worker * engine->scratch_bytes;
    const int64_t stride = engine->call.sum ? spec->problem.n : EWX_TILE_N;
    ewx_reduce_tile(spec->problem.dtype, addends, count, spec->layout.tile_stride,
                    ewx_tile_height(grid, rank, tile), ewx_tile_width(grid, tile), out,
                    stride);
    if (engine->call.layer.is_fused)
        ewx_layer_tile(engine, tile, out, stride);
}

static void finish_task(ewx_cpu_engine *engine, int worker, int64_t task, ewx_tile tile,
                        int64_t begin_ns)
{
    ewx_engine_trace(engine, &(ew_trace_event){.kind = EW_TRACE_REDUCE,
                                               .worker = worker,
                                               .dst = engine->world->rank,
                                               .row = (int32_t)tile.row,
                                               .col = (int32_t)tile.col,
                                               .position = task,
                                               .begin_ns = begin_ns,
                                               .end_ns = ewx_now_ns()});
    ewx_patience_progress(engine, EWX_STEP_TILE, task);
    atomic_fetch_add_explicit(&engine->call.tasks_done, 1, memory_order_release);
}

/* Serves a consumer that the caller holds: up to b tiles, none when the next one's
 * inputs are missing. */
static ew_status serve(ewx_cpu_engine *engine, int worker, int j, int *reduced)
{
    ewx_consumer *consumer = &engine->consumers[j];
    while (*reduced < engine->spec->config.batch) {
        const int64_t task =
            ewx_consumer_task(j, engine->spec->config.budget, consumer->step);
        if (task >= engine->call.num_tasks)
            return EW_OK;
        const ewx_tile tile = ewx_task_tile(&engine->call.grid, engine->world->rank, task);
        bool ready;
        const ew_status status = inputs_ready(engine, consumer, tile, &ready);
        if (status != EW_OK || !ready)
            return status;
        (void)EWX_PROBE(EWX_PROBE_REDUCE, engine->world->rank, task);
        const int64_t begin_ns = engine->events ? ewx_now_ns() : 0;
        reduce_tile(engine, worker, tile);
        finish_task(engine, worker, task, tile, begin_ns);
        consumer->step++;
        consumer->src = 0;
        ++*reduced;
    }
    return EW_OK;
}

ew_status ewx_consume_some(ewx_cpu_engine *engine, int worker, int *reduced)
{
    const int budget = engine->spec->config.budget;
    ew_status status = ewx_combine_some(engine, worker, reduced); /* others wait for it */
    if (status == EW_OK && *reduced == 0)
        *reduced = ewx_layer_some(engine);
    for (int i = 0; i < budget && *reduced == 0 && status == EW_OK; i++) {
        const int j = (worker + i) % budget;
        /* Acquire and release hand step and src from one worker to the next. */
        if (atomic_flag_test_and_set_explicit(&engine->consumers[j].held,
                                              memory_order_acquire))
            continue;
        status = serve(engine, worker, j, reduced);
        atomic_flag_clear_explicit(&engine->consumers[j].held, memory_order_release);
    }
    return status;
}

/* ---- The tail ---- */

static bool all_reduced(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->call.tasks_done, memory_order_acquire) ==
               engine->call.num_tasks &&
           ewx_layer_done(engine) && ewx_combine_done(engine);
}

typedef struct missing_input {
    int src;
    ewx_tile tile;
    uint32_t seen;
} missing_input;

/* Whether peer_in_call would let the rank's contributions pass. */
static bool is_in_call(const ewx_cpu_engine *engine, int src)
{
    const ewx_call_record *record =
        &ewx_heap_header(&engine->heap, src)->calls[engine->call.epoch & 1];
    return atomic_load_explicit(&engine->peer_agrees[src], memory_order_relaxed) ||
           atomic_load_explicit(&record->epoch, memory_order_relaxed) == engine->call.epoch;
}

/* The first contribution that its rank still owes; false when all are there and only the
 * link or another worker is busy with them. */
static bool find_missing(ewx_cpu_engine *engine, missing_input *missing_out)
{
    const int rank = engine->world->rank;
    for (int64_t task = 0; task < engine->call.num_tasks; task++)
        for (int src = 0; src < engine->spec->num_ranks; src++) {
            const ewx_tile tile = ewx_task_tile(&engine->call.grid, rank, task);
            const int64_t slot = ewx_layout_slot(&engine->spec->layout, rank, tile);
            if (!ewx_exchange_sends(&engine->wire.exchange, src, slot) ||
                (is_published(engine, src, slot) && is_in_call(engine, src)))
                continue;
            const uint32_t seen = atomic_load_explicit(
                &ewx_heap_flag(&engine->heap, src, slot)->epoch, memory_order_relaxed);
            *missing_out = (missing_input){src, tile, seen};
            return true;
        }
    missing_out->seen = engine->call.epoch - 1;
    return ewx_combine_missing(engine, &missing_out->src, &missing_out->tile);
}

/* A slice of the timeout is over: go on waiting, or name the rank that owes us a tile. */
static ew_status judge_missing(ewx_cpu_engine *engine, ewx_patience *patience,
                               const missing_input *missing)
{
    const bool left = ewx_world_departed(engine->world, missing->src);
    if (!left && ewx_patience_lasts(engine, patience, missing->src))
        return EW_OK;
    return ewx_world_raise(engine->world,
                           &(ewx_fault){.status = left ? EW_ERR_PEER_DIED : EW_ERR_TIMEOUT,
                                        .culprit = missing->src,
                                        .reporter = engine->world->rank,
                                        .code = EWX_FAULT_TILE,
                                        .detail = {missing->tile.row, missing->tile.col,
                                                   engine->call.epoch, missing->seen}});
}

/* ... or the one that does not take ours. */
static ew_status judge_unsent(ewx_cpu_engine *engine, ewx_patience *patience)
{
    const int dst = engine->wire.exchange.unsent_to;
    if (dst == engine->world->rank) /* not computed yet; who needs it will name us */
        return EW_OK;
    if (ewx_patience_lasts(engine, patience, dst))
        return EW_OK;
    return ewx_world_raise(
        engine->world,
        &(ewx_fault){.status = EW_ERR_TIMEOUT,
                     .culprit = dst,
                     .reporter = engine->world->rank,
                     .code = EWX_FAULT_READERS,
                     .detail = {engine->call.epoch,
                                atomic_load(&ewx_heap_header(&engine->heap, dst)->done)}});
}

static ew_status judge_timeout(ewx_cpu_engine *engine, int worker, ewx_patience *patience)
{
    missing_input missing;
    if (find_missing(engine, &missing))
        return judge_missing(engine, patience, &missing);
    if (worker == 0 && engine->wire.exchange.unsent > 0)
        return judge_unsent(engine, patience);
    return EW_OK;
}

/* Nothing is left for this worker to do or to wait for. */
static bool is_finished(ewx_cpu_engine *engine, int worker)
{
    return all_reduced(engine) &&
           (worker > 0 || ewx_exchange_is_idle(&engine->wire.exchange));
}

/* Waits until this worker has reduced something or nothing is left. */
static ew_status await_tiles(ewx_cpu_engine *engine, int worker, bool reduces,
                             ewx_patience *patience)
{
    ewx_wait wait = ewx_patience_wait(engine);
    ew_status waited, reducing = EW_OK;
    int reduced = 0;
    EWX_AWAIT(waited, &wait,
              (ewx_engine_progress(engine, worker), false) ||
                  (reduces && (reducing = ewx_consume_some(engine, worker, &reduced))) ||
                  reduced > 0 || is_finished(engine, worker));
    if (reducing != EW_OK)
        return reducing;
    return waited == EW_ERR_TIMEOUT ? judge_timeout(engine, worker, patience) : waited;
}

static ew_status await_end(ewx_cpu_engine *engine, int worker, bool reduces)
{
    if (is_finished(engine, worker))
        return EW_OK;
    ewx_patience patience = ewx_patience_begin(engine);
    ew_status status = EW_OK;
    while (status == EW_OK && !is_finished(engine, worker))
        status = await_tiles(engine, worker, reduces, &patience);
    ewx_patience_end(engine);
    return status;
}

ew_status ewx_consume_rest(ewx_cpu_engine *engine, int worker)
{
    return await_end(engine, worker, true);
}

ew_status ewx_consume_watch(ewx_cpu_engine *engine, int worker)
{
    return await_end(engine, worker, false);
}
