#include "backend/cpu/gemm_stage.h"

#include <string.h>

#include "backend/cpu/cpu_blas.h"
#include "backend/cpu/cpu_engine.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/status.h"

/* ---- Release: which tiles become visible together ---- */

int64_t ewx_release_groups(const ewx_spec *spec)
{
    const ewx_release release = ewx_release_of(&spec->config);
    return ewx_release_counters(release,
                                ewx_release_units(release, spec->layout.slots_per_part),
                                spec->layout.num_parts);
}

static int64_t unit_of(const ewx_cpu_engine *engine, int part, int64_t task)
{
    return ewx_release_unit(ewx_release_of(&engine->spec->config),
                            ewx_part_tiles(&engine->call.grid, part), task);
}

static int64_t group_of(const ewx_cpu_engine *engine, int part, int64_t task)
{
    const ewx_release release = ewx_release_of(&engine->spec->config);
    const int64_t units = ewx_release_units(release, engine->spec->layout.slots_per_part);
    return ewx_release_counter(release, units, part, unit_of(engine, part, task));
}

static void publish(ewx_cpu_engine *engine, int part, ewx_tile tile)
{
    if (EWX_PROBE(EWX_PROBE_PUBLISH, engine->world->rank,
                  ewx_layout_slot(&engine->spec->layout, part, tile)))
        return;
    ewx_engine_route_to(engine, part, tile)->post(engine, part, tile);
    (void)EWX_PROBE(EWX_PROBE_PUBLISHED, engine->world->rank,
                    ewx_layout_slot(&engine->spec->layout, part, tile));
}

static void publish_unit(ewx_cpu_engine *engine, int part, int64_t unit)
{
    const ewx_grid *grid = &engine->call.grid;
    const ewx_task_range tasks =
        ewx_release_tasks(grid, ewx_release_of(&engine->spec->config), part, unit);
    for (int64_t task = tasks.first; task < tasks.end; task++)
        publish(engine, part, ewx_task_tile(grid, part, task));
}

/* Destinations take turns, so that no owner waits for another's whole partition. */
static void publish_output(ewx_cpu_engine *engine)
{
    const ewx_grid *grid = &engine->call.grid;
    for (int64_t task = 0; task < engine->spec->layout.slots_per_part; task++)
        for (int part = 0; part < grid->num_parts; part++)
            if (task < ewx_part_tiles(grid, part))
                publish(engine, part, ewx_task_tile(grid, part, task));
}

/* A tile is complete: publish it, or its whole group when it was the last one. */
static void release_tile(ewx_cpu_engine *engine, int part, ewx_tile tile)
{
    const int32_t release = engine->spec->config.release;
    if (release == 1) {
        publish(engine, part, tile);
        return;
    }
    const int64_t task = ewx_tile_task(&engine->call.grid, part, tile);
    /* acq_rel: the last worker's publication covers what the others wrote. */
    if (atomic_fetch_sub_explicit(&engine->gemm.unreleased[group_of(engine, part, task)], 1,
                                  memory_order_acq_rel) > 1)
        return;
    if (release == EW_RELEASE_OUTPUT)
        publish_output(engine);
    else
        publish_unit(engine, part, unit_of(engine, part, task));
}

static void count_groups(ewx_cpu_engine *engine)
{
    const int64_t num_groups = ewx_release_groups(engine->spec);
    for (int64_t group = 0; group < num_groups; group++)
        atomic_store_explicit(&engine->gemm.unreleased[group], 0, memory_order_relaxed);
    for (int part = 0; part < engine->call.grid.num_parts; part++)
        for (int64_t task = 0; task < ewx_part_tiles(&engine->call.grid, part); task++)
            atomic_fetch_add_explicit(
                &engine->gemm.unreleased[group_of(engine, part, task)], 1,
                memory_order_relaxed);
}

/* ---- The call's weights ---- */

/* The one of a call that has no list of them. */
static ewx_product only_product(const ewx_spec *spec, const ewx_call *asked, void *out)
{
    return (ewx_product){spec->problem.n, asked->B, asked->packed, out};
}

int64_t ewx_gemm_stage_cols(const ewx_spec *spec, const ewx_call *asked)
{
    int64_t cols = 0;
    if (asked->activates)
        return asked->products->n;
    for (int i = 0; i < asked->num_products; i++)
        cols = ewx_div_up(cols, EWX_TILE_N) * EWX_TILE_N + asked->products[i].n;
    return asked->num_products > 0 ? cols : spec->problem.n;
}

