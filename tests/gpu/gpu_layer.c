/* ew_gemm_rs_layer and ew_gemm_ar_layer on the GPU: the CPU's trials with the GPU's
 * configs, whose bits are compared with the same plain sequence; calls without a pause
 * between them, and replays of a graph. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "layer_trial.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* ---- Trials ---- */

typedef struct batch {
    layer_trial trials[64];
    int count;
} batch;

static int run_batch(ew_world *world, void *argument)
{
    batch *b = argument;
    for (int i = 0; i < b->count; i++) {
        const layer_trial *t = &b->trials[i];
        harness_context("%s %s max_m=%lld N=%lld parts=%u config=%s",
                        ew_op_name(t->problem.op), ew_dtype_name(t->problem.dtype),
                        (long long)t->problem.max_m, (long long)t->problem.n, t->parts,
                        t->config);
        RANK_TRY(layer_trial_body(world, &b->trials[i]));
    }
    return 0;
}

static void add(batch *b, ew_op op, bool all_rows, int W, int64_t n, const char *config)
{
    const int number = b->count;
    const int64_t rows = (number % 4 < 2 ? 560 : 300) * W + 2; /* few rows are not fused */
    ew_problem problem = gpu_problem(rows, n, 72, number % 2 ? EW_BF16 : EW_FP16);
    problem.op = op;
    ew_forecast forecast;
    ew_config parsed = EW_CONFIG_INIT;
    if (ew_config_parse(config, &parsed) != EW_OK)
        harness_fail("%s", ew_last_error());
    if (W > 2 && ewx_transport_adds(parsed.transport))
        return; /* rounded in the order in which they are added, which is any */
    if (!gpu_has_kernel(parsed.kernel) || /* or there is no cuBLAS */
        ew_forecast_build(&problem, W, &parsed, &forecast) == EW_ERR_UNSUPPORTED)
        return;
    const bool has_c = (op != EW_OP_GEMM_AR || all_rows) && number % 3 == 0;
    const unsigned parts = LAYER_ALL | (has_c ? LAYER_C : 0);
    b->count++;
    b->trials[number] = (layer_trial){.problem = problem,
                                      .all_rows = all_rows,
                                      .config = config,
                                      .parts = parts,
                                      .num_calls = 4,
                                      .rows = {rows, W - 1, 0, 129 * W + 1},
                                      .seed = (uint64_t)(100 * W + number)};
}

static const char *const configs[] = {
    "backend=cuda",
    "backend=cuda,kernel=sm80,block=128x128,x=2,b=128",
    "backend=cuda,kernel=sm80,block=128x256,x=1,b=256,order=contiguous,release=partition",
    "backend=cuda,x=3,b=128,order=default,release=3",
    "backend=cuda,group=3,x=2,b=256",
    "backend=cuda,pool=after,release=output,b=512",
    "backend=cuda,pool=static,x=2",
    "backend=cuda,transport=push,release=output",
    "backend=cuda,transport=copy",
    "backend=cuda,transport=tma-add",
    "backend=cuda,launches=unit,release=4",
    "backend=cuda,launches=unit,release=4,first=1,last=2",
    "backend=cuda,producer=blas",
};

/* Configs that the operation does not take are passed over. */
static void try_layers(ew_op op, bool all_rows)
{
    static const int64_t widths[] = {264, 4240, 8, 128}; /* 4240: more than 32 tiles */
    for (int W = 1; W <= 8; W += W < 4 ? 1 : 4) {        /* 3: any other W */
        batch b = {.count = 0};
        const ew_world_options options = gpu_options(10000);
        for (size_t i = 0; i < COUNT(configs); i++)
            if (!gpu_quick || i < 3)
                add(&b, op, all_rows, W, widths[i % COUNT(widths)], configs[i]);
        harness_run_with(EW_RANKS_AS_THREADS, W, &options, run_batch, &b);
    }
}

void check_layer(void)
{
    try_layers(EW_OP_GEMM_RS, false);
}

/* ---- Back to back, and replayed ---- */

enum { CALLS = 5 };

typedef struct layer_job {
    gpu_job *job;
    ew_epilogue epilogue;
    void *start, *first, *second; /* on the host: the residual before, after, and after */
} layer_job;

