/* Calls in CUDA graphs: captured once, replayed 10^5 times in all.  Epochs live in the
 * GPU's memory, so every replay is a call of its own. */
#include <stdio.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"

/* As many launches as are sure not to fill a queue: a rank whose launch blocks may keep the
 * others, which share its process, from making theirs. */
enum { LAUNCHES_AT_ONCE = 100, MAX_CALLS = 2 };

typedef struct replay {
    int num_calls; /* in the graph */
    int64_t rows[MAX_CALLS];
    int launches;
    int inputs; /* so often are new ones written */
} replay;

typedef struct recording {
    void *C[MAX_CALLS];
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
} recording;

static int record(gpu_job *job, const replay *r, recording *g)
{
    ew_world *world = job->world;
    RANK_TRY(job_stream(job, &g->stream));
    for (int i = 0; i < r->num_calls; i++)
        RANK_CUDA(cudaMalloc(&g->C[i], job->c_bytes));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaStreamBeginCapture(g->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < r->num_calls; i++)
        RANK_OK(job_call(job, r->rows[i], job->A, job->B, g->C[i], g->stream));
    RANK_CUDA(cudaStreamEndCapture(g->stream, &g->graph));
    RANK_CUDA(cudaGraphInstantiate(&g->runnable, g->graph, 0));
    RANK_CUDA(cudaGraphUpload(g->runnable, g->stream));
    RANK_CUDA(cudaStreamSynchronize(g->stream));
    return 0;
}

static int launch(gpu_job *job, recording *g, int launches)
{
    ew_world *world = job->world;
    RANK_OK(ew_world_barrier(world));
    for (int done = 0; done < launches; done++) {
        RANK_CUDA(cudaGraphLaunch(g->runnable, g->stream));
        if (done % LAUNCHES_AT_ONCE == LAUNCHES_AT_ONCE - 1)
            RANK_CUDA(cudaStreamSynchronize(g->stream));
    }
    RANK_CUDA(cudaStreamSynchronize(g->stream));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static int verify(gpu_job *job, const replay *r, const recording *g, uint32_t seed)
{
    ew_world *world = job->world;
    for (int i = 0; i < r->num_calls; i++) {
        RANK_CUDA(cudaMemcpy(job->staging, g->C[i], job->c_bytes, cudaMemcpyDefault));
        RANK_TRY(job_verify_copy(job, r->rows[i], seed, job->staging));
    }
    return 0;
}

static int play(gpu_job *job, const replay *r, recording *g)
{
    ew_world *world = job->world;
    for (uint32_t seed = 0; seed < (uint32_t)r->inputs; seed++) {
        RANK_TRY(job_fill(job, seed));
        for (int i = 0; i < r->num_calls; i++)
            RANK_CUDA(cudaMemset(g->C[i], 0xff, job->c_bytes));
        RANK_CUDA(cudaDeviceSynchronize());
        RANK_TRY(launch(job, g, r->launches / r->inputs));
        RANK_TRY(verify(job, r, g, seed));
    }
    return 0;
}

static int record_and_play(gpu_job *job, void *argument)
{
    const replay *r = argument;
    ew_world *world = job->world;
    recording g = {.stream = NULL};
    /* Not the plan's first call, and not its last. */
    RANK_TRY(job_compute(job, job->problem.max_m, 1, NULL));
    RANK_TRY(record(job, r, &g));
    RANK_OK(ew_world_barrier(world)); /* nobody is still capturing */
    RANK_TRY(play(job, r, &g));
    RANK_TRY(job_compute(job, job->problem.max_m, 2, NULL));
    RANK_CUDA(cudaGraphExecDestroy(g.runnable));
    RANK_CUDA(cudaGraphDestroy(g.graph));
    for (int i = 0; i < r->num_calls; i++)
        RANK_CUDA(cudaFree(g.C[i]));
    RANK_CUDA(cudaStreamDestroy(g.stream));
    return 0;
}

static void run_replay(int num_ranks, const char *config, ew_weight_layout layout,
                       int num_calls, int launches)
{
    const int64_t most = 130 * num_ranks + 1;
    ew_problem problem = gpu_problem(most, 264, 72, EW_FP16);
    problem.weight_layout = layout;
    replay r = {.num_calls = num_calls,
                .rows = {most, most / 2},
                .launches = launches,
                .inputs = 10};
    gpu_run(EW_RANKS_AS_THREADS, num_ranks, NULL, problem, config, record_and_play, &r);
}

static int expect_refused(const gpu_job *job, const char *what, ew_status status)
{
    ew_world *world = job->world;
    RANK_CHECK(status == EW_ERR_ARGUMENT && strstr(ew_last_error(), "captured"), "%s: %s",
               what, ew_status_name(status));
    return 0;
}

/* What works on weights and memory. */
static int expect_memory_refused(const gpu_job *job, ew_weight *weight)
{
    ew_world *world = job->world;
    void *fresh = NULL;
    RANK_TRY(expect_refused(job, "weight", ew_weight_update(weight, job->B)));
    RANK_TRY(
        expect_refused(job, "fill", ew_memory_fill(world, EW_BACKEND_CUDA, job->C, 0, 1)));
    RANK_TRY(expect_refused(job, "alloc",
                            ew_memory_alloc(world, EW_BACKEND_CUDA, job->c_bytes, &fresh)));
    RANK_TRY(expect_refused(job, "symmetric memory",
                            ew_alloc(world, EW_BACKEND_CUDA, job->c_bytes, &fresh)));
    return 0;
}

/* A second capture beside the one that the rank's calls are in. */
static int expect_second_refused(const gpu_job *job, cudaStream_t other)
{
    ew_world *world = job->world;
    cudaGraph_t graph;
    RANK_CUDA(cudaStreamBeginCapture(other, cudaStreamCaptureModeThreadLocal));
    RANK_TRY(
        expect_refused(job, "another capture",
                       job_call(job, job->problem.max_m, job->A, job->B, job->C, other)));
    RANK_CUDA(cudaStreamEndCapture(other, &graph));
    RANK_CUDA(cudaGraphDestroy(graph));
    return 0;
}

/* What belongs to no capture or to another one, between two calls of one, spoils neither
 * the capture nor the world. */
static int mix(gpu_job *job, void *unused)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    cudaStream_t stream, other;
    cudaGraph_t graph;
    ew_config config = EW_CONFIG_INIT;
    ew_weight *weight = NULL;
    (void)unused;
    config.backend = EW_BACKEND_CUDA;
    RANK_TRY(job_compute(job, m, 1, NULL));
    RANK_TRY(job_stream(job, &stream));
    RANK_TRY(job_stream(job, &other));
    RANK_OK(ew_weight_create(world, &job->problem, &config, job->B, &weight));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_OK(job_call(job, m, job->A, job->B, job->C, stream));
    RANK_TRY(expect_refused(job, "wait", ew_plan_wait(job->plan)));
    RANK_TRY(
        expect_refused(job, "no stream", job_call(job, m, job->A, job->B, job->C, NULL)));
    RANK_TRY(expect_refused(job, "another stream",
                            job_call(job, m, job->A, job->B, job->C, other)));
    RANK_TRY(expect_second_refused(job, other));
    RANK_TRY(expect_memory_refused(job, weight));
    RANK_OK(job_call(job, m, job->A, job->B, job->C, stream));
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphDestroy(graph));
    RANK_CUDA(cudaStreamDestroy(other));
    ew_weight_destroy(weight);
    RANK_TRY(job_compute(job, m, 2, stream));
    RANK_CUDA(cudaStreamDestroy(stream));
    return 0;
}

