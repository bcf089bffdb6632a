/* GEMM-AllReduce on GPUs.  The GEMM publishes its tiles; the reducer waits for those that
 * its rank sums and, in two shots, for the sums of the others, on a stream of its own
 * beside the GEMM or behind it (pool=after).  An epilogue is a kernel behind it, over all
 * rows on every rank. */
#include "backend/cuda/ops/cuda_op.h"

static ewx_cuda_entry allreducer(const ewx_spec *spec)
{
    return ewx_cuda_allreducer(spec->problem.dtype, spec->num_ranks, spec->config.batch);
}

/* ---- What can run ---- */

static ew_status check(const ewx_spec *spec)
{
    const ew_config *config = &spec->config;
    if (config->transport != EW_TRANSPORT_PULL)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "transport=%s with gemm-ar on GPUs, where a tile may have several "
                        "readers\n  fix: use transport=pull",
                        config->transport == EW_TRANSPORT_PUSH ? "push" : "copy");
    if (config->launches == EW_LAUNCHES_UNIT)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "launches=unit with gemm-ar on GPUs, where reducers also wait for "
                        "those of other ranks\n  fix: use launches=once");
    return EW_OK;
}

static ew_status admit(const ewx_spec *spec, const ew_epilogue *epilogue)
{
    if (epilogue->norm_weight && epilogue->residual_rows == EW_RESIDUAL_OWNED &&
        spec->num_ranks > 1)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "ew_gemm_ar_layer normalises all rows on every GPU, and the "
                        "residual has only the rank's own\n"
                        "  fix: give every rank the whole residual (EW_RESIDUAL_ALL)");
    return EW_OK;
}

/* ---- The GEMM ---- */

static ew_status launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request)
{
    const ewx_cuda_operands whole = {
        .end_position = ewx_num_blocks(&call->grid), .opens = true, .closes = true};
    if (engine->spec->config.producer == EW_PRODUCER_BLAS)
        return ewx_cuda_launch_blas(engine, call, request,
                                    call->heaps[call->rank] + call->slice_offset[0]);
    return ewx_cuda_launch_gemm(engine, call, whole, request);
}

/* ---- The sum ---- */

static ewx_cuda_rounds rounds_of(const ewx_cuda_call *call)
{
    const ewx_ownership ownership = (ewx_ownership)call->ownership;
    const int num_ranks = call->num_ranks;
    return (ewx_cuda_rounds){
        .mine = ewx_share_of(&call->grid, ownership, num_ranks, call->rank),
        .count = ewx_share_of(&call->grid, ownership, num_ranks, 0).count,
        .tiles = ewx_part_tiles(&call->grid, 0),
        .two_shots = ewx_has_results(ownership)};
}

static ew_status launch_reducer(ewx_cuda_engine *engine, ewx_cuda_call *call, void *C)
{
    const ew_config *config = &engine->spec->config;
    const cudaStream_t stream = ewx_cuda_exchange_stream(engine);
    ewx_cuda_rounds rounds = rounds_of(call);
    ewx_cuda_output output = {
        .c = C, .closes = true, .announce = config->producer == EW_PRODUCER_BLAS};
    void *arguments[] = {&output, call, &rounds};
    /* If waiters that leave no room for an awaited CTA came first, they could take every
     * SM. */
    if (config->pool == EW_POOL_STATIC)
        EW_TRY(ewx_cuda_follow(stream, engine->started));
    return ewx_cuda_launch_ctas(engine, &engine->exchange, config->budget, stream,
                                arguments);
}

static ew_status launch_sum(ewx_cuda_engine *engine, ewx_cuda_call *call,
                            const ewx_call *request)
{
    const ew_epilogue *epilogue = request->epilogue;
    void *C = request->C;
    if (!epilogue)
        return launch_reducer(engine, call, C);
    /* A sum that the caller does not want lies where its norm will be. */
    void *sum = C ? C : epilogue->normed ? epilogue->normed : engine->spare_sum;
    EW_TRY(launch_reducer(engine, call, sum));
    return ewx_cuda_epilogue_follow(engine, call, sum, C, epilogue);
}

/* A rank that has its result may free memory: as in gemm_rs, and a rank that sums no tile
 * may still have to enqueue what nobody waits for. */
static bool some_may_be_early(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return engine->spec->config.producer == EW_PRODUCER_BLAS ||
           ewx_part_tiles(&call->grid, 0) < call->num_ranks;
}

const ewx_cuda_op ewx_cuda_op_gemm_ar = {.id = EW_OP_GEMM_AR,
                                         .check = check,
                                         .admit = admit,
                                         .exchange_kernel = allreducer,
                                         .exchanges_meet = true,
                                         .launch_gemm = launch_gemm,
                                         .launch_exchange = launch_sum,
                                         .some_may_be_early = some_may_be_early};
