/* Calls that start together: the kernels of all ranks wait behind a gate until every rank
 * has enqueued its own. */
#include "backend/cuda/cuda_engine.h"
#include "base/clock.h"
#include "plan/policy.h"

static void release_now(const ewx_cuda_engine *engine)
{
    __atomic_store_n(&engine->report->enqueued, engine->num_held, __ATOMIC_RELEASE);
}

/* The wait is under the closed gate, not before the call: a GPU whose kernels wait starts
 * at another clock than one that is idle. */
void ewx_cuda_release_start(const ewx_cuda_engine *engine)
{
    const int64_t end_ns = ewx_now_ns() + engine->start.hold_ns;
    while (ewx_now_ns() < end_ns)
        ;
    release_now(engine);
}

/* Whether the host may get stuck before all of the call is enqueued: at a kernel that
 * cuBLAS loads for another m, or at a queue that is full.  Then nothing may wait for it. */
static bool host_may_wait(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    enum { LAUNCHES_AT_ONCE = 256 };
    return (engine->spec->config.producer == EW_PRODUCER_BLAS &&
            ewx_cuda_has_new_rows(engine, call)) ||
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
ew_status ewx_cuda_hold_start(ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    const cudaStream_t producing = engine->device->producing;
    const cudaStream_t exchanging = ewx_cuda_exchange_stream(engine);
    engine->num_held++;
    if (host_may_wait(engine, call))
        release_now(engine);
    EW_TRY(launch_hold(engine, call, EWX_STAGE_GEMM, producing));
    return exchanging != producing
               ? launch_hold(engine, call, EWX_STAGE_EXCHANGE, exchanging)
               : EW_OK;
}
