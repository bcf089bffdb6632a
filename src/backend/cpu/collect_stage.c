#include "backend/cpu/collect_stage.h"

#include <string.h>

#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/link.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/status.h"

/* ---- Results ---- */

#define CHUNK_ROWS EWX_TILE_M /* a whole number of strips */

static ewx_share share_of(const ewx_cpu_engine *engine, int rank)
{
    const ewx_cpu_call *call = &engine->call;
    return ewx_share_of(&call->grid, call->share.ownership, engine->spec->num_ranks, rank);
}

static int64_t num_results(const ewx_share *share)
{
    if (share->ownership == EWX_OWNS_TILES)
        return share->count;
    return share->ownership == EWX_OWNS_ROWS ? ewx_div_up(share->num_rows, CHUNK_ROWS) : 0;
}

static int64_t end_of_chunk(const ewx_share *share, int64_t chunk)
{
    return ewx_min64((chunk + 1) * CHUNK_ROWS, share->num_rows);
}

/* A chunk has the flag of the tile whose slot has its number. */
static ewx_flag *flag_of(const ewx_cpu_engine *engine, int rank, const ewx_share *share,
                         int64_t index)
{
    int64_t slot = index;
    if (share->ownership == EWX_OWNS_TILES)
        slot = ewx_layout_slot(&engine->spec->layout, 0,
                               ewx_share_tile(&engine->call.grid, share, index));
    return ewx_heap_flag(&engine->heap, rank, slot);
}

static bool prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_collect_stage *collect = &engine->collect;
    const int64_t own = num_results(&engine->call.share);
    (void)asked;
    collect->num_results = -own;
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        const ewx_share share = share_of(engine, rank);
        collect->num_results += num_results(&share);
        collect->collectors[rank].step = 0;
    }
    for (int64_t chunk = 0; engine->call.share.ownership == EWX_OWNS_ROWS && chunk < own;
         chunk++)
        atomic_store_explicit(&collect->chunk_rows[chunk], 0, memory_order_relaxed);
    atomic_store_explicit(&collect->results_done, 0, memory_order_relaxed);
    return collect->num_results > 0;
}

/* ---- Copies ---- */

/* Where a row of the output lies in the contributions of a rank, from that tile on. */
static unsigned char *place_of(const ewx_cpu_engine *engine, int rank, int64_t row,
                               int64_t tile_col)
{
    const ewx_spec *spec = engine->spec;
    const ewx_tile tile = {row / EWX_TILE_M, tile_col};
    return engine->heap.segments[rank] + spec->layout.slice_offset[engine->call.epoch & 1] +
           ewx_layout_tile_offset(spec, &engine->call.grid, 0, tile) +
           (size_t)(row % EWX_TILE_M * spec->layout.tile_stride) * spec->elem_bytes;
}

/* Strides are in elements. */
static void copy_tile(const ewx_cpu_engine *engine, ewx_tile tile, unsigned char *to,
                      int64_t to_stride, const unsigned char *from, int64_t from_stride)
{
    const ewx_grid *grid = &engine->call.grid;
    const size_t elem = engine->spec->elem_bytes;
    const size_t row_bytes = (size_t)ewx_tile_width(grid, tile) * elem;
    for (int64_t row = 0; row < ewx_tile_height(grid, 0, tile); row++)
        memcpy(to + (size_t)(row * to_stride) * elem,
               from + (size_t)(row * from_stride) * elem, row_bytes);
}

/* A row of the norm, into a rank's contributions or from there. */
static void copy_row(const ewx_cpu_engine *engine, int rank, int64_t row,
                     unsigned char *normed, bool into_place)
{
    const size_t elem = engine->spec->elem_bytes;
    for (int64_t col = 0; col < engine->call.grid.tile_cols; col++) {
        const ewx_tile tile = {0, col};
        const size_t bytes = (size_t)ewx_tile_width(&engine->call.grid, tile) * elem;
        unsigned char *place = place_of(engine, rank, row, col);
        unsigned char *matrix = normed + (size_t)(col * EWX_TILE_N) * elem;
        memcpy(into_place ? place : matrix, into_place ? matrix : place, bytes);
    }
}

/* The norm's row, counted inside this rank's share. */
static unsigned char *normed_row(const ewx_cpu_engine *engine, int64_t row)
{
    return (unsigned char *)engine->epilogue.parts.normed +
           row * engine->spec->problem.n * (int64_t)engine->spec->elem_bytes;
}

/* ---- Our results ---- */

static void publish(ewx_cpu_engine *engine, ewx_flag *flag, size_t bytes)
{
    const int parity = engine->call.epoch & 1;
    if (EWX_PROBE(EWX_PROBE_RESULT, engine->world->rank, (int64_t)bytes))
        return;
#if EW_MUTANT == 25 /* planted bug: some results are never published */
    if (engine->call.epoch % 3 == 0)
        return;
#endif
    if (engine->world->link_gbps > 0.0)
        flag->result_ns[parity] = ewx_link_book_to(engine->world, EWX_EVERYONE, bytes);
    ewx_word_publish(&flag->result, engine->call.epoch);
}

