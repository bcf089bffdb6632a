/* Builds a plan's engine from its spec, and takes it down. */
#include "backend/cuda/engine.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cuda/weight.h"
#include "base/clock.h"

#define CLOCK_READINGS 5

/* ---- What the spec costs ---- */

static size_t counters_bytes(const ewx_spec *spec)
{
    return sizeof(ewx_cuda_counters) + (size_t)spec->layout.num_slots * sizeof(uint32_t);
}

static size_t outbox_bytes(const ewx_spec *spec)
{
    return spec->config.transport == EW_TRANSPORT_COPY
               ? (size_t)spec->layout.num_slots * EWX_CUDA_TILE_BYTES + 1
               : 0;
}

/* A call may be captured into a graph, so it cannot allocate: a B that it has to transpose
 * has its place from the beginning. */
static size_t passing_weight_bytes(const ewx_spec *spec)
{
    return spec->problem.weight_layout == EW_WEIGHT_KN ? ewx_cuda_weight_bytes(spec) : 0;
}

ewx_footprint ewx_cuda_footprint(const ewx_spec *spec)
{
    return (ewx_footprint){.weight_bytes = ewx_cuda_weight_bytes(spec),
                           .workspace_bytes = counters_bytes(spec) + outbox_bytes(spec) +
                                              passing_weight_bytes(spec) +
                                              ewx_cuda_layer_bytes(spec)};
}

/* ---- Build and tear down ---- */

static ew_status find_kernels(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    const ew_config *config = &spec->config;
    const ew_dtype dtype = spec->problem.dtype;
    if (config->kernel == EW_KERNEL_SM90 && engine->device->arch / 10 != 9)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "kernel=sm90 runs on compute capability 9.0, this GPU has %d.%d\n"
                        "  fix: use kernel=sm80",
                        engine->device->arch / 10, engine->device->arch % 10);
    engine->producer = config->kernel == EW_KERNEL_SM90
                           ? ewx_cuda_producer_sm90(dtype, config->block_n, config->cluster)
                           : ewx_cuda_producer_sm80(dtype, config->block_n);
    engine->reducer = ewx_cuda_reducer(dtype, spec->num_ranks, config->batch);
    engine->starter = ewx_cuda_starter();
    engine->marker = ewx_cuda_marker();
    engine->finisher = ewx_cuda_finisher();
    engine->transpose = ewx_cuda_transpose();
    engine->courier = ewx_cuda_courier();
    engine->deliverer = ewx_cuda_deliverer();
    ewx_cuda_entry *entries[] = {&engine->producer, &engine->reducer,  &engine->starter,
                                 &engine->marker,   &engine->finisher, &engine->transpose,
                                 &engine->courier,  &engine->deliverer};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (!entries[i]->function)
            return ewx_fail(EW_ERR_UNSUPPORTED, "there is no kernel for this config\n"
                                                "  fix: leave kernel, block and b open");
        EW_TRY(ewx_cuda_entry_prepare(entries[i]));
    }
    EW_TRY(ewx_budget_measure(engine->device, &engine->producer, config->cluster,
                              &engine->reducer, &engine->budget));
    return config->pool == EW_POOL_STATIC
               ? ewx_budget_reserve(engine->device, &engine->producer, config,
                                    &engine->reducer, &engine->budget)
               : ewx_budget_check(&engine->budget, config);
}

static ew_status allocate_all(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    if (passing_weight_bytes(spec) > 0)
        EW_CUDA_TRY(cudaMalloc(&engine->passing_weight, passing_weight_bytes(spec)),
                    "allocating the weight");
    EW_CUDA_TRY(cudaMalloc((void **)&engine->counters, counters_bytes(spec)),
                "allocating counters");
    EW_CUDA_TRY(cudaMemset(engine->counters, 0, counters_bytes(spec)), "clearing counters");
    EW_CUDA_TRY(cudaHostAlloc((void **)&engine->report, sizeof *engine->report,
                              cudaHostAllocMapped | cudaHostAllocPortable),
                "allocating the report");
    memset(engine->report, 0, sizeof *engine->report);
    if (outbox_bytes(spec) > 0)
        EW_CUDA_TRY(cudaMalloc((void **)&engine->outbox, outbox_bytes(spec)),
                    "allocating the outbox");
    cudaEvent_t *events[] = {&engine->started, &engine->produced, &engine->reduced,
                             &engine->chunked, &engine->copied};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        EW_CUDA_TRY(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming),
                    "creating an event");
    return EW_OK;
}

