/* Every budget of reducing CTAs, from 1 to twice the SMs of a rank, with either kernel
 * first on the GPU: refused with EW_ERR_CONFIG, or complete and right.  Never a wait for
 * ever, which the world's timeout would tell. */
#include <stdatomic.h>
#include <stdio.h>

#include "gpu_check.h"
#include "gpukit.h"

enum { TIMEOUT_MS = 5000, HOLD_MS = 3, MOST_HOLD_MS = 1000, MAX_BUDGETS = 1024 };

typedef struct ladder {
    const char *options; /* of the config, but x */
    bool reducer_first;
    int completed, refused;              /* rank 0 counts */
    atomic_bool released[GPU_MAX_RANKS]; /* producers that were held back */
} ladder;

/* ---- The reducer first ---- */

/* The library launches the producer first.  Held back in its stream by a host function, it
 * reaches the GPU after the reducer: what a busy host or a full queue could bring about. */
static void CUDART_CB hold_stream(void *argument)
{
    const atomic_bool *released = argument;
    for (int ms = 0; ms < MOST_HOLD_MS && !atomic_load(released); ms++)
        gpu_sleep_ms(1);
}

static int call_reducer_first(gpu_job *job, ladder *l, int64_t m)
{
    ew_world *world = job->world;
    atomic_bool *released = &l->released[job->rank];
    ew_timing timing;
    atomic_store(released, false);
    RANK_TRY(job_hold_producer(job, hold_stream, released));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    const ew_status status = job_call(job, m, job->A, job->B, job->C, NULL);
    const int64_t launched_ns = ew_now_ns();
    gpu_sleep_ms(HOLD_MS);
    atomic_store(released, true);
    RANK_OK(status);
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_plan_timing(job->plan, &timing));
    RANK_CHECK(timing.start_ns > launched_ns, "the producer was not held back");
    return 0;
}

static int call_producer_first(gpu_job *job, int64_t m)
{
    ew_world *world = job->world;
    RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    return 0;
}

/* ---- Budgets ---- */

static int try_budget(gpu_job *job, ladder *l, int budget)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    const bool counts = job->rank == 0;
    char config[EW_CONFIG_TEXT_BYTES];
    ew_status status;
    snprintf(config, sizeof config, "%s,x=%d", l->options, budget);
    harness_context("W=%d %s, %s first", job->num_ranks, config,
                    l->reducer_first ? "reducer" : "producer");
    RANK_TRY(job_try_plan(job, config, &status));
    if (status == EW_ERR_CONFIG) {
        l->refused += counts;
        return 0;
    }
    RANK_OK(status);
    RANK_TRY(job_poison(job));
    RANK_OK(ew_world_barrier(world));
    RANK_TRY(l->reducer_first ? call_reducer_first(job, l, m)
                              : call_producer_first(job, m));
    RANK_TRY(job_verify_there(job, m, 1));
    l->completed += counts;
    return 0;
}

/* All of them, or those at which something changes. */
static int choose_budgets(int sms, int *budgets)
{
    const int some[] = {1, 2, sms / 2, sms - 1, sms, sms + 1, 2 * sms - 1, 2 * sms};
    int count = 0;
    if (!gpu_long)
        for (size_t i = 0; i < sizeof some / sizeof some[0]; i++)
            budgets[count++] = some[i];
    for (int x = 1; gpu_long && x <= 2 * sms && count < MAX_BUDGETS; x++)
        budgets[count++] = x;
    return count;
}

static int climb(gpu_job *job, void *argument)
{
    int budgets[MAX_BUDGETS];
    const int count = choose_budgets(job_engine(job)->device->sms, budgets);
    RANK_TRY(job_fill(job, 1));
    for (int i = 0; i < count; i++)
        RANK_TRY(try_budget(job, argument, budgets[i]));
    return 0;
}

/* ---- Reducers one behind the other ---- */

/* The first reducer waits for a late rank.  Meanwhile this rank's GEMMs go on to one that
 * waits for readers, and to which a place falls that the next reducer needs. */
static int reduce_by_unit(gpu_job *job, void *unused)
{
    enum { CALLS = 4 };
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    (void)unused;
    RANK_TRY(job_fill(job, 1));
    RANK_TRY(job_poison(job));
    if (job->rank == job->num_ranks - 1)
        RANK_TRY(job_hold_producer(job, gpu_pause, NULL));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    for (int i = 0; i < CALLS; i++)
        RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    return job_verify_there(job, m, 1);
}

void check_units(void)
{
    static const char *const configs[] = {
        "kernel=sm80,block=128x128,launches=unit,release=8,x=16,ctas=persistent",
        "kernel=sm80,block=128x128,launches=unit,release=8,x=2,ctas=block",
        "launches=unit,release=8"};
    static const ew_op ops[] = {EW_OP_GEMM_RS, EW_OP_GEMM_AR};
    const ew_world_options options = gpu_options(TIMEOUT_MS);
    for (size_t op = 0; op < sizeof ops / sizeof ops[0]; op++)
        for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
            ew_problem problem = gpu_problem(4096, 1024, 72, EW_FP16);
            problem.op = ops[op];
            gpu_run(EW_RANKS_AS_THREADS, 2, &options, problem, configs[i], reduce_by_unit,
                    NULL);
        }
}

/* ---- Reducers behind those of another plan ---- */

