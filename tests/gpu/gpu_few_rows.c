/* Calls of few rows on the GPU: the GEMM for up to 208 of them, and tiles that span owners.
 * One plan makes calls of any m, and its bits are those of the grid and the kernel that
 * many rows have. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "plan/policy.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

enum { MAX_ROWS = 1040 };

/* Around every size of the kernels, and many rows in between. */
static const int64_t rows[] = {8,  1040, 1,   64,  2,   1024, 4,   100, 16,  512,
                               32, 128,  208, 200, 7,   256,  65,  17,  384, 63,
                               3,  768,  9,   33,  129, 161,  160, 209};

static const char *const configs[] = {
    "",
    "kernel=sm80",
    "kernel=sm80,block=128x256",
    "block=128x128",
    "ctas=block",
    "cluster=1",
    "pool=after,release=1",
    "pool=static,x=1",
    "x=1,b=512",
    "release=2",
    "release=output",
    "order=default",
};

/* ---- Exact inputs ---- */

/* Behind the rows of the call, C is as it was. */
static int check_rest(gpu_job *job, int64_t m)
{
    ew_world *world = job->world;
    const unsigned char *c = job->staging;
    for (size_t i = (size_t)(job_rows(job, m) * job->problem.n) * 2; i < job->c_bytes; i++)
        RANK_CHECK(c[i] == 0xff, "m=%lld: byte %zu of %zu was written", (long long)m, i,
                   job->c_bytes);
    return 0;
}

static int compute_all(gpu_job *job, const char *config)
{
    const ewx_spec *spec = job_engine(job)->spec;
    for (uint32_t i = 0; i < COUNT(rows); i++) {
        harness_context("%s W=%d config '%s' m=%lld, tiles %s owners",
                        ew_op_name(job->problem.op), job->num_ranks, config,
                        (long long)rows[i],
                        ewx_spans_owners(spec, rows[i]) ? "span" : "do not span");
        RANK_TRY(job_compute(job, rows[i], i, NULL));
        RANK_TRY(check_rest(job, rows[i]));
    }
    return 0;
}

static int compute_with_all(gpu_job *job, void *argument)
{
    (void)argument;
    for (size_t i = 0; i < COUNT(configs); i++) {
        if (!gpu_has_kernel(EW_KERNEL_SM90) && strstr(configs[i], "cluster"))
            continue;
        RANK_TRY(job_replan(job, configs[i]));
        RANK_TRY(compute_all(job, configs[i]));
    }
    return 0;
}

static void run_all(ew_op op, gpu_work work)
{
    static const int ranks[] = {8, 3, 2, 1, 5};
    for (size_t i = 0; i < (gpu_quick ? 2 : COUNT(ranks)); i++) {
        ew_problem problem = gpu_problem(MAX_ROWS, 520, 200, i % 2 ? EW_FP16 : EW_BF16);
        problem.op = op;
        gpu_run(EW_RANKS_AS_THREADS, ranks[i], NULL, problem, "", work, NULL);
    }
}

void check_few_rows(void)
{
    run_all(EW_OP_GEMM_RS, compute_with_all);
    run_all(EW_OP_GEMM_AR, compute_with_all);
    gpu_remark("%zu numbers of rows, %zu configs", COUNT(rows), COUNT(configs));
}

/* ---- Inexact inputs: the bits of every kernel and grid ---- */

/* All calls, one behind the other in `results`. */
static int results_of(gpu_job *job, const char *config, unsigned char *results)
{
    ew_world *world = job->world;
    RANK_TRY(job_replan(job, config));
    for (size_t i = 0; i < COUNT(rows); i++) {
        const size_t bytes = (size_t)(job_rows(job, rows[i]) * job->problem.n) * 2;
        RANK_TRY(job_poison(job));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(job_call(job, rows[i], job->A, job->B, job->C, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, results, job->C, bytes));
        results += bytes;
    }
    return 0;
}

static int64_t differing(const unsigned char *a, const unsigned char *b, size_t bytes)
{
    int64_t count = 0;
    for (size_t i = 0; i < bytes; i += 2)
        count += memcmp(a + i, b + i, 2) != 0;
    return count;
}

static int compare_results(gpu_job *job, const char *config, const unsigned char *want,
                           const unsigned char *got)
{
    ew_world *world = job->world;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const size_t bytes = (size_t)(job_rows(job, rows[i]) * job->problem.n) * 2;
        const int64_t count = differing(want, got, bytes);
        RANK_CHECK(count == 0, "%s, config '%s', m=%lld: %lld of %zu elements differ",
                   ew_op_name(job->problem.op), config, (long long)rows[i],
                   (long long)count, bytes / 2);
        want += bytes;
        got += bytes;
    }
    return 0;
}

static int compare_bits(gpu_job *job, void *argument)
{
    static const char *const plain = "kernel=sm90,order=default,block=128x128";
    ew_world *world = job->world;
    size_t bytes = 1;
    (void)argument;
    for (size_t i = 0; i < COUNT(rows); i++)
        bytes += (size_t)(rows[i] * job->problem.n) * 2;
    unsigned char *want = malloc(bytes), *got = malloc(bytes);
    RANK_CHECK(want && got, "no memory");
    RANK_TRY(job_fill_random(job, 5));
    RANK_TRY(results_of(job, plain, want));
    for (size_t i = 0; i < COUNT(configs); i++) {
        if (strstr(configs[i], "sm80")) /* which has bits of its own */
            continue;
        RANK_TRY(results_of(job, configs[i], got));
        RANK_TRY(compare_results(job, configs[i], want, got));
    }
    free(want);
    free(got);
    return 0;
}

void check_few_rows_bits(void)
{
    if (!gpu_has_kernel(EW_KERNEL_SM90))
        gpu_skip("no GPU with wgmma");
    run_all(EW_OP_GEMM_RS, compare_bits);
    run_all(EW_OP_GEMM_AR, compare_bits);
}