/* Recorded in the caller's streams, so of the context that these have. */
static ew_status create_fork_event(ewx_cuda_engine *engine)
{
    const ewx_device *device = engine->device;
    EW_DRIVER_TRY(device->driver->cuCtxPushCurrent(device->primary), "entering the GPU");
    const cudaError_t error =
        cudaEventCreateWithFlags(&engine->forked, cudaEventDisableTiming);
    ewx_device_leave(device);
    return error == cudaSuccess ? EW_OK : ewx_cuda_fail(error, "creating an event");
}

/* Reads both clocks at one time, to within the end of a launch: the least is the best. */
static ew_status calibrate_clock(ewx_cuda_engine *engine)
{
    ewx_cuda_entry entry = ewx_cuda_clock();
    unsigned long long *ns = &engine->report->start_ns;
    void *arguments[] = {&ns};
    const dim3 one = {1, 1, 1};
    EW_TRY(ewx_cuda_entry_prepare(&entry));
    engine->clock_offset_ns = INT64_MAX;
    for (int i = 0; i < CLOCK_READINGS; i++) { /* the first launch loads the kernel */
        EW_TRY(ewx_cuda_launch(engine->device, &entry, one, one, (ewx_launch_how){0},
                               engine->device->producing, arguments));
        EW_CUDA_TRY(cudaStreamSynchronize(engine->device->producing), "reading the timer");
        engine->clock_offset_ns =
            ewx_min64(engine->clock_offset_ns, ewx_now_ns() - (int64_t)*ns);
    }
    return EW_OK;
}

/* Ranks on one GPU read one timer, so their times must not differ by what each of them
 * read late. */
static ew_status share_clock(ewx_cuda_engine *engine)
{
    int64_t offsets[EWX_MAX_RANKS];
    EW_TRY(ew_world_allgather(engine->world, &engine->clock_offset_ns, offsets,
                              sizeof offsets[0]));
    engine->clock_offset_ns = offsets[engine->device->eldest];
    return EW_OK;
}

static ew_status build(ewx_cuda_engine *engine)
{
    EW_TRY(find_kernels(engine));
    EW_TRY(allocate_all(engine));
    EW_TRY(ewx_cuda_layer_open(engine));
    EW_TRY(create_fork_event(engine));
    EW_TRY(calibrate_clock(engine));
    if (engine->spec->config.producer == EW_PRODUCER_BLAS)
        EW_TRY(ewx_cuda_blas_open(&engine->blas, engine->device));
    EW_CUDA_TRY(cudaDeviceSynchronize(), "preparing the plan");
    return EW_OK;
}

/* cuBLAS loads a kernel when it first needs it, and waits for the GPU to do so: not while a
 * peer's reducer waits for this very GEMM. */
static ew_status warm_blas(const ewx_cuda_engine *engine)
{
    const ew_problem *problem = &engine->spec->problem;
    const int64_t rows = problem->max_m > problem->n ? problem->max_m : problem->n;
    void *operand; /* serves as A and as B */
    EW_CUDA_TRY(cudaMalloc(&operand, (size_t)(rows * problem->k) * 2),
                "allocating for cuBLAS");
    const ew_status status = ewx_cuda_blas_gemm(
        &engine->blas, problem->dtype, problem->max_m, problem->n, problem->k, operand,
        operand,
        engine->heap.segments[engine->world->rank] + engine->spec->layout.slice_offset[0],
        engine->device->producing);
    cudaStreamSynchronize(engine->device->producing);
    cudaFree(operand);
    return status;
}

