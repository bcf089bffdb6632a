/* GEMM-ReduceScatter on GPUs.  The GEMM publishes its tiles; the reducer waits for those of
 * its rank, on a stream of its own beside the GEMM or behind it (pool=after).  An epilogue
 * is part of the reducer, or a kernel behind it. */
#include "backend/cuda/ops/cuda_op.h"
#include "plan/policy.h"

static int num_sources(const ewx_spec *spec)
{
    return ewx_transport_adds(spec->config.transport)
               ? 1
               : spec->num_ranks * spec->layout.num_pieces;
}

static ewx_cuda_entry reducer(const ewx_spec *spec)
{
    return ewx_cuda_reducer(spec->problem.dtype, num_sources(spec), spec->config.batch);
}

static ewx_cuda_entry reducer_with_epilogue(const ewx_spec *spec)
{
    return ewx_cuda_fused_reducer(spec->problem.dtype, num_sources(spec),
                                  spec->config.batch);
}

/* ---- The GEMM ---- */

static ew_status launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request)
{
    const ew_config *config = &engine->spec->config;
    const ewx_cuda_operands whole = {
        .end_position = ewx_num_blocks(&call->grid), .opens = true, .closes = true};
    /* The epoch, hence the slice, is known to the device alone: cuBLAS has only one. */
    if (config->producer == EW_PRODUCER_BLAS)
        return ewx_cuda_launch_blas(engine, call, request,
                                    call->heaps[call->rank] + call->slice_offset[0]);
    return config->transport == EW_TRANSPORT_COPY
               ? ewx_cuda_launch_copied(engine, call, request)
               : ewx_cuda_launch_gemm(engine, call, whole, request);
}

/* ---- The sum ---- */

static ewx_share share_of(const ewx_cuda_call *call)
{
    return ewx_share_of(&call->grid, (ewx_ownership)call->ownership, call->num_ranks,
                        call->rank);
}

/* `epilogue` is NULL without one that is fused. */
static ew_status launch_reducer(ewx_cuda_engine *engine, ewx_cuda_call *call, void *C,
                                ewx_cuda_epilogue *epilogue)
{
    const ew_config *config = &engine->spec->config;
    const cudaStream_t stream = ewx_cuda_exchange_stream(engine);
    const ewx_share mine = share_of(call);
    const int64_t num_tasks = mine.count;
    const bool by_unit = ewx_reduces_by_unit(config);
    ewx_cuda_output output = {.c = epilogue ? epilogue->h : C,
                              .mine = mine,
                              .announce = config->producer == EW_PRODUCER_BLAS};
    const ewx_cuda_entry *entry = epilogue ? &engine->fused_exchange : &engine->exchange;
    void *arguments[] = {&output, call, epilogue};
    /* If waiters that leave no room for an awaited CTA came first, they could take every
     * SM. */
    if (config->pool == EW_POOL_STATIC)
        EW_TRY(ewx_cuda_follow(stream, engine->started));
    for (int64_t unit = 0; !output.closes; unit++) {
        output.end_task =
            by_unit ? ewx_release_range(call->release, num_tasks, unit).end : num_tasks;
        output.closes = output.end_task == num_tasks; /* also of a call without tasks */
        EW_TRY(ewx_cuda_launch_ctas(engine, entry, config->budget, stream, arguments));
        output.first_task = output.end_task;
    }
    return EW_OK;
}

/* The vendor's collective, when there is one and the rows divide evenly. */
static ew_status launch_nccl(ewx_cuda_engine *engine, ewx_cuda_call *call, void *C)
{
    const cudaStream_t stream = engine->device->producing;
    const unsigned char *from = call->heaps[call->rank] + call->slice_offset[0];
    void *arguments[] = {call};
    EW_TRY(ewx_cuda_launch_ctas(engine, &engine->mark_gemm_end, 1, stream, arguments));
    EW_TRY(ewx_nccl_reduce_scatter(&engine->nccl, engine->spec->problem.dtype, from, C,
                                   call->grid.small_rows * call->grid.cols, stream));
    return ewx_cuda_launch_ctas(engine, &engine->close_call, 1, stream, arguments);
}

static bool uses_nccl(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return engine->nccl.communicator && call->grid.num_large == 0 && call->grid.rows > 0;
}

/* Where a sum goes that only the following epilogue reads: after the last read of a row,
 * its norm takes the place.  NCCL sums in place. */
static void *place_of_sum(const ewx_cuda_engine *engine, const ewx_cuda_call *call,
                          const ew_epilogue *epilogue, bool by_nccl)
{
    const int64_t row = ewx_part_first_row(&call->grid, call->rank);
    if (by_nccl)
        return call->heaps[call->rank] + call->slice_offset[0] + row * call->grid.cols * 2;
    return epilogue->normed ? epilogue->normed : engine->spare_sum;
}

/* Strips are normalised when the tiles of their part's rows are counted; where tiles span
 * owners there are too few rows for that to pay, and the norm follows. */
static bool fuses(const ewx_cuda_engine *engine, const ewx_cuda_call *call,
                  const ew_epilogue *epilogue)
{
    const ewx_epilogue_facts facts = {.has_norm = epilogue->normed != NULL,
                                      .tiles_travel = engine->world->num_hosts > 1,
                                      .tile_rows =
                                          ewx_div_up(share_of(call).num_rows, EWX_TILE_M)};
    const bool counts_parts = call->ownership == EWX_OWNS_PART || !facts.has_norm;
    return engine->fuses && counts_parts &&
           ewx_epilogue_fuses(&engine->spec->config, &facts);
}

static ew_status launch_sum(ewx_cuda_engine *engine, ewx_cuda_call *call,
                            const ewx_call *request)
{
    const ew_epilogue *epilogue = request->epilogue;
    void *C = request->C;
    const bool by_nccl = uses_nccl(engine, call);
    if (!epilogue)
        return by_nccl ? launch_nccl(engine, call, C)
                       : launch_reducer(engine, call, C, NULL);
    if (by_nccl || !fuses(engine, call, epilogue)) {
        void *sum = C ? C : place_of_sum(engine, call, epilogue, by_nccl);
        EW_TRY(by_nccl ? launch_nccl(engine, call, sum)
                       : launch_reducer(engine, call, sum, NULL));
        return ewx_cuda_epilogue_follow(engine, call, sum, C, epilogue);
    }
    ewx_cuda_epilogue parameters = ewx_cuda_epilogue_describe(engine, NULL, C, epilogue);
    EW_TRY(launch_reducer(engine, call, NULL, &parameters));
    return ewx_cuda_epilogue_launch(engine, call, &parameters,
                                    (ewx_launch_how){.early = true},
                                    ewx_cuda_exchange_stream(engine));
}

/* A rank that has its result may free memory: only where every rank owns rows, and enqueues
 * what its peers wait for in one launch, can no rank have a result before all have
 * enqueued. */
static bool some_may_be_early(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    const ew_config *config = &engine->spec->config;
    return config->transport == EW_TRANSPORT_COPY || config->producer == EW_PRODUCER_BLAS ||
           call->grid.rows < engine->spec->num_ranks;
}

const ewx_cuda_op ewx_cuda_op_gemm_rs = {.id = EW_OP_GEMM_RS,
                                         .exchange_kernel = reducer,
                                         .fused_kernel = reducer_with_epilogue,
                                         .launch_gemm = launch_gemm,
                                         .launch_exchange = launch_sum,
                                         .warm_copies = ewx_cuda_warm_copies,
                                         .some_may_be_early = some_may_be_early};
