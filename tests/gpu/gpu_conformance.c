/* The CPU's conformance suite on the GPU: the same kinds of cases, exact inputs, every bit
 * compared.  Opening a world costs more than a trial, so all trials of one W share one; one
 * that fails is reported with its case, and the rest goes on in a new world. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance.h"
#include "gpu_check.h"
#include "gpukit.h"

enum { MAX_TRIALS = 256, MAX_FAILURES = 6, LARGEST_W = 12 };

static trial list[MAX_TRIALS];
static int num_listed;
static ew_world_options options;

static void add(void *context, const trial *t)
{
    const ew_ranks_as *kind = context;
    if (!gpu_has_kernel(t->config.kernel))
        return;
    if (num_listed == MAX_TRIALS)
        harness_fail("more than %d trials", MAX_TRIALS);
    list[num_listed] = *t;
    list[num_listed].kind = *kind;
    list[num_listed++].options = &options;
}

/* ---- The trials of one W in one world ---- */

typedef struct batch {
    int num_ranks;
    int64_t deadline_ns;
    int at;        /* the trial in hand; when all went well, num_listed */
    int completed; /* of all batches */
} batch;

/* Rank 0's watch counts for all. */
static int time_is_up(ew_world *world, const batch *b, bool *up_out)
{
    int32_t mine = ew_now_ns() > b->deadline_ns, all[GPU_MAX_RANKS];
    RANK_OK(ew_world_allgather(world, &mine, all, sizeof mine));
    *up_out = all[0];
    return 0;
}

static int batch_body(ew_world *world, void *argument)
{
    batch *b = argument;
    const bool keeps_book = ew_world_rank(world) == 0;
    for (int i = b->at; i < num_listed; i++) {
        bool up;
        if (list[i].num_ranks != b->num_ranks)
            continue;
        RANK_TRY(time_is_up(world, b, &up));
        if (up)
            break;
        if (keeps_book)
            b->at = i;
        trial_describe(&list[i]);
        RANK_TRY(trial_body(world, &list[i]));
        if (keeps_book)
            b->completed++;
    }
    RANK_OK(ew_world_barrier(world));
    if (keeps_book)
        b->at = num_listed;
    return 0;
}

/* Runs all listed trials; returns how many were completed before the time was up. */
static int run_listed(int budget_s)
{
    const int64_t deadline_ns = ew_now_ns() + (int64_t)budget_s * 1000000000;
    batch *b = harness_share(sizeof *b);
    int failures = 0;
    for (int W = 1; W <= LARGEST_W && failures < MAX_FAILURES; W++)
        for (b->at = 0; b->at < num_listed && failures < MAX_FAILURES; b->at++) {
            char text[HARNESS_TEXT_BYTES];
            b->num_ranks = W;
            b->deadline_ns = deadline_ns;
            const ew_status status = harness_try(list[0].kind, W, &options, batch_body, b,
                                                 NULL, text, sizeof text);
            if (status == EW_OK && !text[0])
                break;
            gpu_remark("%s", text[0] ? text : ew_last_error());
            failures++;
        }
    const int completed = b->completed;
    harness_unshare(b, sizeof *b);
    if (failures > 0)
        harness_fail("%d trials failed%s, %d went well", failures,
                     failures == MAX_FAILURES ? " and the rest was left out" : "",
                     completed);
    return completed;
}

static void start_list(uint32_t timeout_ms)
{
    num_listed = 0;
    options = gpu_options(timeout_ms);
}

/* ---- Checks ---- */

void check_conformance_threads(void)
{
    ew_ranks_as kind = EW_RANKS_AS_THREADS;
    start_list(10000);
    conformance_every_pair(&conformance_cuda, add, &kind);
    if (gpu_quick)
        num_listed = num_listed / 3;
    else
        conformance_random(&conformance_cuda, 40, add, &kind);
    const int completed = run_listed(gpu_quick ? 25 : 75);
    gpu_remark("%d of %d trials in time%s", completed, num_listed,
               completed == num_listed && !gpu_quick ? ", every pair among them" : "");
}

static void add_allreduce(void *context, const trial *t)
{
    if (t->problem.op == EW_OP_GEMM_AR)
        add(context, t);
}

static void run_random(ew_ranks_as kind, uint32_t count, conformance_use use, int seconds)
{
    start_list(kind == EW_RANKS_AS_PROCESSES ? 15000 : 10000);
    conformance_random(&conformance_cuda, count, use, &kind);
    const int completed = run_listed(seconds);
    gpu_remark("%d of %d trials in time", completed, num_listed);
}

void check_allreduce(void)
{
    run_random(EW_RANKS_AS_THREADS, gpu_quick ? 90 : 300, add_allreduce,
               gpu_quick ? 25 : 75);
}

