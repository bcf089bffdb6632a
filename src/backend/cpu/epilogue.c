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

/* Between tiles it takes the GEMM's cache.  That pays where workers have time while tiles
 * are on their way, as those that only reduce always do; elsewhere all of it behind the
 * last tile is faster (docs/EVALUATION.md, layer), if the sum has a place until then. */
static bool fusing_pays(const ewx_cpu_engine *engine, const void *place)
{
    const ew_world *world = engine->world;
    return !place || engine->always_fuses || world->link_gbps > 0.0 ||
           world->num_hosts > 1 || engine->spec->config.pool == EW_POOL_STATIC;
}

static void describe(ewx_cpu_engine *engine, void *sum, void *C,
                     const ew_epilogue *epilogue, bool is_fused)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    const int rank = engine->world->rank;
    const int64_t rows = ewx_part_rows(&engine->call.grid, rank);
    const bool has_strips = epilogue && (epilogue->norm_weight || !is_fused);
    engine->call.sum = sum;
    layer->is_fused = is_fused;
    layer->num_strips = has_strips ? ewx_num_strips(rows) : 0;
    atomic_store_explicit(&layer->next_strip, 0, memory_order_relaxed);
    atomic_store_explicit(&layer->strips_done, 0, memory_order_relaxed);
    if (!epilogue)
        return;
    layer->parts = *epilogue;
    layer->c = C;
    layer->h = epilogue->residual ? epilogue->residual : C ? C : epilogue->normed;
    for (int64_t row = 0; row < ewx_part_tile_rows(&engine->call.grid, rank); row++)
        atomic_store_explicit(&engine->row_tiles[row], 0, memory_order_relaxed);
}

void ewx_layer_prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    void *C = asked->C;
    const ew_epilogue *epilogue = asked->epilogue;
    /* A sum that nobody wants lies where its norm will be. */
    void *place = C || !epilogue ? C : epilogue->normed;
    const bool is_fused = epilogue && fusing_pays(engine, place);
    describe(engine, is_fused ? C : place, C, epilogue, is_fused);
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

static void finish_row(ewx_cpu_engine *engine, int64_t row)
{
    for (int64_t col = 0; col < engine->spec->layout.tile_cols; col++)
        add_parts(engine, row, col, at(engine, engine->call.sum, row, col * EWX_TILE_N));
    if (engine->call.layer.parts.norm_weight)
        normalise_row(engine, row);
}

void ewx_layer_follow(ewx_cpu_engine *engine)
{
    ewx_cpu_layer *layer = &engine->call.layer;
    for (;;) {
        const int64_t strip =
            atomic_fetch_add_explicit(&layer->next_strip, 1, memory_order_relaxed);
        if (strip >= layer->num_strips)
            return;
        for (int64_t row = strip * EWX_STRIP_ROWS; row < strip_end(engine, strip); row++)
            finish_row(engine, row);
    }
}

static ew_status work(void *context, int worker)
{
    (void)worker;
    ewx_layer_follow(context);
    return EW_OK;
}

ew_status ewx_layer_finish(ewx_cpu_engine *engine, int64_t m, void *sum,
                           const ew_epilogue *epilogue)
{
    const ewx_spec *spec = engine->spec;
    engine->call.grid = ewx_spec_grid(spec, m);
    describe(engine, sum, sum, epilogue, false);
    return ewx_team_run(&engine->team, work, engine);
}
