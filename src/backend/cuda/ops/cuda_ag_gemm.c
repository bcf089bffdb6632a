/* AllGather-GEMM on GPUs.  Movers push the rank's rows to all others, on a stream of their
 * own beside the GEMM, which waits for the rows of others, or before it (pool=after); or
 * copy engines do (transport=copy), one rank after the other, and the GEMM is ours, or one
 * of cuBLAS for each rank's rows.  All rows are copied out, where they are wanted, behind
 * the GEMM. */
#include "backend/cuda/ops/cuda_op.h"

static ewx_cuda_entry exchange_kernel(const ewx_spec *spec)
{
    return ewx_copies_rows(spec->op, &spec->config) ? ewx_cuda_between_copies()
                                                    : ewx_cuda_mover(spec->config.batch);
}

static bool copies(const ewx_cuda_engine *engine)
{
    return engine->spec->config.transport == EW_TRANSPORT_COPY;
}

static bool uses_blas(const ewx_cuda_engine *engine)
{
    return engine->spec->config.producer == EW_PRODUCER_BLAS;
}

static size_t row_bytes(const ewx_cuda_engine *engine)
{
    return (size_t)engine->spec->problem.k * engine->spec->elem_bytes;
}

/* A tile of the GEMM may have rows of several ranks.  All are multiplied from the slice,
 * the rank's own too. */
static bool spans_owners(const ewx_cuda_engine *engine, int64_t m)
{
    return ewx_spans_owners(engine->spec, m);
}

