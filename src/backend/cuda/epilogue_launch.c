/* Epilogues: their memory, their parameters and their launches.  Kernels do the rest. */
#include "plan/layer.h"

#include "backend/cuda/ops/cuda_op.h"

/* ---- Memory and kernels ---- */

/* Rows of the largest C. */
static int64_t most_rows(const ewx_spec *spec)
{
    return spec->op->rows_c(spec->problem.max_m, spec->num_ranks, 0).count;
}

static size_t squares_bytes(const ewx_spec *spec)
{
    return (size_t)(most_rows(spec) * spec->layout.tile_cols + 1) * sizeof(float);
}

static size_t counters_bytes(const ewx_spec *spec)
{
    return sizeof(ewx_cuda_epilogue_counters) +
           (size_t)(spec->layout.max_tile_rows + 1) * sizeof(uint32_t);
}

static size_t sum_bytes(const ewx_spec *spec)
{
    return (size_t)(most_rows(spec) * spec->problem.n + 1) * spec->elem_bytes;
}

/* It follows a sum, and where the GEMM waits nothing is summed. */
static bool has_epilogue(const ewx_spec *spec)
{
    return !spec->op->gemm_waits;
}

/* An exchange kernel on SMs of its own is padded until it fills them, which is done for the
 * one without an epilogue alone. */
static bool may_fuse(const ewx_spec *spec)
{
    const ew_epilogue_form form = spec->config.epilogue;
    return ewx_cuda_op_find(spec->op->id)->fused_kernel &&
           spec->config.pool != EW_POOL_STATIC && (!form || form == EW_EPILOGUE_FUSED);
}

size_t ewx_cuda_epilogue_bytes(const ewx_spec *spec)
{
    if (!has_epilogue(spec))
        return 0;
    return squares_bytes(spec) + counters_bytes(spec) +
           (may_fuse(spec) ? 0 : sum_bytes(spec));
}

/* It may need more registers than the plain one, for which x was checked. */
static ew_status find_fused_kernel(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    ewx_occupancy occupancy;
    engine->fused_exchange = engine->op->fused_kernel(spec);
    EW_TRY(ewx_cuda_entry_prepare(&engine->fused_exchange));
    EW_TRY(ewx_occupancy_measure(
        engine->device, ewx_cuda_pair(engine, &engine->fused_exchange), &occupancy));
    engine->fuses = may_fuse(spec) && (spec->config.pool == EW_POOL_AFTER ||
                                       spec->config.budget <= occupancy.most_waiters);
    if (engine->fuses)
        engine->exchange_fits_beside &= occupancy.waiters_beside > 0;
    return EW_OK;
}

/* As many as may wait for each other: fewer than x where it needs more of an SM than the
 * plain one, for which x was checked. */
static ew_status find_rows_kernel(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    const int budget = spec->config.budget;
    ewx_cuda_entry *entry = &engine->rows_exchange;
    ewx_occupancy occupancy;
    *entry = engine->op->rows_kernel(spec);
    /* On SMs of its own it takes the room of the plain one, which was padded to fill them,
     * with a variable of its own. */
    if (engine->exchange.dynamic_smem > EWX_SHARED_UNIT)
        entry->dynamic_smem = engine->exchange.dynamic_smem - EWX_SHARED_UNIT;
    EW_TRY(ewx_cuda_entry_prepare(entry));
    EW_TRY(ewx_occupancy_measure(engine->device, ewx_cuda_pair(engine, entry), &occupancy));
    engine->rows_ctas = spec->config.pool == EW_POOL_STATIC ? budget
                        : spec->config.pool == EW_POOL_AFTER
                            ? (int)ewx_min64(budget, occupancy.waiters_alone)
                            : (int)ewx_min64(budget, occupancy.most_waiters);
    return EW_OK;
}

static ew_status find_kernels(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    const ew_config *config = &spec->config;
    const ew_dtype dtype = spec->problem.dtype;
    engine->epilogue_rest = ewx_cuda_epilogue_rest(dtype);
    engine->epilogue_whole = ewx_cuda_epilogue_whole(dtype);
    EW_TRY(ewx_cuda_entry_prepare(&engine->epilogue_rest));
    EW_TRY(ewx_cuda_entry_prepare(&engine->epilogue_whole));
    if (engine->op->fused_kernel)
        EW_TRY(find_fused_kernel(engine));
    if (engine->op->rows_kernel)
        EW_TRY(find_rows_kernel(engine));
    ewx_occupancy occupancy;
    const ewx_kernel_pair beside = {&engine->gemm, config->cluster, &engine->epilogue_rest};
    EW_TRY(ewx_occupancy_measure(engine->device, beside, &occupancy));
    engine->fits_beside = ewx_occupancy_fits_beside(&occupancy, config);
    return EW_OK;
}

ew_status ewx_cuda_epilogue_open(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    if (!has_epilogue(engine->spec))
        return EW_OK;
    EW_TRY(find_kernels(engine));
    EW_CUDA_TRY(cudaMalloc((void **)&engine->squares, squares_bytes(spec)),
                "allocating sums of squares");
    EW_CUDA_TRY(cudaMalloc((void **)&engine->epilogue_counters, counters_bytes(spec)),
                "allocating counters");
    EW_CUDA_TRY(cudaMemset(engine->epilogue_counters, 0, counters_bytes(spec)),
                "clearing counters");
    if (!engine->fuses)
        EW_CUDA_TRY(cudaMalloc(&engine->spare_sum, sum_bytes(spec)), "allocating a sum");
    return EW_OK;
}