static ewx_weight_form form_of(const ewx_cpu_engine *engine, int64_t n)
{
    return n == engine->spec->problem.n ? engine->gemm.form
                                        : ewx_weight_form_build(engine->spec, n);
}

/* In the room for weights that come with a call, where each begins with a cache line. */
static size_t passing_bytes(const ewx_cpu_engine *engine, const ewx_product *product)
{
    const bool packs = product->B && engine->spec->config.producer == EW_PRODUCER_OWN;
    return packs ? (form_of(engine, product->n).bytes + 63) & ~(size_t)63 : 0;
}

size_t ewx_gemm_stage_passing_bytes(const ewx_cpu_engine *engine, const ewx_call *asked)
{
    const ewx_product only = only_product(engine->spec, asked, NULL);
    size_t bytes = asked->num_products > 0 ? 0 : passing_bytes(engine, &only);
    for (int i = 0; i < asked->num_products; i++)
        bytes += passing_bytes(engine, &asked->products[i]);
    return bytes;
}

/* Its B is packed into the room from `offset` on; returns the end of it. */
static size_t prepare_product(const ewx_cpu_engine *engine, const ewx_product *asked,
                              int64_t first_col, size_t offset, ewx_gemm_product *product)
{
    const ewx_weight_form form = form_of(engine, asked->n);
    const bool whole = engine->spec->config.producer == EW_PRODUCER_BLAS;
    unsigned char *room = engine->gemm.passing_weight;
    product->n = asked->n;
    product->first_col = first_col;
    product->piece_bytes = form.piece_bytes;
    product->panel_bytes = form.panel_bytes;
    product->out = asked->C;
    product->aside = false;
    product->packs = asked->B && !whole;
    product->packed = product->packs ? room + offset : asked->B ? asked->B : asked->packed;
    if (product->packs)
        ewx_packing_begin(&product->packing, engine->spec, asked->n, asked->B,
                          room + offset);
    return offset + passing_bytes(engine, asked);
}

static void prepare_products(ewx_cpu_engine *engine, const ewx_call *asked, void *out)
{
    ewx_gemm_stage *gemm = &engine->gemm;
    const ewx_product only = only_product(engine->spec, asked, out);
    const ewx_product *products = asked->num_products > 0 ? asked->products : &only;
    gemm->num_products = asked->num_products > 0 ? asked->num_products : 1;
    gemm->activated = asked->activates ? asked->C : NULL;
    gemm->activation = asked->activation;
    const bool rests =
        !asked->activates && !asked->epilogue && engine->call.grid.rows > EWX_TILE_M;
    size_t offset = 0;
    int64_t col = 0;
    for (int i = 0; i < gemm->num_products; i++) {
        offset = prepare_product(engine, &products[i], col, offset, &gemm->products[i]);
        gemm->products[i].rests = rests && gemm->products[i].out;
        if (!gemm->activated)
            col += ewx_div_up(products[i].n, EWX_TILE_N);
    }
    if (!gemm->activated)
        return;
    /* The gate may lie where its activation goes; the up stays beside the sums. */
    if (!gemm->products[0].out)
        gemm->products[0].out = gemm->activated;
    gemm->products[1].aside = gemm->num_products > 1 && !gemm->products[1].out;
}

static const ewx_gemm_product *product_of(const ewx_cpu_engine *engine, int64_t col)
{
    const ewx_gemm_stage *gemm = &engine->gemm;
    int at = gemm->num_products - 1;
    while (gemm->products[at].first_col > col)
        at--;
    return &gemm->products[at];
}

void ewx_gemm_stage_prepare(ewx_cpu_engine *engine, const ewx_call *asked, void *out)
{
    ewx_gemm_stage *gemm = &engine->gemm;
    const ewx_grid *grid = &engine->call.grid;
    const bool whole = engine->spec->config.producer == EW_PRODUCER_BLAS;
    gemm->A = asked->A;
    prepare_products(engine, asked, out);
    gemm->num_positions = whole ? grid->rows > 0 : ewx_num_blocks(grid);
    atomic_store_explicit(&gemm->next_position, 0, memory_order_relaxed);
    atomic_store_explicit(&gemm->positions_done, 0, memory_order_relaxed);
    atomic_store_explicit(&gemm->begin_ns, engine->timing.start_ns, memory_order_relaxed);
    atomic_store_explicit(&gemm->end_ns, engine->timing.start_ns, memory_order_relaxed);
    memset((void *)gemm->panel_states, EWX_PANEL_UNPACKED,
           (size_t)(engine->spec->layout.num_parts * engine->spec->layout.max_tile_rows));
}

