#include "backend/cpu/collect_stage.h"

#include <string.h>

#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/cpu_link.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/status.h"

/* ---- Results ---- */

/* A result of a share: one of its tiles, or its rows in one row of tiles. */

static ewx_share share_of(const ewx_cpu_engine *engine, int rank)
{
    const ewx_cpu_call *call = &engine->call;
    return ewx_share_of(&call->grid, call->share.ownership, engine->spec->num_ranks, rank);
}

static int64_t num_results(const ewx_cpu_engine *engine, const ewx_share *share)
{
    if (!ewx_has_results(share->ownership))
        return 0;
    return share->ownership == EWX_OWNS_TILES ? share->count
                                              : share->count / engine->call.grid.tile_cols;
}

/* Its tiles lie one after the other, from this one on. */
static ewx_tile first_tile(const ewx_cpu_engine *engine, const ewx_share *share,
                           int64_t index)
{
    const ewx_grid *grid = &engine->call.grid;
    if (share->ownership == EWX_OWNS_TILES)
        return ewx_share_tile(grid, share, index);
    return (ewx_tile){share->first / grid->tile_cols + index, 0};
}

static int64_t num_tiles(const ewx_cpu_engine *engine)
{
    return engine->call.share.ownership == EWX_OWNS_TILES ? 1 : engine->call.grid.tile_cols;
}

static bool prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_collect_stage *collect = &engine->collect;
    const int64_t own = num_results(engine, &engine->call.share);
    (void)asked;
    collect->num_results = -own;
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        const ewx_share share = share_of(engine, rank);
        collect->num_results += num_results(engine, &share);
        collect->collectors[rank].step = 0;
    }
    for (int64_t i = 0; engine->call.share.ownership == EWX_OWNS_ROWS && i < own; i++)
        atomic_store_explicit(&collect->rows_finished[i], 0, memory_order_relaxed);
    atomic_store_explicit(&collect->results_done, 0, memory_order_relaxed);
    return collect->num_results > 0;
}

/* ---- Copies ---- */

/* Where a rank's results in a tile begin: in place of its contribution; from another host
 * they come without the rows of others. */
static unsigned char *place_of(const ewx_cpu_engine *engine, int rank,
                               const ewx_share *share, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const ewx_grid *grid = &engine->call.grid;
    const int parity = engine->call.epoch & 1;
    if (!ewx_world_is_local(engine->world, rank))
        return ewx_heap_result(&engine->heap, &spec->layout, rank,
                               ewx_layout_slot(&spec->layout, 0, tile), parity);
    const int64_t first = ewx_share_tile_rows(grid, share, tile).first;
    return engine->heap.segments[rank] + spec->layout.slice_offset[parity] +
           ewx_layout_tile_offset(spec, grid, 0, tile) +
           (size_t)(first * spec->layout.tile_stride) * spec->elem_bytes;
}

/* Some rows of a tile; strides are in elements. */
static void copy_rows(const ewx_cpu_engine *engine, ewx_tile tile, int64_t rows,
                      unsigned char *to, int64_t to_stride, const unsigned char *from,
                      int64_t from_stride)
{
    const size_t elem = engine->spec->elem_bytes;
    const size_t row_bytes = (size_t)ewx_tile_width(&engine->call.grid, tile) * elem;
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + (size_t)(row * to_stride) * elem,
               from + (size_t)(row * from_stride) * elem, row_bytes);
}

/* The norm at a row, counted inside this rank's share, from a column of tiles on. */
static unsigned char *normed_at(const ewx_cpu_engine *engine, int64_t row, int64_t tile_col)
{
    return (unsigned char *)engine->epilogue.parts.normed +
           (row * engine->spec->problem.n + tile_col * EWX_TILE_N) *
               (int64_t)engine->spec->elem_bytes;
}

/* ---- Our results ---- */

static void publish(ewx_cpu_engine *engine, ewx_tile first, size_t bytes)
{
    const int parity = engine->call.epoch & 1;
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, 0, first);
    ewx_flag *flags = ewx_heap_flag(&engine->heap, engine->world->rank, slot);
    if (EWX_PROBE(EWX_PROBE_RESULT, engine->world->rank, (int64_t)bytes))
        return;
#if EW_MUTANT == 25 /* planted bug: some results are never published */
    if (engine->call.epoch % 3 == 0)
        return;
#endif
    const int64_t there_ns = engine->world->link_gbps > 0.0
                                 ? ewx_link_book_to(engine->world, EWX_EVERYONE, bytes)
                                 : 0;
    for (int64_t tile = 0; tile < num_tiles(engine); tile++) {
        flags[tile].result_ns[parity] = there_ns;
        ewx_word_publish(&flags[tile].result, engine->call.epoch);
        ewx_exchange_post_to_all(&engine->wire.exchange, EWX_RESULTS, slot + tile);
    }
}

