#include "gpukit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cuda/cuda_memory.h"
#include "gpu_check.h"
#include "api/testing.h"
#include "random_inputs.h"

#define POISON_BYTE 0xff
#define DEFAULT_TIMEOUT_MS 10000

/* ---- Set up and tear down ---- */

static size_t largest(size_t a, size_t b, size_t c)
{
    return a > b ? (a > c ? a : c) : (b > c ? b : c);
}

int job_try_plan(gpu_job *job, const char *config, ew_status *status_out)
{
    ew_world *world = job->world;
    ew_config parsed = EW_CONFIG_INIT;
    RANK_OK(ew_config_parse(config, &parsed));
    parsed.backend = EW_BACKEND_CUDA;
    ew_plan_destroy(job->plan);
    job->plan = NULL;
    *status_out = ew_plan_create(world, &job->problem, &parsed, &job->plan);
    return 0;
}

int job_replan(gpu_job *job, const char *config)
{
    ew_world *world = job->world;
    ew_status created;
    RANK_TRY(job_try_plan(job, config, &created));
    RANK_OK(created);
    return 0;
}

static int open_job(gpu_job *job, ew_world *world, ew_problem problem, const char *config)
{
    const size_t elem = ew_dtype_bytes(problem.dtype);
    *job = (gpu_job){.world = world,
                     .rank = ew_world_rank(world),
                     .num_ranks = ew_world_size(world),
                     .problem = problem};
    job->a_bytes = (size_t)(problem.max_m * problem.k) * elem;
    job->b_bytes = (size_t)(problem.n * problem.k) * elem;
    job->c_bytes = (size_t)((job_rows(job, problem.max_m) + 1) * problem.n) * elem;
    job->staging = malloc(largest(job->a_bytes, job->b_bytes, job->c_bytes) + 1);
    RANK_CHECK(job->staging, "no memory");
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->a_bytes, &job->A));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->b_bytes, &job->B));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->c_bytes, &job->C));
    return job_replan(job, config);
}

static void close_job(gpu_job *job)
{
    void *matrices[] = {job->A, job->B, job->C};
    ew_plan_destroy(job->plan);
    for (int i = 0; i < 3; i++)
        ew_memory_free(job->world, EW_BACKEND_CUDA, matrices[i]);
    free(job->staging);
}

typedef struct scene {
    ew_problem problem;
    const char *config;
    gpu_work work;
    void *argument;
} scene;

static int scene_body(ew_world *world, void *argument)
{
    const scene *s = argument;
    gpu_job job;
    int failed = open_job(&job, world, s->problem, s->config);
    if (!failed)
        failed = s->work(&job, s->argument);
    if (failed)
        ew_world_abort(world); /* or peers would wait for this rank's next call */
    close_job(&job);
    return failed;
}

int job_in_world(ew_world *world, ew_problem problem, const char *config, gpu_work work,
                 void *argument)
{
    scene s = {problem, config, work, argument};
    return scene_body(world, &s);
}

ew_status gpu_run_failing(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                          ew_problem problem, const char *config, gpu_work work,
                          void *argument, int *exits_out)
{
    scene s = {problem, config, work, argument};
    const ew_world_options usual = gpu_options(DEFAULT_TIMEOUT_MS);
    harness_context("W=%d %s %s max_m=%lld N=%lld K=%lld weight=%s config=%s", num_ranks,
                    kind == EW_RANKS_AS_THREADS ? "threads" : "processes",
                    ew_dtype_name(problem.dtype), (long long)problem.max_m,
                    (long long)problem.n, (long long)problem.k,
                    problem.weight_layout == EW_WEIGHT_NK ? "nk" : "kn", config);
    return harness_run_failing(kind, num_ranks, options ? options : &usual, scene_body, &s,
                               exits_out);
}

void gpu_run(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
             ew_problem problem, const char *config, gpu_work work, void *argument)
{
    const ew_status status =
        gpu_run_failing(kind, num_ranks, options, problem, config, work, argument, NULL);
    if (status != EW_OK)
        harness_fail("W=%d, config=%s: %s: %s", num_ranks, config, ew_status_name(status),
                     ew_last_error());
}

/* ---- Inputs and results ---- */

int job_fill(gpu_job *job, uint32_t seed)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    RANK_OK(ew_exact_fill_a(p->dtype, seed, job->rank, job->num_ranks, p->max_m, p->k,
                            job->staging));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->A, job->staging, job->a_bytes));
    RANK_OK(ew_exact_fill_b(p->dtype, seed, job->rank, p->weight_layout, p->n, p->k,
                            job->staging));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->B, job->staging, job->b_bytes));
    return 0;
}

int job_fill_random(gpu_job *job, uint32_t seed)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    fill_random(p->dtype, seed, job->rank, OPERAND_A, p->max_m, p->k, job->staging);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->A, job->staging, job->a_bytes));
    fill_random(p->dtype, seed, job->rank, OPERAND_B, p->n, p->k, job->staging);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->B, job->staging, job->b_bytes));
    return 0;
}

int job_poison(gpu_job *job)
{
    ew_world *world = job->world;
    RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, job->C, POISON_BYTE, job->c_bytes));
    return 0;
}

int64_t job_rows(const gpu_job *job, int64_t m)
{
    return ewx_op_of(&job->problem)->rows_c(m, job->num_ranks, job->rank).count;
}

