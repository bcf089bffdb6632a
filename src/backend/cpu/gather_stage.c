#include "backend/cpu/gather_stage.h"

#include <string.h>

#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/cpu_link.h"
#include "base/probe.h"
#include "base/status.h"

static size_t row_bytes(const ewx_cpu_engine *engine)
{
    return (size_t)engine->spec->problem.k * engine->spec->elem_bytes;
}

static int64_t panel_rows(const ewx_cpu_engine *engine, int src, int64_t panel)
{
    return ewx_tile_height(&engine->call.grid, src, (ewx_tile){panel, 0});
}

static size_t panel_bytes(const ewx_cpu_engine *engine, int src, int64_t panel)
{
    return (size_t)panel_rows(engine, src, panel) * row_bytes(engine);
}

/* Where a rank's rows lie in its segment. */
static unsigned char *published_panel(const ewx_cpu_engine *engine, int src, int64_t panel)
{
    return engine->heap.segments[src] +
           engine->spec->layout.slice_offset[engine->call.epoch & 1] +
           (size_t)(panel * EWX_TILE_M) * row_bytes(engine);
}

static const unsigned char *own_panel(const ewx_cpu_engine *engine, int64_t panel)
{
    return engine->gemm.A + (size_t)(panel * EWX_TILE_M) * row_bytes(engine);
}

/* ---- Our rows ---- */

static bool prepare_rows(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_gather_stage *gather = &engine->gather;
    (void)asked;
    gather->num_panels = ewx_part_tile_rows(&engine->call.grid, engine->world->rank);
    atomic_store_explicit(&gather->next_panel, 0, memory_order_relaxed);
    atomic_store_explicit(&gather->panels_done, 0, memory_order_relaxed);
    return engine->spec->num_ranks > 1 && gather->num_panels > 0;
}

static void publish(ewx_cpu_engine *engine, int64_t panel)
{
    const int rank = engine->world->rank;
    ewx_flag *flag = ewx_heap_flag(&engine->heap, rank, panel);
    if (EWX_PROBE(EWX_PROBE_PUBLISH, rank, panel))
        return;
    if (engine->world->link_gbps > 0.0)
        flag->visible_ns[engine->call.epoch & 1] =
            ewx_link_book_to(engine->world, EWX_EVERYONE, panel_bytes(engine, rank, panel));
    ewx_flag_publish(flag, engine->call.epoch);
    ewx_exchange_post_panel(&engine->wire.exchange, panel);
    (void)EWX_PROBE(EWX_PROBE_PUBLISHED, rank, panel);
}

static ew_status share_panel(ewx_cpu_engine *engine, int worker, int *done)
{
    ewx_gather_stage *gather = &engine->gather;
    const int rank = engine->world->rank;
    (void)worker;
    if (atomic_load_explicit(&gather->next_panel, memory_order_relaxed) >=
        gather->num_panels)
        return EW_OK;
    const int64_t panel =
        atomic_fetch_add_explicit(&gather->next_panel, 1, memory_order_relaxed);
    if (panel >= gather->num_panels)
        return EW_OK;
#if EW_MUTANT == 40 /* planted bug: the flag before the rows */
    publish(engine, panel);
#endif
    memcpy(published_panel(engine, rank, panel), own_panel(engine, panel),
           panel_bytes(engine, rank, panel));
#if EW_MUTANT != 40
    publish(engine, panel);
#endif
    ewx_patience_progress(engine, EWX_STEP_TILE, panel);
    atomic_fetch_add_explicit(&gather->panels_done, 1, memory_order_relaxed);
    ++*done;
    return EW_OK;
}

static bool rows_are_shared(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->gather.panels_done, memory_order_relaxed) ==
           engine->gather.num_panels;
}

/* ---- Everyone's rows ---- */