static bool prepare(ewx_cpu_engine *engine, const ewx_call *asked)
{
    ewx_gemm_stage_prepare(engine, asked,
                           engine->reduce.in_place ? engine->reduce.sum : NULL);
    if (engine->spec->config.release != 1)
        count_groups(engine);
    return true;
}

/* ---- Packing ---- */

static bool is_packed(const ewx_gemm_stage *gemm)
{
#if EW_MUTANT == 60 /* planted bug: only the last of several weights is waited for */
    const ewx_gemm_product *last = &gemm->products[gemm->num_products - 1];
    return !last->packs || ewx_packing_is_done(&last->packing);
#endif
    for (int i = 0; i < gemm->num_products; i++)
        if (gemm->products[i].packs && !ewx_packing_is_done(&gemm->products[i].packing))
            return false;
    return true;
}

ew_status ewx_gemm_stage_pack(ewx_cpu_engine *engine)
{
    ewx_gemm_stage *gemm = &engine->gemm;
    for (int i = 0; i < gemm->num_products; i++)
        if (gemm->products[i].packs)
            ewx_packing_work(&gemm->products[i].packing);
    if (is_packed(gemm))
        return EW_OK;
    ewx_wait wait = ewx_worker_wait(engine);
    ew_status status;
    EWX_AWAIT(status, &wait, is_packed(gemm));
    return status;
}

static void pack_rows(ewx_cpu_engine *engine, int part, int64_t tile_row,
                      unsigned char *packed)
{
    const ewx_gemm_stage *gemm = &engine->gemm;
    const ewx_grid *grid = &engine->call.grid;
    const size_t elem_bytes = engine->spec->elem_bytes;
    const int64_t K = engine->spec->problem.k;
    const int64_t row = ewx_part_first_row(grid, part) + tile_row * EWX_TILE_M;
    const unsigned char *rows = engine->spec->op->gemm_waits
                                    ? ewx_gather_stage_rows(engine, part, tile_row)
                                    : gemm->A + (size_t)(row * K) * elem_bytes;
    for (int piece = 0; piece < engine->spec->layout.num_pieces; piece++)
        ewx_pack_a(&gemm->form.gemm,
                   rows + (size_t)(piece * gemm->form.gemm.depth) * elem_bytes, K, 1,
                   ewx_tile_height(grid, part, (ewx_tile){tile_row, 0}),
                   packed + (size_t)piece * gemm->activation_piece_bytes);
}

/* The packed rows of A for one tile row of a partition; the first worker to need them
 * packs them. */
static ew_status packed_rows(ewx_cpu_engine *engine, int part, int64_t tile_row,
                             const unsigned char **panel_out)
{
    const int64_t panel = part * engine->spec->layout.max_tile_rows + tile_row;
    unsigned char *packed =
        engine->gemm.activations + (size_t)panel * engine->gemm.activation_panel_bytes;
    _Atomic uint8_t *state = &engine->gemm.panel_states[panel];
    uint8_t unpacked = EWX_PANEL_UNPACKED;
    *panel_out = packed;
    if (atomic_load_explicit(state, memory_order_acquire) == EWX_PANEL_PACKED)
        return EW_OK;
    if (atomic_compare_exchange_strong_explicit(state, &unpacked, EWX_PANEL_PACKING,
                                                memory_order_relaxed,
                                                memory_order_relaxed)) {
        pack_rows(engine, part, tile_row, packed);
        atomic_store_explicit(state, EWX_PANEL_PACKED, memory_order_release);
        return EW_OK;
    }
    ewx_wait wait = ewx_worker_wait(engine);
    ew_status status; /* pairs with the release above, in another worker */
    EWX_AWAIT(status, &wait,
              atomic_load_explicit(state, memory_order_acquire) == EWX_PANEL_PACKED);
    return status;
}

/* ---- Blocks ---- */