typedef struct plan_pair {
    ew_op op, second_op;
    const char *first, *second;
    int64_t n;
    int first_calls, num_ranks;
} plan_pair;

/* A late rank keeps the first plan's reducer waiting, and the other's behind it, perhaps
 * with another of the first between them.  Meanwhile the other plan's GEMMs go on to one
 * that waits for its reducer. */
static int behind_another(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    const plan_pair *pair = argument;
    gpu_job other = *job;
    other.plan = NULL;
    other.problem.op = pair->second_op;
    other.c_bytes = (size_t)(m * job->problem.n) * ew_dtype_bytes(job->problem.dtype);
    RANK_TRY(job_replan(&other, pair->second));
    RANK_TRY(job_fill(job, 1));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, other.c_bytes, &other.C));
    RANK_TRY(job_poison(job));
    RANK_TRY(job_poison(&other));
    if (job->rank == job->num_ranks - 1)
        RANK_TRY(job_hold_producer(job, gpu_pause, NULL));
    RANK_OK(ew_world_barrier(world)); /* a first host function may wait for the GPU */
    for (int i = 0; i < pair->first_calls; i++)
        RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
    for (int i = 0; i < 3; i++)
        RANK_OK(job_call(&other, m, job->A, job->B, other.C, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_plan_wait(other.plan));
    RANK_TRY(job_verify_there(job, m, 1));
    RANK_TRY(job_verify_there(&other, m, 1));
    RANK_OK(ew_world_barrier(world));
    ew_plan_destroy(other.plan);
    ew_memory_free(world, EW_BACKEND_CUDA, other.C);
    return 0;
}

/* The epilogue of a call lies in front of the next call's reducer. */
static int behind_epilogues(gpu_job *job, void *unused)
{
    static const int64_t rows[] = {8192, 1024, 2, 1024};
    ew_world *world = job->world;
    ew_epilogue norm = EW_EPILOGUE_INIT;
    (void)unused;
    norm.norm_weight = job->B;
    norm.normed = job->C;
    RANK_TRY(job_fill(job, 1));
    RANK_OK(ew_world_barrier(world));
    for (size_t i = 0; i < 4 * sizeof rows / sizeof rows[0]; i++)
        RANK_OK(
            ew_gemm_rs_layer(job->plan, rows[i % 4], job->A, job->B, NULL, &norm, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    return 0;
}

void check_plans_in_turn(void)
{
    const ew_op RS = EW_OP_GEMM_RS, AR = EW_OP_GEMM_AR, AG = EW_OP_AG_GEMM;
    plan_pair pairs[] = {
        {RS, RS, "kernel=sm80,x=16", "kernel=sm80,block=128x128,x=16", 1024, 1, 2},
        {RS, RS, "kernel=sm80,x=16", "kernel=sm80,block=128x128,x=16,ctas=block", 1024, 1,
         2},
        {AR, AR, "kernel=sm80,x=16", "kernel=sm80,block=128x128,x=16,shots=2", 1024, 1, 2},
        {RS, RS, "kernel=sm80,x=1", "kernel=sm80,block=128x128,pool=static,x=4", 1024, 1,
         2},
        {RS, RS, "pool=static,x=16", "pool=shared", 4096, 2, 2},
        {RS, AG, "b=512,x=8", "kernel=sm80,block=128x256,b=128,x=8", 4096, 2, 3},
    };
    const ew_world_options options = gpu_options(TIMEOUT_MS);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        ew_problem problem = gpu_problem(4096, pairs[i].n, 72, EW_FP16);
        problem.op = pairs[i].op;
        gpu_run(EW_RANKS_AS_THREADS, pairs[i].num_ranks, &options, problem, pairs[i].first,
                behind_another, &pairs[i]);
    }
    if (gpu_has_kernel(EW_KERNEL_SM90))
        gpu_run(EW_RANKS_AS_THREADS, 2, &options, gpu_problem(8192, 4096, 64, EW_FP16),
                "kernel=sm90,cluster=1,b=512,x=4,epilogue=fused,group=64", behind_epilogues,
                NULL);
}

/* ---- The check ---- */

static void climb_with(ladder *total, const char *kernel, const char *pool, int threads,
                       bool reducer_first)
{
    const ew_world_options options = gpu_options(TIMEOUT_MS);
    char text[EW_CONFIG_TEXT_BYTES];
    ladder l = {.options = text, .reducer_first = reducer_first};
    snprintf(text, sizeof text, "%s,pool=%s,b=%d,ctas=persistent", kernel, pool, threads);
    /* More blocks than a rank has room for at once. */
    gpu_run(EW_RANKS_AS_THREADS, 2, &options, gpu_problem(4096, 1024, 72, EW_FP16), "",
            climb, &l);
    total->completed += l.completed;
    total->refused += l.refused;
}

void check_budgets(void)
{
    static const char *const pools[] = {"shared", "after", "static"};
    ladder total = {.options = ""};
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int pool = 0; pool < 3; pool++)
            for (int first = 0; first < 2; first++) {
                climb_with(&total, *kernel, pools[pool], 512, first);
                if (gpu_long && pool == 0)
                    climb_with(&total, *kernel, pools[pool], 128, first);
            }
    if (total.refused == 0)
        harness_fail("%d budgets, and none was refused", total.completed);
    gpu_remark("%d budgets completed, %d refused, 0 hangs", total.completed, total.refused);
}
