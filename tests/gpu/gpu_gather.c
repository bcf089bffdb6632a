/* AllGather-GEMM on the GPU: bits, the rows that are handed out, and slices
 * that are written again.  Shapes and configs in plenty are gpu_conformance.c's; graphs and
 * faults have their places beside those of GEMM-ReduceScatter. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"

/* ---- Bits, and the rows that are handed out ---- */

enum { MOST_W = 8 };

static const int64_t row_counts[] = {1, 7, 130, 1021};
enum { NUM_COUNTS = sizeof row_counts / sizeof row_counts[0] };

/* A is the same on all ranks, which use their rows of it; B is a rank's own. */
typedef struct bits {
    unsigned char *want[NUM_COUNTS][MOST_W]; /* by rank */
} bits;

static int fill_random(gpu_job *job, int for_rank)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    RANK_OK(ew_random_fill(p->dtype, 7, p->max_m * p->k, job->staging));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->A, job->staging, job->a_bytes));
    RANK_OK(ew_random_fill(p->dtype, 100 + (uint32_t)for_rank, p->n * p->k, job->staging));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->B, job->staging, job->b_bytes));
    return 0;
}

static size_t result_bytes(const gpu_job *job, int64_t m)
{
    return (size_t)(m * job->problem.n) * 2;
}

/* Plain GEMMs of all rows, on one rank, with every rank's weight. */
static int multiply_alone(gpu_job *job, void *argument)
{
    bits *b = argument;
    ew_world *world = job->world;
    for (int rank = 0; rank < MOST_W; rank++) {
        RANK_TRY(fill_random(job, rank));
        for (int i = 0; i < NUM_COUNTS; i++) {
            const size_t bytes = result_bytes(job, row_counts[i]);
            b->want[i][rank] = malloc(bytes);
            RANK_CHECK(b->want[i][rank], "no memory");
            RANK_OK(job_call(job, row_counts[i], job->A, job->B, job->C, NULL));
            RANK_OK(ew_plan_wait(job->plan));
            RANK_OK(
                ew_memory_copy(world, EW_BACKEND_CUDA, b->want[i][rank], job->C, bytes));
        }
    }
    return 0;
}

static int compare_with(gpu_job *job, const void *there, const void *want, size_t bytes,
                        const char *what, int64_t m)
{
    ew_world *world = job->world;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, there, bytes));
    RANK_CHECK(memcmp(job->staging, want, bytes) == 0, "m=%lld: %s has other bits",
               (long long)m, what);
    return 0;
}

typedef struct all_rows {
    unsigned char *expected; /* on the host */
    void *gathered;          /* on the GPU */
} all_rows;

static int gather_twice(gpu_job *job, const bits *b, int which, const all_rows *rows)
{
    ew_world *world = job->world;
    const int64_t m = row_counts[which];
    const size_t row = (size_t)job->problem.k * 2, all = (size_t)m * row;
    int64_t first, count;
    RANK_OK(ew_owned_rows(m, job->num_ranks, job->rank, &first, &count));
    const unsigned char *mine = (const unsigned char *)job->A + (size_t)first * row;
    for (int wanted = 0; wanted < 2; wanted++) {
        RANK_TRY(job_poison(job));
        RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, rows->gathered, 0xff, all));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(ew_ag_gemm(job->plan, m, count ? mine : NULL, job->B, job->C,
                           wanted ? rows->gathered : NULL, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_TRY(compare_with(job, job->C, b->want[which][job->rank], result_bytes(job, m),
                              "C", m));
        if (wanted)
            RANK_TRY(compare_with(job, rows->gathered, rows->expected, all, "gathered", m));
    }
    return 0;
}

static int gather_and_compare(gpu_job *job, void *argument)
{
    const ew_problem *p = &job->problem;
    ew_world *world = job->world;
    all_rows rows = {.expected = malloc(job->a_bytes)};
    RANK_CHECK(rows.expected, "no memory");
    RANK_TRY(fill_random(job, job->rank));
    RANK_OK(ew_random_fill(p->dtype, 7, p->max_m * p->k, rows.expected));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->a_bytes, &rows.gathered));
    for (int i = 0; i < NUM_COUNTS; i++)
        RANK_TRY(gather_twice(job, argument, i, &rows));
    ew_memory_free(world, EW_BACKEND_CUDA, rows.gathered);
    free(rows.expected);
    return 0;
}

/* The rows are gathered as `how` says, multiplied by the kernel that multiplies alone. */
static void compare_bits(const char *kernel, const char *how, ew_dtype dtype)
{
    char config[EW_CONFIG_TEXT_BYTES];
    const ew_problem alone = EW_PROBLEM(row_counts[NUM_COUNTS - 1], 328, 1160, dtype);
    ew_problem gathering = alone;
    bits b = {{{NULL}}};
    gathering.op = EW_OP_AG_GEMM;
    snprintf(config, sizeof config, "%s%s", kernel, how);
    gpu_run(EW_RANKS_AS_THREADS, 1, NULL, alone, kernel, multiply_alone, &b);
    for (int W = 1; W <= MOST_W; W += W < 4 ? 1 : 4)
        gpu_run(EW_RANKS_AS_THREADS, W, NULL, gathering, config, gather_and_compare, &b);
    for (int i = 0; i < NUM_COUNTS * MOST_W; i++)
        free(b.want[i / MOST_W][i % MOST_W]);
}

