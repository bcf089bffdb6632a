/* What the GPU checks share: one rank's plan with its matrices in the GPU's memory, filled
 * with exact inputs, and a way to run some work with it on W ranks. */
#ifndef TESTS_GPUKIT_H
#define TESTS_GPUKIT_H

#include <cuda_runtime_api.h>

#include "backend/cuda/cuda_engine.h"
#include "entwine/measure.h"
#include "harness.h"

enum { GPU_MAX_RANKS = 32 };

/* Returns 1 from the enclosing function, as RANK_OK does. */
#define RANK_CUDA(expression)                                                  \
    do {                                                                       \
        const cudaError_t rank_cuda_error = (expression);                      \
        if (rank_cuda_error != cudaSuccess) {                                  \
            harness_note(world, __FILE__, __LINE__, "%s: %s: %s", #expression, \
                         cudaGetErrorName(rank_cuda_error),                    \
                         cudaGetErrorString(rank_cuda_error));                 \
            return 1;                                                          \
        }                                                                      \
    } while (0)

/* A rank at work. */
typedef struct gpu_job {
    ew_world *world;
    int rank, num_ranks;
    ew_problem problem;
    ew_plan *plan;
    void *A, *B, *C; /* on the GPU; C has room for the rows of the largest call */
    void *staging;   /* on the host, for any of them */
    size_t a_bytes, b_bytes, c_bytes;
} gpu_job;

typedef int (*gpu_work)(gpu_job *job, void *argument);

/* Runs `work` on num_ranks ranks, each with a plan of its own for the problem; fails the
 * check as harness_run does.  NULL options: a timeout of 10 s. */
void gpu_run(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
             ew_problem problem, const char *config, gpu_work work, void *argument);

/* The same for ranks that are expected to fail: returns what ew_run_ranks did. */
ew_status gpu_run_failing(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                          ew_problem problem, const char *config, gpu_work work,
                          void *argument, int *exits_out);

/* All of these return 0, or 1 after noting why not. */

/* This rank's part of such a run, in a world that a launcher made. */
int job_in_world(ew_world *world, ew_problem problem, const char *config, gpu_work work,
                 void *argument);
/* Another plan for the same problem; trying one is no failure.  Collective. */
int job_replan(gpu_job *job, const char *config);
int job_try_plan(gpu_job *job, const char *config, ew_status *status_out);
/* The exact inputs of `seed` into A and B. */
int job_fill(gpu_job *job, uint32_t seed);
/* Inexact operands, which differ between ranks. */
int job_fill_random(gpu_job *job, uint32_t seed);
int job_poison(gpu_job *job); /* C becomes NaN */
/* This rank's rows of C of an m-row call. */
int64_t job_rows(const gpu_job *job, int64_t m);
/* C, or any host copy of it, against the exact result of `seed`. */
int job_verify(gpu_job *job, int64_t m, uint32_t seed);
int job_verify_copy(const gpu_job *job, int64_t m, uint32_t seed, const void *copy);
int job_verify_there(gpu_job *job, int64_t m, uint32_t seed); /* by the GPU */
/* A call of the plan's operation, with matrices of the caller's. */
ew_status job_call(const gpu_job *job, int64_t m, const void *A, const void *B, void *C,
                   ew_stream stream);
/* Fills, poisons, meets the others (whose calls must not wait for a rank that waits for
 * the GPU in an allocation or a copy), calls with B, waits and verifies. */
int job_compute(gpu_job *job, int64_t m, uint32_t seed, ew_stream stream);
/* ew_gemm_rs, or what the problem's operation is. */
ew_status job_call(const gpu_job *job, int64_t m, const void *A, const void *B, void *C,
                   ew_stream stream);
/* This thread's CUDA calls go to the rank's GPU. */
int job_use_device(const gpu_job *job);
ewx_cuda_engine *job_engine(const gpu_job *job);

/* The next call's producer reaches the GPU when `hold` has returned.  The first such hold
 * may wait for the GPU: meet the others behind it. */
int job_hold_producer(const gpu_job *job, cudaHostFn_t hold, void *argument);
/* The same for the kernel at the other end of what crosses. */
int job_hold_exchange(const gpu_job *job, cudaHostFn_t hold, void *argument);
/* 10 ms, as such a hold. */
void CUDART_CB gpu_pause(void *unused);
/* A stream of the caller's, as any user would make it. */
int job_stream(const gpu_job *job, cudaStream_t *stream_out);

/* What gpu_problem asks for and job_call calls; a check has its process to itself. */
extern ew_op gpu_op;

/* Exact small problems of that operation: 16-bit, N x K weight. */
ew_problem gpu_problem(int64_t max_m, int64_t n, int64_t k, ew_dtype dtype);

/* "kernel=sm80", and "kernel=sm90" where the GPU has it; ends with NULL. */
const char *const *gpu_kernels(void);

bool gpu_has_blas(void); /* producer=blas can run here */

ew_world_options gpu_options(uint32_t timeout_ms);
void gpu_sleep_ms(int64_t ms);
void gpu_sleep_us(int64_t us);

/* ---- Figures ---- */

enum { GPU_MAX_FIGURES = 4096 };
typedef struct gpu_figures {
    int count;
    double values[GPU_MAX_FIGURES];
} gpu_figures;

void gpu_figures_add(gpu_figures *figures, double value);
/* The value that `share` of all do not exceed: 0.99, or 1 for the largest. */
double gpu_figures_at(gpu_figures *figures, double share);

/* What the first GPU has free, for checks whose ranks are threads: starts CUDA, and keeps
 * the GPU open until the check ends. */
size_t gpu_free_bytes(void);

#endif
