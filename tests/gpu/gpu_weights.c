/* Weights of their own on the GPU: shared by plans, renewed and freed behind calls that
 * still have to read them, and captured. */
#include <stdio.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"

enum { SETS = 2 };

/* Matrices of one seed, C poisoned. */
typedef struct set {
    uint32_t seed;
    void *A, *B, *C;
} set;

static int make_set(gpu_job *job, uint32_t seed, set *s)
{
    ew_world *world = job->world;
    *s = (set){.seed = seed};
    RANK_TRY(job_use_device(job));
    RANK_TRY(job_fill(job, seed));
    RANK_CUDA(cudaMalloc(&s->A, job->a_bytes));
    RANK_CUDA(cudaMalloc(&s->B, job->b_bytes));
    RANK_CUDA(cudaMalloc(&s->C, job->c_bytes));
    RANK_CUDA(cudaMemcpy(s->A, job->A, job->a_bytes, cudaMemcpyDefault));
    RANK_CUDA(cudaMemcpy(s->B, job->B, job->b_bytes, cudaMemcpyDefault));
    RANK_CUDA(cudaMemset(s->C, 0xff, job->c_bytes));
    RANK_CUDA(cudaDeviceSynchronize());
    return 0;
}

static int verify_set(gpu_job *job, const set *s, uint32_t seed)
{
    ew_world *world = job->world;
    RANK_CUDA(cudaMemcpy(job->staging, s->C, job->c_bytes, cudaMemcpyDefault));
    return job_verify_copy(job, job->problem.max_m, seed, job->staging);
}

/* When nobody's call waits for this rank any more. */
static int free_sets(gpu_job *job, set *sets)
{
    ew_world *world = job->world;
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < SETS; i++) {
        RANK_CUDA(cudaFree(sets[i].A));
        RANK_CUDA(cudaFree(sets[i].B));
        RANK_CUDA(cudaFree(sets[i].C));
    }
    return 0;
}

static int make_weight(gpu_job *job, const void *B, ew_weight **weight_out)
{
    ew_world *world = job->world;
    ew_config config = EW_CONFIG_INIT;
    config.backend = EW_BACKEND_CUDA;
    RANK_OK(ew_weight_create(world, &job->problem, &config, B, weight_out));
    RANK_CHECK(ew_weight_bytes(*weight_out) == job->b_bytes, "%zu bytes of %zu",
               ew_weight_bytes(*weight_out), job->b_bytes);
    return 0;
}

static int call(gpu_job *job, ew_plan *plan, const set *s, ew_stream stream)
{
    ew_world *world = job->world;
    RANK_OK(ew_gemm_rs(plan, job->problem.max_m, s->A, NULL, s->C, stream));
    return 0;
}

static int expect_no_weight(gpu_job *job, const set *s)
{
    ew_world *world = job->world;
    const ew_status status =
        ew_gemm_rs(job->plan, job->problem.max_m, s->A, NULL, s->C, NULL);
    RANK_CHECK(status == EW_ERR_ARGUMENT && strstr(ew_last_error(), "no weight"),
               "a call without a weight: %s: %s", ew_status_name(status), ew_last_error());
    return 0;
}

/* ---- Several plans ---- */

static int share(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const char *config_text = argument;
    ew_plan *plans[3] = {0};
    set sets[SETS];
    ew_weight *weight;
    ew_config config = EW_CONFIG_INIT;
    RANK_OK(ew_config_parse(config_text, &config));
    config.backend = EW_BACKEND_CUDA;
    for (uint32_t i = 0; i < SETS; i++)
        RANK_TRY(make_set(job, i, &sets[i]));
    RANK_TRY(make_weight(job, sets[0].B, &weight));
    for (int i = 0; i < 3; i++) {
        ew_problem problem = job->problem;
        problem.max_m += 200 * i;
        RANK_OK(ew_plan_create(world, &problem, &config, &plans[i]));
        RANK_OK(ew_plan_bind_weight(plans[i], weight));
    }
    for (int round = 0; round < SETS; round++) {
        if (round > 0)
            RANK_OK(ew_weight_update(weight, sets[round].B));
        for (int i = 0; i < 3; i++) {
            RANK_CUDA(cudaMemset(sets[round].C, 0xff, job->c_bytes));
            RANK_CUDA(cudaDeviceSynchronize());
            RANK_OK(ew_world_barrier(world));
            RANK_TRY(call(job, plans[i], &sets[round], NULL));
            RANK_OK(ew_plan_wait(plans[i]));
            RANK_TRY(verify_set(job, &sets[round], sets[round].seed));
        }
    }
    ew_plan_destroy(plans[1]);
    ew_weight_destroy(weight);
    ew_plan_destroy(plans[0]);
    ew_plan_destroy(plans[2]);
    RANK_TRY(expect_no_weight(job, &sets[0])); /* its own plan was never bound */
    return free_sets(job, sets);
}

