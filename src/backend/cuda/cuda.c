/* The CUDA backend: answers the backend interface with an engine. */
#include <inttypes.h>
#include <stdlib.h>

#include "backend/cuda/capture.h"
#include "backend/cuda/cuda_engine.h"
#include "backend/cuda/cuda_memory.h"
#include "backend/cuda/cuda_symmetric.h"
#include "backend/cuda/cuda_weight.h"
#include "backend/cuda/ops/cuda_op.h"

#define MAX_COLS (1 << 23) /* kernels count bytes inside a tile of a matrix in 32 bits */

/* ---- Whether the spec can run here ---- */

static ew_status cuda_check(const ewx_spec *spec)
{
    const ewx_driver *driver;
    if (!ewx_cuda_op_find(spec->op->id))
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%s does not run on the cuda backend\n  fix: use backend=cpu",
                        spec->op->name);
    EW_TRY(ewx_driver_get(&driver));
    if (spec->num_ranks > EWX_CUDA_MAX_RANKS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "W=%d ranks are too many for the cuda backend\n"
                        "  fix: use at most %d",
                        spec->num_ranks, EWX_CUDA_MAX_RANKS);
    if (spec->problem.n > MAX_COLS)
        return ewx_fail(EW_ERR_SHAPE,
                        "N=%" PRId64 " is too large for the cuda backend\n"
                        "  fix: use at most %d",
                        spec->problem.n, MAX_COLS);
    return spec->config.producer == EW_PRODUCER_BLAS ? ewx_cuda_blas_check() : EW_OK;
}

static ew_status cuda_survey(ew_world *world, int num_ranks, ewx_machine *machine_out)
{
    const ewx_device *device = NULL;
    if (!world)
        EW_TRY(ewx_device_survey(num_ranks, machine_out));
    else {
        EW_TRY(ewx_device_of(world, &device));
        machine_out->gpu_sms = device->sms;
        machine_out->gpu_arch = device->arch;
        machine_out->gpu_sharers = device->sharers;
    }
    machine_out->hosts = world ? world->num_hosts : 1;
    machine_out->has_nccl = machine_out->gpu_sharers == 1 && ewx_nccl_available();
    struct cudaDeviceProp properties;
    int driver = 0;
    EW_CUDA_TRY(cudaGetDeviceProperties(&properties, world ? device->ordinal : 0),
                "reading the GPU");
    EW_CUDA_TRY(cudaDriverGetVersion(&driver), "reading the driver's version");
    ewx_text text = ewx_text_in(machine_out->device, sizeof machine_out->device);
    ewx_text_add(&text, "%s/%dsms/driver%d", properties.name, machine_out->gpu_sms, driver);
    if (world && world->num_hosts > 1)
        ewx_text_add(&text, "/%dhosts%s", world->num_hosts,
                     device->direct ? "/direct" : "");
    return EW_OK;
}

/* ---- Calls ---- */

/* A weight of this call alone, of n columns behind `before` of others. */
static ew_status pass_weight(ewx_cuda_engine *engine, const ewx_call *call, int64_t before,
                             int64_t n, const void *B, const void **packed_out)
{
    const ewx_spec *spec = engine->spec;
    *packed_out = B; /* used where it lies */
    if (!B || spec->problem.weight_layout == EW_WEIGHT_NK)
        return EW_OK;
#if EW_MUTANT == 66 /* planted bug: all weights of a call in one place */
    before = 0;
#endif
    unsigned char *place = (unsigned char *)engine->passing_weight +
                           (size_t)(before * spec->problem.k) * spec->elem_bytes;
    if (call->stream)
        EW_TRY(ewx_cuda_follow(engine->device->producing, engine->forked));
    *packed_out = place;
    return ewx_cuda_weight_enqueue(engine->device, spec, n, &engine->transpose, B, place);
}

