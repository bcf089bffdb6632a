/* Outputs of GEMM-AllReduce in symmetric memory: the bits of any other memory, whether
 * ranks store straight into them or, where they lie at different places, do not; no store
 * before its rank has entered the call; and what ew_alloc, ew_import and ew_free refuse. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

enum { OFFSET = 1024, ROOM = 2 * OFFSET }; /* bytes: of outputs, and beside them */

static ew_problem problem_of(int64_t max_m, int64_t n, ew_dtype dtype)
{
    ew_problem problem = gpu_problem(max_m, n, 72, dtype);
    problem.op = EW_OP_GEMM_AR;
    return problem;
}

/* ---- The same bits as anywhere else ---- */

/* A call into poisoned memory whose bits must be those in `want`, unless that is NULL;
 * `straight`: -1, or whether results must have gone straight into the outputs. */
static int call_and_compare(gpu_job *job, void *C, int straight, const unsigned char *want)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    const size_t bytes = (size_t)(m * job->problem.n) * 2;
    RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, C, 0xff, bytes));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ew_gemm_ar(job->plan, m, job->A, job->B, C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    const int seen = job_engine(job)->report->straight;
    RANK_CHECK(straight < 0 || seen == straight, "straight=%d, not %d", seen, straight);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, C, bytes));
    RANK_CHECK(!want || memcmp(job->staging, want, bytes) == 0, "other bits (straight=%d)",
               seen);
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* All at one place; one rank in other memory; all at the place again; one rank at another
 * place. */
static int compare_places(gpu_job *job, unsigned char *memory, const unsigned char *want)
{
    const bool differs = job->rank == job->num_ranks - 1;
    RANK_TRY(call_and_compare(job, memory, 1, want));
    RANK_TRY(call_and_compare(job, differs ? job->C : memory + OFFSET, 0, want));
    RANK_TRY(call_and_compare(job, memory + OFFSET, 1, want));
    RANK_TRY(call_and_compare(job, memory + (differs ? 16 : 0), 0, want));
    return call_and_compare(job, memory + 16, 1, want);
}

static int compare_allocated(gpu_job *job, const unsigned char *want)
{
    ew_world *world = job->world;
    void *memory;
    RANK_OK(ew_alloc(world, EW_BACKEND_CUDA, job->c_bytes + ROOM, &memory));
    RANK_TRY(compare_places(job, memory, want));
    RANK_OK(ew_free(world, EW_BACKEND_CUDA, memory));
    return 0;
}

/* Ranks as threads know each other's addresses. */
static int gather_pointers(const gpu_job *job, void *mine, void **pointers)
{
    ew_world *world = job->world;
    RANK_OK(ew_world_allgather(world, &mine, pointers, sizeof mine));
    return 0;
}

static int compare_imported(gpu_job *job, const unsigned char *want)
{
    ew_world *world = job->world;
    const size_t bytes = job->c_bytes + ROOM;
    const size_t needed = (size_t)(job->problem.max_m * job->problem.n) * 2;
    void *memory, *pointers[GPU_MAX_RANKS];
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, bytes, &memory));
    RANK_TRY(gather_pointers(job, memory, pointers));
    RANK_OK(ew_import(world, EW_BACKEND_CUDA, pointers, bytes));
    RANK_TRY(compare_places(job, memory, want));
    RANK_OK(ew_free(world, EW_BACKEND_CUDA, memory));
    RANK_TRY(call_and_compare(job, memory, 0, want)); /* it is like any other again */
    RANK_OK(ew_import(world, EW_BACKEND_CUDA, pointers, needed));
    RANK_TRY(call_and_compare(job, memory, 1, want));
    RANK_TRY(call_and_compare(job, (char *)memory + 16, 0, want)); /* the end is outside */
    RANK_OK(ew_free(world, EW_BACKEND_CUDA, memory));
    ew_memory_free(world, EW_BACKEND_CUDA, memory);
    return 0;
}