static int allocate(layer_job *l)
{
    gpu_job *job = l->job;
    ew_world *world = job->world;
    const ew_epilogue none = EW_EPILOGUE_INIT;
    void *weight;
    l->epilogue = none;
    RANK_CUDA(cudaMalloc(&l->epilogue.residual, job->c_bytes));
    RANK_CUDA(cudaMalloc(&l->epilogue.normed, job->c_bytes));
    RANK_CUDA(cudaMalloc(&weight, job->b_bytes));
    RANK_CUDA(cudaMemset(weight, 0x3c, job->b_bytes)); /* about 1, or 0.01 */
    l->epilogue.norm_weight = weight;
    l->start = malloc(job->c_bytes);
    l->first = malloc(2 * job->c_bytes);
    l->second = malloc(2 * job->c_bytes);
    RANK_CHECK(l->start && l->first && l->second, "no memory");
    RANK_OK(ew_random_fill(job->problem.dtype, 7, (int64_t)(job->c_bytes / 2), l->start));
    return 0;
}

static int reset(layer_job *l)
{
    gpu_job *job = l->job;
    ew_world *world = job->world;
    RANK_CUDA(cudaMemcpy(l->epilogue.residual, l->start, job->c_bytes, cudaMemcpyDefault));
    RANK_CUDA(cudaMemset(l->epilogue.normed, 0xff, job->c_bytes));
    RANK_CUDA(cudaDeviceSynchronize());
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* Both outputs, one after the other. */
static int fetch(layer_job *l, void *to)
{
    gpu_job *job = l->job;
    ew_world *world = job->world;
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaMemcpy(to, l->epilogue.residual, job->c_bytes, cudaMemcpyDefault));
    RANK_CUDA(cudaMemcpy((char *)to + job->c_bytes, l->epilogue.normed, job->c_bytes,
                         cudaMemcpyDefault));
    return 0;
}

static int call(layer_job *l, cudaStream_t stream)
{
    gpu_job *job = l->job;
    ew_world *world = job->world;
    RANK_OK((job->problem.op == EW_OP_GEMM_AR ? ew_gemm_ar_layer : ew_gemm_rs_layer)(
        job->plan, job->problem.max_m, job->A, job->B, NULL, &l->epilogue, stream));
    return 0;
}

/* Each call adds to the residual, so that a call that ran twice, not at all or too early
 * shows in every bit that follows. */
static int run_one_by_one(layer_job *l)
{
    ew_world *world = l->job->world;
    RANK_TRY(reset(l));
    for (int i = 0; i < CALLS; i++) {
        RANK_TRY(call(l, NULL));
        RANK_OK(ew_plan_wait(l->job->plan));
        RANK_OK(ew_world_barrier(world));
    }
    return fetch(l, l->first);
}

static int run_back_to_back(layer_job *l)
{
    ew_world *world = l->job->world;
    RANK_TRY(reset(l));
    for (int i = 0; i < CALLS; i++)
        RANK_TRY(call(l, NULL));
    RANK_TRY(fetch(l, l->second));
    RANK_CHECK(memcmp(l->first, l->second, 2 * l->job->c_bytes) == 0,
               "calls without a pause differ");
    return 0;
}