static ew_status run_entered(ewx_cuda_engine *engine, const ewx_call *call)
{
    ewx_call request = *call;
    ewx_product products[EW_MAX_PRODUCTS];
    int64_t before = 0;
    if (call->B)
        EW_TRY(pass_weight(engine, call, 0, engine->spec->problem.n, call->B,
                           &request.packed));
    for (int i = 0; i < call->num_products; before += products[i++].n) {
        products[i] = call->products[i];
        if (products[i].B)
            EW_TRY(pass_weight(engine, call, before, products[i].n, products[i].B,
                               &products[i].packed));
    }
    request.products = products;
    return ewx_cuda_enqueue(engine, &request);
}

/* Without a context on this GPU the caller gets the GPU's usual one: a handle such as
 * cudaStreamLegacy means a stream of the current one. */
static ew_status in_callers_context(const ewx_cuda_engine *engine, cudaStream_t stream,
                                    ew_status (*action)(const ewx_cuda_engine *,
                                                        cudaStream_t))
{
    const ewx_device *device = engine->device;
    CUcontext current = NULL;
    int ordinal = -1;
    if (!stream)
        return EW_OK;
    EW_DRIVER_TRY(device->driver->cuCtxGetCurrent(&current), "finding the caller's GPU");
    if (current)
        EW_CUDA_TRY(cudaGetDevice(&ordinal), "finding the caller's GPU");
    const bool enters = ordinal != device->ordinal;
    if (enters)
        EW_DRIVER_TRY(device->driver->cuCtxPushCurrent(device->primary),
                      "entering the GPU");
    const ew_status status = action(engine, stream);
    if (enters)
        ewx_device_leave(device);
    return status;
}

static ew_status enqueue(ewx_cuda_engine *engine, const ewx_call *call)
{
    EW_TRY(in_callers_context(engine, call->stream, ewx_cuda_fork));
    EW_TRY(ewx_device_enter(engine->device));
    const ew_status status = run_entered(engine, call);
    ewx_device_leave(engine->device);
    EW_TRY(status);
    return in_callers_context(engine, call->stream, ewx_cuda_join);
}

/* On several hosts the call is complete when this returns. */
static ew_status carry(ewx_cuda_engine *engine)
{
    EW_TRY(ewx_device_enter(engine->device));
    const ew_status status = ewx_carrier_drive(engine);
    ewx_device_leave(engine->device);
    return status;
}

static ew_status check_epilogue(const ew_epilogue *epilogue)
{
    EW_TRY(ewx_cuda_check_pointer("bias", epilogue->bias));
    EW_TRY(ewx_cuda_check_pointer("residual", epilogue->residual));
    EW_TRY(ewx_cuda_check_pointer("norm_weight", epilogue->norm_weight));
    return ewx_cuda_check_pointer("normed", epilogue->normed);
}

static ew_status check_products(const ewx_call *call)
{
    for (int i = 0; i < call->num_products; i++) {
        const ewx_product *product = &call->products[i];
        if (product->n % 8 != 0)
            return ewx_fail(EW_ERR_SHAPE,
                            "product %d has n=%" PRId64
                            ", which is not a multiple of 8, as the cuda backend needs it\n"
                            "  fix: pad the weight with rows of zeros",
                            i, product->n);
        EW_TRY(ewx_cuda_check_pointer("a B", product->B));
        EW_TRY(ewx_cuda_check_pointer("C of a product", product->C));
    }
    return EW_OK;
}

/* The host has its part in every call between hosts, so a graph cannot replay one. */
static ew_status check_capture(const ewx_cuda_engine *engine, cudaStream_t stream)
{
    enum cudaStreamCaptureStatus capture;
    EW_CUDA_TRY(cudaStreamIsCapturing(stream, &capture), "asking about the stream");
    if (capture == cudaStreamCaptureStatusNone)
        return EW_OK;
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "a call among ranks on %d hosts cannot be captured\n"
                    "  fix: make it outside of graphs, or start all ranks on one host",
                    engine->world->num_hosts);
}

static ew_status check_same_capture(const ewx_cuda_engine *engine, cudaStream_t stream)
{
    return ewx_check_same_capture(engine->device, stream);
}

/* CUDA's default stream is one for all threads of a process: the call of one rank would lie
 * in front of the call of another that it waits for. */