void check_allreduce_processes(void)
{
    run_random(EW_RANKS_AS_PROCESSES, gpu_quick ? 12 : 60, add_allreduce,
               gpu_quick ? 20 : 45);
}

void check_conformance_processes(void)
{
    run_random(EW_RANKS_AS_PROCESSES, gpu_quick ? 8 : 30, add, gpu_quick ? 20 : 45);
}

static trial small_trial(int num_ranks, const char *config, ew_dtype dtype, uint32_t seed)
{
    const int64_t rows = 140 * num_ranks + 1;
    trial t = {.kind = EW_RANKS_AS_THREADS,
               .num_ranks = num_ranks,
               .problem = gpu_problem(rows, 264, 136, dtype),
               .config = EW_CONFIG_INIT,
               .weight_per_call = seed % 3 == 1,
               .weight_bound = seed % 3 == 2,
               .seed = seed,
               .num_calls = 3,
               .rows = {rows, rows / 3, rows}};
    t.problem.weight_layout = seed % 4 < 2 ? EW_WEIGHT_NK : EW_WEIGHT_KN;
    if (ew_config_parse(config, &t.config) != EW_OK)
        harness_fail("%s", ew_last_error());
    t.config.backend = EW_BACKEND_CUDA;
    return t;
}

static const char *const every_kernel[] = {
    "kernel=sm80,block=128x128,x=2,b=128",
    "kernel=sm80,block=128x256,x=1,b=256,ctas=persistent",
    "kernel=sm90,block=128x128,cluster=1,x=2,b=128",
    "kernel=sm90,block=128x256,cluster=1,x=2,b=256,release=partition",
    "kernel=sm90,block=128x256,cluster=2,x=2,b=512",
    "kernel=sm90,block=128x128,cluster=2,ctas=block,x=1,pool=after,release=output",
};
enum { NUM_KERNELS = sizeof every_kernel / sizeof every_kernel[0] };

static void list_every_kernel(ew_ranks_as kind, int num_ranks, bool start_together)
{
    for (uint32_t i = 0; i < NUM_KERNELS; i++) {
        trial t = small_trial(num_ranks, every_kernel[i], i % 2 ? EW_BF16 : EW_FP16, i);
        t.start_together = start_together;
        add(&kind, &t);
    }
}

void check_start_together(void)
{
    start_list(10000);
    for (int W = 1; W <= 4; W *= 2)
        list_every_kernel(EW_RANKS_AS_THREADS, W, true);
    run_listed(25);
}

/* transport=copy fixes too much to be one value among others. */
void check_copies(void)
{
    static const char *const configs[] = {
        "transport=copy,kernel=sm80,block=128x128",
        "transport=copy,kernel=sm80,block=128x256,ctas=persistent,group=3",
        "transport=copy,kernel=sm90,block=128x256,x=3,b=128",
        "transport=copy,kernel=sm90,block=128x128,cluster=2,ctas=block",
    };
    ew_ranks_as kind = EW_RANKS_AS_THREADS;
    start_list(10000);
    for (int W = 1; W <= 8; W += W < 4 ? 1 : 4)
        for (uint32_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
            trial t = small_trial(W, configs[i], i % 2 ? EW_BF16 : EW_FP16, i);
            t.start_together = W % 2 == 0;
            add(&kind, &t);
        }
    const int completed = run_listed(45);
    gpu_remark("%d of %d trials in time", completed, num_listed);
}

/* More ranks than one thread of a reducer has contributions in flight. */
void check_many_ranks(void)
{
    if (gpu_here.sms < 8 * LARGEST_W)
        gpu_skip("%d SMs are too few for %d ranks", gpu_here.sms, LARGEST_W);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", 1); /* MPS has few for so many processes */
    start_list(20000);
    list_every_kernel(EW_RANKS_AS_PROCESSES, LARGEST_W, false);
    const int completed = run_listed(45);
    gpu_remark("%d of %d trials in time, W=%d", completed, num_listed, LARGEST_W);
}

/* Under compute-sanitizer kernels are a hundred times slower. */
void check_sanitizer_one(void)
{
    start_list(60000);
    list_every_kernel(EW_RANKS_AS_THREADS, 1, false);
    run_listed(100);
}

void check_sanitizer_two(void)
{
    start_list(60000);
    list_every_kernel(EW_RANKS_AS_THREADS, 2, false);
    run_listed(100);
}

