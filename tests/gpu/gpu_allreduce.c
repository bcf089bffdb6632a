/* GEMM-AllReduce on the GPU: in one shot and in two, every rank has the bits of
 * GEMM-ReduceScatter's rows.  Shapes and configs in plenty are gpu_conformance.c's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* All rows of the sum, of whatever operation, into `whole`. */
static int gather_rows(gpu_job *job, int64_t m, unsigned char *whole)
{
    ew_world *world = job->world;
    const size_t row_bytes = (size_t)job->problem.n * 2;
    const size_t most = ((size_t)m / (size_t)job->num_ranks + 1) * row_bytes;
    unsigned char *all = calloc((size_t)job->num_ranks, most), *mine = calloc(1, most);
    RANK_CHECK(all && mine, "no memory");
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, mine, job->C,
                           (size_t)job_rows(job, m) * row_bytes));
    RANK_OK(ew_world_allgather(world, mine, all, most));
    for (int rank = 0; rank < job->num_ranks; rank++) {
        int64_t first, count;
        RANK_OK(ew_owned_rows(m, job->num_ranks, rank, &first, &count));
        memcpy(whole + (size_t)first * row_bytes, all + (size_t)rank * most,
               (size_t)count * row_bytes);
    }
    free(all);
    free(mine);
    return 0;
}

static int call_once(gpu_job *job, int64_t m)
{
    ew_world *world = job->world;
    RANK_TRY(job_poison(job));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    return 0;
}

/* The rows of GEMM-ReduceScatter, by the same kernel. */
static int scattered_rows(gpu_job *job, const char *kernel, int64_t m, unsigned char *whole)
{
    job->problem.op = EW_OP_GEMM_RS;
    RANK_TRY(job_replan(job, kernel));
    RANK_TRY(call_once(job, m));
    RANK_TRY(gather_rows(job, m, whole));
    job->problem.op = EW_OP_GEMM_AR;
    return 0;
}

static int compare_with(gpu_job *job, const char *kernel, int64_t m,
                        const unsigned char *want)
{
    static const char *const configs[] = {
        "shots=1",
        "shots=2",
        "block=128x128",
        "shots=2,release=3,x=2,b=128",
        "shots=2,order=default,release=output,pool=after",
        "shots=2,pool=static,b=512,x=2",
        "shots=2,launches=unit,release=9",
        "shots=2,launches=unit,release=8,first=3,last=2,x=2,b=128",
        "shots=1,launches=unit,release=4,last=1",
    };
    ew_world *world = job->world;
    const size_t bytes = (size_t)(m * job->problem.n) * 2;
    for (size_t i = 0; i < COUNT(configs); i++) {
        char config[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "%s,%s", kernel, configs[i]);
        RANK_TRY(job_replan(job, config));
        RANK_TRY(call_once(job, m));
        RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, job->C, job->c_bytes));
        RANK_CHECK(memcmp(job->staging, want, bytes) == 0, "%s: other bits", config);
        RANK_CHECK(((unsigned char *)job->staging)[bytes] == 0xff, "%s: written behind C",
                   config);
    }
    return 0;
}

/* The job's operation is GEMM-AllReduce, whose C has room for either. */
static int compare_bits(gpu_job *job, void *argument)
{
    const int64_t m = *(const int64_t *)argument;
    ew_world *world = job->world;
    unsigned char *want = malloc((size_t)(m * job->problem.n) * 2 + 1);
    RANK_CHECK(want, "no memory");
    RANK_TRY(job_fill_random(job, 7));
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        RANK_TRY(scattered_rows(job, *kernel, m, want));
        RANK_TRY(compare_with(job, *kernel, m, want));
    }
    free(want);
    return 0;
}

void check_allreduce_bits(void)
{
    static const int64_t rows[] = {1, 3, 130, 397, 1025};
    static const int ranks[] = {1, 2, 3, 4, 5, 8};
    for (size_t w = 0; w < COUNT(ranks); w++)
        for (size_t i = 0; i < COUNT(rows); i++) {
            if (gpu_quick && (w + i) % 2)
                continue;
            int64_t m = rows[i];
            ew_problem problem = gpu_problem(m, 520, 200, i % 2 ? EW_BF16 : EW_FP16);
            problem.op = EW_OP_GEMM_AR;
            gpu_run(EW_RANKS_AS_THREADS, ranks[w], NULL, problem, "", compare_bits, &m);
        }
}

/* ---- cuBLAS, whose bits are its own ---- */

static int compute_some(gpu_job *job, void *argument)
{
    const int64_t most = job->problem.max_m, rows[] = {most, 1, most / 2, 0, most};
    (void)argument;
    for (uint32_t i = 0; i < COUNT(rows); i++)
        if (job_compute(job, rows[i], i, NULL))
            return 1;
    return 0;
}

void check_allreduce_blas(void)
{
    if (!gpu_has_blas())
        gpu_skip("cuBLAS is not installed");
    for (int W = 1; W <= 4; W++)
        for (int shots = 1; shots <= 2; shots++) {
            ew_problem problem = gpu_problem(130 * W + 1, 264, 72, EW_BF16);
            problem.op = EW_OP_GEMM_AR;
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem,
                    shots == 1 ? "producer=blas,shots=1" : "producer=blas,shots=2",
                    compute_some, NULL);
        }
}
