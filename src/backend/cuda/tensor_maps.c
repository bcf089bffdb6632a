/* The maps by which the GEMM for Hopper finds its matrices: those of a plan, and those of a
 * call, of which only what changed since the last call is made again. */
#include "backend/cuda/cuda_engine.h"

enum { BOX = 64, STEP = 64 }; /* elements: of an output box's side, of a k-step */

/* What a map is of: `parts` matrices, their beginnings part_stride elements apart; 0 parts:
 * only one, in two dimensions. */
typedef struct extents {
    int64_t cols, rows, row_stride, parts, part_stride;
} extents;

static ew_status encode(const ewx_cuda_engine *engine, const void *address, extents e,
                        int box_cols, int box_rows, CUtensorMap *map)
{
    const cuuint64_t extent[3] = {(cuuint64_t)e.cols, (cuuint64_t)e.rows,
                                  (cuuint64_t)e.parts};
    const cuuint64_t stride[2] = {(cuuint64_t)e.row_stride * 2,
                                  (cuuint64_t)e.part_stride * 2};
    const cuuint32_t box[3] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows, 1};
    const cuuint32_t step[3] = {1, 1, 1};
    EW_DRIVER_TRY(
        engine->device->driver->cuTensorMapEncodeTiled(
            map,
            engine->spec->problem.dtype == EW_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            e.parts > 0 ? 3 : 2, (void *)(uintptr_t)address, extent, stride, box, step,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "describing a matrix to the GPU");
    return EW_OK;
}

/* One behind the other. */
static ew_status encode_parts(const ewx_cuda_engine *engine, const void *address,
                              int64_t cols, int64_t rows, int64_t parts, int box_cols,
                              int box_rows, CUtensorMap *map)
{
    return encode(engine, address, (extents){cols, rows, cols, parts, cols * rows},
                  box_cols, box_rows, map);
}

static ew_status encode_map(const ewx_cuda_engine *engine, const void *address,
                            int64_t cols, int64_t rows, int box_cols, int box_rows,
                            CUtensorMap *map)
{
    return encode_parts(engine, address, cols, rows, 0, box_cols, box_rows, map);
}

/* A or B.  Pieces of K are parts side by side, so that loads find zeros behind each. */
static ew_status encode_operand(const ewx_cuda_engine *engine, const void *address,
                                int64_t rows, int box_rows, CUtensorMap *map)
{
    const int64_t k = engine->spec->problem.k, pieces = engine->spec->layout.num_pieces;
    const int64_t piece_k = k / pieces;
    extents e = {piece_k, rows, k, pieces > 1 ? pieces : 0, piece_k};
#if EW_MUTANT == 82 /* planted bug: columns of the next piece */
    if (pieces > 1)
        e.cols = ewx_min64(ewx_div_up(piece_k, STEP) * STEP, k);
#endif
    return encode(engine, address, e, STEP, box_rows, map);
}

static ew_status store_maps(ewx_cuda_engine *engine, const CUtensorMap *maps, int count)
{
    const size_t bytes = (size_t)count * sizeof maps[0];
    EW_CUDA_TRY(cudaMalloc((void **)&engine->out_maps, bytes), "allocating descriptors");
    EW_CUDA_TRY(cudaMemcpy(engine->out_maps, maps, bytes, cudaMemcpyHostToDevice),
                "copying descriptors");
    engine->maps.out = engine->out_maps;
    return EW_OK;
}

/* The rows that arrive here, in each slice. */
static ew_status create_gathered_maps(ewx_cuda_engine *engine)
{
    const ew_problem *problem = &engine->spec->problem;
    const unsigned char *mine = engine->heap.segments[engine->world->rank];
    CUtensorMap maps[2];
    for (int slice = 0; slice < 2; slice++)
        EW_TRY(encode_map(
            engine,
            mine + (problem->max_m > 0 ? engine->spec->layout.slice_offset[slice] : 0),
            problem->k, problem->max_m > 0 ? problem->max_m : 1, STEP, EWX_TILE_M,
            &maps[slice]));
    return store_maps(engine, maps, 2);
}

/* They never change.  For m = 0 they are unused, but must still be valid. */
ew_status ewx_cuda_create_out_maps(ewx_cuda_engine *engine)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int num_ranks = engine->spec->num_ranks;
    const int64_t tiles =
        layout->num_slots > 0 ? layout->num_slots * layout->num_pieces : 1;
    const int64_t slices = layout->slice_offset[0] == layout->slice_offset[1] ? 1 : 2;
    const size_t first = layout->num_slots > 0 ? layout->slice_offset[0] : 0;
    CUtensorMap maps[EWX_CUDA_MAX_RANKS + 1];
    int count = 0;
    if (engine->spec->op->gemm_waits)
        return create_gathered_maps(engine);
    for (; count < num_ranks; count++) {
        /* Nothing is stored in another host's memory: then any will do. */
        const int home =
            ewx_world_is_local(engine->world, count) ? count : engine->world->rank;
        EW_TRY(encode_map(engine, engine->heap.segments[home] + first, EWX_TILE_N,
                          layout->num_slots > 0 ? slices * tiles * EWX_TILE_M : 1, BOX, BOX,
                          &maps[count]));
    }
    if (engine->outbox)
        EW_TRY(encode_map(engine, engine->outbox, EWX_TILE_N, tiles * EWX_TILE_M, BOX, BOX,
                          &maps[count++]));
    return store_maps(engine, maps, count);
}

