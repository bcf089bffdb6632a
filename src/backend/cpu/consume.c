/* The consumer: waits for every rank's contribution to a tile of ours, then sums them in
 * rank order.  Consumers poll and leave, so a waiting consumer holds no worker while
 * there are blocks to compute. */
#include "backend/cpu/engine.h"
#include "base/clock.h"
#include "base/probe.h"
#include "plan/epoch.h"

void ewx_consume_prepare(ewx_cpu_engine *engine)
{
    ewx_cpu_call *call = &engine->call;
    call->num_tasks = ewx_partition_tiles(&call->grid, engine->world->rank);
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
                         .place = EWX_FAULT_ROWS,
                         .detail = {call->grid.rows, record->rows, call->epoch}});
    atomic_store_explicit(&engine->peer_agrees[src], 1, memory_order_relaxed);
    return EW_OK;
}

static bool is_published(const ewx_cpu_engine *engine, int src, int64_t slot)
{
    return ewx_flag_reached(ewx_heap_flag(&engine->heap, src, slot), engine->call.epoch);
}

static bool has_arrived(const ewx_cpu_engine *engine, int src, int64_t slot)
{
    if (engine->world->link_gbps <= 0.0 || src == engine->world->rank)
        return true;
    const ewx_flag *flag = ewx_heap_flag(&engine->heap, src, slot);
    return ewx_now_ns() >= flag->visible_ns[engine->call.epoch & 1];
}

static ew_status contribution_ready(ewx_cpu_engine *engine, int src, ewx_tile tile,
                                    bool *ready)
{
    const int rank = engine->world->rank;
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, rank, tile);
    const ew_status status = peer_in_call(engine, src, ready);
    if (status != EW_OK)
        return status;
    *ready = *ready && is_published(engine, src, slot);
    /* A rank that has left publishes nothing more; look again, since it may have
     * published between our look and its leaving. */
    if (!*ready && ewx_world_departed(engine->world, src) &&
        !is_published(engine, src, slot))
        return ewx_world_raise(engine->world, &(ewx_fault){.status = EW_ERR_PEER_DIED,
                                                           .culprit = src,
                                                           .reporter = rank,
                                                           .place = EWX_FAULT_TILE});
    *ready = *ready && has_arrived(engine, src, slot);
    return EW_OK;
}

static ew_status inputs_ready(ewx_cpu_engine *engine, ewx_consumer *consumer, ewx_tile tile,
                              bool *ready)
{
    *ready = true;
    while (consumer->src < engine->spec->num_ranks) {
        const ew_status status = contribution_ready(engine, consumer->src, tile, ready);
        if (status != EW_OK || !*ready)
            return status;
        consumer->src++;
    }
    return EW_OK;
}

/* ---- Reduction ---- */

static void reduce_tile(ewx_cpu_engine *engine, int worker, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const ewx_grid *grid = &engine->call.grid;
    const int rank = engine->world->rank;
    size_t offset = spec->layout.slice_offset[engine->call.epoch & 1] +
                    ewx_layout_tile_offset(spec, grid, rank, tile);
#if EW_MUTANT == 3 /* planted bug: the neighbour's tile */
    offset += tile.col + 1 < spec->layout.tile_cols ? spec->layout.slot_bytes : 0;
#endif
    const void *contributions[EWX_MAX_RANKS];
    for (int src = 0; src < spec->num_ranks; src++) {
#if EW_MUTANT == 4 /* planted bug: the owner's contribution first */
        contributions[src] = engine->heap.segments[(rank + src) % spec->num_ranks] + offset;
#else
        contributions[src] = engine->heap.segments[src] + offset;
#endif
    }
    const int64_t first = tile.row * EWX_TILE_M * spec->problem.n + tile.col * EWX_TILE_N;
    unsigned char *out = engine->call.C
                             ? engine->call.C + (size_t)first * spec->elem_bytes
                             : engine->scratch + (size_t)worker * engine->scratch_bytes;
    const int64_t stride = engine->call.C ? spec->problem.n : EWX_TILE_N;
    ewx_reduce_tile(spec->problem.dtype, contributions, spec->num_ranks,
                    spec->layout.tile_stride, ewx_tile_height(grid, rank, tile),
                    ewx_tile_width(grid, tile), out, stride);
    if (engine->call.layer.is_wanted)
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
    ew_status status = EW_OK;
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
           ewx_layer_done(engine);
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
            if (is_published(engine, src, slot) && is_in_call(engine, src))
                continue;
            const uint32_t seen = atomic_load_explicit(
                &ewx_heap_flag(&engine->heap, src, slot)->epoch, memory_order_relaxed);
            *missing_out = (missing_input){src, tile, seen};
            return true;
        }
    return false;
}

/* A slice of the timeout is over: go on waiting, or name the rank that owes us a tile. */
static ew_status judge_timeout(ewx_cpu_engine *engine, ewx_patience *patience)
{
    missing_input missing;
    if (!find_missing(engine, &missing) ||
        ewx_patience_lasts(engine, patience, missing.src))
        return EW_OK;
    return ewx_world_raise(engine->world,
                           &(ewx_fault){.status = EW_ERR_TIMEOUT,
                                        .culprit = missing.src,
                                        .reporter = engine->world->rank,
                                        .place = EWX_FAULT_TILE,
                                        .detail = {missing.tile.row, missing.tile.col,
                                                   engine->call.epoch, missing.seen}});
}

/* Waits until this worker has reduced something or nothing is left. */
static ew_status await_tiles(ewx_cpu_engine *engine, int worker, ewx_patience *patience)
{
    ewx_wait wait = ewx_patience_wait(engine);
    ew_status waited, reducing = EW_OK;
    int reduced = 0;
    EWX_AWAIT(waited, &wait,
              (reducing = ewx_consume_some(engine, worker, &reduced)) != EW_OK ||
                  reduced > 0 || all_reduced(engine));
    if (reducing != EW_OK)
        return reducing;
    return waited == EW_ERR_TIMEOUT ? judge_timeout(engine, patience) : waited;
}

ew_status ewx_consume_rest(ewx_cpu_engine *engine, int worker)
{
    ewx_patience patience = ewx_patience_begin(engine);
    ew_status status = EW_OK;
    while (status == EW_OK && !all_reduced(engine))
        status = await_tiles(engine, worker, &patience);
    ewx_patience_end(engine);
    return status;
}
