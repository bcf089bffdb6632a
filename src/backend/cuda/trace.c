/* The timeline of the last call, from the stamps of its kernels. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cuda_engine.h"
#include "plan/policy.h"

static size_t produced_bytes(const ewx_spec *spec)
{
    return (size_t)(spec->layout.slots_per_part * spec->layout.num_parts) *
           sizeof(ewx_cuda_stamp);
}

/* Where tiles span owners, a rank may own rows of any of them. */
static size_t reduced_bytes(const ewx_spec *spec)
{
    return produced_bytes(spec);
}

ew_status ewx_cuda_trace_enable(ewx_cuda_engine *engine)
{
    const ewx_spec *spec = engine->spec;
    if (engine->trace.produced)
        return EW_OK;
    if (spec->config.producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED, "cuBLAS's kernels leave no trace\n"
                                            "  fix: use producer=own");
    EW_CUDA_TRY(cudaMalloc((void **)&engine->trace.reduced, reduced_bytes(spec) + 1),
                "allocating the trace");
    EW_CUDA_TRY(cudaMalloc((void **)&engine->trace.produced, produced_bytes(spec) + 1),
                "allocating the trace");
    /* Where the GEMM waits, nothing is published. */
    EW_CUDA_TRY(cudaMemsetAsync(engine->trace.produced, 0, produced_bytes(spec),
                                engine->device->producing),
                "clearing the trace");
    return EW_OK;
}

/* ---- From stamps to events ---- */

typedef struct stamps {
    ewx_cuda_stamp *produced, *reduced;
} stamps;

static ew_trace_event block_event(const ewx_cuda_engine *engine, const ewx_grid *grid,
                                  const stamps *s, int64_t position)
{
    const ewx_block block = ewx_order_block(grid, position);
    const ewx_tile first = {block.row * grid->block_rows, block.col * grid->block_cols};
    const int64_t tiles = ewx_min64(grid->block_cols, grid->tile_cols - first.col);
    const ewx_cuda_stamp *at = s->produced +
                               block.part * engine->spec->layout.slots_per_part +
                               ewx_tile_task(grid, block.part, first);
    ew_trace_event event = {.kind = EW_TRACE_BLOCK,
                            .dst = block.part,
                            .row = (int32_t)first.row,
                            .col = (int32_t)first.col,
                            .position = position,
                            .begin_ns = (int64_t)at->begin_ns};
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t end = (int64_t)at[tile].end_ns;
        const int64_t published = (int64_t)at[tile].published_ns;
        event.end_ns = end > event.end_ns ? end : event.end_ns;
        event.published_ns =
            published > event.published_ns ? published : event.published_ns;
    }
    return event;
}

/* Tiles that this rank gets the sum of. */
static int64_t summed_or_copied(const ewx_cuda_engine *engine, const ewx_grid *grid)
{
    if (engine->spec->op->gemm_waits)
        return 0;
    const ewx_share share =
        ewx_spec_share(engine->spec, engine->last_rows, engine->world->rank);
    return share.ownership == EWX_OWNS_ROWS ? share.count
                                            : ewx_part_tiles(grid, share.part);
}

/* In an AllReduce in two shots most tiles belong to other ranks, and their sums are
 * copied. */
static ew_trace_event reduce_event(const ewx_cuda_engine *engine, const ewx_grid *grid,
                                   const stamps *s, int64_t task)
{
    const int num_ranks = engine->spec->num_ranks, rank = engine->world->rank;
    const ewx_share share = ewx_spec_share(engine->spec, engine->last_rows, rank);
    const ewx_tile tile = share.ownership == EWX_OWNS_ROWS
                              ? ewx_share_tile_in_columns(grid, &share, task)
                              : ewx_task_tile(grid, share.part, task);
    const bool shared = share.ownership == EWX_OWNS_TILES;
    const int owner = shared ? ewx_task_owner(num_ranks, task) : rank;
    return (ew_trace_event){.kind = owner == rank ? EW_TRACE_REDUCE : EW_TRACE_COLLECT,
                            .dst = owner,
                            .row = (int32_t)tile.row,
                            .col = (int32_t)tile.col,
                            .position = shared ? task / num_ranks : task,
                            .begin_ns = (int64_t)s->reduced[task].begin_ns,
                            .end_ns = (int64_t)s->reduced[task].end_ns};
}

