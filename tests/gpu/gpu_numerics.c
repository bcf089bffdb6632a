/* Random inputs on the GPU: against float64 within the error that the documented arithmetic
 * allows, and against themselves, bit for bit, whatever the config, the owner or the run.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error_bound.h"
#include "gpu_check.h"
#include "gpukit.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])
#define SEED 6

/* Tensor cores cut off what they align away. */
#define TENSOR_CORE_EPS 0x1p-23

/* One call on what A and B hold; its result is in the job's staging then. */
static int compute(gpu_job *job, int64_t m)
{
    ew_world *world = job->world;
    RANK_TRY(job_poison(job));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ew_gemm_rs(job->plan, m, job->A, job->B, job->C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, job->C, job->c_bytes));
    return 0;
}

/* ---- Against float64 ---- */

enum { SAMPLES = 2000, MAX_W = 4 };

/* One rank's operand as any rank can work it out. */
static double *widened(const ew_problem *p, int rank, int operand)
{
    const int64_t rows = operand == OPERAND_A ? p->max_m : p->n;
    uint16_t *narrow = malloc((size_t)(rows * p->k) * sizeof *narrow);
    double *wide = malloc((size_t)(rows * p->k) * sizeof *wide);
    if (!narrow || !wide)
        abort();
    fill_random(p->dtype, SEED, rank, operand, rows, p->k, narrow);
    for (int64_t i = 0; i < rows * p->k; i++)
        wide[i] = element_get(p->dtype, narrow, i);
    free(narrow);
    return wide;
}

typedef expectation (*expecter)(ew_dtype dtype, double eps, int num_ranks, int64_t depth,
                                const double *const *a, const double *const *b);

static int compare_samples(gpu_job *job, expecter expect, double *const *wide_a,
                           double *const *wide_b)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    const int W = job->num_ranks;
    int64_t first = 0, count = 0;
    error_sum sum = {0};
    harness_random random = harness_seed((uint64_t)job->rank);
    RANK_OK(ew_owned_rows(p->max_m, W, job->rank, &first, &count));
    for (int sample = 0; sample < SAMPLES; sample++) {
        const int64_t row = harness_between(&random, 0, count - 1);
        const int64_t col = harness_between(&random, 0, p->n - 1);
        const double *a[MAX_W], *b[MAX_W];
        for (int rank = 0; rank < W; rank++) {
            a[rank] = wide_a[rank] + (first + row) * p->k;
            b[rank] = wide_b[rank] + col * p->k;
        }
        const expectation want = expect(p->dtype, TENSOR_CORE_EPS, W, p->k, a, b);
        const double got = element_get(p->dtype, job->staging, row * p->n + col);
        RANK_CHECK(add_error(&sum, got, &want),
                   "row %lld column %lld: got %.9g, want %.9g +- %.2g",
                   (long long)(first + row), (long long)col, got, want.value,
                   want.tolerance);
    }
    RANK_CHECK(relative_error(&sum) < frobenius_limit(p->dtype), "Frobenius error %g",
               relative_error(&sum));
    return 0;
}

static int within_error(gpu_job *job, expecter expect)
{
    double *wide_a[MAX_W], *wide_b[MAX_W];
    RANK_TRY(job_fill_random(job, SEED));
    RANK_TRY(compute(job, job->problem.max_m));
    for (int rank = 0; rank < job->num_ranks; rank++) {
        wide_a[rank] = widened(&job->problem, rank, OPERAND_A);
        wide_b[rank] = widened(&job->problem, rank, OPERAND_B);
    }
    const int failed = compare_samples(job, expect, wide_a, wide_b);
    for (int rank = 0; rank < job->num_ranks; rank++) {
        free(wide_a[rank]);
        free(wide_b[rank]);
    }
    return failed;
}

static int within_its_error(gpu_job *job, void *argument)
{
    (void)argument;
    return within_error(job, expect_element);
}

/* ---- Against the CPU backend ---- */

static int same_as_the_cpu(gpu_job *job, void *argument)
{
    (void)argument;
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    const int64_t m = p->max_m;
    const ew_config cpu = EW_CONFIG_INIT;
    const size_t bytes = (size_t)(job_rows(job, m) * p->n) * ew_dtype_bytes(p->dtype);
    void *A = malloc(job->a_bytes), *B = malloc(job->b_bytes), *C = malloc(job->c_bytes);
    ew_plan *plan = NULL;
    RANK_CHECK(A && B && C, "no memory");
    RANK_TRY(job_compute(job, m, SEED, NULL)); /* leaves its result in staging */
    RANK_OK(ew_exact_fill_a(p->dtype, SEED, job->rank, job->num_ranks, m, p->k, A));
    RANK_OK(ew_exact_fill_b(p->dtype, SEED, job->rank, p->weight_layout, p->n, p->k, B));
    RANK_OK(ew_plan_create(world, p, &cpu, &plan));
    RANK_OK(ew_gemm_rs(plan, m, A, B, C, NULL));
    RANK_CHECK(memcmp(C, job->staging, bytes) == 0, "the cpu backend has other bits");
    ew_plan_destroy(plan);
    free(A);
    free(B);
    free(C);
    return 0;
}