void check_sanitizer_allreduce(void)
{
    static const char *const configs[] = {
        "shots=2,kernel=sm80,block=128x128,x=2,b=128",
        "shots=2,kernel=sm90,block=128x256,cluster=2,x=2,b=256",
        "shots=1,kernel=sm90,block=128x128,cluster=1,x=1,b=512,release=3",
        "shots=2,kernel=sm90,x=2,b=256,invariant=9",
    };
    ew_ranks_as kind = EW_RANKS_AS_THREADS;
    start_list(60000);
    for (uint32_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        trial t = small_trial(3, configs[i], i % 2 ? EW_BF16 : EW_FP16, i);
        t.problem.op = EW_OP_GEMM_AR;
        if (t.config.invariant)
            t.problem.k = 3 * 40; /* a piece of 40 columns is followed by the next */
        add(&kind, &t);
    }
    run_listed(100);
}

/* ---- AllGather-GEMM ---- */

static const char *const every_gather[] = {
    "kernel=sm80",
    "kernel=sm80,block=128x256,x=2,b=128",
    "kernel=sm80,order=contiguous,release=2,x=1",
    "kernel=sm90,block=128x128,cluster=1,order=contiguous,b=128",
    "kernel=sm90,block=128x256,cluster=1,x=3,b=512,group=2",
    "kernel=sm90",
    "kernel=sm90,block=128x128,cluster=2,order=default",
    "kernel=sm90,release=partition,group=3",
    "kernel=sm90,release=output",
    "kernel=sm90,pool=after,order=contiguous",
    "kernel=sm80,transport=copy",
    "kernel=sm90,transport=copy,release=tile,block=128x128,cluster=1",
    "kernel=sm90,transport=copy,release=2",
    "kernel=sm90,transport=copy,release=output,order=interleaved",
};
enum { NUM_GATHERS = sizeof every_gather / sizeof every_gather[0] };

static trial gather_trial(int num_ranks, uint32_t seed)
{
    trial t = small_trial(num_ranks, every_gather[seed % NUM_GATHERS],
                          seed / 2 % 2 ? EW_BF16 : EW_FP16, seed);
    t.problem.op = EW_OP_AG_GEMM;
    t.start_together = seed % 5 == 4;
    return t;
}

/* Fewer rows than ranks, one row, none, and columns of A in up to six chunks. */
static trial random_gather(uint32_t seed)
{
    harness_random random = harness_seed(seed);
    trial t = gather_trial((int)harness_between(&random, 1, 8), seed);
    t.problem.max_m = harness_between(&random, 1, seed % 3 ? 300 * t.num_ranks : 300);
    t.problem.n = 8 * harness_between(&random, 1, 80);
    t.problem.k = 8 * harness_between(&random, 1, seed % 4 ? 20 : 360);
    t.num_calls = 6;
    t.rows[0] = t.problem.max_m;
    t.rows[1] = 1;
    t.rows[2] = 0;
    for (int call = 3; call < t.num_calls; call++)
        t.rows[call] = harness_between(&random, 0, t.problem.max_m);
    if (seed % 2)
        t.rows[5] = t.problem.max_m < t.num_ranks ? 1 : t.num_ranks - 1;
    return t;
}

static void list_gathers(ew_ranks_as kind, uint32_t num_random)
{
    /* Asking for cuBLAS starts CUDA, which does not survive the start of processes. */
    const bool has_blas = kind == EW_RANKS_AS_THREADS && gpu_has_blas();
    for (int W = 1; W <= 8; W += W < 4 ? 1 : 4)
        for (uint32_t i = 0; i < NUM_GATHERS; i++) {
            const trial t = gather_trial(W, i);
            add(&kind, &t);
        }
    for (int i = 2; i < 10 && has_blas; i++) {
        trial t =
            small_trial(i / 2, i % 2 ? "producer=blas,transport=copy" : "producer=blas",
                        EW_BF16, (uint32_t)i / 2);
        t.problem.op = EW_OP_AG_GEMM;
        t.start_together = i / 2 == 2;
        add(&kind, &t);
    }
    for (uint32_t i = 0; i < num_random; i++) {
        const trial t = random_gather(gpu_seed + i);
        add(&kind, &t);
    }
}

void check_gather(void)
{
    start_list(10000);
    list_gathers(EW_RANKS_AS_THREADS, gpu_quick ? 10 : 120);
    const int completed = run_listed(gpu_quick ? 20 : 60);
    gpu_remark("%d of %d trials in time", completed, num_listed);
}

void check_gather_processes(void)
{
    start_list(15000);
    list_gathers(EW_RANKS_AS_PROCESSES, gpu_quick ? 0 : 20);
    const int completed = run_listed(gpu_quick ? 20 : 45);
    gpu_remark("%d of %d trials in time", completed, num_listed);
}

void check_sanitizer_gather(void)
{
    ew_ranks_as kind = EW_RANKS_AS_THREADS;
    start_list(60000);
    for (uint32_t i = 0; i < NUM_GATHERS; i++) {
        const trial t = gather_trial(2, i);
        add(&kind, &t);
    }
    run_listed(100);
}
