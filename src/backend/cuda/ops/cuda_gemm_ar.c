/* GEMM-AllReduce on GPUs.  The GEMM publishes its tiles; the reducer waits for those that
 * its rank sums and, in two shots, for the sums of the others, on a stream of its own
 * beside the GEMM or behind it (pool=after).  An epilogue is a kernel behind it, over all
 * rows on every rank, or, where each rank has the residual of its own rows, part of another
 * reducer. */
#include "backend/cuda/cuda_symmetric.h"
#include "backend/cuda/ops/cuda_op.h"
#include "plan/layer.h"
#include "plan/policy.h"

/* Those for a certain number of ranks sum one contribution of each. */
static int ranks_of_kernel(const ewx_spec *spec)
{
    return spec->layout.num_pieces == 1 ? spec->num_ranks : 0;
}

static ewx_cuda_entry allreducer(const ewx_spec *spec)
{
    return ewx_cuda_allreducer(spec->problem.dtype, ranks_of_kernel(spec),
                               spec->config.batch);
}

/* It needs the registers of 256 threads where the plain one has those of 512. */
static ewx_cuda_entry row_allreducer(const ewx_spec *spec)
{
    return ewx_cuda_row_allreducer(spec->problem.dtype, ranks_of_kernel(spec),
                                   (int)ewx_min64(spec->config.batch, 256));
}

/* ---- What can run ---- */

/* Where only one rank has the residual of a row, it finishes the row and gives its norm to
 * the others. */
static bool finishes_rows(const ewx_spec *spec, const ew_epilogue *epilogue)
{
    return epilogue->norm_weight && epilogue->residual_rows == EW_RESIDUAL_OWNED &&
           spec->num_ranks > 1;
}

static ew_status admit(const ewx_cuda_engine *engine, const ew_epilogue *epilogue)
{
    if (finishes_rows(engine->spec, epilogue) && engine->rows_ctas == 0)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the kernel that normalises a rank's own rows finds no room beside "
                        "this GEMM\n  fix: use pool=after, or give every rank the whole "
                        "residual (EW_RESIDUAL_ALL)");
    return EW_OK;
}

/* ---- Rows and their owners ---- */

/* With many rows a part for each owner, as in gemm_rs: else the sums of the first would be
 * made first, while the links of all others are idle. */
static void cut(const ewx_cuda_engine *engine, const ew_epilogue *epilogue,
                ewx_cuda_call *call)
{
    const ewx_spec *spec = engine->spec;
    const int num_ranks = spec->num_ranks;
    const int64_t m = call->grid.rows;
    if (!finishes_rows(spec, epilogue))
        return;
    call->ownership = EWX_OWNS_ROWS;
    call->part = 0;
    call->trace = (ewx_cuda_trace){0}; /* whose tiles are those of the plan's grid */
    if (ewx_layer_num_parts(&spec->config, num_ranks, m) == 1)
        return;
    ew_config config = spec->config;
    config.group = config.group > num_ranks ? config.group / num_ranks : 1;
    call->grid = ewx_grid_build(m, spec->problem.n, num_ranks, &config);
    call->tile_rows = (int32_t)ewx_div_up(spec->layout.rows_per_rank, EWX_TILE_M);
    call->ownership = EWX_OWNS_PART;
    call->part = call->rank;
}

/* An output of all rows, if it lies in symmetric memory. */
static ewx_cuda_symmetric symmetric_output(const ewx_cuda_engine *engine,
                                           const ewx_cuda_call *call, const void *output)
{
    return ewx_cuda_symmetric_find(engine->world, engine->device, output,
                                   (size_t)(call->grid.rows * call->grid.cols) * 2);
}

