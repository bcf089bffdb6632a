/* Calls in the caller's streams: ordered with the work before and behind them, back to back
 * without the host in between, on slices and epochs that come round again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

/* ---- Copies, call, copy, next call: all enqueued, nothing awaited ---- */

enum { CALLS = 8 };

typedef struct sequence {
    int64_t rows[CALLS];
    cudaStream_t stream; /* NULL: one of the rank's own */
    int late_rank;       /* starts when the others have enqueued everything; -1: none */
    size_t busy_bytes; /* so much is set before, again and again, to keep the stream busy */
} sequence;

/* The host's side of the copies, in pages that copies need not wait for. */
typedef struct pinned {
    unsigned char *memory;
    unsigned char *A[CALLS], *B[CALLS], *C[CALLS];
} pinned;

static int pin(const gpu_job *job, pinned *p)
{
    ew_world *world = job->world;
    const ew_problem *problem = &job->problem;
    const size_t bytes = job->a_bytes + job->b_bytes + job->c_bytes;
    RANK_CUDA(cudaHostAlloc((void **)&p->memory, CALLS * bytes, cudaHostAllocDefault));
    for (uint32_t i = 0; i < CALLS; i++) {
        p->A[i] = p->memory + i * bytes;
        p->B[i] = p->A[i] + job->a_bytes;
        p->C[i] = p->B[i] + job->b_bytes;
        RANK_OK(ew_exact_fill_a(problem->dtype, i, job->rank, job->num_ranks,
                                problem->max_m, problem->k, p->A[i]));
        RANK_OK(ew_exact_fill_b(problem->dtype, i, job->rank, problem->weight_layout,
                                problem->n, problem->k, p->B[i]));
    }
    return 0;
}

static int enqueue(const gpu_job *job, const pinned *p, const sequence *s, int number,
                   cudaStream_t stream)
{
    ew_world *world = job->world;
    const size_t result_bytes =
        (size_t)(job_rows(job, s->rows[number]) * job->problem.n) * 2;
    RANK_CUDA(cudaMemcpyAsync(job->A, p->A[number], job->a_bytes, cudaMemcpyHostToDevice,
                              stream));
    RANK_CUDA(cudaMemcpyAsync(job->B, p->B[number], job->b_bytes, cudaMemcpyHostToDevice,
                              stream));
    RANK_CUDA(cudaMemsetAsync(job->C, 0xff, job->c_bytes, stream));
    RANK_OK(job_call(job, s->rows[number], job->A, job->B, job->C, stream));
    RANK_CUDA(cudaMemcpyAsync(p->C[number], job->C, result_bytes, cudaMemcpyDeviceToHost,
                              stream));
    return 0;
}

