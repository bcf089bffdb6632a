/* How a call reaches the GPU: the parameters of its kernels, their launches, and the two
 * streams.  What an operation launches is its own business (ops/). */
#include "backend/cuda/ops/cuda_op.h"
#include "base/clock.h"
#include "plan/link.h"
#include "plan/policy.h"

_Static_assert(EWX_CUDA_MAX_SOURCES >= EWX_CUDA_MAX_RANKS, "every rank is one");

enum { BOX = 64, STEP = 64 }; /* elements: of an output box's side, of a k-step */

ew_status ewx_cuda_launch(const ewx_device *device, const ewx_cuda_entry *entry, dim3 grid,
                          dim3 block, ewx_launch_how how, cudaStream_t stream,
                          void **arguments)
{
    CUlaunchAttribute attributes[3];
    unsigned count = 0;
    if (how.cluster > 1)
        attributes[count++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                .value.clusterDim = {(unsigned)how.cluster, 1, 1}};
    if (how.started)
        attributes[count++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT,
                                .value.launchCompletionEvent = {.event = how.started}};
    if (how.early && device->arch / 10 == 9) /* others have kernels that do not wait */
        attributes[count++] =
            (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                .value.programmaticStreamSerializationAllowed = 1};
    const CUlaunchConfig config = {.gridDimX = grid.x,
                                   .gridDimY = grid.y,
                                   .gridDimZ = grid.z,
                                   .blockDimX = block.x,
                                   .blockDimY = block.y,
                                   .blockDimZ = block.z,
                                   .sharedMemBytes = (unsigned)entry->dynamic_smem,
                                   .hStream = stream,
                                   .attrs = attributes,
                                   .numAttrs = count};
    EW_DRIVER_TRY(device->driver->cuLaunchKernelEx(&config, entry->handle, arguments, NULL),
                  "launching a kernel");
    return EW_OK;
}

ew_status ewx_cuda_launch_line(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                               int64_t ctas, ewx_launch_how how, cudaStream_t stream,
                               void **arguments)
{
    const dim3 grid = {(unsigned)ctas, 1, 1}, block = {(unsigned)entry->threads, 1, 1};
    return ewx_cuda_launch(engine->device, entry, grid, block, how, stream, arguments);
}

ew_status ewx_cuda_launch_ctas(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                               int64_t ctas, cudaStream_t stream, void **arguments)
{
    return ewx_cuda_launch_line(engine, entry, ctas, (ewx_launch_how){0}, stream,
                                arguments);
}

/* ---- Parameters ---- */

/* Slots of a partition lie together, by owner where contributions stay with their source,
 * by source where they lie with their owner. */
static const unsigned char *source_of(const ewx_cuda_engine *engine,
                                      const ewx_cuda_call *call, int rank)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int64_t partition_bytes = layout->slots_per_part * (int64_t)layout->slot_bytes;
    if (call->pushed)
        return engine->heap.segments[call->rank] + (rank - call->rank) * partition_bytes;
    return ewx_world_is_local(engine->world, rank) ? engine->heap.segments[rank]
                                                   : ewx_carrier_source(engine, rank);
}

/* K goes on from one rank's last piece to the next rank's first. */
static void describe_heaps(const ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    const size_t piece_bytes = engine->spec->layout.piece_bytes;
    if (call->adds)
        call->sources[0] = engine->heap.segments[call->rank];
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        call->heaps[rank] = engine->heap.segments[rank];
        for (int piece = 0; piece < call->num_pieces && !call->adds; piece++) {
#if EW_MUTANT == 80 /* planted bug: all ranks' first pieces first */
            const int at = piece * call->num_ranks + rank;
#else
            const int at = rank * call->num_pieces + piece;
#endif
            call->sources[at] = source_of(engine, call, rank) + (size_t)piece * piece_bytes;
        }
    }
}

static ewx_cuda_link describe_link(const ew_world *world)
{
    const double byte_ns = world->link_gbps > 0 ? 8.0 / world->link_gbps : 0;
    return (ewx_cuda_link){
        .ns_per_byte = byte_ns * ewx_link_sent_per_byte(world->link_header_bytes),
        .asked_ns_per_byte = byte_ns * ewx_link_asked_per_byte(world->link_header_bytes),
        .latency_ns = (uint64_t)world->link_latency_ns};
}