void ewx_cuda_epilogue_close(ewx_cuda_engine *engine)
{
    cudaFree(engine->squares);
    cudaFree(engine->epilogue_counters);
    cudaFree(engine->spare_sum);
}

/* ---- Calls ---- */

ewx_cuda_epilogue ewx_cuda_epilogue_describe(const ewx_cuda_engine *engine, void *sum,
                                             void *C, const ew_epilogue *epilogue)
{
    void *h = epilogue->residual ? epilogue->residual : C ? C : epilogue->normed;
    const bool is_there = sum && !epilogue->bias; /* c, in the sum's place */
    return (ewx_cuda_epilogue){
        .bias = epilogue->bias,
        .norm_weight = epilogue->norm_weight,
        .sum = sum,
        .c = is_there && C == sum ? NULL : C,
        .h = h,
        .normed = epilogue->norm_weight ? epilogue->normed : NULL,
        .has_residual = epilogue->residual != NULL,
        .stores_h = h != C,
        .eps = epilogue->eps,
        .squares = engine->squares,
        .counters = engine->epilogue_counters,
    };
}

/* What is left of the rows is known to the device alone. */
static int64_t ctas_for(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    enum { CTAS_PER_SM = 8 };
    const int64_t rows = ewx_share_of(&call->grid, (ewx_ownership)call->ownership,
                                      call->num_ranks, call->rank)
                             .num_rows;
    const int64_t ctas = ewx_div_up(rows, EWX_CUDA_EPILOGUE_ROWS);
    return ewx_min64(ctas > 0 ? ctas : 1, CTAS_PER_SM * engine->device->sms);
}

/* Producers of later calls wait for readers that are launched after this kernel.  If it, or
 * those, waited in turn for room among them, there would be a deadlock. */
static bool holds_producers(const ewx_cuda_engine *engine, cudaStream_t stream)
{
    bool fits = engine->fits_beside && engine->exchange_fits_beside;
#if EW_MUTANT == 92 /* planted bug: the next call's reducer need not find room */
    fits = engine->fits_beside;
#endif
    return !fits && stream != engine->device->producing;
}

ew_status ewx_cuda_epilogue_launch(const ewx_cuda_engine *engine, ewx_cuda_call *call,
                                   ewx_cuda_epilogue *parameters, ewx_launch_how how,
                                   cudaStream_t stream)
{
    const ewx_cuda_entry *entry =
        parameters->sum ? &engine->epilogue_whole : &engine->epilogue_rest;
    void *arguments[] = {parameters, call};
    if (!parameters->sum && !parameters->normed) /* the exchange has done it all */
        return EW_OK;
    EW_TRY(ewx_cuda_launch_line(engine, entry, ctas_for(engine, call), how, stream,
                                arguments));
    return holds_producers(engine, stream) ? ewx_cuda_hold_producers(engine) : EW_OK;
}

/* The addition without the norm, if that is to have a kernel of its own. */
static ew_epilogue first_step(const ewx_cuda_engine *engine, const ew_epilogue *epilogue)
{
    ew_epilogue first = *epilogue;
    if (engine->spec->config.epilogue == EW_EPILOGUE_SEPARATE &&
        (first.bias || first.residual))
        first.norm_weight = NULL;
    return first;
}

/* Over h, which the step before has left in memory. */
static ew_status launch_norm(const ewx_cuda_engine *engine, ewx_cuda_call *call, void *h,
                             const ew_epilogue *epilogue)
{
    ew_epilogue norm = *epilogue;
    norm.bias = norm.residual = NULL;
    ewx_cuda_epilogue parameters = ewx_cuda_epilogue_describe(engine, h, h, &norm);
    return ewx_cuda_epilogue_launch(engine, call, &parameters, (ewx_launch_how){0},
                                    ewx_cuda_exchange_stream(engine));
}

ew_status ewx_cuda_epilogue_follow(const ewx_cuda_engine *engine, ewx_cuda_call *call,
                                   void *sum, void *C, const ew_epilogue *epilogue)
{
    const ew_epilogue first = first_step(engine, epilogue);
    ewx_cuda_epilogue parameters = ewx_cuda_epilogue_describe(engine, sum, C, &first);
    EW_TRY(ewx_cuda_epilogue_launch(engine, call, &parameters,
                                    (ewx_launch_how){.early = true},
                                    ewx_cuda_exchange_stream(engine)));
    return first.norm_weight == epilogue->norm_weight
               ? EW_OK
               : launch_norm(engine, call, parameters.h, epilogue);
}

ew_status ewx_cuda_epilogue_warm(ewx_cuda_engine *engine)
{
    if (!has_epilogue(engine->spec))
        return EW_OK;
    ewx_cuda_call call = ewx_cuda_describe_call(engine, 0);
    ewx_cuda_output output = {0}; /* no task, and no call that ends */
    ewx_cuda_epilogue parameters = {.counters = engine->epilogue_counters};
    ewx_cuda_strips strips = {.rows = 1};
    void *exchanging[] = {&output, &call, &parameters, &strips};
    void *following[] = {&parameters, &call};
    const cudaStream_t stream = ewx_cuda_exchange_stream(engine);
    if (engine->fused_exchange.function)
        EW_TRY(
            ewx_cuda_launch_ctas(engine, &engine->fused_exchange, 1, stream, exchanging));
    if (engine->rows_exchange.function)
        EW_TRY(ewx_cuda_launch_ctas(engine, &engine->rows_exchange, 1, stream, exchanging));
    EW_TRY(ewx_cuda_launch_ctas(engine, &engine->epilogue_rest, 1, stream, following));
    return ewx_cuda_launch_ctas(engine, &engine->epilogue_whole, 1, stream, following);
}