void check_gather_bits(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        compare_bits(*kernel, "", EW_BF16);
        compare_bits(*kernel, "", EW_FP16);
        compare_bits(*kernel, ",transport=copy,release=tile", EW_BF16);
    }
}

/* ---- Slices that are written again ---- */

enum { SETS = 3, CALLS = 12 }; /* three sets on two slices: stale rows are wrong rows */

typedef struct wheel {
    void *A[SETS], *C[CALLS];
    unsigned char *expected[SETS];
    size_t bytes; /* of a result */
} wheel;

static int build_wheel(gpu_job *job, wheel *w)
{
    ew_world *world = job->world;
    w->bytes = (size_t)(job->problem.max_m * job->problem.n) * 2;
    RANK_TRY(job_use_device(job));
    for (uint32_t set = 0; set < SETS; set++) {
        w->expected[set] = malloc(w->bytes);
        RANK_CHECK(w->expected[set], "no memory");
        RANK_CUDA(cudaMalloc(&w->A[set], job->a_bytes));
        RANK_OK(ew_exact_fill_a(job->problem.dtype, set, job->rank, job->num_ranks,
                                job->problem.max_m, job->problem.k, job->staging));
        RANK_CUDA(cudaMemcpy(w->A[set], job->staging, job->a_bytes, cudaMemcpyDefault));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(job_call(job, job->problem.max_m, w->A[set], job->B, job->C, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_CUDA(cudaMemcpy(w->expected[set], job->C, w->bytes, cudaMemcpyDefault));
    }
    for (int i = 0; i < CALLS; i++)
        RANK_CUDA(cudaMalloc(&w->C[i], w->bytes));
    return 0;
}

static void CUDART_CB hold_back(void *unused)
{
    (void)unused;
    gpu_sleep_ms(5);
}

/* Without a stream of the caller's a rank's movers may be calls ahead of its GEMM, and of
 * those of others: in every other turn one rank's GEMM comes late.  In the others its
 * movers do, and the GEMMs of all others wait for its rows. */
static int turn_wheel(gpu_job *job, const wheel *w, int turn)
{
    ew_world *world = job->world;
    for (int i = 0; i < CALLS; i++)
        RANK_CUDA(cudaMemset(w->C[i], 0xff, w->bytes));
    RANK_CUDA(cudaDeviceSynchronize());
    if (job->rank == turn / 2 % job->num_ranks)
        RANK_TRY(turn % 2 ? job_hold_exchange(job, hold_back, NULL)
                          : job_hold_producer(job, hold_back, NULL));
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < CALLS; i++)
        RANK_OK(job_call(job, job->problem.max_m, w->A[i % SETS], job->B, w->C[i], NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < CALLS; i++) {
        const unsigned char *expected = w->expected[i % SETS];
        RANK_CUDA(cudaMemcpy(job->staging, w->C[i], w->bytes, cudaMemcpyDefault));
        RANK_CHECK(memcmp(job->staging, expected, w->bytes) == 0,
                   "turn %d, call %d: wrong bits", turn, i);
    }
    return 0;
}

static int in_turn(gpu_job *job, void *argument)
{
    const int *turns = argument;
    ew_world *world = job->world;
    wheel w = {.bytes = 0};
    RANK_TRY(job_compute(job, job->problem.max_m, 3, NULL)); /* verified; B stays */
    RANK_TRY(build_wheel(job, &w));
    for (int turn = 0; turn < *turns; turn++)
        RANK_TRY(turn_wheel(job, &w, turn));
    for (int i = 0; i < CALLS; i++)
        RANK_CUDA(cudaFree(w.C[i]));
    for (int set = 0; set < SETS; set++) {
        RANK_CUDA(cudaFree(w.A[set]));
        free(w.expected[set]);
    }
    return 0;
}

/* Enough blocks for several waves: the last of them read their rows long after the first.
 */
static void turn_with(const char *config, int turns)
{
    gpu_op = EW_OP_AG_GEMM;
    for (int W = 2; W <= 8; W *= 2) {
        const ew_problem many = gpu_problem(128 * W + 3, 8192 / W, 520, EW_FP16);
        const ew_problem spanning = gpu_problem(40 * W + 3, 8192 / W, 1032, EW_FP16);
        gpu_run(EW_RANKS_AS_THREADS, W, NULL, many, config, in_turn, &turns);
        gpu_run(EW_RANKS_AS_THREADS, W, NULL, spanning, config, in_turn, &turns);
        gpu_run(EW_RANKS_AS_THREADS, W, NULL, gpu_problem(W / 2, 264, 72, EW_BF16), config,
                in_turn, &turns);
    }
}

void check_gather_reuse(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        turn_with(*kernel, gpu_quick ? 8 : 32);
}

/* The same on the one slice that copy engines have, with either GEMM. */
void check_gather_copies(void)
{
    const int turns = gpu_quick ? 4 : 16;
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        char config[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "%s,transport=copy,release=tile", *kernel);
        turn_with(config, turns);
    }
    if (gpu_has_blas())
        turn_with("producer=blas,transport=copy", turns);
    else
        gpu_remark("without cuBLAS, which is not installed");
}
