/* One call: the parameters of its kernels, and their launches on two streams. */
#include "backend/cuda/engine.h"

enum { BOX = 64, STEP = 64 }; /* elements: of an output box's side, of a k-step */

ew_status ewx_cuda_launch(const ewx_device *device, const ewx_cuda_entry *entry, dim3 grid,
                          dim3 block, int cluster, cudaStream_t stream, void **arguments)
{
    CUlaunchAttribute attribute = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
                                   .value.clusterDim = {(unsigned)cluster, 1, 1}};
    const CUlaunchConfig config = {.gridDimX = grid.x,
                                   .gridDimY = grid.y,
                                   .gridDimZ = grid.z,
                                   .blockDimX = block.x,
                                   .blockDimY = block.y,
                                   .blockDimZ = block.z,
                                   .sharedMemBytes = (unsigned)entry->dynamic_smem,
                                   .hStream = stream,
                                   .attrs = &attribute,
                                   .numAttrs = cluster > 1 ? 1 : 0};
    EW_DRIVER_TRY(device->driver->cuLaunchKernelEx(&config, entry->handle, arguments, NULL),
                  "launching a kernel");
    return EW_OK;
}

static ew_status launch_ctas(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                             int64_t ctas, int cluster, cudaStream_t stream,
                             void **arguments)
{
    const dim3 grid = {(unsigned)ctas, 1, 1}, block = {(unsigned)entry->threads, 1, 1};
    return ewx_cuda_launch(engine->device, entry, grid, block, cluster, stream, arguments);
}

/* ---- Parameters ---- */

static ewx_cuda_call describe_call(const ewx_cuda_engine *engine, int64_t m)
{
    const ewx_spec *spec = engine->spec;
    const ewx_layout *layout = &spec->layout;
    ewx_cuda_call call = {
        .grid = ewx_grid_build(m, spec->problem.n, spec->num_ranks, &spec->config),
        .rank = engine->world->rank,
        .release = spec->config.release,
        .tile_rows = (int32_t)layout->max_tile_rows,
        .row_major = layout->row_major,
        .flags_offset = (int64_t)layout->flags_offset,
        .slice_offset = {(int64_t)layout->slice_offset[0],
                         (int64_t)layout->slice_offset[1]},
        .num_slices = layout->slice_offset[0] == layout->slice_offset[1] ? 1 : 2,
        .counters = engine->counters,
        .report = engine->report,
        .abort = engine->device->abort,
        .timeout_ns = (uint64_t)engine->world->timeout_ns,
        .gate = engine->gate,
    };
    for (int rank = 0; rank < spec->num_ranks; rank++)
        call.heaps[rank] = engine->heap.segments[rank];
    return call;
}

static ew_status encode_map(const ewx_cuda_engine *engine, const void *address,
                            int64_t cols, int64_t rows, int box_cols, int box_rows,
                            CUtensorMap *map)
{
    const cuuint64_t extent[2] = {(cuuint64_t)cols, (cuuint64_t)rows};
    const cuuint64_t stride[1] = {(cuuint64_t)cols * 2};
    const cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows};
    const cuuint32_t step[2] = {1, 1};
    EW_DRIVER_TRY(
        engine->device->driver->cuTensorMapEncodeTiled(
            map,
            engine->spec->problem.dtype == EW_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            2, (void *)(uintptr_t)address, extent, stride, box, step,
            CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "describing a matrix to the GPU");
    return EW_OK;
}

/* Only what changed since the last call. */
static ew_status update_maps(ewx_cuda_engine *engine, int64_t m, const void *A,
                             const void *B)
{
    const ewx_spec *spec = engine->spec;
    const ew_problem *problem = &spec->problem;
    const void *a = m > 0 ? A : B; /* of no rows nothing is read, but the address counts */
    const int64_t rows = m > 0 ? m : 1;
    if (engine->mapped_a != a || engine->mapped_rows != rows)
        EW_TRY(encode_map(engine, a, problem->k, rows, STEP, EWX_TILE_M, &engine->maps.a));
    if (engine->mapped_b != B)
        EW_TRY(encode_map(engine, B, problem->k, problem->n, STEP,
                          engine->producer.box_cols_b, &engine->maps.b));
    if (!engine->mapped_a) /* the output's never changes; of no rows it is never used */
        EW_TRY(encode_map(
            engine,
            engine->heap.segments[engine->world->rank] +
                (spec->layout.num_slots > 0 ? spec->layout.slice_offset[0] : 0),
            EWX_TILE_N,
            spec->layout.num_slots > 0 ? 2 * spec->layout.num_slots * EWX_TILE_M : 1, BOX,
            BOX, &engine->maps.out));
    engine->mapped_a = a;
    engine->mapped_b = B;
    engine->mapped_rows = rows;
    return EW_OK;
}

/* ---- Producer ---- */

static ew_status launch_blas(ewx_cuda_engine *engine, ewx_cuda_call *call, const void *A,
                             const void *B)
{
    const ew_problem *problem = &engine->spec->problem;
    /* The epoch, hence the slice, is known to the device alone: cuBLAS has only one. */
    unsigned char *C = call->heaps[call->rank] + call->slice_offset[0];
    void *arguments[] = {call};
    EW_TRY(
        launch_ctas(engine, &engine->starter, 1, 1, engine->device->producing, arguments));
    EW_TRY(ewx_cuda_blas_gemm(&engine->blas, problem->dtype, call->grid.rows, problem->n,
                              problem->k, A, B, C, engine->device->producing));
    /* For another m cuBLAS may have loaded another kernel, which waits for the whole
     * process to be idle: no reducer of another thread may wait for this GEMM yet. */
    const bool new_rows = engine->blas_rows != call->grid.rows;
    engine->blas_rows = call->grid.rows;
    return new_rows && engine->world->in_threads ? ew_world_barrier(engine->world) : EW_OK;
}