/* Few rows are normalised one by one, each by a whole CTA; all are complete at the end. */
static ewx_cuda_strips strips_of(const ewx_cuda_engine *engine, const ewx_cuda_call *call,
                                 void *normed)
{
    const ewx_layout *layout = &engine->spec->layout;
    const bool by_part = call->ownership == EWX_OWNS_PART;
    const ewx_ownership ownership = (ewx_ownership)call->ownership;
    const ewx_share mine =
        ewx_share_of(&call->grid, ownership, call->num_ranks, call->rank);
    const ewx_share most = ewx_share_of(&call->grid, ownership, call->num_ranks, 0);
    const int32_t rows = by_part ? EWX_STRIP_ROWS : 1;
    return (ewx_cuda_strips){.mine = mine,
                             .rows = rows,
                             .count = (int32_t)ewx_div_up(most.num_rows, rows),
                             .per_block = by_part ? EWX_BLOCK_STRIPS : INT32_MAX,
                             .tiles =
                                 (uint32_t)(by_part ? call->grid.tile_cols : mine.count),
                             .results_offset = (int64_t)layout->row_results_offset,
                             .results_per_rank = layout->rows_per_rank,
                             .normed = normed,
                             .symmetric = symmetric_output(engine, call, normed)};
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

static ewx_cuda_rounds rounds_of(const ewx_cuda_engine *engine, const ewx_cuda_call *call,
                                 const void *C)
{
    const ewx_ownership ownership = (ewx_ownership)call->ownership;
    const int num_ranks = call->num_ranks;
    return (ewx_cuda_rounds){
        .mine = ewx_share_of(&call->grid, ownership, num_ranks, call->rank),
        .end = ewx_share_of(&call->grid, ownership, num_ranks, 0).count,
        .tiles = ewx_part_tiles(&call->grid, 0),
        .two_shots = ewx_has_results(ownership),
        .symmetric = symmetric_output(engine, call, C)};
}

static ew_status launch_waiters(ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                                int ctas, void **arguments)
{
    const cudaStream_t stream = ewx_cuda_exchange_stream(engine);
    /* If waiters that leave no room for an awaited CTA came first, they could take every
     * SM. */
    if (engine->spec->config.pool == EW_POOL_STATIC)
        EW_TRY(ewx_cuda_follow(stream, engine->started));
    return ewx_cuda_launch_ctas(engine, entry, ctas, stream, arguments);
}

static ewx_cuda_output output_of(const ewx_cuda_engine *engine, void *C)
{
    return (ewx_cuda_output){.c = C,
                             .closes = true,
                             .announce = engine->spec->config.producer == EW_PRODUCER_BLAS};
}

/* Behind the last round that begins in a release unit; its last tiles may be the next
 * unit's. */
static int64_t end_of_unit(const ewx_cuda_call *call, const ewx_cuda_rounds *rounds,
                           int64_t unit)
{
    const int64_t end = ewx_release_tasks(&call->grid, call->release, 0, unit).end;
    return ewx_div_up(end, rounds->two_shots ? call->num_ranks : 1);
}

/* Once, or once for each release unit that has rounds of its own. */
static ew_status launch_reducer(ewx_cuda_engine *engine, ewx_cuda_call *call, void *C)
{
    const ew_config *config = &engine->spec->config;
    const bool by_unit = ewx_reduces_by_unit(config);
    ewx_cuda_rounds rounds = rounds_of(engine, call, C);
    ewx_cuda_output output = output_of(engine, C);
    void *arguments[] = {&output, call, &rounds};
    const int64_t count = rounds.end;
    output.closes = false;
    for (int64_t unit = 0; !output.closes; unit++) {
        rounds.end = by_unit ? end_of_unit(call, &rounds, unit) : count;
        output.closes = rounds.end == count; /* also of a call without rounds */
        if (rounds.first < rounds.end || output.closes)
            EW_TRY(launch_waiters(engine, &engine->exchange, config->budget, arguments));
        rounds.first = rounds.end;
    }
    return EW_OK;
}

/* The epilogue's places are those of this rank's rows, of which `normed` has all others
 * too. */
static ew_status launch_row_reducer(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                    const ew_epilogue *epilogue)
{
    ewx_cuda_strips strips = strips_of(engine, call, epilogue->normed);
    const int64_t first =
        ewx_part_first_row(&call->grid, strips.mine.part) + strips.mine.first_row;
    ew_epilogue own = *epilogue;
    own.normed = (unsigned char *)epilogue->normed + first * call->grid.cols * 2;
    ewx_cuda_epilogue parameters = ewx_cuda_epilogue_describe(engine, NULL, NULL, &own);
    ewx_cuda_output output = output_of(engine, parameters.h);
    void *arguments[] = {&output, call, &parameters, &strips};
    return launch_waiters(engine, &engine->rows_exchange, engine->rows_ctas, arguments);
}

static ew_status launch_sum(ewx_cuda_engine *engine, ewx_cuda_call *call,
                            const ewx_call *request)
{
    const ew_epilogue *epilogue = request->epilogue;
    void *C = request->C;
    if (!epilogue)
        return launch_reducer(engine, call, C);
    if (finishes_rows(engine->spec, epilogue))
        return launch_row_reducer(engine, call, epilogue);
    /* A sum that the caller does not want lies where its norm will be. */
    void *sum = C ? C : epilogue->normed ? epilogue->normed : engine->spare_sum;
    EW_TRY(launch_reducer(engine, call, sum));
    return ewx_cuda_epilogue_follow(engine, call, sum, C, epilogue);
}

/* A rank that has its result may free memory: as in gemm_rs, and a rank that sums no tile
 * may still have to enqueue what nobody waits for.  So may every rank that has several
 * reducers to enqueue: of the last, those of others need not wait for its sums. */
static bool some_may_be_early(const ewx_cuda_engine *engine, const ewx_cuda_call *call)
{
    const int64_t shared =
        call->ownership == EWX_OWNS_TILES || call->ownership == EWX_OWNS_ALL
            ? ewx_part_tiles(&call->grid, 0)
            : call->grid.rows;
    return engine->spec->config.producer == EW_PRODUCER_BLAS ||
           engine->spec->config.launches == EW_LAUNCHES_UNIT || shared < call->num_ranks;
}

const ewx_cuda_op ewx_cuda_op_gemm_ar = {.id = EW_OP_GEMM_AR,
                                         .admit = admit,
                                         .exchange_kernel = allreducer,
                                         .rows_kernel = row_allreducer,
                                         .cut = cut,
                                         .exchanges_meet = true,
                                         .launch_gemm = launch_gemm,
                                         .launch_exchange = launch_sum,
                                         .some_may_be_early = some_may_be_early};