void check_numerics(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int dtype = EW_BF16; dtype <= EW_FP16; dtype++) {
            for (int W = 1; W <= 4; W += 1 + (W == 2)) /* 1, 2, 4 */
                gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                        gpu_problem(130 * W + 1, 264, 520, (ew_dtype)dtype), *kernel,
                        within_its_error, NULL);
            gpu_run(EW_RANKS_AS_THREADS, 2, NULL,
                    gpu_problem(300, 136, 4096, (ew_dtype)dtype), *kernel, within_its_error,
                    NULL);
            gpu_run(EW_RANKS_AS_THREADS, 3, NULL,
                    gpu_problem(391, 264, 200, (ew_dtype)dtype), *kernel, same_as_the_cpu,
                    NULL);
        }
}

/* ---- Determinism ---- */

typedef struct comparison {
    const char *kernel;
    unsigned char *whole;     /* m x N, of the first config, by all ranks */
    unsigned char *other_row; /* m x N of a call with fewer rows */
} comparison;

static const char *const configs[] = {
    "x=1",
    "x=2,b=128",
    "x=5,b=512",
    "b=256,order=default",
    "order=contiguous,group=3",
    "release=3,group=2",
    "release=partition,ctas=persistent",
    "release=output,pool=after",
    "pool=after,ctas=block",
    "pool=static,x=2",
    "transport=push",
    "transport=push,release=output",
    "transport=copy",
    "launches=unit,release=2",
    "launches=unit,release=4,first=1,last=2",
    "block=128x128,ctas=block",
    "block=128x256,ctas=persistent,x=3",
};
static const char *const configs_sm90[] = {"cluster=1", "cluster=2,block=128x128",
                                           "cluster=2,block=128x256,order=contiguous"};

static int replan_variant(gpu_job *job, const char *kernel, const char *config)
{
    char text[EW_CONFIG_TEXT_BYTES];
    snprintf(text, sizeof text, "%s,%s", kernel, config);
    harness_context("W=%d %s %s", job->num_ranks, ew_dtype_name(job->problem.dtype), text);
    return job_replan(job, text);
}

