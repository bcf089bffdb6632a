/* The timeline of a call: every block and tile once, and no sum before its contributions.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "plan/policy.h"

enum { MAX_EVENTS = 512, MAX_W = 4, MAX_TILES = 256 };

/* When each rank's contribution to each tile of each part was computed, and when its sum
 * was begun, by the only rank that makes it. */
static int64_t computed_ns[MAX_W][MAX_W][MAX_TILES], begun_ns[MAX_TILES];

/* The part of the grid that this rank's tiles are in. */
static int own_part(const gpu_job *job)
{
    return ewx_spec_grid(job_engine(job)->spec, job->problem.max_m).num_parts == 1
               ? 0
               : job->rank;
}

/* Tiles that it has the sum of, or of some rows of which. */
static int64_t own_tiles(const gpu_job *job, const ewx_grid *grid)
{
    return job->problem.op == EW_OP_GEMM_AR
               ? ewx_part_tiles(grid, 0)
               : ewx_spec_share(job_engine(job)->spec, grid->rows, job->rank).count;
}

static int note_block(gpu_job *job, const ew_trace_event *event, int64_t tile_cols,
                      int32_t block_cols)
{
    ew_world *world = job->world;
    RANK_CHECK(event->begin_ns < event->end_ns && event->end_ns <= event->published_ns,
               "block %lld: begins %lld, ends %lld, is published %lld",
               (long long)event->position, (long long)event->begin_ns,
               (long long)event->end_ns, (long long)event->published_ns);
    for (int64_t col = event->col; col < event->col + block_cols && col < tile_cols;
         col++) {
        int64_t *place = &computed_ns[job->rank][event->dst][event->row * tile_cols + col];
        RANK_CHECK(*place == 0, "tile %d,%lld was computed twice", event->row,
                   (long long)col);
        *place = event->end_ns;
    }
    return 0;
}

static int check_sum(gpu_job *job, const ew_trace_event *event, int64_t tile_cols)
{
    ew_world *world = job->world;
    RANK_CHECK(event->dst == job->rank && event->begin_ns <= event->end_ns,
               "tile %d,%d of rank %d: begins %lld, ends %lld", event->row, event->col,
               event->dst, (long long)event->begin_ns, (long long)event->end_ns);
    for (int source = 0; source < job->num_ranks; source++) {
        const int64_t ns =
            computed_ns[source][own_part(job)][event->row * tile_cols + event->col];
        RANK_CHECK(ns > 0 && ns <= event->begin_ns,
                   "tile %d,%d was summed at %lld, rank %d had it at %lld", event->row,
                   event->col, (long long)event->begin_ns, source, (long long)ns);
    }
    begun_ns[event->row * tile_cols + event->col] = event->begin_ns;
    return 0;
}

static int check_copy(gpu_job *job, const ew_trace_event *event, int64_t tile_cols)
{
    ew_world *world = job->world;
    const int64_t ns = begun_ns[event->row * tile_cols + event->col];
    RANK_CHECK(event->dst != job->rank && ns < event->begin_ns &&
                   event->begin_ns <= event->end_ns,
               "tile %d,%d of rank %d: summed from %lld on, copied from %lld to %lld",
               event->row, event->col, event->dst, (long long)ns,
               (long long)event->begin_ns, (long long)event->end_ns);
    return 0;
}

static int trace_one_call(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    ew_trace_event events[MAX_EVENTS];
    size_t count = 0;
    (void)argument;
    const int64_t m = job->problem.max_m,
                  tile_cols = ewx_div_up(job->problem.n, EWX_TILE_N);
    memset(computed_ns[job->rank], 0, sizeof computed_ns[job->rank]);
    RANK_OK(ew_plan_trace_enable(job->plan));
    RANK_TRY(job_compute(job, m, 3, NULL));
    RANK_OK(ew_plan_trace(job->plan, events, MAX_EVENTS, &count));
    const ewx_grid grid = ewx_spec_grid(job_engine(job)->spec, m);
    const int64_t blocks = ewx_num_blocks(&grid), tiles = own_tiles(job, &grid);
    RANK_CHECK((int64_t)count == blocks + tiles, "%zu events, not %lld + %lld", count,
               (long long)blocks, (long long)tiles);
    for (size_t i = 0; i < count; i++)
        if (events[i].kind == EW_TRACE_BLOCK)
            RANK_TRY(note_block(job, &events[i], tile_cols, grid.block_cols));
    RANK_OK(ew_world_barrier(world));
    for (size_t i = 0; i < count; i++)
        if (events[i].kind == EW_TRACE_REDUCE)
            RANK_TRY(check_sum(job, &events[i], tile_cols));
    RANK_OK(ew_world_barrier(world));
    for (size_t i = 0; i < count; i++)
        if (events[i].kind == EW_TRACE_COLLECT)
            RANK_TRY(check_copy(job, &events[i], tile_cols));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

void check_trace(void)
{
    static const char *const configs[] = {"", "transport=push,ctas=block", "transport=copy",
                                          "launches=unit,release=3,block=128x128"};
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
            char config[EW_CONFIG_TEXT_BYTES];
            snprintf(config, sizeof config, "%s%s%s", *kernel, configs[i][0] ? "," : "",
                     configs[i]);
            gpu_run(EW_RANKS_AS_THREADS, MAX_W, NULL,
                    gpu_problem(1200, 1032, 136, i % 2 ? EW_BF16 : EW_FP16), config,
                    trace_one_call, NULL);
        }
    for (int64_t few = 40; few <= 520; few *= 13) /* tiles span owners */
        gpu_run(EW_RANKS_AS_THREADS, MAX_W, NULL, gpu_problem(few, 1032, 136, EW_BF16), "",
                trace_one_call, NULL);
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        char config[EW_CONFIG_TEXT_BYTES];
        ew_problem problem = gpu_problem(1200, 1032, 136, EW_BF16);
        problem.op = EW_OP_GEMM_AR;
        snprintf(config, sizeof config, "%s,shots=2", *kernel);
        gpu_run(EW_RANKS_AS_THREADS, MAX_W, NULL, problem, config, trace_one_call, NULL);
    }
}