/* A C of n columns by parts: the large ones, and behind them the others.  Of parts that
 * have no rows any valid map will do. */
static ew_status encode_c(const ewx_cuda_engine *engine, const ewx_grid *grid, int64_t n,
                          unsigned char *C, CUtensorMap *map_large, CUtensorMap *map_small)
{
    const int64_t large = grid->num_large, rows = grid->small_rows;
    const int64_t small = grid->num_parts - large;
    if (rows > 0)
        EW_TRY(encode_parts(engine, C + large * (rows + 1) * n * 2, n, rows, small, BOX,
                            BOX, map_small));
    if (large > 0)
        EW_TRY(encode_parts(engine, C, n, rows + 1, large, BOX, BOX, map_large));
    return EW_OK;
}

static ew_status update_a(ewx_cuda_engine *engine, const ewx_cuda_entry *gemm,
                          const ewx_grid *grid, const void *A, const void *somewhere)
{
    const ewx_rows own =
        engine->spec->op->rows_a(grid->rows, engine->spec->num_ranks, engine->world->rank);
    /* Without rows unused, but it must still be an address. */
    const void *a = own.count > 0 ? A : somewhere;
    const int64_t rows = own.count > 0 ? own.count : 1;
    if (engine->mapped_a != a || engine->mapped_rows != rows ||
        engine->mapped_box_a != gemm->box_rows_a)
        EW_TRY(encode_operand(engine, a, rows, gemm->box_rows_a, &engine->maps.a));
    engine->mapped_a = a;
    engine->mapped_rows = rows;
    engine->mapped_box_a = gemm->box_rows_a;
    return EW_OK;
}

static ew_status update_operands(ewx_cuda_engine *engine, const ewx_cuda_entry *gemm,
                                 const ewx_grid *grid, const ewx_call *request)
{
    const ew_problem *problem = &engine->spec->problem;
    const void *B = request->packed;
    if (engine->spec->op->gemm_waits &&
        (engine->mapped_c != request->C || engine->mapped_m != grid->rows))
        EW_TRY(encode_c(engine, grid, problem->n, request->C, &engine->maps.c_large,
                        &engine->maps.c_small));
    engine->mapped_c = request->C;
    engine->mapped_m = grid->rows;
    if (engine->mapped_b != B || engine->mapped_box_b != gemm->box_cols_b)
        EW_TRY(encode_operand(engine, B, problem->n, gemm->box_cols_b, &engine->maps.b));
    engine->mapped_b = B;
    engine->mapped_box_b = gemm->box_cols_b;
    return update_a(engine, gemm, grid, request->A, B);
}

/* A weight and its product; either may be NULL. */
static ew_status update_product(ewx_cuda_engine *engine, const ewx_grid *grid, int at,
                                int64_t n)
{
    ewx_cuda_product_maps *maps = &engine->products;
    ewx_mapped_product *last = &engine->mapped_products[at];
    const ewx_mapped_product now = {.b = at < EW_MAX_PRODUCTS ? maps->all.b[at] : NULL,
                                    .c = maps->all.c[at],
                                    .n = n,
                                    .m = grid->rows};
    const bool is_same_b = now.b == last->b && now.n == last->n;
    bool is_same_c = now.c == last->c && now.n == last->n && now.m == last->m;
#if EW_MUTANT == 67 /* planted bug: the place of a product is that of an earlier call */
    is_same_c = last->c && now.n == last->n && now.m == last->m;
#endif
    *last = now;
    if (now.b && !is_same_b)
        EW_TRY(encode_map(engine, now.b, engine->spec->problem.k, n, STEP,
                          engine->weights_gemm.box_cols_b, &maps->b[at]));
    if (now.c && !is_same_c)
        EW_TRY(encode_c(engine, grid, n, maps->all.c[at], &maps->c_large[at],
                        &maps->c_small[at]));
    return EW_OK;
}

static ew_status update_products(ewx_cuda_engine *engine, const ewx_cuda_entry *gemm,
                                 const ewx_grid *grid, const ewx_call *request)
{
    for (int i = 0; i < request->num_products; i++)
        EW_TRY(update_product(engine, grid, i, request->products[i].n));
    if (request->activates)
        EW_TRY(update_product(engine, grid, EWX_CUDA_ACTIVATED, request->products->n));
    return update_a(engine, gemm, grid, request->A, request->products->packed);
}

ew_status ewx_cuda_update_maps(ewx_cuda_engine *engine, const ewx_cuda_entry *gemm,
                               const ewx_grid *grid, const ewx_call *request)
{
    return request->num_products == 0 ? update_operands(engine, gemm, grid, request)
                                      : update_products(engine, gemm, grid, request);
}