void ewx_collect_stage_publish_tile(ewx_cpu_engine *engine, ewx_tile tile,
                                    const unsigned char *sum, int64_t stride)
{
    const ewx_grid *grid = &engine->call.grid;
    const int rank = engine->world->rank;
    copy_rows(engine, tile, ewx_tile_height(grid, 0, tile),
              place_of(engine, rank, &engine->call.share, tile),
              engine->spec->layout.tile_stride, sum, stride);
    publish(engine, tile,
            (size_t)ewx_tile_bytes(grid, 0, tile, (int64_t)engine->spec->elem_bytes));
}

/* `count` rows of the norm, from the one on that is `first` in our share and `skipped` in
 * the result. */
static void leave_rows(ewx_cpu_engine *engine, ewx_tile tile, int64_t first,
                       int64_t skipped, int64_t count)
{
    const ewx_spec *spec = engine->spec;
    for (; tile.col < engine->call.grid.tile_cols; tile.col++)
        copy_rows(engine, tile, count,
                  place_of(engine, engine->world->rank, &engine->call.share, tile) +
                      (size_t)(skipped * spec->layout.tile_stride) * spec->elem_bytes,
                  spec->layout.tile_stride, normed_at(engine, first, tile.col),
                  spec->problem.n);
}

void ewx_collect_stage_publish_rows(ewx_cpu_engine *engine, int64_t first, int64_t end)
{
    const ewx_share *share = &engine->call.share;
    while (first < end) {
        const int64_t index =
            (share->first_row + first) / EWX_TILE_M - share->first_row / EWX_TILE_M;
        const ewx_tile tile = first_tile(engine, share, index);
        const ewx_tile_rows rows = ewx_share_tile_rows(&engine->call.grid, share, tile);
        const int64_t all = rows.end - rows.first, skipped = first - rows.place;
        const int64_t count = ewx_min64(end - first, all - skipped);
        leave_rows(engine, tile, first, skipped, count);
        /* acq_rel: the worker that finishes the result publishes what the others wrote. */
        if (atomic_fetch_add_explicit(&engine->collect.rows_finished[index], count,
                                      memory_order_acq_rel) +
                count ==
            all)
            publish(engine, tile,
                    (size_t)(all * engine->spec->problem.n) * engine->spec->elem_bytes);
        first += count;
    }
}

/* ---- Other ranks' results ---- */

static bool is_published(const ewx_cpu_engine *engine, int src, ewx_tile first)
{
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, 0, first);
    const ewx_flag *flags = ewx_heap_flag(&engine->heap, src, slot);
    for (int64_t tile = 0; tile < num_tiles(engine); tile++)
        if (!ewx_word_reached(&flags[tile].result, engine->call.epoch))
            return false;
    return true;
}

/* Over an emulated link a result takes its time; over a network it has, when it is here. */
static bool has_come(const ewx_cpu_engine *engine, int src, ewx_tile first)
{
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, 0, first);
    const ewx_flag *flag = ewx_heap_flag(&engine->heap, src, slot);
    return engine->world->link_gbps <= 0.0 || !ewx_world_is_local(engine->world, src) ||
           ewx_now_ns() >= flag->result_ns[engine->call.epoch & 1];
}

static ew_status is_ready(ewx_cpu_engine *engine, int src, ewx_tile first, bool *ready)
{
    const ew_world *world = engine->world;
    EW_TRY(ewx_peer_in_call(engine, src, ready));
#if EW_MUTANT != 24 /* planted bug: results are copied before they are published */
    *ready = *ready && is_published(engine, src, first);
#endif
    *ready = *ready && has_come(engine, src, first);
    /* As ewx_contribution_ready: it may have published between our look and its leaving,
     * and from another host results may still be on their way. */
    if (!*ready && ewx_world_is_local(world, src) && ewx_world_departed(world, src) &&
        !is_published(engine, src, first))
        return ewx_world_raise(engine->world, &(ewx_fault){.status = EW_ERR_PEER_DIED,
                                                           .culprit = src,
                                                           .reporter = world->rank,
                                                           .code = EWX_FAULT_RESULT});
    return EW_OK;
}