ewx_cuda_call ewx_cuda_describe_call(const ewx_cuda_engine *engine, int64_t m)
{
    const ewx_spec *spec = engine->spec;
    const ewx_layout *layout = &spec->layout;
    const ew_world *world = engine->world;
    const ewx_share share = ewx_spec_share(spec, m, world->rank);
    const bool adds = ewx_transport_adds(spec->config.transport);
    ewx_cuda_call call = {
        .grid = ewx_spec_grid(spec, m),
        .rank = world->rank,
        .num_ranks = world->num_ranks,
        .release = ewx_release_of(&spec->config),
        .tile_rows = (int32_t)layout->max_tile_rows,
        .num_slots = (int32_t)layout->num_slots,
        .num_pieces = layout->num_pieces,
        .num_sources = adds ? 1 : world->num_ranks * layout->num_pieces,
        .row_major = layout->row_major,
        .pushed = spec->config.transport != EW_TRANSPORT_PULL,
        .adds = adds,
        .ownership = share.ownership,
        .part = share.part,
        .flags_offset = (int64_t)layout->flags_offset,
        .num_chunks = (int32_t)layout->num_chunks,
        .results_offset = (int64_t)layout->results_offset,
        .slice_offset = {(int64_t)layout->slice_offset[0],
                         (int64_t)layout->slice_offset[1]},
        .num_slices = layout->slice_offset[0] == layout->slice_offset[1] ? 1 : 2,
        .counters = engine->counters,
        .calls_made = engine->counts ? engine->device->calls_made : NULL,
        .report = engine->report,
        .abort = engine->device->abort,
        .timeout_ns = (uint64_t)engine->timeout_ns,
        .gate = engine->start.together,
        .link = describe_link(world),
        .trace = engine->trace,
    };
#if EW_MUTANT == 16 /* planted bug: the deadline comes too late */
    call.timeout_ns *= 4;
#endif
    describe_heaps(engine, &call);
    return call;
}

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

/* Only what changed since the last call, here and below. */
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