static ew_status check_stream(const ewx_cuda_engine *engine, cudaStream_t stream)
{
    if (stream != cudaStreamLegacy || !engine->world->in_threads ||
        engine->device->sharers == 1)
        return EW_OK;
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "%d ranks as threads on one GPU cannot share cudaStreamLegacy\n"
                    "  fix: pass cudaStreamPerThread, or a stream of each rank's own",
                    engine->device->sharers);
}

static ew_status cuda_admit(const void *state, const ewx_call *call)
{
    const ewx_cuda_engine *engine = state;
    EW_TRY(check_stream(engine, call->stream));
    EW_TRY(call->stream
               ? in_callers_context(engine, call->stream, check_same_capture)
               : ewx_check_not_captured(engine->device, "a call without a stream"));
    if (engine->world->num_hosts > 1)
        EW_TRY(in_callers_context(engine, call->stream, check_capture));
    EW_TRY(ewx_cuda_check_pointer("A", call->A));
    EW_TRY(ewx_cuda_check_pointer("B", call->B));
    EW_TRY(ewx_cuda_check_pointer("C", call->C));
    EW_TRY(ewx_cuda_check_pointer("gathered", call->gathered));
    EW_TRY(check_products(call));
    if (!call->epilogue)
        return EW_OK;
    if (engine->op->admit)
        EW_TRY(engine->op->admit(engine, call->epilogue));
    return check_epilogue(call->epilogue);
}

static ew_status cuda_run(void *state, const ewx_call *call)
{
    ewx_cuda_engine *engine = state;
    ew_status status = ewx_cuda_collect_fault(engine);
    engine->timeout_ns = call->timeout_ns;
    if (status == EW_OK) {
        ewx_carrier_begin(engine, call->m);
        status = enqueue(engine, call);
    }
    if (status == EW_OK)
        status = carry(engine);
    if (status != EW_OK) {
        ewx_world_give_up(engine->world,
                          status); /* or peers would wait for this rank's part */
        ewx_remotes_progress(engine->world);
    }
    return status;
}

static ew_status synchronise(const ewx_cuda_engine *engine)
{
    EW_CUDA_TRY(cudaStreamSynchronize(engine->device->producing), "the producer");
    EW_CUDA_TRY(cudaStreamSynchronize(engine->device->reducing), "the reducer");
    return EW_OK;
}

static ew_status cuda_wait(void *state)
{
    ewx_cuda_engine *engine = state;
    EW_TRY(ewx_check_not_captured(engine->device, "ew_plan_wait"));
    EW_TRY(ewx_device_enter(engine->device));
    const ew_status status = synchronise(engine); /* kernels bound their own waits */
    ewx_device_leave(engine->device);
    if (status != EW_OK)
        ewx_world_give_up(engine->world, status);
    EW_TRY(status);
    return ewx_cuda_collect_fault(engine);
}

/* ---- Observation ---- */

static ew_status cuda_timing(const void *state, ew_timing *timing_out)
{
    const ewx_cuda_engine *engine = state;
    const ewx_cuda_report *report = engine->report;
    const int64_t offset = engine->clock_offset_ns;
    *timing_out = (ew_timing){.start_ns = (int64_t)report->start_ns + offset,
                              .gemm_end_ns = (int64_t)report->gemm_end_ns + offset,
                              .end_ns = (int64_t)report->end_ns + offset};
    if (engine->spec->op->gemm_waits) /* what came before the first block was no GEMM */
        timing_out->gemm_end_ns -= (int64_t)(report->gemm_begin_ns - report->start_ns);
    return EW_OK;
}

static ew_status cuda_trace_enable(void *state)
{
    ewx_cuda_engine *engine = state;
    EW_TRY(ewx_device_enter(engine->device));
    const ew_status status = ewx_cuda_trace_enable(engine);
    ewx_device_leave(engine->device);
    return status;
}

static ew_status cuda_trace_read(void *state, ew_trace_event *events, size_t capacity,
                                 size_t *count_out)
{
    ewx_cuda_engine *engine = state;
    EW_TRY(ewx_device_enter(engine->device));
    const ew_status status = ewx_cuda_trace_read(engine, events, capacity, count_out);
    ewx_device_leave(engine->device);
    return status;
}