static int enqueue_all(const gpu_job *job, const pinned *p, const sequence *s,
                       cudaStream_t stream, void *busy)
{
    ew_world *world = job->world;
    RANK_OK(ew_world_barrier(world));
    if (job->rank == s->late_rank)
        gpu_sleep_ms(100);
    for (int i = 0; busy && i < 20; i++)
        RANK_CUDA(cudaMemsetAsync(busy, i, s->busy_bytes, stream));
    for (int i = 0; i < CALLS; i++)
        RANK_TRY(enqueue(job, p, s, i, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_plan_wait(job->plan));
    return 0;
}

static int in_a_stream(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const sequence *s = argument;
    cudaStream_t stream = s->stream;
    void *busy = NULL;
    pinned p;
    RANK_TRY(job_use_device(job));
    if (!stream)
        RANK_TRY(job_stream(job, &stream));
    if (s->busy_bytes)
        RANK_CUDA(cudaMalloc(&busy, s->busy_bytes));
    RANK_TRY(pin(job, &p));
    RANK_TRY(enqueue_all(job, &p, s, stream, busy));
    for (uint32_t i = 0; i < CALLS; i++)
        RANK_TRY(job_verify_copy(job, s->rows[i], i, p.C[i]));
    RANK_OK(ew_world_barrier(world)); /* frees may wait for the whole GPU */
    RANK_CUDA(cudaFree(busy));
    RANK_CUDA(cudaFreeHost(p.memory));
    if (!s->stream)
        RANK_CUDA(cudaStreamDestroy(stream));
    return 0;
}

/* Ranks that are threads: each has a default stream of its own, and all have one together,
 * in which the call of one rank would wait for the end of another's. */
static int in_special_streams(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const ew_stream streams[] = {NULL, cudaStreamPerThread};
    (void)argument;
    for (uint32_t i = 0; i < 4; i++) {
        RANK_TRY(job_compute(job, job->problem.max_m - i, i, streams[i % COUNT(streams)]));
        const ew_status status =
            job_call(job, job->problem.max_m, job->A, job->B, job->C, cudaStreamLegacy);
        RANK_CHECK(status == EW_ERR_UNSUPPORTED &&
                       strstr(ew_last_error(), "cudaStreamPerThread"),
                   "shared cudaStreamLegacy: %s", ew_status_name(status));
    }
    return 0;
}

/* A thread without a CUDA context is left without: where its next world goes, its context
 * says. */
static int without_context(gpu_job *job, void *unused)
{
    ew_world *world = job->world;
    const ewx_driver *driver = job_engine(job)->device->driver;
    CUcontext current = NULL;
    (void)unused;
    RANK_TRY(job_compute(job, job->problem.max_m, 4, NULL));
    RANK_CHECK(driver->cuCtxGetCurrent(&current) == CUDA_SUCCESS && !current,
               "calls have left a context on their thread");
    return 0;
}

static void run_sequences(int num_ranks, const char *config, ew_weight_layout layout)
{
    const int64_t most = 130 * num_ranks + 1;
    ew_problem problem = gpu_problem(most, 264, 72, EW_BF16);
    problem.weight_layout = layout;
    sequence s = {.rows = {most, 1, most / 2, 0, most - 1, num_ranks, 129, most},
                  .late_rank = num_ranks - 1};
    gpu_run(EW_RANKS_AS_THREADS, num_ranks, NULL, problem, config, in_a_stream, &s);
}

/* Ranks without rows wait for nobody and run ahead, into calls with another m. */
static void run_ahead(const char *config)
{
    sequence s = {.rows = {1, 2, 3, 1, 3, 2, 1, 2}, .late_rank = 0};
    gpu_run(EW_RANKS_AS_THREADS, 4, NULL, gpu_problem(3, 264, 72, EW_FP16), config,
            in_a_stream, &s);
}

/* Calls without rows have nothing to wait for: on the library's own streams their GEMMs
 * would run ahead, and announce themselves where the exchange of the first call has yet to
 * read. */
static int before_empty_calls(gpu_job *job, void *unused)
{
    enum { EMPTY_CALLS = 6 };
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    (void)unused;
    RANK_TRY(job_fill(job, 5));
    RANK_TRY(job_poison(job));
    if (job->rank == job->num_ranks - 1)
        RANK_TRY(job_hold_producer(job, gpu_pause, NULL));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
    for (int i = 0; i < EMPTY_CALLS; i++)
        RANK_OK(job_call(job, 0, job->A, job->B, job->C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    return job_verify(job, m, 5);
}

static void run_empty(const char *config)
{
    static const ew_op ops[] = {EW_OP_GEMM_RS, EW_OP_GEMM_AR, EW_OP_AG_GEMM};
    for (size_t i = 0; i < COUNT(ops); i++)
        for (int64_t m = 9; m <= 300; m += 291) { /* tiles that span owners, and do not */
            ew_problem problem = gpu_problem(m, 264, 72, EW_FP16);
            problem.op = ops[i];
            gpu_run(EW_RANKS_AS_THREADS, 3, NULL, problem, config, before_empty_calls,
                    NULL);
        }
}

void check_streams(void)
{
    static const cudaStream_t special[] = {cudaStreamLegacy, cudaStreamPerThread};
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int W = 1; W <= 4; W *= 2) {
            run_sequences(W, *kernel, EW_WEIGHT_NK);
            run_sequences(W, *kernel, EW_WEIGHT_KN);
        }
    for (size_t i = 0; i < COUNT(special); i++) {
        sequence s = {.rows = {131, 1, 64, 0, 130, 1, 129, 131},
                      .stream = special[i],
                      .late_rank = -1,
                      .busy_bytes = (size_t)256 << 20};
        gpu_run(EW_RANKS_AS_THREADS, 1, NULL, gpu_problem(131, 264, 72, EW_FP16), "",
                in_a_stream, &s);
    }
    gpu_run(EW_RANKS_AS_THREADS, 2, NULL, gpu_problem(200, 264, 72, EW_FP16), "",
            in_special_streams, NULL);
    gpu_run(EW_RANKS_AS_THREADS, 2, NULL, gpu_problem(200, 264, 72, EW_FP16), "",
            without_context, NULL);
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        run_ahead(*kernel);
        run_empty(*kernel);
    }
}

/* ---- Many calls back to back, inputs in turn ---- */

enum { SETS = 3, CHUNK = 48 }; /* three sets on two slices: stale bytes are wrong bytes */

typedef struct rotation {
    int64_t rows[SETS]; /* of a call with these inputs; 0: as with the first */
    int chunks;
    uint32_t epoch; /* to start from; 0: as a plan starts */
    bool collects_late;
} rotation;

typedef struct wheel {
    void *A[SETS], *B[SETS], *C[CHUNK];
    unsigned char *expected[SETS], *results;
    size_t bytes; /* of the largest result */
    cudaStream_t stream;
} wheel;

static int64_t rows_of(const rotation *r, uint32_t set)
{
    return r->rows[set] > 0 ? r->rows[set] : r->rows[0];
}

static size_t result_bytes(const gpu_job *job, const rotation *r, uint32_t set)
{
    return (size_t)(job_rows(job, rows_of(r, set)) * job->problem.n) * 2;
}

static int build_wheel(gpu_job *job, const rotation *r, wheel *w)
{
    ew_world *world = job->world;
    for (uint32_t set = 0; set < SETS; set++)
        if (result_bytes(job, r, set) > w->bytes)
            w->bytes = result_bytes(job, r, set);
    w->results = malloc(w->bytes + 1);
    RANK_TRY(job_stream(job, &w->stream));
    for (uint32_t set = 0; set < SETS; set++) {
        RANK_CUDA(cudaMalloc(&w->A[set], job->a_bytes));
        RANK_CUDA(cudaMalloc(&w->B[set], job->b_bytes));
        w->expected[set] = malloc(w->bytes + 1);
        RANK_CHECK(w->expected[set] && w->results, "no memory");
        /* Alone, and verified. */
        RANK_TRY(job_compute(job, rows_of(r, set), set, NULL));
        memcpy(w->expected[set], job->staging, result_bytes(job, r, set));
        RANK_CUDA(cudaMemcpy(w->A[set], job->A, job->a_bytes, cudaMemcpyDefault));
        RANK_CUDA(cudaMemcpy(w->B[set], job->B, job->b_bytes, cudaMemcpyDefault));
    }
    for (int i = 0; i < CHUNK; i++)
        RANK_CUDA(cudaMalloc(&w->C[i], w->bytes + 1));
    return 0;
}

static int turn_wheel(gpu_job *job, const rotation *r, wheel *w, int chunk)
{
    ew_world *world = job->world;
    /* Calls on a stream of the caller's end one after the other. */
    const cudaStream_t stream = r->collects_late ? NULL : w->stream;
    for (int i = 0; i < CHUNK; i++)
        RANK_CUDA(cudaMemset(w->C[i], 0xff, w->bytes + 1));
    RANK_CUDA(cudaDeviceSynchronize());
    /* The others get as far ahead as they may.  On the stream: where some ranks own no
     * rows, the hosts of threads wait for each other. */
    if (job->rank == 0 && !r->collects_late)
        RANK_CUDA(cudaLaunchHostFunc(w->stream, gpu_pause, NULL));
    if (r->collects_late && job->rank == job->num_ranks - 1)
        RANK_TRY(job_hold_exchange(job, gpu_pause, NULL));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    for (int i = 0; i < CHUNK; i++)
        RANK_OK(job_call(job, rows_of(r, (uint32_t)i % SETS), w->A[i % SETS],
                         w->B[i % SETS], w->C[i], stream));
    RANK_CUDA(cudaStreamSynchronize(w->stream));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    for (int i = 0; i < CHUNK; i++) {
        const uint32_t set = (uint32_t)i % SETS;
        RANK_CUDA(cudaMemcpy(w->results, w->C[i], w->bytes, cudaMemcpyDefault));
        RANK_CHECK(memcmp(w->results, w->expected[set], result_bytes(job, r, set)) == 0,
                   "chunk %d, call %d, m=%lld, inputs %u: wrong bits", chunk, i,
                   (long long)rows_of(r, set), set);
    }
    return 0;
}

static int free_wheel(const gpu_job *job, wheel *w)
{
    ew_world *world = job->world;
    for (int set = 0; set < SETS; set++) {
        RANK_CUDA(cudaFree(w->A[set]));
        RANK_CUDA(cudaFree(w->B[set]));
        free(w->expected[set]);
    }
    for (int i = 0; i < CHUNK; i++)
        RANK_CUDA(cudaFree(w->C[i]));
    free(w->results);
    RANK_CUDA(cudaStreamDestroy(w->stream));
    return 0;
}

static int in_turn(gpu_job *job, void *argument)
{
    const rotation *r = argument;
    ew_world *world = job->world;
    wheel w = {.results = NULL};
    RANK_TRY(build_wheel(job, r, &w));
    if (r->epoch) {
        RANK_OK(ew_world_barrier(world)); /* nobody's kernels touch the words now */
        RANK_OK(ewx_cuda_engine_set_epoch(job_engine(job), r->epoch));
    }
    for (int chunk = 0; chunk < r->chunks; chunk++)
        RANK_TRY(turn_wheel(job, r, &w, chunk));
    return free_wheel(job, &w);
}

/* Grids, kernels and slots change from call to call: whole parts, tiles that span owners,
 * the GEMM for few rows. */
void check_few_rows_reuse(void)
{
    static const int64_t lists[][SETS] = {{1024, 8, 512}, {64, 1, 200}, {40, 8, 16}};
    /* Deep: a flag that comes too soon comes long before its tile. */
    static const int64_t depths[COUNT(lists)] = {136, 136, 4104};
    static const int ranks[] = {8, 2, 3};
    static const char *const late[] = {"", "kernel=sm80"};
    for (size_t w = 0; w < COUNT(ranks); w++)
        for (size_t i = 0; i < COUNT(lists); i++)
            for (int op = 0; op < 2; op++) {
                ew_problem problem = gpu_problem(lists[i][0] > 200 ? lists[i][0] : 200, 520,
                                                 depths[i], EW_BF16);
                rotation r = {.chunks = gpu_quick ? 1 : 4, .collects_late = (w + i) % 2};
                memcpy(r.rows, lists[i], sizeof r.rows);
                problem.op = op == 0 ? EW_OP_GEMM_RS : EW_OP_GEMM_AR;
                gpu_run(EW_RANKS_AS_THREADS, ranks[w], NULL, problem,
                        late[(w + i) % 4 == 3], in_turn, &r);
            }
}

/* m < W: ranks without rows would run ahead without end, were it not for the readers. */
void check_reuse(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int W = 2; W <= 8; W *= 2) {
            rotation full = {.rows = {130 * W + 1}, .chunks = gpu_quick ? 1 : 5};
            rotation parts = {.rows = {128 * W}, .chunks = gpu_quick ? 1 : 5};
            rotation few = {.rows = {W / 2}, .chunks = gpu_quick ? 1 : 5};
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    gpu_problem(full.rows[0], 264, 72, EW_FP16), *kernel, in_turn, &full);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    gpu_problem(parts.rows[0], 264, 72, EW_FP16), *kernel, in_turn, &parts);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    gpu_problem(few.rows[0], 520, 72, EW_BF16), *kernel, in_turn, &few);
        }
}

