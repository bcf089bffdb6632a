/* Consumers poll and leave, so a waiting consumer holds no worker while there are blocks to
 * compute. */
#include "backend/cpu/reduce_stage.h"

#include "backend/cpu/cpu_engine.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/epoch.h"

static bool prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_reduce_stage *reduce = &engine->reduce;
    (void)asked; /* the place of the sum is the epilogue's choice */
    reduce->in_place = engine->spec->num_ranks == 1 &&
                       engine->spec->layout.num_pieces == 1 && reduce->sum &&
                       engine->spec->config.producer != EW_PRODUCER_BLAS;
    atomic_store_explicit(&reduce->tasks_done, 0, memory_order_relaxed);
    for (int j = 0; j < engine->spec->config.budget; j++) {
        reduce->consumers[j].step = 0;
        reduce->consumers[j].src = 0;
    }
    ewx_peers_forget(engine);
    return true;
}

/* ---- Readiness ---- */

void ewx_peers_forget(ewx_cpu_engine *engine)
{
    for (int rank = 0; rank < engine->spec->num_ranks; rank++)
        atomic_store_explicit(&engine->reduce.peer_agrees[rank], 0, memory_order_relaxed);
}

ew_status ewx_peer_in_call(ewx_cpu_engine *engine, int src, bool *in_call)
{
    const ewx_cpu_call *call = &engine->call;
    *in_call = true;
    if (atomic_load_explicit(&engine->reduce.peer_agrees[src], memory_order_relaxed))
        return EW_OK;
    const ewx_call_record *record =
        &ewx_heap_header(&engine->heap, src)->calls[call->epoch & 1];
    /* Acquire: pairs with the release in cpu_engine.c:announce_call, so rows is this
     * call's. */
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
    if (!ewx_forms_agree(record->form, call->form))
        return ewx_world_raise(
            engine->world, &(ewx_fault){.status = EW_ERR_MISMATCH,
                                        .culprit = src,
                                        .reporter = engine->world->rank,
                                        .code = EWX_FAULT_FORM,
                                        .detail = {call->form, record->form, call->epoch}});
    atomic_store_explicit(&engine->reduce.peer_agrees[src], 1, memory_order_relaxed);
    return EW_OK;
}

bool ewx_peer_has_come(const ewx_cpu_engine *engine, int src)
{
    const ewx_call_record *record =
        &ewx_heap_header(&engine->heap, src)->calls[engine->call.epoch & 1];
    return atomic_load_explicit(&engine->reduce.peer_agrees[src], memory_order_relaxed) ||
           atomic_load_explicit(&record->epoch, memory_order_relaxed) == engine->call.epoch;
}

ew_status ewx_contribution_ready(ewx_cpu_engine *engine, int src, int64_t slot, bool *ready)
{
    const int rank = engine->world->rank;
    *ready = true;
    if (!ewx_exchange_sends(&engine->wire.exchange, src, slot))
        return EW_OK;
    const ew_status status = ewx_peer_in_call(engine, src, ready);
    if (status != EW_OK)
        return status;
    *ready = *ready && engine->from[src]->ready(engine, src, slot);
    /* A rank that has left publishes nothing more; look again, since it may have
     * published between our look and its leaving.  From another host its tiles may still
     * be on their way (stall.c). */
    if (!*ready && ewx_world_is_local(engine->world, src) &&
        ewx_world_departed(engine->world, src) && !ewx_heap_ready(engine, src, slot))
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
    const int64_t slot =
        ewx_layout_slot(&engine->spec->layout, engine->call.share.part, tile);
    while (consumer->src < engine->spec->num_ranks) {
        const ew_status status = ewx_contribution_ready(engine, consumer->src, slot, ready);
        if (status != EW_OK || !*ready)
            return status;
        consumer->src++;
    }
    return EW_OK;
}

/* ---- Reduction ---- */

/* The contributions at an offset of the segments, in the order of K: rank by rank, and each
 * rank's pieces.  From another host only the rows come that this rank sums; those before
 * them are skipped in the others. */
static int list_pieces(const ewx_cpu_engine *engine, size_t offset, size_t skipped,
                       const void **addends)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int num_ranks = engine->spec->num_ranks;
    int count = 0;
    for (int src = 0; src < num_ranks; src++) {
        const unsigned char *first = engine->heap.segments[src] + offset +
                                     (ewx_world_is_local(engine->world, src) ? skipped : 0);
        for (int piece = 0; piece < layout->num_pieces; piece++, count++) {
            int at = count;
#if EW_MUTANT == 4 /* planted bug: the owner's contribution first */
            at = (src + num_ranks - engine->world->rank) % num_ranks * layout->num_pieces +
                 piece;
#elif EW_MUTANT == 41 /* planted bug: all ranks' first pieces first */
            at = piece * num_ranks + src;
#elif EW_MUTANT == 43 /* planted bug: a row alone is added in another order */
            if (engine->call.grid.rows == 1)
                at = num_ranks * layout->num_pieces - 1 - count;
#endif
            addends[at] = first + (size_t)piece * layout->piece_bytes;
        }
    }
    return count;
}

/* What is added up, from a row of the tile on, in this order: the ranks' contributions;
 * with two levels the hosts' sums, of which the own one is made here. */