/* Two calls of few rows, in a plan for many. */
void check_few_rows_graph(void)
{
    static const int64_t pairs[][MAX_CALLS] = {{8, 512}, {1, 64}, {40, 300}};
    static const int ranks[] = {8, 2, 3};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        for (int op = 0; op < 2; op++) {
            ew_problem problem = gpu_problem(1024, 520, 136, EW_BF16);
            replay r = {.num_calls = 2,
                        .rows = {pairs[i][0], pairs[i][1]},
                        .launches = gpu_quick ? 100 : 2000,
                        .inputs = 5};
            problem.op = op == 0 ? EW_OP_GEMM_RS : EW_OP_GEMM_AR;
            gpu_run(EW_RANKS_AS_THREADS, ranks[i], NULL, problem, "", record_and_play, &r);
        }
}

void check_allreduce_graph(void)
{
    const int launches = gpu_quick ? 100 : 2000;
    gpu_op = EW_OP_GEMM_AR;
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        run_replay(3, *kernel, EW_WEIGHT_NK, 1, launches);
    run_replay(4, "shots=2", EW_WEIGHT_KN, 2, launches);
    run_replay(4, "shots=1", EW_WEIGHT_NK, 2, launches);
    run_replay(2, "shots=2,release=output,pool=after", EW_WEIGHT_NK, 2, launches);
}

void check_graph(void)
{
    const int unit = gpu_quick ? 200 : 10000;
    const char *const *kernels = gpu_kernels();
    for (int i = 0; kernels[i]; i++)
        for (int W = 1; W <= 4; W *= 2)
            run_replay(W, kernels[i], EW_WEIGHT_NK, 1, unit / 10);
    run_replay(2, "", EW_WEIGHT_KN, 2,
               unit / 10); /* two calls, weights packed in the graph */
    run_replay(2, "release=output,pool=after", EW_WEIGHT_NK, 2, unit / 10);
    run_replay(2, "pool=static", EW_WEIGHT_NK, 2, unit / 10);
    gpu_run(EW_RANKS_AS_THREADS, 1, NULL, gpu_problem(200, 264, 72, EW_FP16), "", mix,
            NULL);
    run_replay(1, "", EW_WEIGHT_NK, 1, 4 * unit);
    run_replay(2, "", EW_WEIGHT_NK, 1, 3 * unit);
    run_replay(4, "", EW_WEIGHT_NK, 1, 3 * unit);
}

void check_gather_graph(void)
{
    const int unit = gpu_quick ? 200 : 2000;
    const char *const *kernels = gpu_kernels();
    gpu_op = EW_OP_AG_GEMM;
    for (int i = 0; kernels[i]; i++)
        for (int W = 1; W <= 4; W *= 2)
            run_replay(W, kernels[i], EW_WEIGHT_NK, 1, unit);
    run_replay(2, "", EW_WEIGHT_KN, 2, unit);
    run_replay(2, "release=output", EW_WEIGHT_NK, 2, unit);
    run_replay(4, "transport=copy", EW_WEIGHT_NK, 2, unit / 4);
}