static void cuda_describe(const void *state, char *text, size_t bytes)
{
    const ewx_cuda_engine *engine = state;
    const ewx_blas_choice *choice = &engine->blas.choice;
    ewx_text note = ewx_text_in(text, bytes);
    text[0] = '\0';
    if (choice->number > 0)
        ewx_text_add(&note, "cuBLASLt's algorithm %d of %d, %.3f of the first one's time",
                     choice->number, choice->count, choice->part);
    if (ewx_transport_adds(engine->spec->config.transport))
        ewx_text_add(&note, "not deterministic: contributions are added in any order");
}

static void cuda_set_start(void *state, ewx_start start)
{
    ewx_cuda_engine *engine = state;
    engine->start = start;
}

#ifdef EW_TESTING
static ew_status set_words(ewx_cuda_engine *engine, void *to, size_t count, uint32_t low,
                           uint32_t high)
{
    uint32_t *words = malloc(count * sizeof *words);
    if (!words)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %zu words", count);
    for (size_t i = 0; i < count; i++)
        words[i] = i % 2 ? high : low;
    const ew_status status = ewx_cuda_copy(engine->world, to, words, count * sizeof *words);
    free(words);
    return status;
}

ew_status ewx_cuda_engine_set_epoch(ewx_cuda_engine *engine, uint32_t epoch)
{
    unsigned char *mine = engine->heap.segments[engine->world->rank];
    ewx_cuda_segment *head = (ewx_cuda_segment *)(void *)mine;
    const ewx_layout *layout = &engine->spec->layout;
    const size_t num_flags = (layout->slice_offset[0] - layout->flags_offset) /
                             sizeof(uint32_t); /* and results */
    EW_TRY(set_words(engine, mine + layout->flags_offset, num_flags, epoch, epoch));
    EW_TRY(set_words(engine, head->done, EWX_MAX_RANKS, epoch, epoch));
    EW_TRY(set_words(engine, head->gate, EWX_MAX_RANKS, epoch, epoch));
    EW_TRY(set_words(engine, head->entered, EWX_CUDA_MAX_RANKS, epoch, epoch));
    EW_TRY(set_words(engine, head->calls, 2 * EWX_CUDA_CALLS * EWX_MAX_RANKS, 0, epoch));
    EW_TRY(
        set_words(engine, head->orders, 2 * EWX_CUDA_CALLS * EWX_CUDA_MAX_RANKS, 0, epoch));
    ewx_carrier_set_epoch(engine, epoch);
    return set_words(engine, engine->counters->epochs, EWX_NUM_STAGES, epoch, epoch);
}
#endif

const ewx_backend ewx_backend_cuda = {
    .traits = &ewx_traits_cuda,
    .survey = cuda_survey,
    .check = cuda_check,
    .footprint = ewx_cuda_footprint,
    .create = ewx_cuda_create,
    .admit = cuda_admit,
    .run = cuda_run,
    .wait = cuda_wait,
    .timing = cuda_timing,
    .trace_enable = cuda_trace_enable,
    .trace_read = cuda_trace_read,
    .describe = cuda_describe,
    .set_start = cuda_set_start,
    .gpu_of = ewx_device_ordinal,
    .destroy = ewx_cuda_destroy,
    .memory = {.allocate = ewx_cuda_allocate,
               .release = ewx_cuda_release,
               .copy = ewx_cuda_copy,
               .fill = ewx_cuda_fill,
               .generate = ewx_cuda_generate,
               .verify = ewx_cuda_verify},
    .symmetric = &ewx_cuda_symmetric_memory,
    .weights = {.open = ewx_cuda_weight_open,
                .pack = ewx_cuda_weight_pack,
                .close = ewx_cuda_weight_close},
    .graphs = {.open = ewx_cuda_graph_open,
               .replay = ewx_cuda_graph_replay,
               .close = ewx_cuda_graph_close},
};