static int compare_bits(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const bool imports = *(const bool *)argument;
    const size_t bytes = (size_t)(job->problem.max_m * job->problem.n) * 2;
    unsigned char *want = malloc(bytes + 1);
    RANK_CHECK(want, "no memory");
    RANK_TRY(job_fill_random(job, 7));
    RANK_TRY(call_and_compare(job, job->C, 0, NULL));
    memcpy(want, job->staging, bytes);
    RANK_TRY(compare_allocated(job, want));
    if (imports)
        RANK_TRY(compare_imported(job, want));
    free(want);
    return 0;
}

static void run_bits(ew_ranks_as kind, int num_ranks, int64_t m)
{
    static const char *const configs[] = {
        "shots=2",
        "shots=2,release=3,x=2,b=128",
        "shots=2,order=default,release=output,pool=after",
        "shots=2,pool=static,b=512,x=2",
        "shots=2,launches=unit,release=5,first=2",
    };
    bool imports = kind == EW_RANKS_AS_THREADS;
    for (size_t i = 0; i < COUNT(configs); i++)
        gpu_run(kind, num_ranks, NULL, problem_of(m, 520, i % 2 ? EW_BF16 : EW_FP16),
                configs[i], compare_bits, &imports);
}

/* ---- Not before the rank has entered the call ---- */

enum { TURNS = 6, SETS = 2 };

typedef struct lag {
    void *A[SETS], *B[SETS];
    unsigned char *want[SETS];
    ew_plan *other; /* in one shot: every rank's reducer writes its own output */
    void *C;        /* symmetric */
    size_t bytes;
} lag;

static void CUDART_CB hold_back(void *unused)
{
    (void)unused;
    gpu_sleep_ms(20);
}

static int open_lag(gpu_job *job, lag *l)
{
    ew_world *world = job->world;
    ew_config config = EW_CONFIG_INIT;
    RANK_OK(ew_config_parse("shots=1", &config));
    config.backend = EW_BACKEND_CUDA;
    RANK_OK(ew_plan_create(world, &job->problem, &config, &l->other));
    RANK_OK(ew_alloc(world, EW_BACKEND_CUDA, job->c_bytes, &l->C));
    l->bytes = (size_t)(job->problem.max_m * job->problem.n) * 2;
    RANK_TRY(job_use_device(job));
    for (uint32_t set = 0; set < SETS; set++) {
        RANK_CUDA(cudaMalloc(&l->A[set], job->a_bytes));
        RANK_CUDA(cudaMalloc(&l->B[set], job->b_bytes));
        l->want[set] = malloc(l->bytes + 1);
        RANK_CHECK(l->want[set], "no memory");
        RANK_TRY(job_compute(job, job->problem.max_m, set, NULL));
        memcpy(l->want[set], job->staging, l->bytes);
        RANK_CUDA(cudaMemcpy(l->A[set], job->A, job->a_bytes, cudaMemcpyDefault));
        RANK_CUDA(cudaMemcpy(l->B[set], job->B, job->b_bytes, cudaMemcpyDefault));
    }
    return 0;
}

static int close_lag(gpu_job *job, lag *l)
{
    ew_world *world = job->world;
    RANK_OK(ew_free(world, EW_BACKEND_CUDA, l->C));
    ew_plan_destroy(l->other);
    for (int set = 0; set < SETS; set++) {
        RANK_CUDA(cudaFree(l->A[set]));
        RANK_CUDA(cudaFree(l->B[set]));
        free(l->want[set]);
    }
    return 0;
}

static int expect(const gpu_job *job, const lag *l, int set, int turn)
{
    ew_world *world = job->world;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, l->C, l->bytes));
    RANK_CHECK(memcmp(job->staging, l->want[set], l->bytes) == 0,
               "turn %d: not the bits of the last call", turn);
    return 0;
}

/* The last rank's reducers come late.  Its one of the first call, in one shot, still has to
 * write the output when all contributions to the second call are there, which the others
 * would store into the same output. */