static int list_addends(ewx_cpu_engine *engine, int worker, ewx_tile tile,
                        int64_t first_row, const void **addends)
{
    const ewx_spec *spec = engine->spec;
    const ew_world *world = engine->world;
    const int rank = world->rank, part = engine->call.share.part;
    size_t offset = spec->layout.slice_offset[engine->call.epoch & 1] +
                    ewx_layout_tile_offset(spec, &engine->call.grid, part, tile);
    const size_t skipped =
        (size_t)(first_row * spec->layout.tile_stride) * spec->elem_bytes;
#if EW_MUTANT == 3 /* planted bug: the neighbour's tile */
    offset += tile.col + 1 < spec->layout.tile_cols ? spec->layout.slot_bytes : 0;
#endif
    if (engine->reduce.levels == 1)
        return list_pieces(engine, offset, skipped, addends);
    const int64_t slot = ewx_layout_slot(&spec->layout, rank, tile);
    for (int src = 0; src < spec->num_ranks; src++)
        if (!ewx_world_is_local(world, src) &&
            ewx_exchange_sends(&engine->wire.exchange, src, slot))
            addends[world->hosts[src]] = engine->heap.segments[src] + offset;
    addends[world->hosts[rank]] = ewx_host_sum_of(engine, worker, rank, tile);
    return world->num_hosts;
}

/* Where a tile of the sum lies, which has a place. */
static unsigned char *place_of(const ewx_cpu_engine *engine, ewx_tile tile)
{
    const ewx_cpu_call *call = &engine->call;
    const int64_t row = ewx_share_tile_rows(&call->grid, &call->share, tile).place;
    const int64_t first = row * engine->spec->problem.n + tile.col * EWX_TILE_N;
    return engine->reduce.sum + (size_t)first * engine->spec->elem_bytes;
}

static void reduce_tile(ewx_cpu_engine *engine, int worker, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const ewx_grid *grid = &engine->call.grid;
    const ewx_tile_rows rows = ewx_share_tile_rows(grid, &engine->call.share, tile);
    const void *addends[EWX_MAX_RANKS];
    unsigned char *out =
        engine->reduce.sum
            ? place_of(engine, tile)
            : engine->gemm.scratch + (size_t)worker * engine->gemm.scratch_bytes;
    const int64_t stride = engine->reduce.sum ? spec->problem.n : EWX_TILE_N;
    if (!engine->reduce.in_place) {
        const int count = list_addends(engine, worker, tile, rows.first, addends);
        ewx_reduce_tile(spec->problem.dtype, addends, count, spec->layout.tile_stride,
                        rows.end - rows.first, ewx_tile_width(grid, tile), out, stride);
    }
    if (engine->call.share.ownership == EWX_OWNS_TILES)
        ewx_collect_stage_publish_tile(engine, tile, out, stride);
    if (engine->epilogue.is_fused)
        ewx_epilogue_stage_tile(engine, tile, out, stride);
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
    atomic_fetch_add_explicit(&engine->reduce.tasks_done, 1, memory_order_release);
}

/* Serves a consumer that the caller holds: up to b tiles, none when the next one's
 * inputs are missing. */
static ew_status serve(ewx_cpu_engine *engine, int worker, int j, int *reduced)
{
    ewx_consumer *consumer = &engine->reduce.consumers[j];
    while (*reduced < engine->spec->config.batch) {
        const ewx_share *share = &engine->call.share;
        const int64_t task =
            ewx_consumer_task(j, engine->spec->config.budget, consumer->step);
        if (task >= share->count)
            return EW_OK;
        const ewx_tile tile = ewx_share_tile(&engine->call.grid, share, task);
        bool ready;
        const ew_status status = inputs_ready(engine, consumer, tile, &ready);
        if (status != EW_OK || !ready)
            return status;
        (void)EWX_PROBE(EWX_PROBE_REDUCE, engine->world->rank, task);
        const int64_t begin_ns = engine->trace.events ? ewx_now_ns() : 0;
        reduce_tile(engine, worker, tile);
        finish_task(engine, worker, task, tile, begin_ns);
        consumer->step++;
        consumer->src = 0;
        ++*reduced;
    }
    return EW_OK;
}

static ew_status some(ewx_cpu_engine *engine, int worker, int *done)
{
    const int budget = engine->spec->config.budget;
    ew_status status = EW_OK;
    for (int i = 0; i < budget && *done == 0 && status == EW_OK; i++) {
        const int j = (worker + i) % budget;
        ewx_consumer *consumer = &engine->reduce.consumers[j];
        /* Acquire and release hand step and src from one worker to the next. */
        if (atomic_flag_test_and_set_explicit(&consumer->held, memory_order_acquire))
            continue;
        status = serve(engine, worker, j, done);
        atomic_flag_clear_explicit(&consumer->held, memory_order_release);
    }
    return status;
}

bool ewx_reduce_stage_is_done(const ewx_cpu_engine *engine)
{
    /* Acquire: pairs with the release in finish_task. */
    return atomic_load_explicit(&engine->reduce.tasks_done, memory_order_acquire) ==
           engine->call.share.count;
}

const ewx_work ewx_reduce_work = {.role = EWX_ROLE_REDUCE,
                                  .prepare = prepare,
                                  .some = some,
                                  .is_done = ewx_reduce_stage_is_done};
