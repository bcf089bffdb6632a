#include "backend/cpu/collect_stage.h"

#include <string.h>

#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/link.h"
#include "base/clock.h"
#include "base/status.h"

bool ewx_collect_stage_prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_collect_stage *collect = &engine->collect;
    const ewx_cpu_call *call = &engine->call;
    (void)asked;
    collect->num_tiles = call->ownership == EWX_OWNS_TILES
                             ? ewx_part_tiles(&call->grid, 0) - call->share.count
                             : 0;
    atomic_store_explicit(&collect->tiles_done, 0, memory_order_relaxed);
    for (int rank = 0; rank < engine->spec->num_ranks; rank++)
        collect->collectors[rank].step = 0;
    return collect->num_tiles > 0;
}

/* ---- Places ---- */

static ewx_flag *flag_of(const ewx_cpu_engine *engine, int rank, ewx_tile tile)
{
    return ewx_heap_flag(&engine->heap, rank,
                         ewx_layout_slot(&engine->spec->layout, 0, tile));
}

static unsigned char *place_of(const ewx_cpu_engine *engine, int rank, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    return engine->heap.segments[rank] + spec->layout.slice_offset[engine->call.epoch & 1] +
           ewx_layout_tile_offset(spec, &engine->call.grid, 0, tile);
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

/* ---- Our sums ---- */

void ewx_collect_stage_publish(ewx_cpu_engine *engine, ewx_tile tile,
                               const unsigned char *sum, int64_t stride)
{
    const ew_world *world = engine->world;
    ewx_flag *flag = flag_of(engine, world->rank, tile);
    copy_tile(engine, tile, place_of(engine, world->rank, tile),
              engine->spec->layout.tile_stride, sum, stride);
    if (world->link_gbps > 0.0)
        flag->result_ns[engine->call.epoch & 1] =
            ewx_link_book_tile(engine, 0, tile, EWX_EVERYONE);
    ewx_word_publish(&flag->result, engine->call.epoch);
}

/* ---- Other ranks' sums ---- */

static ew_status is_ready(ewx_cpu_engine *engine, int src, ewx_tile tile, bool *ready)
{
    const ew_world *world = engine->world;
    const uint32_t epoch = engine->call.epoch;
    const ewx_flag *flag = flag_of(engine, src, tile);
    EW_TRY(ewx_peer_in_call(engine, src, ready));
    *ready = *ready && ewx_word_reached(&flag->result, epoch) &&
             (world->link_gbps <= 0.0 || ewx_now_ns() >= flag->result_ns[epoch & 1]);
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
    const size_t first =
        (size_t)(tile.row * EWX_TILE_M * spec->problem.n + tile.col * EWX_TILE_N);
    const unsigned char *sum = place_of(engine, src, tile);
    int64_t stride = spec->layout.tile_stride;
    if (engine->reduce.sum) {
        unsigned char *out = engine->reduce.sum + first * spec->elem_bytes;
        copy_tile(engine, tile, out, spec->problem.n, sum, stride);
        sum = out;
        stride = spec->problem.n;
    }
    if (engine->epilogue.is_fused)
        ewx_epilogue_stage_tile(engine, tile, sum, stride);
}

/* Serves a collector that the caller holds. */
static ew_status serve(ewx_cpu_engine *engine, int src, int *collected)
{
    const ewx_cpu_call *call = &engine->call;
    ewx_collector *collector = &engine->collect.collectors[src];
    const ewx_share share =
        ewx_share_of(&call->grid, call->ownership, engine->spec->num_ranks, src);
    while (*collected < engine->spec->config.batch && collector->step < share.count) {
        const ewx_tile tile = ewx_share_tile(&call->grid, &share, collector->step);
        bool ready;
        const ew_status status = is_ready(engine, src, tile, &ready);
        if (status != EW_OK || !ready)
            return status;
        collect_tile(engine, src, tile);
        ewx_patience_progress(engine, EWX_STEP_TILE,
                              share.first + collector->step * share.step);
        collector->step++;
        ++*collected;
        atomic_fetch_add_explicit(&engine->collect.tiles_done, 1, memory_order_release);
    }
    return EW_OK;
}

ew_status ewx_collect_stage_some(ewx_cpu_engine *engine, int worker, int *done)
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
        status = serve(engine, src, done);
        atomic_flag_clear_explicit(&collector->held, memory_order_release);
    }
    return status;
}

bool ewx_collect_stage_is_done(const ewx_cpu_engine *engine)
{
    /* Acquire: pairs with the release in serve. */
    return atomic_load_explicit(&engine->collect.tiles_done, memory_order_acquire) ==
           engine->collect.num_tiles;
}

bool ewx_collect_stage_missing(ewx_cpu_engine *engine, int *src_out, ewx_tile *tile_out)
{
    const ewx_cpu_call *call = &engine->call;
    for (int src = 0; src < engine->spec->num_ranks && engine->collect.num_tiles > 0;
         src++) {
        const ewx_share share =
            ewx_share_of(&call->grid, call->ownership, engine->spec->num_ranks, src);
        for (int64_t i = 0; src != engine->world->rank && i < share.count; i++) {
            const ewx_tile tile = ewx_share_tile(&call->grid, &share, i);
            if (ewx_word_reached(&flag_of(engine, src, tile)->result, call->epoch))
                continue;
            *src_out = src;
            *tile_out = tile;
            return true;
        }
    }
    return false;
}
