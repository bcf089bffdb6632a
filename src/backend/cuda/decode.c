/* The GEMM of calls of few rows: which plans have one, and which kernel a call of m rows
 * gets. */
#include "backend/cuda/cuda_engine.h"
#include "plan/policy.h"

/* Rows that a kernel takes at most.  The last takes EWX_DECODE_ROWS: plans expect a kernel
 * for all calls of that many rows. */
static const int tokens[EWX_CUDA_DECODE_KERNELS] = EWX_DECODE_SIZES;

ew_status ewx_cuda_decode_open(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    if (!ewx_has_decode_kernel(spec))
        return EW_OK;
    for (int i = 0; i < EWX_CUDA_DECODE_KERNELS; i++) {
        engine->decode[i] =
            ewx_cuda_gemm_decode_sm90(spec->op->id, spec->problem.dtype, tokens[i]);
        EW_TRY(ewx_cuda_entry_prepare(&engine->decode[i]));
    }
    return EW_OK;
}

const ewx_cuda_entry *ewx_cuda_decode_kernel(const ewx_cuda_engine *engine,
                                             const ewx_cuda_call *call)
{
    const int64_t m = call->grid.rows;
    if (!engine->decode[0].function || m < 1 || call->grid.num_parts > 1)
        return NULL;
    for (int i = 0; i < EWX_CUDA_DECODE_KERNELS; i++)
        if (m <= tokens[i])
            return &engine->decode[i];
    return NULL;
}

/* A launch without tiles that neither opens nor closes a call. */
ew_status ewx_cuda_decode_warm(ewx_cuda_engine *engine)
{
    ewx_cuda_call call = ewx_cuda_describe_call(engine, 0);
    ewx_cuda_operands nothing = {.k = engine->spec->problem.k};
    void *arguments[] = {&engine->maps, &nothing, &call};
    for (int i = 0; i < EWX_CUDA_DECODE_KERNELS && engine->decode[i].function; i++)
        EW_TRY(ewx_cuda_launch_ctas(engine, &engine->decode[i], 1,
                                    engine->device->producing, arguments));
    return EW_OK;
}