static ew_status launch_own(ewx_cuda_engine *engine, ewx_cuda_call *call, const void *A,
                            const void *B)
{
    const ew_config *config = &engine->spec->config;
    const int cluster = config->cluster;
    ewx_cuda_operands operands = {.a = A,
                                  .b = B,
                                  .k = engine->spec->problem.k,
                                  .persistent = config->ctas == EW_CTAS_PERSISTENT};
    int64_t ctas = ewx_div_up(ewx_num_blocks(&call->grid), cluster) * cluster;
    if (operands.persistent)
        ctas = ewx_min64(ctas, engine->budget.producers);
    if (ctas == 0) /* the call must still be counted */
        ctas = cluster;
    if (config->kernel == EW_KERNEL_SM80) {
        void *arguments[] = {&operands, call};
        return launch_ctas(engine, &engine->producer, ctas, 1, engine->device->producing,
                           arguments);
    }
    EW_TRY(update_maps(engine, call->grid.rows, A, B));
    void *arguments[] = {&engine->maps, &operands, call};
    return launch_ctas(engine, &engine->producer, ctas, cluster, engine->device->producing,
                       arguments);
}

/* ---- Reducer ---- */

static ew_status launch_reducer(ewx_cuda_engine *engine, ewx_cuda_call *call, void *C,
                                cudaStream_t stream)
{
    const ew_world *world = engine->world;
    ewx_cuda_output output = {
        .c = C,
        .announce = engine->spec->config.producer == EW_PRODUCER_BLAS,
        .link = {.ns_per_byte = world->link_gbps > 0 ? 8.0 / world->link_gbps : 0,
                 .latency_ns = (uint64_t)world->link_latency_ns}};
    void *arguments[] = {&output, call};
    return launch_ctas(engine, &engine->reducer, engine->spec->config.budget, 1, stream,
                       arguments);
}

/* The vendor's collective, when there is one and the rows divide evenly. */
static ew_status launch_nccl(ewx_cuda_engine *engine, ewx_cuda_call *call, void *C)
{
    const cudaStream_t stream = engine->device->producing;
    const unsigned char *from = call->heaps[call->rank] + call->slice_offset[0];
    void *arguments[] = {call};
    EW_TRY(launch_ctas(engine, &engine->marker, 1, 1, stream, arguments));
    EW_TRY(ewx_nccl_reduce_scatter(&engine->nccl, engine->spec->problem.dtype, from, C,
                                   call->grid.small_rows * call->grid.cols, stream));
    return launch_ctas(engine, &engine->finisher, 1, 1, stream, arguments);
}

static bool uses_nccl(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return engine->nccl.communicator && call->grid.num_large == 0 && call->grid.rows > 0;
}

/* ---- Streams ---- */

static ew_status follow(cudaStream_t stream, cudaEvent_t event)
{
    EW_CUDA_TRY(cudaStreamWaitEvent(stream, event, 0), "waiting for an event");
    return EW_OK;
}

static ew_status record(cudaEvent_t event, cudaStream_t stream)
{
    EW_CUDA_TRY(cudaEventRecord(event, stream), "recording an event");
    return EW_OK;
}

static bool reduces_apart(const ewx_cuda_engine *engine)
{
    return engine->spec->config.pool != EW_POOL_AFTER;
}

ew_status ewx_cuda_fork(ewx_cuda_engine *engine, cudaStream_t caller)
{
    return record(engine->forked, caller);
}

ew_status ewx_cuda_join(ewx_cuda_engine *engine, cudaStream_t caller)
{
    EW_TRY(follow(caller, engine->produced));
    return reduces_apart(engine) ? follow(caller, engine->reduced) : EW_OK;
}

/* The producer first, always: whatever serialises the two, it must not be a reducer that
 * waits for a producer behind it. */
static ew_status launch_both(ewx_cuda_engine *engine, int64_t m, const void *A,
                             const void *B, void *C, cudaStream_t reducing)
{
    ewx_cuda_call call = describe_call(engine, m);
    EW_TRY(engine->spec->config.producer == EW_PRODUCER_BLAS
               ? launch_blas(engine, &call, A, B)
               : launch_own(engine, &call, A, B));
    return uses_nccl(engine, &call) ? launch_nccl(engine, &call, C)
                                    : launch_reducer(engine, &call, C, reducing);
}

ew_status ewx_cuda_enqueue(ewx_cuda_engine *engine, int64_t m, const void *A, const void *B,
                           void *C, bool forked)
{
    const cudaStream_t producing = engine->device->producing;
    const bool apart = reduces_apart(engine);
    const cudaStream_t reducing = apart ? engine->device->reducing : producing;
    if (forked) {
        EW_TRY(follow(producing, engine->forked));
        EW_TRY(apart ? follow(reducing, engine->forked) : EW_OK);
    }
    EW_TRY(launch_both(engine, m, A, B, C, reducing));
    if (forked) {
        EW_TRY(record(engine->produced, producing));
        EW_TRY(apart ? record(engine->reduced, reducing) : EW_OK);
    }
    return EW_OK;
}