static ew_status update_maps(ewx_cuda_engine *engine, const ewx_cuda_entry *gemm,
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

/* ---- Several weights ---- */

static ewx_columns columns_of(const ewx_call *request)
{
    ewx_columns columns = {.paired = request->activates && request->num_products == 2};
    for (int i = 0; i < request->num_products; i++)
        ewx_columns_add(&columns, request->products[i].n);
    return columns;
}

static ewx_grid products_grid(const ewx_spec *spec, const ewx_call *request)
{
    const ewx_columns columns = columns_of(request);
    return ewx_grid_build(request->m, ewx_columns_all(&columns),
                          spec->op->num_parts(spec->num_ranks), &spec->config);
}

static ewx_cuda_products describe_products(const ewx_call *request)
{
    ewx_cuda_products products = {.columns = columns_of(request),
                                  .activation = (int32_t)request->activation};
    for (int i = 0; i < request->num_products; i++) {
        products.b[i] = request->products[i].packed;
        products.c[i] = request->products[i].C;
        products.keeps |= products.c[i] != NULL;
    }
    products.c[EWX_CUDA_ACTIVATED] = request->activates ? request->C : NULL;
    return products;
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

/* ---- Ranks as threads ---- */

/* On one GPU they share a lock of CUDA's.  What frees memory or loads a kernel may hold it
 * until all that runs there has ended, and blocks every enqueue meanwhile: so nothing on
 * the GPU may wait for work that a rank has yet to enqueue. */
static ew_status meet_threads(const ewx_cuda_engine *engine)
{
#if EW_MUTANT == 17 /* planted bug: a rank may be done before all have enqueued */
    return EW_OK;
#endif
    return engine->world->in_threads && engine->device->sharers > 1
               ? ewx_world_barrier(engine->world)
               : EW_OK;
}

/* ---- The GEMM ---- */

int64_t ewx_cuda_blas_rows(const ewx_spec *spec)
{
    const int64_t max_m = spec->problem.max_m;
    return ewx_copies_rows(spec->op, &spec->config) ? ewx_div_up(max_m, spec->num_ranks)
                                                    : max_m;
}

/* For another m cuBLAS may load another kernel: by then every rank's opening kernel must be
 * enqueued, for these may wait for each other, and no exchange may wait for the GEMM. */
static bool has_new_rows(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return engine->blas_rows != call->grid.rows;
}

ew_status ewx_cuda_open_blas(ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    const bool new_rows = has_new_rows(engine, call);
    void *arguments[] = {call};
    engine->blas_rows = call->grid.rows;
    EW_TRY(ewx_cuda_launch_ctas(engine, &engine->open_call, 1, engine->device->producing,
                                arguments));
    return new_rows ? meet_threads(engine) : EW_OK;
}

ew_status ewx_cuda_multiply(ewx_cuda_engine *engine, int64_t rows, const void *A,
                            const void *packed, void *out)
{
    const ew_problem *problem = &engine->spec->problem;
    return ewx_cuda_blas_gemm(&engine->blas, problem->dtype, rows, problem->n, problem->k,
                              A, packed, out, engine->device->producing);
}

ew_status ewx_cuda_launch_blas(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               const ewx_call *request, void *out)
{
    const bool new_rows = has_new_rows(engine, call);
    EW_TRY(ewx_cuda_open_blas(engine, call));
    EW_TRY(ewx_cuda_multiply(engine, call->grid.rows, request->A, request->packed, out));
    return new_rows ? meet_threads(engine) : EW_OK;
}

/* Whether the GEMM can take the last blocks tile by tile. */
static bool splits_blocks(const ewx_cuda_engine *engine, const ewx_cuda_entry *decode,
                          const ewx_call *request)
{
    return ewx_splits_blocks(engine->spec) && request->num_products == 0 && !decode;
}

ew_status ewx_cuda_launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               ewx_cuda_operands part, const ewx_call *request)
{
    const ew_config *config = &engine->spec->config;
    const ewx_cuda_entry *decode = ewx_cuda_decode_kernel(engine, call);
    const ewx_cuda_entry *gemm = decode                       ? decode
                                 : request->num_products == 0 ? &engine->gemm
                                 : request->activates         ? &engine->activating_gemm
                                                              : &engine->weights_gemm;
    const int cluster = decode ? 1 : config->cluster;
    ewx_cuda_operands operands = part;
    operands.a = request->A;
    operands.b = request->packed;
    operands.k = engine->spec->problem.k;
    operands.piece_k = operands.k / engine->spec->layout.num_pieces;
    operands.persistent = config->ctas == EW_CTAS_PERSISTENT;
    const int64_t blocks = part.end_position - part.first_position;
    const int64_t whole = splits_blocks(engine, decode, request)
                              ? ewx_split_from(blocks, engine->gemm_ctas)
                              : blocks;
    operands.split_position = part.first_position + whole;
    int64_t ctas = ewx_div_up(whole + 2 * (blocks - whole), cluster) * cluster;
    if (operands.persistent)
        ctas = ewx_min64(ctas, engine->gemm_ctas);
    if (ctas == 0) /* the call must still be counted */
        ctas = cluster;
    const cudaStream_t stream = engine->device->producing;
    ewx_launch_how how = {.started =
                              config->pool == EW_POOL_STATIC ? engine->started : NULL};
    engine->products.all = describe_products(request);
    if (config->kernel == EW_KERNEL_SM80) {
        void *arguments[] = {&operands, call, &engine->products.all};
        return ewx_cuda_launch_line(engine, gemm, ctas, how, stream, arguments);
    }
    how.cluster = cluster;
    EW_TRY(request->num_products == 0
               ? update_maps(engine, gemm, &call->grid, request)
               : update_products(engine, gemm, &call->grid, request));
    void *arguments[] = {&engine->maps, &operands, call, &engine->products};
    return ewx_cuda_launch_line(engine, gemm, ctas, how, stream, arguments);
}

/* ---- Streams ---- */

ew_status ewx_cuda_follow(cudaStream_t stream, cudaEvent_t event)
{
    EW_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0), "waiting for an event");
    return EW_OK;
}