/* Sums that contributions are added to must be zero again before the next call but one, in
 * tiles that hold more or fewer rows from call to call. */
void check_adding_reuse(void)
{
    static const char *const configs[] = {"transport=add,kernel=sm80",
                                          "transport=add,kernel=sm90",
                                          "transport=tma-add,kernel=sm90,block=128x128",
                                          "transport=tma-add,kernel=sm90,release=3"};
    for (size_t i = 0; i < COUNT(configs); i++)
        for (int W = 2; W <= 8; W *= 2) {
            if (strstr(configs[i], "sm90") && !gpu_has_kernel(EW_KERNEL_SM90))
                continue;
            rotation full = {.rows = {130 * W + 1, 40 * W, 128 * W},
                             .chunks = gpu_quick ? 1 : 5};
            rotation few = {.rows = {W / 2}, .chunks = gpu_quick ? 1 : 5};
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    gpu_problem(full.rows[0], 264, 72, EW_FP16), configs[i], in_turn,
                    &full);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    gpu_problem(few.rows[0], 520, 72, EW_FP16), configs[i], in_turn, &few);
        }
}

/* ---- AllReduce: results that wait for their readers ---- */

static ew_problem allreduce_problem(int64_t max_m, int64_t n, ew_dtype dtype)
{
    ew_problem problem = gpu_problem(max_m, n, 72, dtype);
    problem.op = EW_OP_GEMM_AR;
    return problem;
}