static int overtake(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    lag l = {.bytes = 0};
    (void)argument;
    RANK_TRY(open_lag(job, &l));
    for (int turn = 0; turn < TURNS; turn++) {
        const int set = turn % SETS;
        /* Both plans know each other's last words. */
        RANK_OK(ew_gemm_ar(job->plan, m, l.A[set], l.B[set], l.C, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_CHECK(job_engine(job)->report->straight == 1, "not straight");
        RANK_TRY(expect(job, &l, set, turn));
        if (job->rank == job->num_ranks - 1)
            RANK_TRY(job_hold_exchange(job, hold_back, NULL));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(ew_gemm_ar(l.other, m, l.A[set], l.B[set], l.C, NULL));
        RANK_OK(ew_gemm_ar(job->plan, m, l.A[1 - set], l.B[1 - set], l.C, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_TRY(expect(job, &l, 1 - set, turn));
    }
    return close_lag(job, &l);
}

/* ---- Many calls back to back, and a reader behind each ---- */

enum { CALLS = 24 };

/* In a stream of the caller's: calls into one output, each followed by a reader that takes
 * its time on one rank; from a graph on all ranks but the first. */
static int read_late(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    lag l = {.bytes = 0};
    cudaStream_t stream;
    unsigned char *results;
    (void)argument;
    RANK_TRY(open_lag(job, &l));
    RANK_TRY(job_stream(job, &stream));
    RANK_CUDA(cudaMalloc((void **)&results, CALLS * l.bytes));
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < CALLS; i++) {
        RANK_OK(ew_gemm_ar(job->plan, m, l.A[i % SETS], l.B[i % SETS], l.C, stream));
        if (i % job->num_ranks == job->rank && i < 2 * job->num_ranks)
            RANK_CUDA(cudaLaunchHostFunc(stream, hold_back, NULL));
        RANK_CUDA(cudaMemcpyAsync(results + (size_t)i * l.bytes, l.C, l.bytes,
                                  cudaMemcpyDefault, stream));
    }
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < CALLS; i++) {
        RANK_CUDA(cudaMemcpy(job->staging, results + (size_t)i * l.bytes, l.bytes,
                             cudaMemcpyDefault));
        const unsigned char *want = l.want[i % SETS];
        RANK_CHECK(memcmp(job->staging, want, l.bytes) == 0, "call %d: wrong bits", i);
    }
    RANK_OK(ew_world_barrier(world)); /* frees may wait for the whole GPU */
    RANK_CUDA(cudaFree(results));
    RANK_CUDA(cudaStreamDestroy(stream));
    return close_lag(job, &l);
}

/* ---- Graphs ---- */

/* Captured on all ranks but the first, which makes the calls itself. */
static int replay(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    const int launches = gpu_quick ? 50 : 500;
    lag l = {.bytes = 0};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    (void)argument;
    RANK_TRY(open_lag(job, &l));
    RANK_TRY(job_stream(job, &stream));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int set = 0; set < SETS; set++)
        RANK_OK(ew_gemm_ar(job->plan, m, l.A[set], l.B[set], l.C, stream));
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    RANK_CUDA(cudaGraphUpload(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < launches; i++) {
        for (int set = 0; set < SETS && job->rank == 0; set++)
            RANK_OK(ew_gemm_ar(job->plan, m, l.A[set], l.B[set], l.C, stream));
        if (job->rank > 0)
            RANK_CUDA(cudaGraphLaunch(runnable, stream));
        if (i % 25 == 24) {
            RANK_CUDA(cudaStreamSynchronize(stream));
            RANK_OK(ew_world_barrier(world));
        }
    }
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_CHECK(job_engine(job)->report->straight == 1, "not straight");
    RANK_TRY(expect(job, &l, SETS - 1, launches));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaGraphExecDestroy(runnable));
    RANK_CUDA(cudaGraphDestroy(graph));
    RANK_CUDA(cudaStreamDestroy(stream));
    return close_lag(job, &l);
}

/* ---- Layers ---- */

typedef struct layer {
    ew_epilogue epilogue;
    void *start; /* of the residual */
    size_t residual_bytes, bytes;
} layer;

static int open_layer(gpu_job *job, bool all_rows, layer *l)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    int64_t first, rows;
    void *weight;
    RANK_OK(ew_owned_rows(p->max_m, job->num_ranks, job->rank, &first, &rows));
    rows = all_rows ? p->max_m : rows;
    *l = (layer){.epilogue = EW_EPILOGUE_INIT,
                 .residual_bytes = (size_t)(rows * p->n) * 2,
                 .bytes = (size_t)(p->max_m * p->n) * 2};
    l->epilogue.residual_rows = all_rows ? EW_RESIDUAL_ALL : EW_RESIDUAL_OWNED;
    l->start = malloc(l->residual_bytes + 1);
    RANK_CHECK(l->start, "no memory");
    fill_random(p->dtype, 3, all_rows ? 0 : job->rank, OPERAND_A, rows, p->n, l->start);
    RANK_OK(
        ew_memory_alloc(world, EW_BACKEND_CUDA, l->residual_bytes, &l->epilogue.residual));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, (size_t)p->n * 2, &weight));
    fill_random(p->dtype, 4, 0, OPERAND_A, 1, p->n, job->staging);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, weight, job->staging, (size_t)p->n * 2));
    l->epilogue.norm_weight = weight;
    return 0;
}