ew_status ewx_cuda_record(cudaEvent_t event, cudaStream_t stream)
{
    EW_CUDA_TRY(cudaEventRecord(event, stream), "recording an event");
    return EW_OK;
}

static bool exchanges_apart(const ewx_cuda_engine *engine)
{
    return engine->spec->config.pool != EW_POOL_AFTER;
}

cudaStream_t ewx_cuda_exchange_stream(const ewx_cuda_engine *engine)
{
    return exchanges_apart(engine) ? engine->device->reducing : engine->device->producing;
}

/* What is enqueued on `stream` from here on begins when all that lies on `other` has ended.
 * The event is free, being recorded again at the end of the call. */
static ew_status follow_stream(cudaStream_t stream, cudaStream_t other, cudaEvent_t event)
{
    EW_TRY(ewx_cuda_record(event, other));
    return ewx_cuda_follow(stream, event);
}

ew_status ewx_cuda_hold_producers(const ewx_cuda_engine *engine)
{
    return follow_stream(engine->device->producing, ewx_cuda_exchange_stream(engine),
                         engine->reduced);
}

/* Such an exchange may take every SM.  If another plan's held room that it needs, or needed
 * some that it holds, and each waited for what another rank does behind the other, neither
 * would end. */
static bool exchanges_alone(const ewx_cuda_engine *engine)
{
#if EW_MUTANT == 89 /* planted bug: exchanges of two plans may meet */
    return false;
#endif
    return !exchanges_apart(engine) && *engine->device->num_apart > 0;
}

static bool uses_both_streams(const ewx_cuda_engine *engine)
{
    return exchanges_apart(engine) || exchanges_alone(engine);
}

ew_status ewx_cuda_fork(const ewx_cuda_engine *engine, cudaStream_t caller)
{
    return ewx_cuda_record(engine->forked, caller);
}

ew_status ewx_cuda_join(const ewx_cuda_engine *engine, cudaStream_t caller)
{
    EW_TRY(ewx_cuda_follow(caller, engine->produced));
    return uses_both_streams(engine) ? ewx_cuda_follow(caller, engine->reduced) : EW_OK;
}

/* ---- Starting together ---- */

static void release_call(const ewx_cuda_engine *engine)
{
    __atomic_store_n(&engine->report->enqueued, engine->num_held, __ATOMIC_RELEASE);
}

/* Under the closed gate, not before the call: a GPU whose kernels wait starts at another
 * clock than one that is idle. */
static void hold_longer(const ewx_cuda_engine *engine)
{
    const int64_t end_ns = ewx_now_ns() + engine->start.hold_ns;
    while (ewx_now_ns() < end_ns)
        ;
}

/* Whether the host may get stuck before all of the call is enqueued: at a kernel that
 * cuBLAS loads for another m, or at a queue that is full.  Then nothing may wait for it. */
static bool host_may_wait(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    enum { LAUNCHES_AT_ONCE = 256 };
    return (engine->spec->config.producer == EW_PRODUCER_BLAS &&
            has_new_rows(engine, call)) ||
           (ewx_reduces_by_unit(&engine->spec->config) &&
            ewx_release_units(call->release, ewx_part_tiles(&call->grid, call->part)) >
                LAUNCHES_AT_ONCE);
}

static ew_status launch_hold(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             ewx_cuda_stage stage, cudaStream_t stream)
{
    ewx_cuda_hold hold = {.number = engine->num_held,
                          .stage = stage,
                          .opens = stage == EWX_STAGE_GEMM,
                          .delay_ns = (uint64_t)engine->start.delay_ns};
    void *arguments[] = {&hold, call};
    return ewx_cuda_launch_ctas(engine, &engine->hold_call, 1, stream, arguments);
}

/* A hold that waits for nobody. */
ew_status ewx_cuda_warm_hold(ewx_cuda_engine *engine)
{
    ewx_cuda_call call = ewx_cuda_describe_call(engine, 0);
    call.num_ranks = 0;
    EW_TRY(launch_hold(engine, &call, EWX_STAGE_GEMM, engine->device->producing));
    return launch_hold(engine, &call, EWX_STAGE_EXCHANGE, engine->device->reducing);
}