/* Of one tile the last rank owes nobody a sum: all others are through, and its own GEMMs at
 * work on later calls, while it has yet to copy the sum of the first. */
void check_allreduce_reuse(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        char config[EW_CONFIG_TEXT_BYTES];
        snprintf(config, sizeof config, "%s,shots=2", *kernel);
        rotation late = {.rows = {40}, .chunks = gpu_quick ? 3 : 10, .collects_late = true};
        gpu_run(EW_RANKS_AS_THREADS, 3, NULL, allreduce_problem(late.rows[0], 128, EW_BF16),
                config, in_turn, &late);
        for (int W = 2; W <= 8; W *= 2) {
            rotation full = {.rows = {130 * W + 1}, .chunks = gpu_quick ? 1 : 5};
            rotation few = {.rows = {W / 2}, .chunks = gpu_quick ? 1 : 5};
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    allreduce_problem(full.rows[0], 264, EW_FP16), config, in_turn, &full);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    allreduce_problem(few.rows[0], 520, EW_BF16), W == 4 ? *kernel : config,
                    in_turn, &few);
        }
    }
}

/* ---- Memory freed as soon as the result is there ---- */

enum { FREES = 200 };

/* CUDA frees memory when the whole process is idle, and lets nobody enqueue meanwhile. */
static int free_at_once(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const int64_t *rows = argument;
    RANK_TRY(job_fill(job, 3));
    for (int call = 0; call < FREES; call++) {
        void *memory;
        RANK_CUDA(cudaMalloc(&memory, 1 << 20));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(job_call(job, *rows, job->A, job->B, job->C, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_CUDA(cudaFree(memory));
    }
    return job_verify(job, *rows, 3);
}

void check_frees(void)
{
    static const char *const configs[] = {"transport=pull", "transport=push",
                                          "transport=copy", "producer=blas",
                                          "launches=unit,release=1,ctas=persistent"};
    int64_t rows[] = {1000, 3}; /* for all ranks, for some of them */
    const ew_world_options options = gpu_options(5000);
    for (size_t i = 0; i < COUNT(configs); i++)
        for (size_t r = 0; r < COUNT(rows) && (i != 3 || gpu_has_blas()); r++)
            gpu_run(EW_RANKS_AS_THREADS, 8, &options, gpu_problem(1000, 264, 72, EW_BF16),
                    configs[i], free_at_once, &rows[r]);
    for (size_t r = 0; r < COUNT(rows); r++)
        for (int shots = 1; shots <= 2; shots++)
            gpu_run(EW_RANKS_AS_THREADS, 8, &options, allreduce_problem(1000, 264, EW_BF16),
                    shots == 1 ? "shots=1" : "shots=2", free_at_once, &rows[r]);
    ew_problem gathering = gpu_problem(1000, 264, 72, EW_BF16);
    gathering.op = EW_OP_AG_GEMM;
    for (size_t r = 0; r < COUNT(rows); r++)
        for (int blas = 0; blas <= gpu_has_blas(); blas++)
            gpu_run(EW_RANKS_AS_THREADS, 8, &options, gathering,
                    blas ? "transport=copy,producer=blas" : "transport=copy", free_at_once,
                    &rows[r]);
}

/* ---- The wrap of the epoch ---- */

static int across_the_wrap(gpu_job *job, void *argument)
{
    const uint32_t *epoch = argument;
    ew_world *world = job->world;
    RANK_OK(ewx_cuda_engine_set_epoch(job_engine(job), *epoch));
    for (uint32_t call = 0; call < 6; call++)
        RANK_TRY(
            job_compute(job, call % 3 == 1 ? 1 : job->problem.max_m - call, call, NULL));
    return 0;
}

void check_epoch_wrap(void)
{
    uint32_t epochs[] = {0xfffffffdu, 0xfffffffeu}; /* the wrap in either slice */
    rotation back_to_back = {.chunks = 1, .epoch = 0xfffffff0u};
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int W = 1; W <= 3; W++) {
            for (size_t i = 0; i < COUNT(epochs); i++)
                gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                        gpu_problem(130 * W + 8, 264, 72, EW_FP16), *kernel,
                        across_the_wrap, &epochs[i]);
            back_to_back.rows[0] = 130 * W + 8;
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    allreduce_problem(back_to_back.rows[0], 264, EW_FP16), "shots=2",
                    in_turn, &back_to_back);
            gpu_run(EW_RANKS_AS_THREADS, W, NULL,
                    gpu_problem(back_to_back.rows[0], 264, 72, EW_FP16), *kernel, in_turn,
                    &back_to_back);
        }
}
