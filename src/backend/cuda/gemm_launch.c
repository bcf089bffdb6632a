/* How the GEMM of a call reaches the GPU: one of ours, or cuBLAS's. */
#include "backend/cuda/cuda_engine.h"
#include "plan/policy.h"

int64_t ewx_cuda_blas_rows(const ewx_spec *spec)
{
    const int64_t max_m = spec->problem.max_m;
    return ewx_copies_rows(spec->op, &spec->config) ? ewx_div_up(max_m, spec->num_ranks)
                                                    : max_m;
}

/* For another m cuBLAS may load another kernel: by then every rank's opening kernel must be
 * enqueued, for these may wait for each other, and no exchange may wait for the GEMM. */
bool ewx_cuda_has_new_rows(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return engine->blas_rows != call->grid.rows;
}

ew_status ewx_cuda_open_blas(ewx_cuda_engine *engine, ewx_cuda_call *call)
{
    const bool new_rows = ewx_cuda_has_new_rows(engine, call);
    void *arguments[] = {call};
    engine->blas_rows = call->grid.rows;
    EW_TRY(ewx_cuda_launch_ctas(engine, &engine->open_call, 1, engine->device->producing,
                                arguments));
    return new_rows ? ewx_cuda_meet_threads(engine) : EW_OK;
}

ew_status ewx_cuda_multiply(ewx_cuda_engine *engine, int64_t rows, const void *A,
                            const void *packed, void *out)
{
    const ew_problem *problem = &engine->spec->problem;
    return ewx_cuda_blas_gemm(&engine->blas, problem->dtype, rows, problem->n, problem->k,
                              A, packed, out, engine->device->producing);
}

ew_status ewx_cuda_launch_blas(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               const ewx_call *request, void *out)
{
    const bool new_rows = ewx_cuda_has_new_rows(engine, call);
    EW_TRY(ewx_cuda_open_blas(engine, call));
    EW_TRY(ewx_cuda_multiply(engine, call->grid.rows, request->A, request->packed, out));
    return new_rows ? ewx_cuda_meet_threads(engine) : EW_OK;
}

/* Whether the GEMM can take the last blocks tile by tile. */
static bool splits_blocks(const ewx_cuda_engine *engine, const ewx_cuda_entry *decode,
                          const ewx_call *request)
{
    return ewx_splits_blocks(engine->spec) && request->num_products == 0 && !decode;
}

ew_status ewx_cuda_launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               ewx_cuda_operands part, const ewx_call *request)
{
    const ew_config *config = &engine->spec->config;
    const ewx_cuda_entry *decode = ewx_cuda_decode_kernel(engine, call);
    const ewx_cuda_entry *gemm = decode                       ? decode
                                 : request->num_products == 0 ? &engine->gemm
                                 : request->activates         ? &engine->activating_gemm
                                                              : &engine->weights_gemm;
    const int cluster = decode ? 1 : config->cluster;
    ewx_cuda_operands operands = part;
    operands.a = request->A;
    operands.b = request->packed;
    operands.k = engine->spec->problem.k;
    operands.piece_k = operands.k / engine->spec->layout.num_pieces;
    operands.persistent = config->ctas == EW_CTAS_PERSISTENT;
    const int64_t blocks = part.end_position - part.first_position;
    const int64_t whole = splits_blocks(engine, decode, request)
                              ? ewx_split_from(blocks, engine->gemm_ctas)
                              : blocks;
    operands.split_position = part.first_position + whole;
    int64_t ctas = ewx_div_up(whole + 2 * (blocks - whole), cluster) * cluster;
    if (operands.persistent)
        ctas = ewx_min64(ctas, engine->gemm_ctas);
    if (ctas == 0) /* the call must still be counted */
        ctas = cluster;
    const cudaStream_t stream = engine->device->producing;
    ewx_launch_how how = {.started =
                              config->pool == EW_POOL_STATIC ? engine->started : NULL};
    engine->products.all = ewx_cuda_describe_products(request);
    if (config->kernel == EW_KERNEL_SM80) {
        void *arguments[] = {&operands, call, &engine->products.all};
        return ewx_cuda_launch_line(engine, gemm, ctas, how, stream, arguments);
    }
    how.cluster = cluster;
    EW_TRY(ewx_cuda_update_maps(engine, gemm, &call->grid, request));
    void *arguments[] = {&engine->maps, &operands, call, &engine->products};
    return ewx_cuda_launch_line(engine, gemm, ctas, how, stream, arguments);
}
