/* An operation on GPUs: which kernels make up its two stages, and what each stage launches
 * behind its kernel.  A file of this folder holds each operation; plan/ops/ says which of
 * the stages waits for the other, and cuda_launch.c enqueues them accordingly. */
#ifndef EWX_CUDA_OPS_OP_H
#define EWX_CUDA_OPS_OP_H

#include "backend/cuda/cuda_engine.h"

struct ewx_cuda_op {
    ew_op id;

    /* NULL: every epilogue can follow. */
    ew_status (*admit)(const ewx_cuda_engine *engine, const ew_epilogue *epilogue);

    /* The kernel at the other end of what crosses, without an epilogue and with one (NULL:
     * an epilogue follows, or there is none). */
    ewx_cuda_entry (*exchange_kernel)(const ewx_spec *spec);
    ewx_cuda_entry (*fused_kernel)(const ewx_spec *spec);
    /* For epilogues in which ranks finish rows of their own and give them to all (NULL:
     * there are none). */
    ewx_cuda_entry (*rows_kernel)(const ewx_spec *spec);
    /* Its CTAs wait for those of other ranks too, so all must be resident together. */
    bool exchanges_meet;

    /* Another grid and other owners than a call without an epilogue has; NULL: never. */
    void (*cut)(const ewx_cuda_engine *engine, const ew_epilogue *epilogue,
                ewx_cuda_call *call);

    /* Enqueue one stage each: the GEMM on device->producing, the other on
     * ewx_cuda_exchange_stream. */
    ew_status (*launch_gemm)(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request);
    ew_status (*launch_exchange)(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const ewx_call *request);

    /* transport=copy: makes every copy once, because the driver prepares for the first of a
     * kind, and may wait for the whole GPU meanwhile.  NULL: the operation has none. */
    ew_status (*warm_copies)(const ewx_cuda_engine *engine);

    /* Whether a rank can have its result before all ranks have enqueued theirs. */
    bool (*some_may_be_early)(const ewx_cuda_engine *engine, const ewx_cuda_call *call);
};

extern const ewx_cuda_op ewx_cuda_op_gemm_rs, ewx_cuda_op_gemm_ar, ewx_cuda_op_ag_gemm;

/* NULL: it does not run on GPUs. */
const ewx_cuda_op *ewx_cuda_op_find(ew_op id);

#endif