/* The norm in `normed`, a copy of it in `result`. */
static int call_layer(gpu_job *job, layer *l, void *normed, int straight,
                      unsigned char *result)
{
    ew_world *world = job->world;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, l->epilogue.residual, l->start,
                           l->residual_bytes));
    RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, normed, 0xff, l->bytes));
    l->epilogue.normed = normed;
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ew_gemm_ar_layer(job->plan, job->problem.max_m, job->A, job->B, NULL,
                             &l->epilogue, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    const int seen = job_engine(job)->report->straight;
    RANK_CHECK(seen == straight, "straight=%d, not %d", seen, straight);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, result, normed, l->bytes));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static int compare_layers(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    layer l;
    void *memory;
    RANK_TRY(job_fill_random(job, 7));
    RANK_TRY(open_layer(job, *(const bool *)argument, &l));
    unsigned char *want = malloc(l.bytes + 1), *seen = malloc(l.bytes + 1);
    RANK_CHECK(want && seen, "no memory");
    RANK_OK(ew_alloc(world, EW_BACKEND_CUDA, job->c_bytes + ROOM, &memory));
    RANK_TRY(call_layer(job, &l, job->C, 0, want));
    for (int i = 0; i < (gpu_quick ? 2 : 5); i++) {
        RANK_TRY(call_layer(job, &l, (char *)memory + i % 2 * OFFSET, 1, seen));
        RANK_CHECK(memcmp(seen, want, l.bytes) == 0, "other bits straight");
        RANK_TRY(call_layer(job, &l, (char *)memory + job->rank % 2 * OFFSET, 0, seen));
        RANK_CHECK(memcmp(seen, want, l.bytes) == 0, "other bits at different places");
    }
    RANK_OK(ew_free(world, EW_BACKEND_CUDA, memory));
    ew_memory_free(world, EW_BACKEND_CUDA, l.epilogue.residual);
    ew_memory_free(world, EW_BACKEND_CUDA, (void *)(uintptr_t)l.epilogue.norm_weight);
    free(l.start);
    free(want);
    free(seen);
    return 0;
}

/* ---- What is refused ---- */

#define REFUSED(expression, wanted)                                  \
    do {                                                             \
        const ew_status refused = (expression);                      \
        RANK_CHECK(refused == (wanted), "%s: %s", #expression,       \
                   refused == EW_OK ? "accepted" : ew_last_error()); \
    } while (0)

