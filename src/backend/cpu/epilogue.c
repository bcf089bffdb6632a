/* A layer's epilogue in the engine.  Fused: whoever has summed a tile adds bias and
 * residual to it while it is in the cache.  When a row of tiles is complete its rows can be
 * normalised: workers take them strip by strip between tiles and blocks, so that only the
 * last strips are left when the GEMM ends.  Else all of it follows the last tile, strip by
 * strip. */
#include "backend/cpu/engine.h"
#include "backend/cpu/layer.h"
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
    return engine->squares + row * engine->spec->layout.tile_cols;
}

/* ---- The form ---- */

/* Also where the sum has no place to wait for the last tile. */
static bool fuses(const ewx_cpu_engine *engine, const ewx_call *asked, const void *place)
{
    const ew_world *world = engine->world;
    const ewx_epilogue_facts facts = {
        .has_norm = asked->epilogue->norm_weight != NULL,
        .tiles_travel = world->link_gbps > 0.0 || world->num_hosts > 1,
        .tile_rows = ewx_part_tile_rows(&engine->call.grid, world->rank)};
    return !place || ewx_epilogue_fuses(&engine->spec->config, &facts);
}

static void describe(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    const ew_epilogue *epilogue = asked->epilogue;
    const ewx_grid *grid = &engine->call.grid;
    const int rank = engine->world->rank;
    layer->parts = *epilogue;
    layer->c = asked->C;
    layer->h = epilogue->residual ? epilogue->residual
               : asked->C         ? asked->C
                                  : epilogue->normed;
    layer->is_split = engine->spec->config.epilogue == EW_EPILOGUE_SEPARATE &&
                      epilogue->norm_weight && (epilogue->bias || epilogue->residual);
    if (epilogue->norm_weight || !layer->is_fused)
        layer->num_strips = ewx_num_strips(ewx_part_rows(grid, rank));
    for (int64_t row = 0; row < ewx_part_tile_rows(grid, rank); row++)
        atomic_store_explicit(&engine->row_tiles[row], 0, memory_order_relaxed);
}

void ewx_layer_prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    const ew_epilogue *epilogue = asked->epilogue;
    /* A sum that nobody wants lies where its norm will be. */
    void *place = asked->C || !epilogue ? asked->C : epilogue->normed;
    layer->is_fused = epilogue && fuses(engine, asked, place);
    layer->is_split = false;
    layer->num_strips = 0;
    engine->call.sum = layer->is_fused ? asked->C : place;
    atomic_store_explicit(&layer->next_strip, 0, memory_order_relaxed);
    atomic_store_explicit(&layer->next_norm, 0, memory_order_relaxed);
    atomic_store_explicit(&layer->strips_done, 0, memory_order_relaxed);
    if (epilogue)
        describe(engine, asked);
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
    const ewx_cpu_layer *layer = &engine->call.layer;
    const ew_problem *problem = &engine->spec->problem;
    const int64_t col = tile_col * EWX_TILE_N;
    ewx_layer_row parts = {.sum = sum,
                           .bias = at(engine, layer->parts.bias, 0, col),
                           .residual = at(engine, layer->parts.residual, row, col),
                           .c = at(engine, layer->c, row, col),
                           .h = at(engine, layer->h, row, col)};
    if (parts.h == parts.c || (parts.h == sum && !parts.bias))
        parts.h = NULL;
    if (parts.c == sum && !parts.bias)
        parts.c = NULL;
    squares_of(engine, row)[tile_col] =
        ewx_layer_add(problem->dtype, &parts, ewx_min64(EWX_TILE_N, problem->n - col));
}

void ewx_layer_tile(ewx_cpu_engine *engine, ewx_tile tile, const unsigned char *sum,
                    int64_t stride)
{
    const size_t elem = engine->spec->elem_bytes;
    const ewx_grid *grid = &engine->call.grid;
    const void *residual = engine->call.layer.parts.residual;
    const int64_t first = tile.row * EWX_TILE_M;
    const int64_t rows = ewx_tile_height(grid, engine->world->rank, tile);
    const size_t row_bytes = (size_t)ewx_tile_width(grid, tile) * elem;
    for (int64_t i = 0; i < rows; i++) {
        if (i + ROWS_AHEAD < rows)
            ask_for(at(engine, residual, first + i + ROWS_AHEAD, tile.col * EWX_TILE_N),
                    row_bytes);
        add_parts(engine, first + i, tile.col, sum + (size_t)(i * stride) * elem);
    }
    /* Release: this tile's h and squares; acquire is take_strip's. */
    atomic_fetch_add_explicit(&engine->row_tiles[tile.row], 1, memory_order_release);
}

/* ---- Strips ---- */