void ewx_collect_stage_publish_tile(ewx_cpu_engine *engine, ewx_tile tile,
                                    const unsigned char *sum, int64_t stride)
{
    const int rank = engine->world->rank;
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, 0, tile);
    copy_tile(engine, tile, place_of(engine, rank, tile.row * EWX_TILE_M, tile.col),
              engine->spec->layout.tile_stride, sum, stride);
    publish(engine, ewx_heap_flag(&engine->heap, rank, slot),
            (size_t)ewx_tile_bytes(&engine->call.grid, 0, tile,
                                   (int64_t)engine->spec->elem_bytes));
}

void ewx_collect_stage_publish_rows(ewx_cpu_engine *engine, int64_t first, int64_t end)
{
    const ewx_share *share = &engine->call.share;
    const int rank = engine->world->rank;
    const int64_t chunk = first / CHUNK_ROWS;
    const int64_t rows = end_of_chunk(share, chunk) - chunk * CHUNK_ROWS;
    for (int64_t row = first; row < end; row++)
        copy_row(engine, rank, share->first_row + row, normed_row(engine, row), true);
    /* acq_rel: the worker that finishes the chunk publishes what the others wrote. */
    if (atomic_fetch_add_explicit(&engine->collect.chunk_rows[chunk], end - first,
                                  memory_order_acq_rel) +
            end - first ==
        rows)
        publish(engine, flag_of(engine, rank, share, chunk),
                (size_t)(rows * engine->spec->problem.n) * engine->spec->elem_bytes);
}

/* ---- Other ranks' results ---- */

static ew_status is_ready(ewx_cpu_engine *engine, int src, const ewx_flag *flag,
                          bool *ready)
{
    const ew_world *world = engine->world;
    const uint32_t epoch = engine->call.epoch;
    EW_TRY(ewx_peer_in_call(engine, src, ready));
#if EW_MUTANT != 24 /* planted bug: results are copied before they are published */
    *ready = *ready && ewx_word_reached(&flag->result, epoch) &&
             (world->link_gbps <= 0.0 || ewx_now_ns() >= flag->result_ns[epoch & 1]);
#endif
    /* As ewx_contribution_ready: it may have published between our look and its leaving. */
    if (!*ready && ewx_world_departed(world, src) &&
        !ewx_word_reached(&flag->result, epoch))
        return ewx_world_raise(engine->world, &(ewx_fault){.status = EW_ERR_PEER_DIED,
                                                           .culprit = src,
                                                           .reporter = world->rank,
                                                           .code = EWX_FAULT_TILE});
    return EW_OK;
}

static void collect_tile(ewx_cpu_engine *engine, int src, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const unsigned char *sum = place_of(engine, src, tile.row * EWX_TILE_M, tile.col);
    int64_t stride = spec->layout.tile_stride;
    if (engine->reduce.sum) {
        const int64_t first =
            tile.row * EWX_TILE_M * spec->problem.n + tile.col * EWX_TILE_N;
        unsigned char *out = engine->reduce.sum + (size_t)first * spec->elem_bytes;
        copy_tile(engine, tile, out, spec->problem.n, sum, stride);
        sum = out;
        stride = spec->problem.n;
    }
    if (engine->epilogue.is_fused)
        ewx_epilogue_stage_tile(engine, tile, sum, stride);
}

/* The tile of a result, or the first of a chunk's rows. */
static ewx_tile tile_of(const ewx_cpu_engine *engine, const ewx_share *share, int64_t index)
{
    if (share->ownership == EWX_OWNS_TILES)
        return ewx_share_tile(&engine->call.grid, share, index);
    return (ewx_tile){(share->first_row + index * CHUNK_ROWS) / EWX_TILE_M, 0};
}

static void collect(ewx_cpu_engine *engine, int src, const ewx_share *share, int64_t index)
{
    if (share->ownership == EWX_OWNS_TILES) {
        collect_tile(engine, src, ewx_share_tile(&engine->call.grid, share, index));
        return;
    }
    const int64_t ours = engine->call.share.first_row;
    for (int64_t row = index * CHUNK_ROWS; row < end_of_chunk(share, index); row++)
        copy_row(engine, src, share->first_row + row,
                 normed_row(engine, share->first_row + row - ours), false);
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
           collector->step < num_results(&share)) {
        bool ready;
        EW_TRY(
            is_ready(engine, src, flag_of(engine, src, &share, collector->step), &ready));
        if (!ready)
            return EW_OK;
        (void)EWX_PROBE(EWX_PROBE_COLLECT, engine->world->rank, collector->step);
        const int64_t begin_ns = ewx_now_ns();
        collect(engine, src, &share, collector->step);
        ++*collected;
        finish_result(engine, worker, src, tile_of(engine, &share, collector->step),
                      begin_ns);
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
        for (int64_t i = 0; src != engine->world->rank && i < num_results(&share); i++) {
            if (ewx_word_reached(&flag_of(engine, src, &share, i)->result,
                                 engine->call.epoch))
                continue;
            *src_out = src;
            *tile_out = tile_of(engine, &share, i);
            return true;
        }
    }
    return false;
}

const ewx_work ewx_collect_work = {.role = EWX_ROLE_REDUCE,
                                   .prepare = prepare,
                                   .some = some,
                                   .is_done = ewx_collect_stage_is_done};
