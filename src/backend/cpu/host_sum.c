/* Tiles that another host owns are summed over the ranks of this one, in rank order in
 * fp32, rounded once.  The ranks of a host take turns, unit by unit (ewx_exchange_sends).
 * The sum replaces the sending rank's own contribution in its slot, which no other rank
 * reads. */
#include "backend/cpu/host_sum.h"

#include <string.h>

#include "backend/cpu/cpu_engine.h"
#include "base/clock.h"

bool ewx_host_sum_is_needed(const ewx_cpu_engine *engine)
{
    return engine->reduce.levels == 2 && engine->world->num_locals > 1;
}

/* ---- Which tile is next ---- */

/* Units in the order in which they are computed, each for all destinations in turn; where
 * one destination is computed after the other, the other way round. */
static bool place_at(const ewx_cpu_engine *engine, int64_t step, int *remote_out,
                     int64_t *unit_out)
{
    const ewx_exchange *exchange = &engine->wire.exchange;
    const bool by_dst = engine->spec->config.order == EW_ORDER_CONTIGUOUS;
    if (step >= exchange->num_order * exchange->num_remotes)
        return false;
    *remote_out = (int)(by_dst ? step / exchange->num_order : step % exchange->num_remotes);
    *unit_out =
        exchange->order[by_dst ? step % exchange->num_order : step / exchange->num_remotes];
    return true;
}

/* The tile that the holder has to sum next; false when all are. */
static bool find_next(const ewx_cpu_engine *engine, ewx_host_sum *sum, int *dst_out,
                      ewx_tile *tile_out)
{
    const ewx_layout *layout = &engine->spec->layout;
    int remote;
    int64_t unit;
    while (place_at(engine, sum->step, &remote, &unit)) {
        *dst_out = engine->wire.exchange.remotes[remote];
        if (sum->tile < ewx_exchange_owes(&engine->wire.exchange, *dst_out, unit)) {
            const int64_t slot = unit * engine->wire.exchange.unit_slots + sum->tile;
            *tile_out = (ewx_tile){slot / layout->tile_cols, slot % layout->tile_cols};
            return true;
        }
        sum->step++;
        sum->tile = 0;
    }
    return false;
}

/* ---- Summing ---- */

const void *ewx_host_sum_of(ewx_cpu_engine *engine, int worker, int dst, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const ewx_grid *grid = &engine->call.grid;
    const ew_world *world = engine->world;
    const size_t offset = spec->layout.slice_offset[engine->call.epoch & 1] +
                          ewx_layout_tile_offset(spec, grid, dst, tile);
    const void *contributions[EWX_MAX_RANKS];
    for (int i = 0; i < world->num_locals; i++)
        contributions[i] = engine->heap.segments[world->locals[i]] + offset;
    if (world->num_locals == 1)
        return contributions[0];
    unsigned char *sum = engine->host_sum.partials +
                         (size_t)worker * EWX_TILE_M * EWX_TILE_N * spec->elem_bytes;
    ewx_reduce_tile(spec->problem.dtype, contributions, world->num_locals,
                    spec->layout.tile_stride, ewx_tile_height(grid, dst, tile),
                    ewx_tile_width(grid, tile), sum, spec->layout.tile_stride);
    return sum;
}

static void send_sum(ewx_cpu_engine *engine, int worker, int dst, ewx_tile tile)
{
    const ewx_spec *spec = engine->spec;
    const ewx_grid *grid = &engine->call.grid;
    unsigned char *own = engine->heap.segments[engine->world->rank] +
                         spec->layout.slice_offset[engine->call.epoch & 1] +
                         ewx_layout_tile_offset(spec, grid, dst, tile);
    memcpy(own, ewx_host_sum_of(engine, worker, dst, tile),
           (size_t)(ewx_tile_height(grid, dst, tile) * spec->layout.tile_stride) *
               spec->elem_bytes);
    ewx_route_wire.post(engine, dst, tile);
    ewx_patience_progress(engine, EWX_STEP_TILE, ewx_tile_task(grid, dst, tile));
}

/* Up to b tiles, by the holder. */
static ew_status serve(ewx_cpu_engine *engine, int worker, int *done)
{
    ewx_host_sum *sum = &engine->host_sum;
    const ew_world *world = engine->world;
    int dst;
    ewx_tile tile;
    while (*done < engine->spec->config.batch && find_next(engine, sum, &dst, &tile)) {
        const int64_t slot = ewx_layout_slot(&engine->spec->layout, dst, tile);
        for (; sum->local < world->num_locals; sum->local++) {
            bool ready;
            const ew_status status =
                ewx_contribution_ready(engine, world->locals[sum->local], slot, &ready);
            if (status != EW_OK || !ready)
                return status;
        }
        send_sum(engine, worker, dst, tile);
        atomic_fetch_sub_explicit(&sum->tiles_left, 1, memory_order_release);
        sum->tile++;
        sum->local = 0;
        ++*done;
    }
    return EW_OK;
}

static bool prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_host_sum *sum = &engine->host_sum;
    const ewx_exchange *exchange = &engine->wire.exchange;
    (void)asked;
    if (!ewx_host_sum_is_needed(engine))
        return false;
    sum->step = sum->tile = sum->local = 0;
    int64_t tiles = 0;
    for (int remote = 0; remote < exchange->num_remotes; remote++)
        for (int64_t unit = 0; unit < exchange->num_units; unit++)
            tiles += ewx_exchange_owes(exchange, exchange->remotes[remote], unit);
    atomic_store_explicit(&sum->tiles_left, tiles, memory_order_relaxed);
    return true;
}

static bool is_done(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->host_sum.tiles_left, memory_order_acquire) == 0;
}

static ew_status some(ewx_cpu_engine *engine, int worker, int *done)
{
    ewx_host_sum *sum = &engine->host_sum;
    if (atomic_flag_test_and_set_explicit(&sum->held, memory_order_acquire))
        return EW_OK;
    const ew_status status = serve(engine, worker, done);
    atomic_flag_clear_explicit(&sum->held, memory_order_release);
    return status;
}

bool ewx_host_sum_missing(ewx_cpu_engine *engine, int *src_out, ewx_tile *tile_out)
{
    ewx_host_sum at = {.step = 0};
    const ew_world *world = engine->world;
    int dst;
    if (!ewx_host_sum_is_needed(engine))
        return false;
    for (; find_next(engine, &at, &dst, tile_out); at.tile++)
        for (int i = 0; i < world->num_locals; i++) {
            *src_out = world->locals[i];
            if (!ewx_heap_ready(engine, *src_out,
                                ewx_layout_slot(&engine->spec->layout, dst, *tile_out)))
                return true;
        }
    return false;
}

const ewx_work ewx_host_sum_work = {
    .role = EWX_ROLE_REDUCE, .prepare = prepare, .some = some, .is_done = is_done};