/* In front of both streams, so that every method's kernels are launched at the gate's
 * opening, by the GPU, and none is resident before.  Not by an event between the streams:
 * ranks that share a process share queues, and one that waits in front of a queue holds up
 * what its gate waits for. */
static ew_status hold_call(ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    engine->num_held++;
    if (host_may_wait(engine, call))
        release_call(engine);
    EW_TRY(launch_hold(engine, call, EWX_STAGE_GEMM, engine->device->producing));
    return exchanges_apart(engine)
               ? launch_hold(engine, call, EWX_STAGE_EXCHANGE, engine->device->reducing)
               : EW_OK;
}

/* ---- The call ---- */

/* An exchange that begins when another has ended, of its own call or another plan's, may
 * find its place taken by GEMMs of later calls, which wait for it.  With pool=static the
 * plan's own GEMM leaves it SMs, another plan's does not. */
static bool holds_producers(const ewx_cuda_engine *engine)
{
#if EW_MUTANT == 88 /* planted bug: a later reducer need not find room */
    return false;
#endif
    const ew_config *config = &engine->spec->config;
    const bool fits_own = engine->exchange_fits_beside;
    const bool fits_others = fits_own && config->pool != EW_POOL_STATIC;
    return exchanges_apart(engine) && ((!fits_own && ewx_reduces_by_unit(config)) ||
                                       (!fits_others && *engine->device->num_apart > 1));
}

static ew_status launch_gemm_first(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                   const ewx_call *request)
{
    const cudaStream_t producing = engine->device->producing;
    const cudaStream_t reducing = engine->device->reducing;
    const bool alone = exchanges_alone(engine);
    EW_TRY(engine->op->launch_gemm(engine, call, request));
    EW_TRY(alone ? follow_stream(producing, reducing, engine->reduced) : EW_OK);
    EW_TRY(engine->op->launch_exchange(engine, call, request));
    return alone ? follow_stream(reducing, producing, engine->produced) : EW_OK;
}

/* The kernel that is waited for first, always: whatever serialises the two, it must not be
 * one that waits for a kernel behind it. */
static ew_status launch_stages(ewx_cuda_engine *engine, const ewx_call *request)
{
    const ewx_cuda_op *op = engine->op;
    ewx_cuda_call call = ewx_cuda_describe_call(engine, request->m);
    if (op->cut && request->epilogue)
        op->cut(engine, request->epilogue, &call);
    if (request->num_products > 0) {
        call.grid = products_grid(engine->spec, request);
        call.trace = (ewx_cuda_trace){0}; /* which has the room of the plan's own tiles */
    }
    engine->last_rows = call.trace.produced ? request->m : 0;
    EW_TRY(engine->start.together ? hold_call(engine, &call) : EW_OK);
    if (engine->spec->op->gemm_waits) {
        EW_TRY(op->launch_exchange(engine, &call, request));
        EW_TRY(op->launch_gemm(engine, &call, request));
    } else {
        EW_TRY(launch_gemm_first(engine, &call, request));
    }
    EW_TRY(holds_producers(engine) ? ewx_cuda_hold_producers(engine) : EW_OK);
    /* Behind the first calls all ranks agree (enqueue_first). */
    return engine->counts && op->some_may_be_early(engine, &call) ? meet_threads(engine)
                                                                  : EW_OK;
}

ew_status ewx_cuda_enqueue(ewx_cuda_engine *engine, const ewx_call *request)
{
    const cudaStream_t producing = engine->device->producing;
    const cudaStream_t reducing = engine->device->reducing;
    const bool both = uses_both_streams(engine), forked = request->stream != NULL;
    if (forked) {
        EW_TRY(ewx_cuda_follow(producing, engine->forked));
        EW_TRY(both ? ewx_cuda_follow(reducing, engine->forked) : EW_OK);
    }
    const ew_status launched = launch_stages(engine, request);
    hold_longer(engine);
    release_call(engine); /* also of a call that failed, or its gate would wait */
    EW_TRY(launched);
    if (forked) {
        EW_TRY(ewx_cuda_record(engine->produced, producing));
        EW_TRY(both ? ewx_cuda_record(engine->reduced, reducing) : EW_OK);
    }
    return EW_OK;
}