/* This rank's rows of an m-row call into a matrix of all ranks. */
static int collect_rows(gpu_job *job, int64_t m, unsigned char *whole)
{
    ew_world *world = job->world;
    const size_t row_bytes = (size_t)job->problem.n * 2;
    int64_t first = 0, count = 0;
    RANK_OK(ew_owned_rows(m, job->num_ranks, job->rank, &first, &count));
    memcpy(whole + (size_t)first * row_bytes, job->staging, (size_t)count * row_bytes);
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static int expect_same_rows(gpu_job *job, const comparison *c, const char *what)
{
    ew_world *world = job->world;
    const size_t row_bytes = (size_t)job->problem.n * 2;
    int64_t first = 0, count = 0;
    RANK_OK(ew_owned_rows(job->problem.max_m, job->num_ranks, job->rank, &first, &count));
    RANK_CHECK(memcmp(c->whole + (size_t)first * row_bytes, job->staging,
                      (size_t)count * row_bytes) == 0,
               "%s: other bits than the kernel's first config", what);
    return 0;
}

static int vary_config(gpu_job *job, const comparison *c, const char *const *texts,
                       size_t count)
{
    for (size_t i = 0; i < count; i++) {
        RANK_TRY(replan_variant(job, c->kernel, texts[i]));
        for (int run = 0; run < 3; run++) {
            RANK_TRY(compute(job, job->problem.max_m));
            RANK_TRY(expect_same_rows(job, c, texts[i]));
        }
    }
    return 0;
}

/* With another m a row has another owner and another place in its tile. */
static int vary_rows(gpu_job *job, const comparison *c)
{
    static const int64_t rows[] = {1, 2, 100, 128, 129, 257, 386};
    ew_world *world = job->world;
    const size_t row_bytes = (size_t)job->problem.n * 2;
    for (size_t i = 0; i < COUNT(rows); i++) {
        RANK_TRY(compute(job, rows[i]));
        RANK_TRY(collect_rows(job, rows[i], c->other_row));
        RANK_CHECK(memcmp(c->other_row, c->whole, (size_t)rows[i] * row_bytes) == 0,
                   "m=%lld changes the bits of a row", (long long)rows[i]);
        RANK_OK(ew_world_barrier(world));
    }
    return 0;
}

static int always_the_same_bits(gpu_job *job, void *argument)
{
    const comparison *c = argument;
    RANK_TRY(job_fill_random(job, SEED));
    RANK_TRY(compute(job, job->problem.max_m));
    RANK_TRY(collect_rows(job, job->problem.max_m, c->whole));
    for (int run = 0; run < (gpu_quick ? 5 : 50); run++) {
        RANK_TRY(compute(job, job->problem.max_m));
        RANK_TRY(expect_same_rows(job, c, "another run"));
    }
    RANK_TRY(vary_rows(job, c));
    RANK_TRY(vary_config(job, c, configs, COUNT(configs)));
    if (strstr(c->kernel, "sm90"))
        RANK_TRY(vary_config(job, c, configs_sm90, COUNT(configs_sm90)));
    return 0;
}

static int64_t count_differences(const unsigned char *a, const unsigned char *b,
                                 size_t bytes)
{
    int64_t differing = 0;
    for (size_t i = 0; i < bytes; i += 2)
        differing += memcmp(a + i, b + i, 2) != 0;
    return differing;
}

static void expect_determinism(ew_dtype dtype)
{
    const ew_problem problem = gpu_problem(400, 264, 328, dtype);
    const size_t bytes = (size_t)(problem.max_m * problem.n) * 2;
    unsigned char *whole[2] = {malloc(bytes), malloc(bytes)}, *scratch = malloc(bytes);
    const char *const *kernels = gpu_kernels();
    for (int i = 0; kernels[i]; i++) {
        comparison c = {kernels[i], whole[i], scratch};
        gpu_run(EW_RANKS_AS_THREADS, 3, NULL, problem, kernels[i], always_the_same_bits,
                &c);
    }
    if (kernels[1])
        gpu_remark("%s: sm80 and sm90 differ in %lld of %lld elements",
                   ew_dtype_name(dtype),
                   (long long)count_differences(whole[0], whole[1], bytes),
                   (long long)(problem.max_m * problem.n));
    free(whole[0]);
    free(whole[1]);
    free(scratch);
}

/* ---- Contributions that are added as they come ---- */

/* Not the same bits from run to run, but within what so many roundings allow. */
static int within_added_error(gpu_job *job, void *argument)
{
    (void)argument;
    return within_error(job, expect_added_element);
}

void check_adding(void)
{
    static const struct {
        const char *config;
        ew_dtype dtype;
    } cases[] = {{"transport=add,kernel=sm80", EW_FP16},
                 {"transport=add,kernel=sm90", EW_FP16},
                 {"transport=add,kernel=sm90", EW_BF16},
                 {"transport=tma-add,kernel=sm90", EW_FP16},
                 {"transport=tma-add,kernel=sm90,release=output,pool=after", EW_BF16}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (strstr(cases[i].config, "sm90") && !gpu_has_kernel(EW_KERNEL_SM90))
            continue;
        for (int W = 1; W <= 4; W += 1 + (W == 2)) { /* 1, 2, 4 */
            const ew_problem problem = gpu_problem(130 * W + 1, 264, 520, cases[i].dtype);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, cases[i].config,
                    within_added_error, NULL);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, cases[i].config, same_as_the_cpu,
                    NULL);
        }
    }
}

/* ---- Determinism, again ---- */

/* The ranks contribute large, -large and small to every element: added in their order that
 * is small, begun with another rank's it is zero. */
static int sum_in_rank_order(gpu_job *job, void *argument)
{
    static const float shares[] = {0x1p15f, -0x1p15f, 0x1p-10f};
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    (void)argument;
    for (int64_t i = 0; i < p->max_m * p->k; i++)
        element_put(p->dtype, job->staging, i, i % p->k == 0 ? shares[job->rank] : 0);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->A, job->staging, job->a_bytes));
    for (int64_t i = 0; i < p->n * p->k; i++)
        element_put(p->dtype, job->staging, i, 1);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->B, job->staging, job->b_bytes));
    RANK_TRY(compute(job, p->max_m));
    for (int64_t i = 0; i < job_rows(job, p->max_m) * p->n; i++) {
        const float sum = element_get(p->dtype, job->staging, i);
        RANK_CHECK(sum == shares[2], "element %lld is %g, not %g: another order",
                   (long long)i, sum, shares[2]);
    }
    return 0;
}

void check_determinism(void)
{
    for (int dtype = EW_BF16; dtype <= EW_FP16; dtype++) {
        expect_determinism((ew_dtype)dtype);
        gpu_run(EW_RANKS_AS_THREADS, 3, NULL, gpu_problem(391, 264, 8, (ew_dtype)dtype), "",
                sum_in_rank_order, NULL);
    }
}