static bool prepare_gemm(ewx_cpu_engine *engine, const ewx_call *asked)
{
    const ewx_grid *grid = &engine->call.grid;
    ewx_gemm_stage_prepare(engine, asked, asked->C);
    ewx_peers_forget(engine);
    engine->gather.gathered = asked->gathered;
    for (int src = 0; src < engine->spec->num_ranks; src++) {
        ewx_gather_source *source = &engine->gather.sources[src];
        source->num_blocks = ewx_part_block_rows(grid, src) * grid->blocks_per_row;
        atomic_store_explicit(&source->next_block, 0, memory_order_relaxed);
        atomic_store_explicit(&source->num_arrived, 0, memory_order_relaxed);
    }
    return true;
}

/* Whether the first `count` panels of a rank are there. */
static ew_status have_arrived(ewx_cpu_engine *engine, int src, int64_t count, bool *ready)
{
    ewx_gather_source *source = &engine->gather.sources[src];
    *ready = true;
#if EW_MUTANT == 44 /* planted bug: rows are multiplied before they are there */
    return EW_OK;
#endif
    /* Acquire: another worker has seen the flags of these panels. */
    const int64_t known = atomic_load_explicit(&source->num_arrived, memory_order_acquire);
    int64_t panel = known;
    while (src != engine->world->rank && *ready && panel < count) {
        const ew_status status = ewx_contribution_ready(engine, src, panel, ready);
        if (status != EW_OK)
            return status;
        panel += *ready;
    }
    if (panel > known)
        atomic_store_explicit(&source->num_arrived, panel, memory_order_release);
    return EW_OK;
}

/* How many panels of its source a block waits for: those it multiplies, and those that
 * `release` puts together with them. */
static int64_t panels_awaited(const ewx_cpu_engine *engine, ewx_block block)
{
    const ewx_grid *grid = &engine->call.grid;
    const int32_t release = engine->spec->config.release;
    const int64_t end = ewx_block_tiles(grid, block).end.row;
    const int64_t all = ewx_part_tile_rows(grid, block.part);
    return release < 1 ? all : ewx_min64(ewx_div_up(end, release) * release, all);
}

static ew_status rows_ready(ewx_cpu_engine *engine, ewx_block block, bool *ready)
{
    const ewx_grid *grid = &engine->call.grid;
    if (engine->spec->config.release != EW_RELEASE_OUTPUT)
        return have_arrived(engine, block.part, panels_awaited(engine, block), ready);
    *ready = true;
    ew_status status = EW_OK;
    for (int src = 0; src < grid->num_parts && *ready && status == EW_OK; src++)
        status = have_arrived(engine, src, ewx_part_tile_rows(grid, src), ready);
    return status;
}

const unsigned char *ewx_gather_stage_rows(ewx_cpu_engine *engine, int src, int64_t panel)
{
    const unsigned char *rows = src == engine->world->rank
                                    ? own_panel(engine, panel)
                                    : published_panel(engine, src, panel);
    const int64_t first = ewx_part_first_row(&engine->call.grid, src) + panel * EWX_TILE_M;
    if (engine->gather.gathered)
        memcpy(engine->gather.gathered + (size_t)first * row_bytes(engine), rows,
               panel_bytes(engine, src, panel));
    return rows;
}

bool ewx_gather_stage_missing(const ewx_cpu_engine *engine, int *src_out,
                              ewx_tile *tile_out)
{
    const ewx_grid *grid = &engine->call.grid;
    const int num_sources = engine->spec->op->gemm_waits ? engine->spec->num_ranks : 0;
    for (int src = 0; src < num_sources; src++)
        for (int64_t panel = 0; panel < ewx_part_tile_rows(grid, src); panel++) {
            if (src == engine->world->rank ||
                (ewx_heap_ready(engine, src, panel) && ewx_peer_has_come(engine, src)))
                continue;
            *src_out = src;
            *tile_out = (ewx_tile){panel, 0};
            return true;
        }
    return false;
}

/* ---- Blocks ---- */

/* A block that a worker has taken; position < 0: none. */
typedef struct taken_block {
    ewx_block block;
    int64_t position;
} taken_block;

/* The next block of a walk, if its rows are there.  Whoever swaps the walk's counter has
 * it. */