static unsigned char *own_slice(const ewx_cpu_engine *engine)
{
    return engine->heap.segments[engine->world->rank] +
           engine->spec->layout.slice_offset[engine->call.epoch & 1];
}

/* Tiles of a block, or one of them. */
typedef struct tile_set {
    int part;
    ewx_tile_range tiles;
    unsigned char *scratch; /* of the worker: some for each tile, column by column */
} tile_set;

/* The part [first, end) of the k's of a piece. */
typedef struct k_range {
    int piece;
    int64_t first, end;
} k_range;

static unsigned char *scratch_of(const ewx_cpu_engine *engine, const tile_set *set,
                                 ewx_tile tile)
{
    const int64_t rows = set->tiles.end.row - set->tiles.first.row;
    const int64_t index =
        (tile.col - set->tiles.first.col) * rows + tile.row - set->tiles.first.row;
    return set->scratch + (size_t)index * engine->gemm.tile_scratch_bytes;
}

/* Where a tile of a product goes. */
static ewx_matrix_tile tile_place(const ewx_cpu_engine *engine,
                                  const ewx_gemm_product *product, const tile_set *set,
                                  ewx_tile tile, int piece)
{
    const ewx_grid *grid = &engine->call.grid;
    const ewx_spec *spec = engine->spec;
    if (product->aside)
        return (ewx_matrix_tile){scratch_of(engine, set, tile) + engine->gemm.aside_offset,
                                 EWX_TILE_N};
    if (!product->out)
        return (ewx_matrix_tile){own_slice(engine) +
                                     ewx_layout_tile_offset(spec, grid, set->part, tile) +
                                     (size_t)piece * spec->layout.piece_bytes,
                                 spec->layout.tile_stride};
    const int64_t row = ewx_part_first_row(grid, set->part) + tile.row * EWX_TILE_M;
    const int64_t col = (tile.col - product->first_col) * EWX_TILE_N;
    return (ewx_matrix_tile){
        product->out + (size_t)(row * product->n + col) * spec->elem_bytes, product->n};
}

/* Whether a tile is complete when these have been added. */
static bool is_last(const ewx_cpu_engine *engine, k_range k)
{
#if EW_MUTANT == 42 /* planted bug: a tile is released before its last piece is there */
    return k.end == engine->gemm.form.gemm.padded_depth && k.piece == 0;
#endif
    return k.end == engine->gemm.form.gemm.padded_depth &&
           k.piece == engine->spec->layout.num_pieces - 1;
}

static int64_t product_cols(const ewx_gemm_product *product, int64_t col)
{
    return ewx_min64(EWX_TILE_N, product->n - (col - product->first_col) * EWX_TILE_N);
}

/* The tiles of one column, over some of K. */
static ew_status multiply_column(ewx_cpu_engine *engine, const ewx_gemm_product *product,
                                 const tile_set *set, int64_t col, k_range k)
{
    const ewx_gemm_stage *gemm = &engine->gemm;
    ewx_gemm_rows groups[EWX_GROUPS_TOGETHER] = {{0}};
    int64_t stride = 0;
    int count = 0;
    ewx_tile tile = {set->tiles.first.row, col};
    for (; tile.row < set->tiles.end.row; tile.row++, count++) {
        const unsigned char *rows;
        const ew_status status = packed_rows(engine, set->part, tile.row, &rows);
        if (status != EW_OK)
            return status;
        const ewx_matrix_tile place = tile_place(engine, product, set, tile, k.piece);
        stride = place.stride;
        groups[count] =
            (ewx_gemm_rows){rows + (size_t)k.piece * gemm->activation_piece_bytes,
                            ewx_tile_height(&engine->call.grid, set->part, tile), place.at,
                            scratch_of(engine, set, tile), product->rests};
    }
    ewx_gemm_rows_multiply(&gemm->form.gemm, k.first, k.end, groups, count,
                           product->packed +
                               (size_t)(col - product->first_col) * product->panel_bytes +
                               (size_t)k.piece * product->piece_bytes,
                           product_cols(product, col), stride);
    if (is_last(engine, k) && !engine->spec->op->gemm_waits)
        for (tile.row = set->tiles.first.row; tile.row < set->tiles.end.row; tile.row++)
            release_tile(engine, set->part, tile);
    return EW_OK;
}

