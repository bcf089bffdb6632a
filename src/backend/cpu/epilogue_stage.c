/* Fused: the worker that has summed a tile adds bias and residual to it while it is in the
 * cache.  When a row of tiles is complete its rows can be normalised: workers take them
 * strip by strip between tiles and blocks, so that only the last strips are left when the
 * GEMM ends.  Else all of it follows the last tile, strip by strip. */
#include "backend/cpu/epilogue_stage.h"

#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/epilogue_math.h"
#include "plan/layer.h"

enum { ROWS_AHEAD = 4, CACHE_LINE = 64 };

static unsigned char *at(const ewx_cpu_engine *engine, const void *matrix, int64_t row,
                         int64_t col)
{
    const size_t offset =
        (size_t)(row * engine->spec->problem.n + col) * engine->spec->elem_bytes;
    return matrix ? (unsigned char *)(uintptr_t)matrix + offset : NULL;
}

static float *squares_of(const ewx_cpu_engine *engine, int64_t row)
{
    return engine->epilogue.squares + row * engine->spec->layout.tile_cols;
}

/* ---- The form ---- */

/* Also where the sum has no place to wait for the last tile. */
static bool fuses(const ewx_cpu_engine *engine, const ewx_call *asked, const void *place)
{
    const ew_world *world = engine->world;
    const ewx_epilogue_facts facts = {
        .has_norm = asked->epilogue->norm_weight != NULL,
        .tiles_travel = world->link_gbps > 0.0 || world->num_hosts > 1,
        .tile_rows = ewx_div_up(engine->call.share.num_rows, EWX_TILE_M)};
    return !place || ewx_epilogue_fuses(&engine->spec->config, &facts);
}

static void describe(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_epilogue_stage *stage = &engine->epilogue;
    const ew_epilogue *epilogue = asked->epilogue;
    const ewx_grid *grid = &engine->call.grid;
    const ewx_share *share = &engine->call.share;
    stage->parts = *epilogue;
    stage->parts.normed = at(engine, epilogue->normed, share->first_row, 0);
    stage->c = asked->C;
    stage->h = epilogue->residual ? epilogue->residual
               : asked->C         ? asked->C
                                  : stage->parts.normed;
    stage->is_split = engine->spec->config.epilogue == EW_EPILOGUE_SEPARATE &&
                      !stage->is_fused && epilogue->norm_weight &&
                      (epilogue->bias || epilogue->residual);
    stage->num_strips = ewx_num_strips(share->num_rows);
    if (epilogue->norm_weight || !stage->is_fused)
        stage->num_turns = stage->num_strips * (stage->is_split ? 2 : 1);
    for (int64_t row = 0; row < ewx_part_tile_rows(grid, share->part); row++)
        atomic_store_explicit(&engine->epilogue.row_tiles[row], 0, memory_order_relaxed);
}

static bool prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_epilogue_stage *stage = &engine->epilogue;
    const ew_epilogue *epilogue = asked->epilogue;
    /* A sum that the caller does not want lies where its norm will be. */
    void *place = asked->C || !epilogue
                      ? asked->C
                      : at(engine, epilogue->normed, engine->call.share.first_row, 0);
    stage->is_fused = epilogue && fuses(engine, asked, place);
    stage->num_turns = 0;
    engine->reduce.sum = stage->is_fused ? asked->C : place;
    atomic_store_explicit(&stage->next_turn, 0, memory_order_relaxed);
    atomic_store_explicit(&stage->turns_done, 0, memory_order_relaxed);
    if (epilogue)
        describe(engine, asked);
    return stage->num_turns > 0;
}

/* ---- Tiles ---- */

/* The residual's rows lie far apart, which no hardware prefetcher follows. */
static void ask_for(const unsigned char *row, size_t bytes)
{
    for (size_t offset = 0; row && offset < bytes; offset += CACHE_LINE)
        __builtin_prefetch(row + offset, 1);
}

/* c and h of one row of a tile, from its sum. */
static void add_parts(ewx_cpu_engine *engine, int64_t row, int64_t tile_col,
                      const void *sum)
{
    const ewx_epilogue_stage *stage = &engine->epilogue;
    const ew_problem *problem = &engine->spec->problem;
    const int64_t col = tile_col * EWX_TILE_N;
    ewx_epilogue_row parts = {.sum = sum,
                              .bias = at(engine, stage->parts.bias, 0, col),
                              .residual = at(engine, stage->parts.residual, row, col),
                              .c = at(engine, stage->c, row, col),
                              .h = at(engine, stage->h, row, col)};
    if (parts.h == parts.c || (parts.h == sum && !parts.bias))
        parts.h = NULL;
    if (parts.c == sum && !parts.bias)
        parts.c = NULL;
    squares_of(engine, row)[tile_col] =
        ewx_epilogue_add(problem->dtype, &parts, ewx_min64(EWX_TILE_N, problem->n - col));
}

void ewx_epilogue_stage_tile(ewx_cpu_engine *engine, ewx_tile tile,
                             const unsigned char *sum, int64_t stride)
{
    const size_t elem = engine->spec->elem_bytes;
    const ewx_grid *grid = &engine->call.grid;
    const void *residual = engine->epilogue.parts.residual;
    const ewx_tile_rows rows = ewx_share_tile_rows(grid, &engine->call.share, tile);
    const int64_t first = rows.place, count = rows.end - rows.first;
    const size_t row_bytes = (size_t)ewx_tile_width(grid, tile) * elem;
    for (int64_t i = 0; i < count; i++) {
        if (i + ROWS_AHEAD < count)
            ask_for(at(engine, residual, first + i + ROWS_AHEAD, tile.col * EWX_TILE_N),
                    row_bytes);
        add_parts(engine, first + i, tile.col, sum + (size_t)(i * stride) * elem);
    }
    /* Release: this tile's h and squares; acquire is is_ready's. */
    atomic_fetch_add_explicit(&engine->epilogue.row_tiles[tile.row], 1,
                              memory_order_release);
}