static ew_status take_next(ewx_cpu_engine *engine, _Atomic int64_t *next, int64_t count,
                           int src, taken_block *taken)
{
    const ewx_grid *grid = &engine->call.grid;
    int64_t index = atomic_load_explicit(next, memory_order_relaxed);
    while (index < count) {
        bool ready;
        taken->block =
            src < 0 ? ewx_order_default(grid, index) : ewx_part_walk(grid, src, index);
        const ew_status status = rows_ready(engine, taken->block, &ready);
        if (status != EW_OK || !ready)
            return status;
        if (atomic_compare_exchange_weak_explicit(
                next, &index, index + 1, memory_order_relaxed, memory_order_relaxed)) {
            taken->position = index;
            return EW_OK;
        }
    }
    return EW_OK;
}

static ew_status take_from(ewx_cpu_engine *engine, int src, taken_block *taken)
{
    ewx_gather_source *source = &engine->gather.sources[src];
    EW_TRY(take_next(engine, &source->next_block, source->num_blocks, src, taken));
    if (taken->position >= 0)
        taken->position =
            atomic_fetch_add_explicit(&engine->gemm.next_position, 1, memory_order_relaxed);
    return EW_OK;
}

/* Other ranks take turns, as their rows arrive at about the same rate; while none are there
 * a worker computes the own ones. */
static ew_status take_in_turn(ewx_cpu_engine *engine, taken_block *taken)
{
    const int num_ranks = engine->spec->num_ranks, rank = engine->world->rank;
    const int64_t turn =
        atomic_load_explicit(&engine->gemm.next_position, memory_order_relaxed);
    const int others = num_ranks - 1;
    for (int i = 0; i < others && taken->position < 0; i++)
        EW_TRY(take_from(engine, (int)(rank + 1 + (turn + i) % others) % num_ranks, taken));
    return taken->position < 0 ? take_from(engine, rank, taken) : EW_OK;
}

/* One rank's rows after the other's, from the own ones on. */
static ew_status take_in_a_ring(ewx_cpu_engine *engine, taken_block *taken)
{
    const int num_ranks = engine->spec->num_ranks, rank = engine->world->rank;
    for (int i = 0; i < num_ranks; i++) {
        const int src = (rank + i) % num_ranks;
        const ewx_gather_source *source = &engine->gather.sources[src];
        if (atomic_load_explicit(&source->next_block, memory_order_relaxed) <
            source->num_blocks)
            return take_from(engine, src, taken);
    }
    return EW_OK;
}

static ew_status take(ewx_cpu_engine *engine, taken_block *taken)
{
    ewx_gemm_stage *gemm = &engine->gemm;
    const ew_config *config = &engine->spec->config;
    taken->position = -1;
    if (config->order == EW_ORDER_DEFAULT || config->producer == EW_PRODUCER_BLAS)
        return take_next(engine, &gemm->next_position, gemm->num_positions, -1, taken);
    return config->order == EW_ORDER_CONTIGUOUS ? take_in_a_ring(engine, taken)
                                                : take_in_turn(engine, taken);
}

static ew_status some_block(ewx_cpu_engine *engine, int worker, int *done)
{
    taken_block taken;
    if (ewx_gemm_stage_is_done(engine))
        return EW_OK;
    if (ewx_engine_is_aborted(engine))
        return EW_ERR_ABORTED;
    EW_TRY(take(engine, &taken));
    if (taken.position < 0)
        return EW_OK;
    ++*done;
    return ewx_gemm_stage_compute(engine, worker, taken.block, taken.position);
}

const ewx_work ewx_share_rows_work = {.role = EWX_ROLE_REDUCE,
                                      .prepare = prepare_rows,
                                      .some = share_panel,
                                      .is_done = rows_are_shared};
const ewx_work ewx_gathered_gemm_work = {.role = EWX_ROLE_COMPUTE,
                                         .prepare = prepare_gemm,
                                         .some = some_block,
                                         .is_done = ewx_gemm_stage_is_done};