/* A first call, of no rows: whatever the driver does at a kernel's first launch, such as
 * making room for its stack, happens before any kernel waits for another rank. */
static ew_status warm_up(ewx_cuda_engine *engine)
{
    if (engine->spec->config.producer == EW_PRODUCER_BLAS)
        EW_TRY(warm_blas(engine));
    if (engine->spec->config.transport == EW_TRANSPORT_COPY)
        EW_TRY(ewx_cuda_warm_chunks(engine));
    EW_TRY(ewx_cuda_layer_warm(engine));
    ewx_carrier_begin(engine, 0);
    const void *nothing = engine->heap.segments[engine->world->rank]; /* of B is read */
    EW_TRY(ewx_cuda_enqueue(engine, 0, NULL, nothing, NULL, NULL, false));
    EW_TRY(ewx_carrier_drive(engine));
    EW_CUDA_TRY(cudaDeviceSynchronize(), "the first call");
    return EW_OK;
}

static void tear_down(ewx_cuda_engine *engine)
{
    uint32_t epoch = 0;
    cudaStreamSynchronize(engine->device->producing);
    cudaStreamSynchronize(engine->device->reducing);
    if (engine->device->carrying)
        cudaStreamSynchronize(engine->device->carrying);
    ewx_carrier_close(engine);
    if (engine->counters)
        cudaMemcpy(&epoch, &engine->counters->producer_epoch, sizeof epoch,
                   cudaMemcpyDeviceToHost);
    ewx_cuda_heap_close(&engine->heap, epoch);
    ewx_nccl_close(&engine->nccl);
    ewx_cuda_blas_close(&engine->blas);
    ewx_cuda_layer_close(engine);
    cudaEvent_t events[] = {engine->forked,  engine->started, engine->produced,
                            engine->reduced, engine->chunked, engine->copied};
    for (size_t i = 0; i < sizeof events / sizeof events[0]; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    cudaFreeHost(engine->report);
    void *memory[] = {engine->trace.produced, engine->trace.reduced,
                      engine->out_maps,       engine->outbox,
                      engine->counters,       engine->passing_weight};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        cudaFree(memory[i]);
    (void)cudaGetLastError();
}

void ewx_cuda_destroy(void *state)
{
    ewx_cuda_engine *engine = state;
    if (!engine)
        return;
    if (engine->device && ewx_device_enter(engine->device) == EW_OK) {
        tear_down(engine);
        ewx_device_leave(engine->device);
    }
    free(engine);
}

ew_status ewx_cuda_create(ew_world *world, const ewx_spec *spec, void **state_out)
{
    EW_TRY(ewx_carrier_check(world, spec));
    ewx_cuda_engine *engine = calloc(1, sizeof *engine);
    if (!engine)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a plan");
    engine->world = world;
    engine->spec = spec;
    ew_status status = ewx_device_of(world, &engine->device);
    if (status == EW_OK && (status = ewx_device_enter(engine->device)) == EW_OK) {
        status = build(engine);
        /* The heap is collective: nobody may stay away because of an error of its own. */
        status = ewx_world_agree(world, status, "prepare its kernels");
        if (status == EW_OK)
            status = share_clock(engine);
        if (status == EW_OK)
            status =
                ewx_cuda_heap_open(&engine->heap, world, engine->device, &spec->layout);
        if (status == EW_OK)
            status = ewx_carrier_open(engine);
        if (status == EW_OK && spec->config.kernel == EW_KERNEL_SM90)
            status = ewx_cuda_create_out_maps(engine);
        if (status == EW_OK && spec->config.producer == EW_PRODUCER_BLAS)
            status = ewx_nccl_open(&engine->nccl, world, engine->device);
        if (status == EW_OK)
            status = warm_up(engine);
        ewx_device_leave(engine->device);
    }
    if (status == EW_OK)
        *state_out = engine;
    else
        ewx_cuda_destroy(engine);
    return status;
}