/* ---- Behind calls that wait ---- */

static void CUDART_CB hold_back(void *unused)
{
    (void)unused;
    gpu_sleep_ms(30);
}

/* Enqueues a call of the first set with the weight, its producer held back. */
static int call_late(gpu_job *job, ew_weight *weight, const set *s)
{
    ew_world *world = job->world;
    RANK_OK(ew_plan_bind_weight(job->plan, weight));
    RANK_OK(ew_world_barrier(world));
    RANK_TRY(job_hold_producer(job, hold_back, NULL));
    RANK_OK(ew_world_barrier(world));
    return call(job, job->plan, s, NULL);
}

static int renew_and_free(gpu_job *job, void *argument)
{
    (void)argument;
    ew_world *world = job->world;
    set sets[SETS];
    ew_weight *weight;
    void *other;
    for (uint32_t i = 0; i < SETS; i++)
        RANK_TRY(make_set(job, i, &sets[i]));
    RANK_TRY(make_weight(job, sets[0].B, &weight));
    RANK_TRY(call_late(job, weight, &sets[0]));
    RANK_OK(ew_weight_update(weight, sets[1].B)); /* the call behind has the old values */
    RANK_TRY(call(job, job->plan, &sets[1], NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_TRY(verify_set(job, &sets[0], 0));
    RANK_TRY(verify_set(job, &sets[1], 1));
    RANK_CUDA(cudaMemset(sets[1].C, 0xff, job->c_bytes));
    RANK_CUDA(cudaDeviceSynchronize());
    RANK_TRY(call_late(job, weight, &sets[1]));
    ew_weight_destroy(weight);
    /* Whoever gets the memory next may write there at once. */
    RANK_CUDA(cudaMalloc(&other, job->b_bytes));
    RANK_CUDA(cudaMemset(other, 0xff, job->b_bytes));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_TRY(verify_set(job, &sets[1], 1));
    RANK_TRY(expect_no_weight(job, &sets[0]));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaFree(other));
    return free_sets(job, sets);
}

/* ---- In a graph ---- */

static int replay(gpu_job *job, cudaGraphExec_t runnable, cudaStream_t stream)
{
    ew_world *world = job->world;
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaGraphLaunch(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* A captured call keeps its weight, and sees what that is updated with. */
static int capture(gpu_job *job, void *argument)
{
    (void)argument;
    ew_world *world = job->world;
    set sets[SETS];
    ew_weight *weight;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    for (uint32_t i = 0; i < SETS; i++)
        RANK_TRY(make_set(job, i, &sets[i]));
    RANK_TRY(make_weight(job, sets[0].B, &weight));
    RANK_OK(ew_plan_bind_weight(job->plan, weight));
    RANK_TRY(job_stream(job, &stream));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    RANK_TRY(call(job, job->plan, &sets[0], stream));
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    RANK_CUDA(cudaGraphUpload(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_plan_bind_weight(job->plan, NULL));
    RANK_TRY(replay(job, runnable, stream));
    RANK_TRY(verify_set(job, &sets[0], 0));
    RANK_OK(ew_weight_update(weight, sets[1].B));
    RANK_CUDA(cudaMemcpy(sets[0].A, sets[1].A, job->a_bytes, cudaMemcpyDefault));
    RANK_CUDA(cudaDeviceSynchronize());
    RANK_TRY(replay(job, runnable, stream));
    RANK_TRY(verify_set(job, &sets[0], 1));
    RANK_CUDA(cudaGraphExecDestroy(runnable));
    RANK_CUDA(cudaGraphDestroy(graph));
    RANK_CUDA(cudaStreamDestroy(stream));
    ew_weight_destroy(weight);
    return free_sets(job, sets);
}

/* ---- Memory ---- */

enum { SIDE = 8192 }; /* 128 MiB */

/* One rank: a plan that is only bound holds no weight, and one that is gone none either. */
static int count_bytes(gpu_job *job, void *argument)
{
    (void)argument;
    ew_world *world = job->world;
    const double slack = 16.0 * (1 << 20), weighs = (double)job->b_bytes;
    ew_config config = EW_CONFIG_INIT;
    ew_forecast forecast;
    ew_plan *plan;
    ew_weight *weight;
    config.backend = EW_BACKEND_CUDA;
    RANK_TRY(job_compute(job, job->problem.max_m, 3, NULL));
    RANK_OK(ew_forecast_build(&job->problem, 1, &config, &forecast));
    const double start = (double)gpu_free_bytes();
    RANK_TRY(make_weight(job, job->B, &weight));
    const double with_weight = start - (double)gpu_free_bytes();
    RANK_OK(ew_plan_create(world, &job->problem, &config, &plan));
    RANK_OK(ew_plan_bind_weight(plan, weight));
    const double with_plan = start - (double)gpu_free_bytes();
    ew_weight_destroy(weight);
    const double without_weight = start - (double)gpu_free_bytes();
    ew_plan_destroy(plan);
    RANK_CHECK(with_weight >= weighs && with_weight < weighs + slack, "%.0f of %.0f bytes",
               with_weight, weighs);
    RANK_CHECK(with_plan - with_weight <
                   (double)(forecast.total_bytes - forecast.weight_bytes) + slack,
               "the plan takes %.0f bytes", with_plan - with_weight);
    RANK_CHECK(without_weight < with_plan - weighs + slack, "%.0f bytes are still taken",
               without_weight);
    return 0;
}

/* ---- Refused ---- */

static int refuse(gpu_job *job, void *argument)
{
    (void)argument;
    ew_world *world = job->world;
    ew_config config = EW_CONFIG_INIT;
    ew_problem problem = job->problem;
    ew_weight *weight = NULL;
    config.backend = EW_BACKEND_CUDA;
    ew_status status =
        ew_weight_create(world, &problem, &config, (char *)job->B + 2, &weight);
    RANK_CHECK(status == EW_ERR_ARGUMENT && strstr(ew_last_error(), "B="),
               "a weight that is not aligned: %s", ew_status_name(status));
    problem.n -= 8;
    RANK_OK(ew_weight_create(world, &problem, &config, job->B, &weight));
    status = ew_plan_bind_weight(job->plan, weight);
    RANK_CHECK(status == EW_ERR_SHAPE && strstr(ew_last_error(), "N="),
               "a narrower weight: %s", ew_status_name(status));
    ew_weight_destroy(weight);
    RANK_TRY(job_compute(job, job->problem.max_m, 4, NULL));
    return 0;
}

/* B is about to come in the default stream, which the rank's own streams do not wait for.
 */
static int pack_behind_default_stream(gpu_job *job, void *unused)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    void *right;
    (void)unused;
    RANK_TRY(job_use_device(job));
    RANK_TRY(job_fill(job, 6));
    RANK_TRY(job_poison(job));
    RANK_CUDA(cudaMalloc(&right, job->b_bytes));
    RANK_CUDA(cudaMemcpy(right, job->B, job->b_bytes, cudaMemcpyDefault));
    RANK_CUDA(cudaMemset(job->B, 0xff, job->b_bytes));
    RANK_CUDA(cudaDeviceSynchronize());
    RANK_CUDA(cudaLaunchHostFunc(cudaStreamLegacy, gpu_pause, NULL));
    RANK_CUDA(
        cudaMemcpyAsync(job->B, right, job->b_bytes, cudaMemcpyDefault, cudaStreamLegacy));
    RANK_OK(ew_plan_set_weight(job->plan, job->B));
    RANK_OK(job_call(job, m, job->A, NULL, job->C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_CUDA(cudaFree(right));
    return job_verify(job, m, 6);
}

void check_weights(void)
{
    const char *const *kernels = gpu_kernels();
    for (int W = 1; W <= 4; W *= 2)
        for (int layout = EW_WEIGHT_NK; layout <= EW_WEIGHT_KN; layout++) {
            ew_problem problem = gpu_problem(130 * W + 1, 264, 72, EW_BF16);
            problem.weight_layout = (ew_weight_layout)layout;
            for (int i = 0; kernels[i]; i++) {
                char config[EW_CONFIG_TEXT_BYTES];
                snprintf(config, sizeof config, "%s", kernels[i]);
                gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, config, share, config);
            }
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, "", renew_and_free, NULL);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, "", capture, NULL);
        }
    gpu_run(EW_RANKS_AS_THREADS, 2, NULL, gpu_problem(200, 264, 72, EW_FP16), "", refuse,
            NULL);
    gpu_run(EW_RANKS_AS_THREADS, 1, NULL, gpu_problem(16, SIDE, SIDE, EW_FP16), "",
            count_bytes, NULL);
    gpu_run(EW_RANKS_AS_THREADS, 1, NULL, gpu_problem(200, 264, 72, EW_FP16), "",
            pack_behind_default_stream, NULL);
}
