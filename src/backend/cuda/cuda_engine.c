/* Builds a plan's engine from its spec, and takes it down. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_weight.h"
#include "backend/cuda/ops/cuda_op.h"
#include "base/clock.h"

#define CLOCK_READINGS 5

/* ---- What the spec costs ---- */

static size_t counters_bytes(const ewx_spec *spec)
{
    return sizeof(ewx_cuda_counters) + (size_t)spec->layout.num_slots * sizeof(uint32_t);
}

static size_t outbox_bytes(const ewx_spec *spec)
{
    return spec->config.transport == EW_TRANSPORT_COPY && !spec->op->gemm_waits
               ? (size_t)spec->layout.num_slots * spec->layout.slot_bytes + 1
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
                                              ewx_cuda_epilogue_bytes(spec)};
}

/* ---- Build and tear down ---- */

ewx_kernel_pair ewx_cuda_pair(ewx_cuda_engine *engine, ewx_cuda_entry *exchange)
{
    return (ewx_kernel_pair){&engine->gemm, engine->spec->config.cluster, exchange};
}

/* How many CTAs of each kernel may be launched. */
static ew_status size_kernels(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    const ewx_kernel_pair pair = ewx_cuda_pair(engine, &engine->exchange);
    ewx_occupancy occupancy;
    EW_TRY(ewx_occupancy_measure(engine->device, pair, &occupancy));
    EW_TRY(spec->config.pool == EW_POOL_STATIC
               ? ewx_occupancy_reserve(engine->device, pair, &spec->config, &occupancy)
               : ewx_occupancy_check(&occupancy, &spec->config));
    if (engine->op->exchanges_meet && spec->config.pool == EW_POOL_AFTER)
        EW_TRY(ewx_occupancy_check_meeting(&occupancy, &spec->config));
    engine->exchange_fits_beside = ewx_occupancy_fits_beside(&occupancy, &spec->config);
    if (spec->op->gemm_waits)
        EW_TRY(ewx_occupancy_share(&spec->config, &occupancy));
    engine->gemm_ctas = occupancy.awaited;
    return EW_OK;
}

/* Their kernels take as much of an SM as the GEMM does (tests/gpu/gpu_needs.c). */
static bool has_products(const ewx_cuda_engine *engine)
{
    return engine->spec->op->gemm_waits && engine->spec->config.producer == EW_PRODUCER_OWN;
}

static void choose_kernels(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    const ew_config *config = &spec->config;
    const ew_dtype dtype = spec->problem.dtype;
    ewx_cuda_entry *const gemms[] = {&engine->gemm, &engine->weights_gemm,
                                     &engine->activating_gemm};
    for (int form = 0; form < EWX_CUDA_NUM_FORMS; form++)
        *gemms[form] = config->kernel == EW_KERNEL_SM90
                           ? ewx_cuda_gemm_sm90(spec->op->id, (ewx_cuda_form)form, dtype,
                                                config->block_n, config->cluster)
                           : ewx_cuda_gemm_sm80(spec->op->id, (ewx_cuda_form)form, dtype,
                                                config->block_n);
    if (config->kernel == EW_KERNEL_SM90 && spec->layout.num_pieces > 1)
        engine->gemm = ewx_cuda_gemm_sm90_pieces(spec->op->id, dtype, config->block_n,
                                                 config->cluster);
    if (ewx_transport_adds(config->transport))
        engine->gemm = config->kernel == EW_KERNEL_SM90
                           ? ewx_cuda_gemm_sm90_adding(config->transport, dtype,
                                                       config->block_n, config->cluster)
                           : ewx_cuda_gemm_sm80_adding(dtype, config->block_n);
    engine->exchange = engine->op->exchange_kernel(spec);
    engine->transpose = ewx_cuda_transpose();
    const bool gathers = spec->op->gemm_waits;
    engine->hold_call = ewx_cuda_hold_call();
    engine->open_call = gathers ? ewx_cuda_open_gathered() : ewx_cuda_open_call();
    engine->mark_gemm_end = ewx_cuda_mark_gemm_end();
    engine->close_call = gathers ? ewx_cuda_close_gathered() : ewx_cuda_close_call();
    engine->hand_out = ewx_cuda_hand_out();
    engine->await_rows = ewx_cuda_await_rows();
    engine->await_readers = ewx_cuda_await_readers();
    engine->book_copy = ewx_cuda_book_copy();
    engine->publish_copied = ewx_cuda_publish_copied();
}