int job_verify_copy(const gpu_job *job, int64_t m, uint32_t seed, const void *copy)
{
    ew_world *world = job->world;
    ew_check check;
    RANK_OK(
        ew_exact_verify(&job->problem, seed, job->rank, job->num_ranks, m, copy, &check));
    RANK_CHECK(check.wrong == 0, "m=%lld, seed %u: %lld wrong of %lld, max error %g",
               (long long)m, seed, (long long)check.wrong,
               (long long)(job_rows(job, m) * job->problem.n), check.max_abs_err);
    return 0;
}

int job_verify(gpu_job *job, int64_t m, uint32_t seed)
{
    ew_world *world = job->world;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, job->C, job->c_bytes));
    return job_verify_copy(job, m, seed, job->staging);
}

int job_verify_there(gpu_job *job, int64_t m, uint32_t seed)
{
    ew_world *world = job->world;
    ew_check check;
    RANK_OK(ewx_cuda_verify(world, &job->problem, seed, m, job->C, &check));
    RANK_CHECK(check.wrong == 0, "m=%lld, seed=%u: %lld wrong of %lld, max error %g",
               (long long)m, seed, (long long)check.wrong,
               (long long)(job_rows(job, m) * job->problem.n), check.max_abs_err);
    return 0;
}

ew_status job_call(const gpu_job *job, int64_t m, const void *A, const void *B, void *C,
                   ew_stream stream)
{
    if (job->problem.op == EW_OP_AG_GEMM)
        return ew_ag_gemm(job->plan, m, A, B, C, NULL, stream);
    return (job->problem.op == EW_OP_GEMM_AR ? ew_gemm_ar : ew_gemm_rs)(job->plan, m, A, B,
                                                                        C, stream);
}

int job_compute(gpu_job *job, int64_t m, uint32_t seed, ew_stream stream)
{
    ew_world *world = job->world;
    RANK_TRY(job_fill(job, seed));
    RANK_TRY(job_poison(job));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(job_call(job, m, job->A, job->B, job->C, stream));
    RANK_OK(ew_plan_wait(job->plan));
    return job_verify(job, m, seed);
}

/* ---- CUDA ---- */

ewx_cuda_engine *job_engine(const gpu_job *job)
{
    return ewx_plan_state(job->plan);
}

int job_use_device(const gpu_job *job)
{
    ew_world *world = job->world;
    RANK_CUDA(cudaSetDevice(job_engine(job)->device->ordinal));
    return 0;
}

static int hold_stream(const gpu_job *job, cudaStream_t stream, cudaHostFn_t hold,
                       void *argument)
{
    ew_world *world = job->world;
    const ewx_device *device = job_engine(job)->device;
    RANK_OK(ewx_device_enter(device));
    const cudaError_t error = cudaLaunchHostFunc(stream, hold, argument);
    ewx_device_leave(device);
    RANK_CUDA(error);
    return 0;
}

int job_hold_producer(const gpu_job *job, cudaHostFn_t hold, void *argument)
{
    return hold_stream(job, job_engine(job)->device->producing, hold, argument);
}

int job_hold_exchange(const gpu_job *job, cudaHostFn_t hold, void *argument)
{
    return hold_stream(job, ewx_cuda_exchange_stream(job_engine(job)), hold, argument);
}

void CUDART_CB gpu_pause(void *unused)
{
    (void)unused;
    gpu_sleep_ms(10);
}

int job_stream(const gpu_job *job, cudaStream_t *stream_out)
{
    ew_world *world = job->world;
    RANK_TRY(job_use_device(job));
    RANK_CUDA(cudaStreamCreateWithFlags(stream_out, cudaStreamNonBlocking));
    return 0;
}

/* ---- Small things ---- */

ew_op gpu_op = EW_OP_GEMM_RS;

ew_problem gpu_problem(int64_t max_m, int64_t n, int64_t k, ew_dtype dtype)
{
    ew_problem problem = EW_PROBLEM(max_m, n, k, dtype);
    problem.op = gpu_op;
    return problem;
}

const char *const *gpu_kernels(void)
{
    static const char *const both[] = {"kernel=sm80", "kernel=sm90", NULL};
    static const char *const one[] = {"kernel=sm80", NULL};
    return gpu_has_kernel(EW_KERNEL_SM90) ? both : one;
}

ew_world_options gpu_options(uint32_t timeout_ms)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    return options;
}

void gpu_sleep_us(int64_t us)
{
    struct timespec left = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

void gpu_sleep_ms(int64_t ms)
{
    gpu_sleep_us(ms * 1000);
}

/* ---- Figures ---- */

void gpu_figures_add(gpu_figures *figures, double value)
{
    if (figures->count == GPU_MAX_FIGURES)
        harness_fail("more than %d figures", GPU_MAX_FIGURES);
    figures->values[figures->count++] = value;
}

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double gpu_figures_at(gpu_figures *figures, double share)
{
    if (figures->count == 0)
        return 0;
    qsort(figures->values, (size_t)figures->count, sizeof figures->values[0],
          compare_values);
    const int below = (int)ceil(share * figures->count) - 1;
    return figures->values[below > 0 ? below : 0];
}

size_t gpu_free_bytes(void)
{
    size_t free_bytes = 0, all_bytes = 0;
    const cudaError_t error = cudaMemGetInfo(&free_bytes, &all_bytes);
    if (error != cudaSuccess)
        harness_fail("cudaMemGetInfo: %s", cudaGetErrorString(error));
    return free_bytes;
}

bool gpu_has_blas(void)
{
    const ew_problem probe = gpu_problem(128, 128, 64, EW_FP16);
    ew_config config = EW_CONFIG_INIT;
    ew_forecast forecast;
    config.backend = EW_BACKEND_CUDA;
    config.producer = EW_PRODUCER_BLAS;
    return ew_forecast_build(&probe, 1, &config, &forecast) == EW_OK;
}