static int run_graph(layer_job *l)
{
    gpu_job *job = l->job;
    ew_world *world = job->world;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    RANK_TRY(job_stream(job, &stream));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_TRY(call(l, stream));
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    RANK_CUDA(cudaGraphUpload(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_world_barrier(world)); /* nobody is still capturing */
    RANK_TRY(reset(l));
    for (int i = 0; i < CALLS; i++)
        RANK_CUDA(cudaGraphLaunch(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_TRY(fetch(l, l->second));
    RANK_CHECK(memcmp(l->first, l->second, 2 * job->c_bytes) == 0, "replays differ");
    RANK_CUDA(cudaGraphExecDestroy(runnable));
    RANK_CUDA(cudaGraphDestroy(graph));
    RANK_CUDA(cudaStreamDestroy(stream));
    return 0;
}

typedef struct repetition {
    bool captures, all_rows;
} repetition;

static int repeat(gpu_job *job, void *argument)
{
    const repetition *wanted = argument;
    layer_job l = {.job = job};
    const bool captures = wanted->captures;
    RANK_TRY(job_use_device(job));
    RANK_TRY(job_fill(job, 3));
    RANK_TRY(allocate(&l));
    if (wanted->all_rows)
        l.epilogue.residual_rows = EW_RESIDUAL_ALL;
    RANK_TRY(run_one_by_one(&l));
    for (int i = 0; i < (gpu_quick ? 3 : 20); i++) {
        RANK_TRY(run_back_to_back(&l));
        if (captures)
            RANK_TRY(run_graph(&l));
    }
    void *memory[] = {l.epilogue.residual, l.epilogue.normed,
                      (void *)(uintptr_t)l.epilogue.norm_weight};
    for (size_t i = 0; i < COUNT(memory); i++)
        cudaFree(memory[i]);
    free(l.start);
    free(l.first);
    free(l.second);
    return 0;
}

static void repeat_layers(ew_op op, bool all_rows)
{
    static const struct {
        const char *config;
        bool captures;
    } cases[] = {{"", true},
                 {"x=1,b=128", true},
                 {"group=2", true},
                 {"pool=after,release=output", true},
                 {"pool=static,x=2", false},
                 {"producer=blas", false}};
    for (size_t i = 0; i < COUNT(cases); i++)
        for (int W = 1; W <= 4; W *= 2) {
            repetition wanted = {cases[i].captures, all_rows};
            if (strcmp(cases[i].config, "producer=blas") == 0 && !gpu_has_blas())
                continue;
            ew_problem problem =
                gpu_problem(400 * W + 3, 1032, 136, i % 2 ? EW_BF16 : EW_FP16);
            problem.op = op;
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, cases[i].config, repeat,
                    &wanted);
        }
}

void check_layer_repeats(void)
{
    repeat_layers(EW_OP_GEMM_RS, false);
}

void check_allreduce_layer(void)
{
    try_layers(EW_OP_GEMM_AR, true);
    repeat_layers(EW_OP_GEMM_AR, true);
}

/* Each rank has the residual of its own rows. */
void check_allreduce_rows(void)
{
    try_layers(EW_OP_GEMM_AR, false);
    repeat_layers(EW_OP_GEMM_AR, false);
}

/* ---- Beside another plan ---- */

/* As large an exchange as may run behind its GEMM: its CTAs wait for each other. */
static int plan_largest(gpu_job *job)
{
    ew_world *world = job->world;
    const int sms = job_engine(job)->device->sms;
    ew_status status = EW_ERR_CONFIG;
    for (int x = 8 * sms; x > 0 && status == EW_ERR_CONFIG; x -= sms) {
        char config[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "pool=after,b=256,x=%d", x);
        RANK_TRY(job_try_plan(job, config, &status));
    }
    RANK_OK(status);
    return 0;
}

static int call_layer(const gpu_job *job)
{
    ew_world *world = job->world;
    ew_epilogue norm = EW_EPILOGUE_INIT;
    norm.norm_weight = job->B;
    norm.normed = job->C;
    RANK_OK(
        ew_gemm_ar_layer(job->plan, job->problem.max_m, job->A, job->B, NULL, &norm, NULL));
    return 0;
}

/* The other's exchange waits for a rank where this one's has come first and has taken all
 * the room; or it comes first itself and takes some of the room. */
static int call_both(gpu_job *job, gpu_job *other, bool other_first)
{
    ew_world *world = job->world;
    RANK_TRY(job_poison(job));
    RANK_TRY(job_poison(other));
    if (other_first && job->rank == job->num_ranks - 1)
        RANK_TRY(job_hold_exchange(other, gpu_pause, NULL));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    RANK_TRY(other_first ? 0 : call_layer(job));
    RANK_OK(job_call(other, job->problem.max_m, job->A, job->B, other->C, NULL));
    RANK_TRY(other_first ? call_layer(job) : 0);
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_plan_wait(other->plan));
    return 0;
}

static int beside_another(gpu_job *job, void *unused)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    gpu_job other = *job;
    unsigned char *expected = malloc(job->c_bytes);
    (void)unused;
    RANK_CHECK(expected, "no memory");
    RANK_TRY(job_fill(job, 1));
    RANK_TRY(plan_largest(job));
    RANK_TRY(job_poison(job));
    RANK_OK(ew_world_barrier(world));
    RANK_TRY(call_layer(job));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, expected, job->C, job->c_bytes));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->c_bytes, &other.C));
    other.plan = NULL;
    RANK_TRY(job_replan(&other, "shots=2"));
    for (int i = 0; i < 4; i++) {
        RANK_TRY(call_both(job, &other, i % 2));
        RANK_TRY(job_verify_there(&other, m, 1));
        RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, job->C, job->c_bytes));
        RANK_CHECK(memcmp(expected, job->staging, (size_t)(m * job->problem.n) * 2) == 0,
                   "beside another plan the norm differs");
    }
    ew_plan_destroy(other.plan);
    ew_memory_free(world, EW_BACKEND_CUDA, other.C);
    free(expected);
    return 0;
}

void check_two_plans(void)
{
    const ew_world_options options = gpu_options(5000);
    /* A rank has more tiles of its own than CTAs. */
    ew_problem problem = gpu_problem(4096, 4608, 1024, EW_BF16);
    problem.op = EW_OP_GEMM_AR;
    gpu_run(EW_RANKS_AS_THREADS, 2, &options, problem, "", beside_another, NULL);
}