static void collect_tile(ewx_cpu_engine *engine, int src, const ewx_share *share,
                         ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const unsigned char *sum = place_of(engine, src, share, tile);
    int64_t stride = spec->layout.tile_stride;
    if (engine->reduce.sum) {
        const int64_t first =
            tile.row * EWX_TILE_M * spec->problem.n + tile.col * EWX_TILE_N;
        unsigned char *out = engine->reduce.sum + (size_t)first * spec->elem_bytes;
        copy_rows(engine, tile, ewx_tile_height(&engine->call.grid, 0, tile), out,
                  spec->problem.n, sum, stride);
        sum = out;
        stride = spec->problem.n;
    }
    if (engine->epilogue.is_fused)
        ewx_epilogue_stage_tile(engine, tile, sum, stride);
}

static void collect_rows(ewx_cpu_engine *engine, int src, const ewx_share *share,
                         ewx_tile tile)
{
    const ewx_tile_rows rows = ewx_share_tile_rows(&engine->call.grid, share, tile);
    const int64_t first = share->first_row + rows.place - engine->call.share.first_row;
    for (; tile.col < engine->call.grid.tile_cols; tile.col++)
        copy_rows(engine, tile, rows.end - rows.first, normed_at(engine, first, tile.col),
                  engine->spec->problem.n, place_of(engine, src, share, tile),
                  engine->spec->layout.tile_stride);
}

static void collect(ewx_cpu_engine *engine, int src, const ewx_share *share, ewx_tile first)
{
    if (share->ownership == EWX_OWNS_TILES)
        collect_tile(engine, src, share, first);
    else
        collect_rows(engine, src, share, first);
}

static void finish_result(ewx_cpu_engine *engine, int worker, int src, ewx_tile tile,
                          int64_t begin_ns)
{
    const int64_t step = engine->collect.collectors[src].step++;
    ewx_engine_trace(engine, &(ew_trace_event){.kind = EW_TRACE_COLLECT,
                                               .worker = worker,
                                               .dst = src,
                                               .row = (int32_t)tile.row,
                                               .col = (int32_t)tile.col,
                                               .position = step,
                                               .begin_ns = begin_ns,
                                               .end_ns = ewx_now_ns()});
    ewx_patience_progress(engine, EWX_STEP_TILE, step);
    atomic_fetch_add_explicit(&engine->collect.results_done, 1, memory_order_release);
}

/* Serves a collector that the caller holds. */
static ew_status serve(ewx_cpu_engine *engine, int worker, int src, int *collected)
{
    ewx_collector *collector = &engine->collect.collectors[src];
    const ewx_share share = share_of(engine, src);
    while (*collected < engine->spec->config.batch &&
           collector->step < num_results(engine, &share)) {
        const ewx_tile first = first_tile(engine, &share, collector->step);
        bool ready;
        EW_TRY(is_ready(engine, src, first, &ready));
        if (!ready)
            return EW_OK;
        (void)EWX_PROBE(EWX_PROBE_COLLECT, engine->world->rank, collector->step);
        const int64_t begin_ns = ewx_now_ns();
        collect(engine, src, &share, first);
        ++*collected;
        finish_result(engine, worker, src, first, begin_ns);
    }
    return EW_OK;
}

static ew_status some(ewx_cpu_engine *engine, int worker, int *done)
{
    const int num_ranks = engine->spec->num_ranks, rank = engine->world->rank;
    ew_status status = EW_OK;
    for (int i = 0; i < num_ranks && *done == 0 && status == EW_OK; i++) {
        const int src = (rank + 1 + worker + i) % num_ranks;
        ewx_collector *collector = &engine->collect.collectors[src];
        /* Acquire and release hand step from one worker to the next. */
        if (src == rank ||
            atomic_flag_test_and_set_explicit(&collector->held, memory_order_acquire))
            continue;
        status = serve(engine, worker, src, done);
        atomic_flag_clear_explicit(&collector->held, memory_order_release);
    }
    return status;
}

bool ewx_collect_stage_is_done(const ewx_cpu_engine *engine)
{
    /* Acquire: pairs with the release in finish_result. */
    return atomic_load_explicit(&engine->collect.results_done, memory_order_acquire) ==
           engine->collect.num_results;
}

bool ewx_collect_stage_missing(ewx_cpu_engine *engine, int *src_out, ewx_tile *tile_out)
{
    const int num_ranks = engine->collect.num_results > 0 ? engine->spec->num_ranks : 0;
    for (int src = 0; src < num_ranks; src++) {
        const ewx_share share = share_of(engine, src);
        const int64_t count = src == engine->world->rank ? 0 : num_results(engine, &share);
        for (int64_t i = 0; i < count; i++) {
            *src_out = src;
            *tile_out = first_tile(engine, &share, i);
            if (!is_published(engine, src, *tile_out))
                return true;
        }
    }
    return false;
}

const ewx_work ewx_collect_work = {.role = EWX_ROLE_REDUCE,
                                   .prepare = prepare,
                                   .some = some,
                                   .is_done = ewx_collect_stage_is_done};