/* ---- Rows ---- */

static void normalise_row(ewx_cpu_engine *engine, int64_t row)
{
    const ewx_epilogue_stage *stage = &engine->epilogue;
    const ew_problem *problem = &engine->spec->problem;
    const float r =
        ewx_epilogue_scale(squares_of(engine, row), engine->spec->layout.tile_cols,
                           problem->n, stage->parts.eps);
    ewx_epilogue_normalise(problem->dtype, at(engine, stage->h, row, 0), r,
                           stage->parts.norm_weight,
                           at(engine, stage->parts.normed, row, 0), problem->n);
}

static void add_row(ewx_cpu_engine *engine, int64_t row)
{
    for (int64_t col = 0; col < engine->spec->layout.tile_cols; col++)
        add_parts(engine, row, col, at(engine, engine->reduce.sum, row, col * EWX_TILE_N));
}

static void finish_row(ewx_cpu_engine *engine, int64_t row)
{
    add_row(engine, row);
    if (engine->epilogue.parts.norm_weight)
        normalise_row(engine, row);
}

/* As a step of its own would, from h alone. */
static void norm_row(ewx_cpu_engine *engine, int64_t row)
{
    const ew_problem *problem = &engine->spec->problem;
    for (int64_t tile = 0; tile < engine->spec->layout.tile_cols; tile++) {
        const int64_t col = tile * EWX_TILE_N;
        const ewx_epilogue_row h = {.sum = at(engine, engine->epilogue.h, row, col)};
        squares_of(engine, row)[tile] =
            ewx_epilogue_add(problem->dtype, &h, ewx_min64(EWX_TILE_N, problem->n - col));
    }
    normalise_row(engine, row);
}

/* ---- Strips ---- */

/* Whether all tiles with some of the share's rows from `first` up to `end` are summed. */
static bool tiles_are_summed(const ewx_cpu_engine *engine, int64_t first, int64_t end)
{
    const int64_t above = engine->call.share.first_row;
    int64_t tiles = engine->spec->layout.tile_cols;
#if EW_MUTANT == 7 /* planted bug: rows are normalised before their last tile is there */
    tiles--;
#endif
    for (int64_t row = (above + first) / EWX_TILE_M; row <= (above + end - 1) / EWX_TILE_M;
         row++) /* acquire: pairs with the releases of all the row's tiles */
        if (atomic_load_explicit(&engine->epilogue.row_tiles[row], memory_order_acquire) <
            tiles)
            return false;
    return true;
}

static int64_t end_of_strip(const ewx_cpu_engine *engine, int64_t strip)
{
    return ewx_min64((strip + 1) * EWX_STRIP_ROWS, engine->call.share.num_rows);
}

/* Fused, a strip waits for its tiles; else for the last tile, and until no block is left:
 * other ranks wait for those.  A second step waits for the whole first one. */
static bool is_ready(const ewx_cpu_engine *engine, int64_t turn)
{
    const ewx_epilogue_stage *stage = &engine->epilogue;
    if (stage->is_fused)
        return tiles_are_summed(engine, turn * EWX_STRIP_ROWS, end_of_strip(engine, turn));
    if (turn < stage->num_strips)
        return ewx_gemm_stage_is_done(engine) && ewx_reduce_stage_is_done(engine) &&
               (engine->call.share.ownership != EWX_OWNS_TILES ||
                ewx_collect_stage_is_done(engine));
    /* Acquire: pairs with the release of some; other workers' h. */
    return atomic_load_explicit(&stage->turns_done, memory_order_acquire) >=
           stage->num_strips;
}

/* The next strip's, or -1. */
static int64_t take_turn(ewx_cpu_engine *engine)
{
    ewx_epilogue_stage *stage = &engine->epilogue;
    int64_t turn = atomic_load_explicit(&stage->next_turn, memory_order_relaxed);
    do {
        if (turn >= stage->num_turns || !is_ready(engine, turn))
            return -1;
    } while (!atomic_compare_exchange_weak_explicit(
        &stage->next_turn, &turn, turn + 1, memory_order_relaxed, memory_order_relaxed));
    return turn;
}

static void work_on(ewx_cpu_engine *engine, int64_t turn)
{
    const ewx_epilogue_stage *stage = &engine->epilogue;
    const bool is_second = turn >= stage->num_strips;
    const int64_t strip = is_second ? turn - stage->num_strips : turn;
    const int64_t first = strip * EWX_STRIP_ROWS, end = end_of_strip(engine, strip);
    for (int64_t row = first; row < end; row++)
        if (stage->is_fused)
            normalise_row(engine, row);
        else if (is_second)
            norm_row(engine, row);
        else if (stage->is_split)
            add_row(engine, row);
        else
            finish_row(engine, row);
    if (engine->call.share.ownership == EWX_OWNS_ROWS && (is_second || !stage->is_split))
        ewx_collect_stage_publish_rows(engine, first, end);
}

static ew_status some(ewx_cpu_engine *engine, int worker, int *done)
{
    (void)worker;
    const int64_t turn = take_turn(engine);
    if (turn < 0)
        return EW_OK;
    work_on(engine, turn);
    atomic_fetch_add_explicit(&engine->epilogue.turns_done, 1, memory_order_release);
    ++*done;
    return EW_OK;
}

static bool is_done(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->epilogue.turns_done, memory_order_acquire) ==
           engine->epilogue.num_turns;
}

const ewx_work ewx_epilogue_work = {
    .role = EWX_ROLE_REDUCE, .prepare = prepare, .some = some, .is_done = is_done};