static ew_status find_kernels(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    if (spec->config.kernel == EW_KERNEL_SM90 && engine->device->arch / 10 != 9)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "kernel=sm90 runs on compute capability 9.0, this GPU has %d.%d\n"
                        "  fix: use kernel=sm80",
                        engine->device->arch / 10, engine->device->arch % 10);
    engine->op = ewx_cuda_op_find(spec->op->id);
    choose_kernels(engine);
    ewx_cuda_entry *entries[] = {
        &engine->gemm,          &engine->exchange,      &engine->transpose,
        &engine->open_call,     &engine->mark_gemm_end, &engine->close_call,
        &engine->await_readers, &engine->book_copy,     &engine->publish_copied,
        &engine->hand_out,      &engine->await_rows,    &engine->hold_call};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        if (!entries[i]->function)
            return ewx_fail(EW_ERR_UNSUPPORTED, "there is no kernel for this config\n"
                                                "  fix: leave kernel, block and b open");
        EW_TRY(ewx_cuda_entry_prepare(entries[i]));
    }
    if (has_products(engine)) {
        EW_TRY(ewx_cuda_entry_prepare(&engine->weights_gemm));
        EW_TRY(ewx_cuda_entry_prepare(&engine->activating_gemm));
    }
    return size_kernels(engine);
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
                             &engine->computed, &engine->copied};
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

/* Ranks on one GPU read the same timer, so their offsets must not differ by the delays of
 * their readings. */
static ew_status share_clock(ewx_cuda_engine *engine)
{
    int64_t offsets[EWX_MAX_RANKS];
    EW_TRY(ewx_world_allgather(engine->world, &engine->clock_offset_ns, offsets,
                               sizeof offsets[0]));
    engine->clock_offset_ns = offsets[engine->device->lowest_rank];
    return EW_OK;
}

static ew_status build(ewx_cuda_engine *engine)
{
    EW_TRY(find_kernels(engine));
    EW_TRY(ewx_cuda_decode_open(engine));
    EW_TRY(allocate_all(engine));
    EW_TRY(ewx_cuda_epilogue_open(engine));
    EW_TRY(create_fork_event(engine));
    EW_TRY(calibrate_clock(engine));
    if (engine->spec->config.producer == EW_PRODUCER_BLAS)
        EW_TRY(ewx_cuda_blas_open(&engine->blas, engine->device));
    EW_CUDA_TRY(cudaDeviceSynchronize(), "preparing the plan");
    return EW_OK;
}

/* cuBLAS loads a kernel when it first needs it, and waits for the GPU to do so: not while a
 * peer's reducer waits for this very GEMM. */
static ew_status warm_blas(ewx_cuda_engine *engine)
{
    const ew_problem *problem = &engine->spec->problem;
    const int64_t m = ewx_cuda_blas_rows(engine->spec);
    const int64_t rows = m > problem->n ? m : problem->n;
    const size_t operand_bytes = ((size_t)(rows * problem->k) * 2 + 255) / 256 * 256;
    /* A slice has room for the output, unless it holds rows of A. */
    const bool gathers = engine->spec->op->gemm_waits;
    const size_t out_bytes = gathers ? (size_t)(m * problem->n) * 2 : 0;
    unsigned char *slice =
        engine->heap.segments[engine->world->rank] + engine->spec->layout.slice_offset[0];
    unsigned char *operand = NULL; /* serves as A and as B */
    const cudaError_t error = cudaMalloc((void **)&operand, operand_bytes + out_bytes);
    ew_status status = ewx_world_agree(
        engine->world,
        error == cudaSuccess ? EW_OK : ewx_cuda_fail(error, "allocating for cuBLAS"),
        "prepare cuBLAS");
    if (status != EW_OK) {
        cudaFree(operand);
        return status;
    }
    void *out = gathers ? operand + operand_bytes : slice;
    const ewx_blas_shape shape = {problem->dtype, m, problem->n, problem->k};
    status = ewx_cuda_multiply(engine, m, operand, operand, out);
    status = ewx_world_agree(engine->world, status, "run cuBLAS");
    if (status == EW_OK)
        status = ewx_cuda_blas_tune(&engine->blas, engine->world, engine->device, shape,
                                    operand, operand, out);
    cudaStreamSynchronize(engine->device->producing);
    cudaFree(operand);
    return status;
}

/* Collective: a rank that fails is waited for neither by ranks as threads, which meet
 * behind a call of no rows, nor by kernels of the next one. */
static ew_status enqueue_first(ewx_cuda_engine *engine, const ewx_call *empty)
{
    return ewx_world_agree(engine->world, ewx_cuda_enqueue(engine, empty),
                           "launch its kernels");
}