int64_t ewx_tiles_together(const ewx_spec *spec)
{
    const int64_t rows = spec->config.block_m / EWX_TILE_M;
    const int64_t cols = spec->config.block_n / EWX_TILE_N;
    const bool few = rows <= EWX_GROUPS_TOGETHER && cols <= EWX_GROUPS_TOGETHER / rows;
    return rows > 1 && few ? rows * cols : 1;
}

/* All tiles of a set, over some of K; product NULL: of the one that each belongs to. */
static ew_status multiply_range(ewx_cpu_engine *engine, int worker,
                                const ewx_gemm_product *product, const tile_set *set,
                                k_range k)
{
    for (int64_t col = set->tiles.first.col; col < set->tiles.end.col; col++) {
        EW_TRY(multiply_column(engine, product ? product : product_of(engine, col), set,
                               col, k));
        ewx_engine_glance(engine, worker);
    }
    return EW_OK;
}

/* All of K: a single tile in one go, several together chunk by chunk. */
static ew_status multiply_tiles(ewx_cpu_engine *engine, int worker,
                                const ewx_gemm_product *product, const tile_set *set)
{
    const ewx_gemm *gemm = &engine->gemm.form.gemm;
    const int64_t step =
        ewx_tiles_together(engine->spec) > 1 ? gemm->chunk : gemm->padded_depth;
    for (int piece = 0; piece < engine->spec->layout.num_pieces; piece++)
        for (int64_t first = 0; first < gemm->padded_depth; first += step) {
            const int64_t end = ewx_min64(first + step, gemm->padded_depth);
            EW_TRY(
                multiply_range(engine, worker, product, set, (k_range){piece, first, end}));
        }
    return EW_OK;
}

/* Activates tiles whose products have been computed and are still in the cache. */
static void activate_tiles(ewx_cpu_engine *engine, const tile_set *set)
{
    const ewx_gemm_stage *gemm = &engine->gemm;
    const ewx_gemm_product *gate = &gemm->products[0], *up = &gemm->products[1];
    const ewx_gemm_product result = {.n = gate->n, .out = gemm->activated};
    ewx_tile tile = set->tiles.first;
    for (; tile.col < set->tiles.end.col; tile.col++)
        for (tile.row = set->tiles.first.row; tile.row < set->tiles.end.row; tile.row++)
            ewx_activate_tile(engine->spec->problem.dtype, gemm->activation,
                              ewx_tile_height(&engine->call.grid, set->part, tile),
                              product_cols(gate, tile.col),
                              tile_place(engine, gate, set, tile, 0),
                              gemm->num_products > 1 ? tile_place(engine, up, set, tile, 0)
                                                     : (ewx_matrix_tile){0},
                              tile_place(engine, &result, set, tile, 0));
}

static ew_status compute_tiles(ewx_cpu_engine *engine, int worker, const tile_set *set)
{
    const ewx_gemm_stage *gemm = &engine->gemm;
    if (!gemm->activated)
        return multiply_tiles(engine, worker, NULL, set);
    for (int i = 0; i < gemm->num_products; i++)
        EW_TRY(multiply_tiles(engine, worker, &gemm->products[i], set));
    activate_tiles(engine, set);
    return EW_OK;
}

static ew_status compute_block(ewx_cpu_engine *engine, int worker, ewx_block block)
{
    const ewx_gemm_stage *gemm = &engine->gemm;
    const ewx_tile_range tiles = ewx_block_tiles(&engine->call.grid, block);
    unsigned char *scratch = gemm->scratch + (size_t)worker * gemm->scratch_bytes;
    const tile_set all = {block.part, tiles, scratch};
    if (ewx_tiles_together(engine->spec) > 1)
        return compute_tiles(engine, worker, &all);
    for (int64_t row = tiles.first.row; row < tiles.end.row; row++)
        for (int64_t col = tiles.first.col; col < tiles.end.col; col++) {
            const tile_set one = {block.part, {{row, col}, {row + 1, col + 1}}, scratch};
            EW_TRY(compute_tiles(engine, worker, &one));
        }
    return EW_OK;
}

static ew_status multiply_with_blas(ewx_cpu_engine *engine, const unsigned char *A,
                                    int64_t rows, void *out)
{
    const ew_problem *problem = &engine->spec->problem;
    return ewx_blas_gemm(problem->weight_layout, rows, problem->n, problem->k,
                         (const float *)(const void *)A,
                         (const float *)(const void *)engine->gemm.products->packed, out,
                         problem->n);
}