static int refuse(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const ew_backend cuda = EW_BACKEND_CUDA;
    const size_t bytes = (size_t)4 << 20;
    void *memory, *other, *pointers[GPU_MAX_RANKS], *swapped[GPU_MAX_RANKS];
    (void)argument;
    REFUSED(ew_alloc(world, cuda, bytes + (size_t)job->rank, &memory), EW_ERR_MISMATCH);
    RANK_OK(ew_memory_alloc(world, cuda, bytes, &memory));
    RANK_TRY(gather_pointers(job, memory, pointers));
    for (int rank = 0; rank < job->num_ranks; rank++) /* on rank 0 alone */
        swapped[rank] = pointers[(rank + !job->rank) % job->num_ranks];
    REFUSED(ew_import(world, cuda, swapped, bytes), EW_ERR_ARGUMENT);
    REFUSED(ew_import(world, cuda, pointers, (size_t)1 << 39), EW_ERR_ARGUMENT);
    REFUSED(ew_free(world, cuda, memory), EW_ERR_ARGUMENT);
    swapped[0] = job->staging; /* of the host */
    REFUSED(ew_import(world, cuda, swapped, bytes), EW_ERR_ARGUMENT);
    RANK_OK(ew_import(world, cuda, pointers, bytes));
    RANK_OK(ew_alloc(world, cuda, bytes, &other));
    REFUSED(ew_free(world, cuda, job->rank ? other : memory), EW_ERR_MISMATCH);
    RANK_OK(ew_free(world, cuda, other));
    RANK_OK(ew_free(world, cuda, memory));
    ew_memory_free(world, cuda, memory);
    return job_compute(job, job->problem.max_m, 5, NULL); /* nothing was harmed */
}

/* ---- The checks ---- */

void check_allreduce_symmetric(void)
{
    static const int64_t rows[] = {1, 130, 397, 1025};
    static const int ranks[] = {2, 3, 4, 5, 8};
    bool own_rows = false, all_rows = true;
    ew_world_options slow = gpu_options(10000);
    slow.link_gbps = 8.0;
    slow.link_latency_us = 1000.0;
    for (size_t w = 0; w < COUNT(ranks); w++)
        for (size_t i = 0; i < COUNT(rows); i++)
            if ((w + i) % (gpu_quick ? 4 : 2) == 0)
                run_bits(EW_RANKS_AS_THREADS, ranks[w], rows[i]);
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int W = 2; W <= 8; W *= 2) {
            char config[EW_CONFIG_TEXT_BYTES];
            snprintf(config, sizeof config, "%s,shots=2", *kernel);
            const ew_problem large = problem_of(130 * W + 1, 264, EW_FP16);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, large, config, overtake, NULL);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem_of(3, 520, EW_BF16), config,
                    overtake, NULL);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, large, config, read_late, NULL);
            /* One tile: all but its owner have nothing to do but wait for its sum. */
            gpu_run(EW_RANKS_AS_THREADS, W, &slow, problem_of(64, 120, EW_FP16), config,
                    read_late, NULL);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, large, config, replay, NULL);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, large, config, compare_layers, &own_rows);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL, large, config, compare_layers, &all_rows);
        }
    gpu_run(EW_RANKS_AS_THREADS, 3, NULL, problem_of(65, 264, EW_BF16), "shots=2", refuse,
            NULL);
}

void check_symmetric_processes(void)
{
    bool own_rows = false;
    for (int W = 2; W <= 4; W *= 2) {
        const ew_problem problem = problem_of(130 * W + 1, 264, EW_FP16);
        run_bits(EW_RANKS_AS_PROCESSES, W, 397);
        gpu_run(EW_RANKS_AS_PROCESSES, W, NULL, problem, "shots=2", read_late, NULL);
        gpu_run(EW_RANKS_AS_PROCESSES, W, NULL, problem, "shots=2", replay, NULL);
        gpu_run(EW_RANKS_AS_PROCESSES, W, NULL, problem, "shots=2", compare_layers,
                &own_rows);
    }
}