static ew_status warm_products(ewx_cuda_engine *engine, void *somewhere)
{
    const ewx_product all = {
        .n = engine->spec->problem.n, .packed = somewhere, .C = somewhere};
    ewx_call empty = {.products = &all, .num_products = 1, .C = somewhere};
    EW_TRY(enqueue_first(engine, &empty));
    empty.activates = true;
    return enqueue_first(engine, &empty);
}

/* Outside of calls. */
static ew_status warm_alone(ewx_cuda_engine *engine)
{
    if (engine->spec->config.transport == EW_TRANSPORT_COPY)
        EW_TRY(engine->op->warm_copies(engine));
    EW_TRY(ewx_cuda_epilogue_warm(engine));
    EW_TRY(ewx_cuda_decode_warm(engine));
    return ewx_cuda_warm_hold(engine);
}

/* A first call, of no rows: whatever the driver does at a kernel's first launch, such as
 * making room for its stack, happens before any kernel waits for another rank. */
static ew_status warm_up(ewx_cuda_engine *engine)
{
    if (engine->spec->config.producer == EW_PRODUCER_BLAS)
        EW_TRY(warm_blas(engine));
    EW_TRY(ewx_world_agree(engine->world, warm_alone(engine), "launch its kernels"));
    ewx_carrier_begin(engine, 0);
    /* Nothing of the weight is read, and no row handed out. */
    unsigned char *mine = engine->heap.segments[engine->world->rank];
    const ewx_call empty = {.packed = mine,
                            .gathered = engine->spec->op->gemm_waits ? mine : NULL};
    EW_TRY(enqueue_first(engine, &empty));
    if (has_products(engine))
        EW_TRY(warm_products(engine, mine));
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
        cudaMemcpy(&epoch, &engine->counters->epochs[EWX_STAGE_GEMM], sizeof epoch,
                   cudaMemcpyDeviceToHost);
    ewx_cuda_heap_close(&engine->heap, epoch);
    ewx_nccl_close(&engine->nccl);
    ewx_cuda_blas_close(&engine->blas);
    ewx_cuda_epilogue_close(engine);
    cudaEvent_t events[] = {engine->forked,  engine->started,  engine->produced,
                            engine->reduced, engine->computed, engine->copied};
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
    if (engine->is_apart)
        --*engine->device->num_apart;
    free(engine);
}

static void count_apart(ewx_cuda_engine *engine)
{
    engine->is_apart = engine->spec->config.pool != EW_POOL_AFTER;
    *engine->device->num_apart += engine->is_apart;
}

/* Most steps are collective: no rank may stay away because of an error of its own.  The
 * device is entered. */
static ew_status prepare(ewx_cuda_engine *engine)
{
    ew_world *world = engine->world;
    const ewx_spec *spec = engine->spec;
    EW_TRY(ewx_world_agree(world, build(engine), "prepare its kernels"));
    count_apart(engine); /* build has waited for the calls of other plans */
    EW_TRY(share_clock(engine));
    EW_TRY(ewx_cuda_heap_open(&engine->heap, world, engine->device, &spec->layout));
    EW_TRY(ewx_carrier_open(engine));
    EW_TRY(ewx_world_agree(
        world,
        spec->config.kernel == EW_KERNEL_SM90 ? ewx_cuda_create_out_maps(engine) : EW_OK,
        "describe its heap to the GPU"));
    if (spec->config.producer == EW_PRODUCER_BLAS && !spec->op->gemm_waits)
        EW_TRY(ewx_nccl_open(&engine->nccl, world, engine->device));
    return warm_up(engine);
}

static ew_status prepare_inside(ewx_cuda_engine *engine)
{
    const ew_status entered = ewx_device_enter(engine->device);
    ew_status status = ewx_world_agree(engine->world, entered, "enter its GPU");
    if (status == EW_OK)
        status = prepare(engine);
    if (entered == EW_OK)
        ewx_device_leave(engine->device);
    return status;
}

ew_status ewx_cuda_create(ew_world *world, const ewx_spec *spec, void **state_out)
{
    EW_TRY(ewx_carrier_check(world, spec));
    ewx_cuda_engine *engine = calloc(1, sizeof *engine);
    ew_status status = ewx_world_agree(
        world, engine ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for a plan"),
        "create a plan");
    if (status != EW_OK) {
        free(engine);
        return status;
    }
    engine->world = world;
    engine->spec = spec;
    engine->number = world->num_plans + 1;
    engine->timeout_ns = world->timeout_ns;
    status = ewx_device_of(world, &engine->device);
    if (status == EW_OK)
        status = prepare_inside(engine);
    engine->counts = true; /* from here on; a plan that fails on another rank does not */
    if (status == EW_OK)
        *state_out = engine;
    else
        ewx_cuda_destroy(engine);
    return status;
}