static bool take_strip(ewx_cpu_engine *engine, int64_t *strip_out)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    int64_t tiles = engine->spec->layout.tile_cols;
#if EW_MUTANT == 7 /* planted bug: rows are normalised before their last tile is there */
    tiles--;
#endif
    int64_t strip = atomic_load_explicit(&layer->next_strip, memory_order_relaxed);
    do {
        if (strip >= layer->num_strips)
            return false;
        /* Acquire: pairs with the releases of all the row's tiles. */
        if (atomic_load_explicit(&engine->row_tiles[strip / EWX_BLOCK_STRIPS],
                                 memory_order_acquire) < tiles)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(
        &layer->next_strip, &strip, strip + 1, memory_order_relaxed, memory_order_relaxed));
    *strip_out = strip;
    return true;
}

static void normalise_row(ewx_cpu_engine *engine, int64_t row)
{
    const ewx_cpu_layer *layer = &engine->call.layer;
    const ew_problem *problem = &engine->spec->problem;
    const float r = ewx_layer_scale(squares_of(engine, row), engine->spec->layout.tile_cols,
                                    problem->n, layer->parts.eps);
    ewx_layer_normalise(problem->dtype, at(engine, layer->h, row, 0), r,
                        layer->parts.norm_weight, at(engine, layer->parts.normed, row, 0),
                        problem->n);
}

static int64_t strip_end(const ewx_cpu_engine *engine, int64_t strip)
{
    return ewx_min64((strip + 1) * EWX_STRIP_ROWS,
                     ewx_part_rows(&engine->call.grid, engine->world->rank));
}

bool ewx_layer_some(ewx_cpu_engine *engine)
{
    int64_t strip;
    if (!engine->call.layer.is_fused || !take_strip(engine, &strip))
        return false;
    for (int64_t row = strip * EWX_STRIP_ROWS; row < strip_end(engine, strip); row++)
        normalise_row(engine, row);
    atomic_fetch_add_explicit(&engine->call.layer.strips_done, 1, memory_order_release);
    return true;
}

bool ewx_layer_done(const ewx_cpu_engine *engine)
{
    const ewx_cpu_layer *layer = &engine->call.layer;
    return !layer->is_fused ||
           atomic_load_explicit(&layer->strips_done, memory_order_acquire) ==
               layer->num_strips;
}

/* ---- Behind the last tile ---- */

static void add_row(ewx_cpu_engine *engine, int64_t row)
{
    for (int64_t col = 0; col < engine->spec->layout.tile_cols; col++)
        add_parts(engine, row, col, at(engine, engine->call.sum, row, col * EWX_TILE_N));
}

static void finish_row(ewx_cpu_engine *engine, int64_t row)
{
    add_row(engine, row);
    if (engine->call.layer.parts.norm_weight)
        normalise_row(engine, row);
}

/* As a step of its own would, from h alone. */
static void norm_row(ewx_cpu_engine *engine, int64_t row)
{
    const ew_problem *problem = &engine->spec->problem;
    for (int64_t tile = 0; tile < engine->spec->layout.tile_cols; tile++) {
        const int64_t col = tile * EWX_TILE_N;
        const ewx_layer_row h = {.sum = at(engine, engine->call.layer.h, row, col)};
        squares_of(engine, row)[tile] =
            ewx_layer_add(problem->dtype, &h, ewx_min64(EWX_TILE_N, problem->n - col));
    }
    normalise_row(engine, row);
}

static void take_strips(ewx_cpu_engine *engine, _Atomic int64_t *next,
                        void (*step)(ewx_cpu_engine *engine, int64_t row))
{
    ewx_cpu_layer *layer = &engine->call.layer;
    for (;;) {
        const int64_t strip = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (strip >= layer->num_strips)
            return;
        for (int64_t row = strip * EWX_STRIP_ROWS; row < strip_end(engine, strip); row++)
            step(engine, row);
        atomic_fetch_add_explicit(&layer->strips_done, 1, memory_order_release);
    }
}

static ew_status follow_split(ewx_cpu_engine *engine)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    take_strips(engine, &layer->next_strip, add_row);
    ewx_wait wait = ewx_world_wait(engine->world);
    ew_status status; /* pairs with the release in take_strips: other workers' h */
    EWX_AWAIT(status, &wait,
              atomic_load_explicit(&layer->strips_done, memory_order_acquire) >=
                  layer->num_strips);
    if (status == EW_OK)
        take_strips(engine, &layer->next_norm, norm_row);
    return status;
}

ew_status ewx_layer_follow(ewx_cpu_engine *engine)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    if (layer->is_fused)
        return EW_OK;
    if (layer->is_split)
        return follow_split(engine);
    take_strips(engine, &layer->next_strip, finish_row);
    return EW_OK;
}
