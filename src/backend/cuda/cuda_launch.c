/* How a call reaches the GPU: the launches of its kernels, and the two streams.  What an
 * operation launches is its own business (ops/). */
#include "backend/cuda/ops/cuda_op.h"
#include "plan/policy.h"

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

/* ---- Ranks as threads ---- */

/* On one GPU they share a lock of CUDA's.  What frees memory or loads a kernel may hold it
 * until all that runs there has ended, and blocks every enqueue meanwhile: so nothing on
 * the GPU may wait for work that a rank has yet to enqueue. */
ew_status ewx_cuda_meet_threads(const ewx_cuda_engine *engine)
{
#if EW_MUTANT == 17 /* planted bug: a rank may be done before all have enqueued */
    return EW_OK;
#endif
    return engine->world->in_threads && engine->device->sharers > 1
               ? ewx_world_barrier(engine->world)
               : EW_OK;
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
        call.grid = ewx_cuda_products_grid(engine->spec, request);
        call.trace = (ewx_cuda_trace){0}; /* which has the room of the plan's own tiles */
    }
    engine->last_rows = call.trace.produced ? request->m : 0;
    EW_TRY(engine->start.together ? ewx_cuda_hold_start(engine, &call) : EW_OK);
    if (engine->spec->op->gemm_waits) {
        EW_TRY(op->launch_exchange(engine, &call, request));
        EW_TRY(op->launch_gemm(engine, &call, request));
    } else {
        EW_TRY(launch_gemm_first(engine, &call, request));
    }
    EW_TRY(holds_producers(engine) ? ewx_cuda_hold_producers(engine) : EW_OK);
    /* Behind the first calls all ranks agree (enqueue_first). */
    return engine->counts && op->some_may_be_early(engine, &call)
               ? ewx_cuda_meet_threads(engine)
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
    ewx_cuda_release_start(engine); /* also of a call that failed, or its gate would wait */
    EW_TRY(launched);
    if (forked) {
        EW_TRY(ewx_cuda_record(engine->produced, producing));
        EW_TRY(both ? ewx_cuda_record(engine->reduced, reducing) : EW_OK);
    }
    return EW_OK;
}