/* Where they lie, rank by rank: a gathered copy would cost more than a call of BLAS. */
static ew_status multiply_gathered_with_blas(ewx_cpu_engine *engine)
{
    const ewx_grid *grid = &engine->call.grid;
    ew_status status = EW_OK;
    for (int src = 0; src < grid->num_parts && status == EW_OK; src++) {
        const unsigned char *rows = NULL;
        for (int64_t panel = ewx_part_tile_rows(grid, src); panel-- > 0;)
            rows = ewx_gather_stage_rows(engine, src, panel);
        const tile_set all = {.part = src};
        const ewx_matrix_tile place =
            tile_place(engine, engine->gemm.products, &all, (ewx_tile){0, 0}, 0);
        if (rows)
            status = multiply_with_blas(engine, rows, ewx_part_rows(grid, src), place.at);
    }
    return status;
}

static ew_status compute_output_with_blas(ewx_cpu_engine *engine)
{
    if (engine->spec->op->gemm_waits)
        return multiply_gathered_with_blas(engine);
    const ew_status status = multiply_with_blas(engine, engine->gemm.A,
                                                engine->call.grid.rows, own_slice(engine));
    if (status == EW_OK)
        publish_output(engine);
    return status;
}

ew_status ewx_gemm_stage_compute(ewx_cpu_engine *engine, int worker, ewx_block block,
                                 int64_t position)
{
    ewx_gemm_stage *gemm = &engine->gemm;
    const ewx_grid *grid = &engine->call.grid;
    const bool whole = engine->spec->config.producer == EW_PRODUCER_BLAS;
    const int64_t begin_ns = ewx_now_ns();
    if (position == 0)
        atomic_store_explicit(&gemm->begin_ns, begin_ns, memory_order_relaxed);
    (void)EWX_PROBE(EWX_PROBE_BLOCK, engine->world->rank, position);
    const ew_status status =
        whole ? compute_output_with_blas(engine) : compute_block(engine, worker, block);
    if (status != EW_OK)
        return status;
    const int64_t end_ns = ewx_now_ns();
    ewx_patience_progress(engine, EWX_STEP_BLOCK, position);
    if (atomic_fetch_add_explicit(&gemm->positions_done, 1, memory_order_relaxed) ==
        gemm->num_positions - 1)
        atomic_store_explicit(&gemm->end_ns, end_ns, memory_order_relaxed);
    ewx_engine_trace(engine,
                     &(ew_trace_event){.kind = EW_TRACE_BLOCK,
                                       .worker = worker,
                                       .dst = block.part,
                                       .row = (int32_t)(block.row * grid->block_rows),
                                       .col = (int32_t)(block.col * grid->block_cols),
                                       .position = position,
                                       .begin_ns = begin_ns,
                                       .end_ns = end_ns,
                                       .published_ns = end_ns});
    return EW_OK;
}

bool ewx_gemm_stage_is_done(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->gemm.next_position, memory_order_relaxed) >=
           engine->gemm.num_positions;
}

bool ewx_gemm_stage_has_ended(const ewx_cpu_engine *engine)
{
    return atomic_load_explicit(&engine->gemm.positions_done, memory_order_relaxed) >=
           engine->gemm.num_positions;
}

/* A block takes long: before it, look at the abort word.  The counter is not increased
 * beyond the last block, or idle workers would keep taking its cache line from each
 * other. */
static ew_status some(ewx_cpu_engine *engine, int worker, int *done)
{
    if (ewx_gemm_stage_is_done(engine))
        return EW_OK;
    if (ewx_engine_is_aborted(engine))
        return EW_ERR_ABORTED;
    const int64_t position =
        atomic_fetch_add_explicit(&engine->gemm.next_position, 1, memory_order_relaxed);
    if (position >= engine->gemm.num_positions)
        return EW_OK;
    ++*done;
    return ewx_gemm_stage_compute(engine, worker,
                                  engine->spec->config.producer == EW_PRODUCER_BLAS
                                      ? (ewx_block){0}
                                      : ewx_order_block(&engine->call.grid, position),
                                  position);
}

const ewx_work ewx_gemm_work = {.role = EWX_ROLE_COMPUTE,
                                .prepare = prepare,
                                .some = some,
                                .is_done = ewx_gemm_stage_is_done};
