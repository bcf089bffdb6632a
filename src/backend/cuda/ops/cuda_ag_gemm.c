/* AllGather-GEMM on GPUs.  Movers push the rank's rows to all others, on a stream of their
 * own beside the GEMM, which waits for the rows of others, or before it (pool=after).  All
 * rows are copied out, where they are wanted, behind the GEMM. */
#include "backend/cuda/ops/cuda_op.h"

static ewx_cuda_entry mover(const ewx_spec *spec)
{
    return ewx_cuda_mover(spec->config.batch);
}

static bool uses_blas(const ewx_cuda_engine *engine)
{
    return engine->spec->config.producer == EW_PRODUCER_BLAS;
}

static ewx_cuda_rows describe_rows(const ewx_cuda_engine *engine, const ewx_call *request)
{
    return (ewx_cuda_rows){.a = request->A,
                           .k = engine->spec->problem.k,
                           .keeps_own = uses_blas(engine),
                           .gathered = request->gathered};
}

static ew_status launch_movers(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               const ewx_call *request)
{
    ewx_cuda_rows rows = describe_rows(engine, request);
    void *arguments[] = {&rows, call};
    return ewx_cuda_launch_ctas(engine, &engine->exchange, engine->spec->config.budget,
                                ewx_cuda_exchange_stream(engine), arguments);
}

static ew_status launch_own_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const ewx_call *request)
{
    const ewx_cuda_operands all = {.end_position = ewx_num_blocks(&call->grid),
                                   .c = request->C,
                                   .frees_slice = request->gathered == NULL};
    return ewx_cuda_launch_gemm(engine, call, all, request);
}

/* cuBLAS multiplies the gathered rows; it has one slice, since the epoch is known to the
 * device alone. */
static ew_status launch_blas(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request)
{
    int frees_slice = request->gathered == NULL;
    void *arguments[] = {call, &frees_slice};
    ewx_call gathered = *request;
    gathered.A = call->heaps[call->rank] + call->slice_offset[0];
    EW_TRY(ewx_cuda_launch_blas(engine, call, &gathered, request->C));
    return ewx_cuda_launch_ctas(engine, &engine->close_call, 1, engine->device->producing,
                                arguments);
}

static ew_status launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request)
{
    enum { CTAS_PER_SM = 4 };
    EW_TRY(uses_blas(engine) ? launch_blas(engine, call, request)
                             : launch_own_gemm(engine, call, request));
    if (!request->gathered)
        return EW_OK;
    ewx_cuda_rows rows = describe_rows(engine, request);
    void *arguments[] = {&rows, call};
    return ewx_cuda_launch_ctas(engine, &engine->hand_out,
                                CTAS_PER_SM * engine->device->sms,
                                engine->device->producing, arguments);
}

/* A GEMM ends after those of all ranks have begun, and each of these was enqueued behind
 * what its peers wait for.  In a call without rows, and before cuBLAS's GEMM, nobody waits.
 */
static bool some_may_be_early(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return uses_blas(engine) || call->grid.rows < engine->spec->num_ranks;
}

const ewx_cuda_op ewx_cuda_op_ag_gemm = {.id = EW_OP_AG_GEMM,
                                         .exchange_kernel = mover,
                                         .launch_gemm = launch_gemm,
                                         .launch_exchange = launch_movers,
                                         .some_may_be_early = some_may_be_early};