static ewx_cuda_rows describe_rows(const ewx_cuda_engine *engine, const ewx_call *request)
{
    const bool spanning = spans_owners(engine, request->m);
    return (ewx_cuda_rows){.a = request->A,
                           .k = engine->spec->problem.k,
                           .keeps_own = uses_blas(engine) || spanning,
                           .spanning = spanning,
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

/* ---- Copy engines ---- */

/* Rows from `first` on of all ranks', in dst's only slice. */
static unsigned char *place_of_rows(const ewx_cuda_engine *engine, int dst, int64_t first)
{
    return engine->heap.segments[dst] + engine->spec->layout.slice_offset[0] +
           (size_t)first * row_bytes(engine);
}

static ew_status copy_rows(const ewx_cuda_engine *engine, int dst, int64_t first,
                           const unsigned char *from, size_t bytes)
{
    EW_CUDA_TRY(cudaMemcpyAsync(place_of_rows(engine, dst, first), from, bytes,
                                cudaMemcpyDefault, ewx_cuda_exchange_stream(engine)),
                "copying rows");
    return EW_OK;
}

/* What is not published is not read. */
static ew_status warm_copies(const ewx_cuda_engine *engine)
{
    const int num_ranks = engine->spec->num_ranks, rank = engine->world->rank;
    const ewx_rows own = ewx_rows_dealt(engine->spec->problem.max_m, num_ranks, rank);
    for (int dst = 0; dst < num_ranks; dst++)
        if (dst != rank && own.count > 0)
            EW_TRY(copy_rows(engine, dst, own.first, place_of_rows(engine, rank, own.first),
                             (size_t)own.count * row_bytes(engine)));
    return EW_OK;
}

static ew_status launch_between(const ewx_cuda_engine *engine, ewx_cuda_call *call,
                                ewx_cuda_parcel before, ewx_cuda_parcel next)
{
    void *arguments[] = {call, &before, &next};
    return ewx_cuda_launch_ctas(engine, &engine->exchange, 1,
                                ewx_cuda_exchange_stream(engine), arguments);
}

/* Downwards from the rank, so that upwards from any other its rows come in turn: the order
 * of the ring in plan/walk.h. */
static ew_status launch_copies(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               const ewx_call *request)
{
    const int num_ranks = engine->spec->num_ranks;
    const int64_t first_row = ewx_part_first_row(&call->grid, call->rank);
    const int64_t rows = ewx_part_rows(&call->grid, call->rank);
    const int64_t panels = ewx_part_tile_rows(&call->grid, call->rank);
    const int64_t size = call->release.size > 0 ? call->release.size : panels;
    const ewx_cuda_parcel none = {.dst = -1};
    ewx_cuda_parcel before = none;
    for (int step = 1; step < num_ranks; step++)
        for (int64_t panel = 0; panel < panels; panel += size) {
            const int64_t first = panel * EWX_TILE_M;
            const int64_t count = ewx_min64(size * EWX_TILE_M, rows - first);
            const ewx_cuda_parcel next = {.dst =
                                              (call->rank + num_ranks - step) % num_ranks,
                                          .first = panel,
                                          .end = ewx_min64(panel + size, panels),
                                          .bytes = count * (int64_t)row_bytes(engine)};
            EW_TRY(launch_between(engine, call, before, next));
            EW_TRY(copy_rows(engine, next.dst, first_row + first,
                             (const unsigned char *)request->A +
                                 (size_t)first * row_bytes(engine),
                             (size_t)next.bytes));
            before = next;
        }
    return launch_between(engine, call, before, none);
}

static ew_status launch_exchange(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const ewx_call *request)
{
    return copies(engine) ? launch_copies(engine, call, request)
                          : launch_movers(engine, call, request);
}

/* ---- The GEMM ---- */

static ew_status launch_own_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const ewx_call *request)
{
    ewx_cuda_call waits = *call;
    waits.grid = ewx_gathered_grid(engine->spec, &call->grid);
    const ewx_cuda_operands all = {.end_position = ewx_num_blocks(&waits.grid),
                                   .c = request->C,
                                   .frees_slice = request->gathered == NULL};
    /* The flags of panels that are copied together come together: one panel's will do. */
    if (copies(engine) && call->release.size != EW_RELEASE_OUTPUT)
        waits.release.size = 1;
    return ewx_cuda_launch_gemm(engine, &waits, all, request);
}

static ew_status close_blas(ewx_cuda_engine *engine, ewx_cuda_call *call,
                            const ewx_call *request)
{
    int frees_slice = request->gathered == NULL;
    void *arguments[] = {call, &frees_slice};
    return ewx_cuda_launch_ctas(engine, &engine->close_call, 1, engine->device->producing,
                                arguments);
}

/* cuBLAS multiplies the gathered rows; it has one slice, since the epoch is known to the
 * device alone. */
static ew_status launch_blas(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request)
{
    ewx_call gathered = *request;
    gathered.A = call->heaps[call->rank] + call->slice_offset[0];
    EW_TRY(ewx_cuda_launch_blas(engine, call, &gathered, request->C));
    return close_blas(engine, call, request);
}

/* Own rows first, and from where the caller has them. */
static ew_status launch_blas_by_rank(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                     const ewx_call *request)
{
    const cudaStream_t stream = engine->device->producing;
    const int num_ranks = engine->spec->num_ranks;
    const size_t c_row_bytes = (size_t)call->grid.cols * engine->spec->elem_bytes;
    EW_TRY(ewx_cuda_open_blas(engine, call));
    for (int step = 0; step < num_ranks; step++) {
        int src = (call->rank + step) % num_ranks;
        const int64_t first = ewx_part_first_row(&call->grid, src);
        void *arguments[] = {call, &src};
        if (step > 0)
            EW_TRY(ewx_cuda_launch_ctas(engine, &engine->await_rows, 1, stream, arguments));
        EW_TRY(ewx_cuda_multiply(
            engine, ewx_part_rows(&call->grid, src),
            step == 0 ? request->A : place_of_rows(engine, call->rank, first),
            request->packed, (unsigned char *)request->C + (size_t)first * c_row_bytes));
    }
    return close_blas(engine, call, request);
}

static ew_status launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                             const ewx_call *request)
{
    enum { CTAS_PER_SM = 4 };
    EW_TRY(!uses_blas(engine) ? launch_own_gemm(engine, call, request)
           : copies(engine)   ? launch_blas_by_rank(engine, call, request)
                              : launch_blas(engine, call, request));
    if (!request->gathered)
        return EW_OK;
    ewx_cuda_rows rows = describe_rows(engine, request);
    void *arguments[] = {&rows, call};
    return ewx_cuda_launch_ctas(engine, &engine->hand_out,
                                CTAS_PER_SM * engine->device->sms,
                                engine->device->producing, arguments);
}

/* A GEMM ends after those of all ranks have begun, and each of these was enqueued behind
 * what its peers wait for.  In a call without rows, and before cuBLAS's GEMM, nobody waits;
 * and copies to several ranks are not enqueued at once. */
static bool some_may_be_early(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    return uses_blas(engine) || copies(engine) || call->grid.rows < engine->spec->num_ranks;
}

const ewx_cuda_op ewx_cuda_op_ag_gemm = {.id = EW_OP_AG_GEMM,
                                         .exchange_kernel = exchange_kernel,
                                         .launch_gemm = launch_gemm,
                                         .launch_exchange = launch_exchange,
                                         .warm_copies = warm_copies,
                                         .some_may_be_early = some_may_be_early};