static int by_begin(const void *a, const void *b)
{
    const ew_trace_event *x = a, *y = b;
    return (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
}

static int by_end(const void *a, const void *b)
{
    const ew_trace_event *x = a, *y = b;
    return (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns);
}

/* Gives each event, sorted by begin, the first worker that is free then, from `first` on.
 * Returns the number of workers there are now. */
static int32_t assign_workers(ew_trace_event *events, int64_t count, int32_t first,
                              int64_t *free_at)
{
    int32_t workers = 0;
    qsort(events, (size_t)count, sizeof *events, by_begin);
    for (int64_t i = 0; i < count; i++) {
        int32_t worker = 0;
        while (worker < workers && free_at[worker] > events[i].begin_ns)
            worker++;
        workers = worker == workers ? workers + 1 : workers;
        free_at[worker] = events[i].end_ns;
        events[i].worker = first + worker;
    }
    return first + workers;
}

static void build_events(const ewx_cuda_engine *engine, const ewx_grid *grid,
                         const stamps *s, ew_trace_event *events, int64_t *free_at)
{
    const int64_t blocks = ewx_num_blocks(grid);
    const int64_t tasks = summed_or_copied(engine, grid);
    for (int64_t position = 0; position < blocks; position++)
        events[position] = block_event(engine, grid, s, position);
    for (int64_t task = 0; task < tasks; task++)
        events[blocks + task] = reduce_event(engine, grid, s, task);
    const int32_t producers = assign_workers(events, blocks, 0, free_at);
    for (int64_t i = 0; i < blocks && engine->spec->op->gemm_waits; i++)
        events[i].position = i; /* the order is made while rows arrive */
    assign_workers(events + blocks, tasks, producers, free_at);
    qsort(events, (size_t)(blocks + tasks), sizeof *events, by_end);
    for (int64_t i = 0; i < blocks + tasks; i++) {
        events[i].begin_ns += engine->clock_offset_ns;
        events[i].end_ns += engine->clock_offset_ns;
        if (events[i].published_ns)
            events[i].published_ns += engine->clock_offset_ns;
    }
}

static ew_status read_stamps(const ewx_cuda_engine *engine, stamps *s)
{
    const ewx_spec *spec = engine->spec;
    EW_CUDA_TRY(cudaMemcpy(s->produced, engine->trace.produced, produced_bytes(spec),
                           cudaMemcpyDeviceToHost),
                "reading the trace");
    EW_CUDA_TRY(cudaMemcpy(s->reduced, engine->trace.reduced, reduced_bytes(spec),
                           cudaMemcpyDeviceToHost),
                "reading the trace");
    return EW_OK;
}

ew_status ewx_cuda_trace_read(const ewx_cuda_engine *engine, ew_trace_event *events,
                              size_t capacity, size_t *count_out)
{
    const ewx_spec *spec = engine->spec;
    *count_out = 0;
    if (!engine->trace.produced)
        return EW_OK;
    const ewx_grid crossing = ewx_spec_grid(spec, engine->last_rows);
    const ewx_grid grid = ewx_gathered_grid(spec, &crossing);
    const size_t count = (size_t)(ewx_num_blocks(&grid) + summed_or_copied(engine, &grid));
    stamps s = {malloc(produced_bytes(spec) + 1), malloc(reduced_bytes(spec) + 1)};
    ew_trace_event *all = calloc(count + 1, sizeof *all);
    int64_t *free_at = calloc(count + 1, sizeof *free_at);
    ew_status status = s.produced && s.reduced && all && free_at
                           ? read_stamps(engine, &s)
                           : ewx_fail(EW_ERR_MEMORY, "no memory for %zu events", count);
    if (status == EW_OK) {
        build_events(engine, &grid, &s, all, free_at);
        if (events)
            memcpy(events, all, (count < capacity ? count : capacity) * sizeof *all);
        *count_out = count;
    }
    free(s.produced);
    free(s.reduced);
    free(all);
    free(free_at);
    return status;
}
