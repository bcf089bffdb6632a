/* What is refused before anything is launched, with code, value and fix; that a plan stays
 * usable after it; and what is not refused: the largest safe budget, an emulated link, the
 * vendor's BLAS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "plan/policy.h"
#include "trial.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static int expect_refused(ew_world *world, ew_status got, ew_status want, const char *value,
                          bool has_fix, const char *what)
{
    RANK_CHECK(got == want, "%s: got %s, want %s: %s", what, ew_status_name(got),
               ew_status_name(want), got == EW_OK ? "" : ew_last_error());
    RANK_CHECK(strstr(ew_last_error(), value), "%s: the message does not show '%s': %s",
               what, value, ew_last_error());
    RANK_CHECK(!has_fix || strstr(ew_last_error(), "\n  fix: "),
               "%s: the message has no fix: %s", what, ew_last_error());
    return 0;
}

/* ---- Plans ---- */

static const struct bad_plan {
    int64_t n, k;
    ew_dtype dtype;
    const char *config;
    ew_status status;
    const char *value;
} bad_plans[] = {
    {12, 64, EW_FP16, "", EW_ERR_SHAPE, "N=12"},
    {64, 20, EW_FP16, "", EW_ERR_SHAPE, "K=20"},
    {64, 64, EW_FP32, "", EW_ERR_UNSUPPORTED, "fp32"},
    {64, 64, EW_BF16, "pool=static,x=65536", EW_ERR_CONFIG, "x=65536"},
    {64, 64, EW_BF16, "kernel=sm80,cluster=2", EW_ERR_CONFIG, "cluster=2"},
    {64, 64, EW_BF16, "cluster=3", EW_ERR_CONFIG, "cluster=3"},
    {64, 64, EW_BF16, "block=256x256", EW_ERR_CONFIG, "256x256"},
    {64, 64, EW_BF16, "b=64", EW_ERR_CONFIG, "b=64"},
    {64, 64, EW_BF16, "transport=copy,order=default", EW_ERR_CONFIG, "transport=copy"},
    {64, 64, EW_BF16, "producer=blas,pool=shared", EW_ERR_CONFIG, "producer=blas"},
};

static int try_plan(ew_world *world, ew_problem problem, const char *config,
                    ew_status *status_out)
{
    ew_config parsed = EW_CONFIG_INIT;
    ew_plan *plan = NULL;
    RANK_OK(ew_config_parse(config, &parsed));
    parsed.backend = EW_BACKEND_CUDA;
    *status_out = ew_plan_create(world, &problem, &parsed, &plan);
    ew_plan_destroy(plan);
    return 0;
}

static int refuse_plans(gpu_job *job)
{
    ew_world *world = job->world;
    for (size_t i = 0; i < COUNT(bad_plans); i++) {
        const struct bad_plan *bad = &bad_plans[i];
        ew_status status;
        RANK_TRY(try_plan(world, gpu_problem(100, bad->n, bad->k, bad->dtype), bad->config,
                          &status));
        RANK_TRY(expect_refused(world, status, bad->status, bad->value, true, bad->config));
    }
    return 0;
}

/* ---- Calls ---- */

static void *moved(void *address, size_t bytes)
{
    return (char *)address + bytes;
}

static int refuse_calls(gpu_job *job)
{
    ew_world *world = job->world;
    ew_plan *plan = job->plan;
    const int64_t most = job->problem.max_m;
    void *A = job->A, *B = job->B, *C = job->C;
    const struct bad_call {
        int64_t m;
        const void *A, *B;
        void *C;
        ew_status status;
        const char *value;
        bool has_fix;
    } calls[] = {
        {most, A, NULL, C, EW_ERR_ARGUMENT, "no weight", true},
        {most, moved(A, 2), B, C, EW_ERR_ARGUMENT, "A=", true},
        {most, A, moved(B, 8), C, EW_ERR_ARGUMENT, "B=", true},
        {most, A, B, moved(C, 4), EW_ERR_ARGUMENT, "C=", true},
        {most, NULL, B, C, EW_ERR_ARGUMENT, "needs A", false},
        {most, A, B, NULL, EW_ERR_ARGUMENT, "needs C", false},
        {-1, A, B, C, EW_ERR_SHAPE, "m=-1", true},
        {most + 1, A, B, C, EW_ERR_SHAPE, "m=", true},
    };
    for (size_t i = 0; i < COUNT(calls); i++) {
        const struct bad_call *bad = &calls[i];
        RANK_TRY(expect_refused(world,
                                ew_gemm_rs(plan, bad->m, bad->A, bad->B, bad->C, NULL),
                                bad->status, bad->value, bad->has_fix, bad->value));
        RANK_TRY(job_compute(job, most, (uint32_t)i, NULL)); /* still usable */
    }
    RANK_TRY(expect_refused(world, ew_plan_set_weight(plan, NULL), EW_ERR_ARGUMENT,
                            "weight", false, "no weight to bind"));
    RANK_TRY(expect_refused(world, ew_plan_set_weight(plan, moved(B, 2)), EW_ERR_ARGUMENT,
                            "B=", true, "weight not aligned"));
    RANK_OK(ew_gemm_rs(plan, 0, NULL, B, NULL, NULL)); /* no rows need no memory */
    RANK_OK(ew_plan_wait(plan));
    return job_compute(job, most, 77, NULL);
}

static int refuse_all(gpu_job *job, void *argument)
{
    (void)argument;
    RANK_TRY(refuse_plans(job));
    return refuse_calls(job);
}

/* ---- Budget ---- */

/* The error names the largest safe x; with it, more blocks than are resident at once. */
static int find_the_largest_budget(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const char *config = argument, *named;
    char text[EW_CONFIG_TEXT_BYTES];
    ew_status status;
    snprintf(text, sizeof text, "%s,x=65536", config);
    RANK_TRY(try_plan(world, job->problem, text, &status));
    RANK_TRY(expect_refused(world, status, EW_ERR_CONFIG, "x=65536", true, text));
    named = strstr(ew_last_error(), "use x=");
    RANK_CHECK(named, "no largest x in: %s", ew_last_error());
    const int x = atoi(named + strlen("use x="));
    snprintf(text, sizeof text, "%s,x=%d", config, x + 1);
    RANK_TRY(try_plan(world, job->problem, text, &status));
    RANK_TRY(expect_refused(world, status, EW_ERR_CONFIG, "x=", true, text));
    snprintf(text, sizeof text, "%s,x=%d", config, x);
    harness_context("W=%d %s", job->num_ranks, text);
    RANK_TRY(job_replan(job, text));
    for (uint32_t seed = 0; seed < 2; seed++)
        RANK_TRY(job_compute(job, job->problem.max_m, seed, NULL));
    return 0;
}

static void try_largest_budgets(void)
{
    static const char *const options[] = {"b=128", "b=256,ctas=block", "b=512"};
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (size_t i = 0; i < COUNT(options); i++) {
            char config[EW_CONFIG_TEXT_BYTES];
            snprintf(config, sizeof config, "%s,%s", *kernel, options[i]);
            gpu_run(EW_RANKS_AS_THREADS, 1, NULL, gpu_problem(2048, 2048, 72, EW_FP16), "",
                    find_the_largest_budget, config);
            gpu_run(EW_RANKS_AS_THREADS, 4, NULL, gpu_problem(2048, 1024, 72, EW_FP16), "",
                    find_the_largest_budget, config);
        }
}

/* ---- Ranks ---- */

static int be_one_too_many(ew_world *world, void *argument)
{
    (void)argument;
    char ranks[32];
    ew_status status;
    snprintf(ranks, sizeof ranks, "%d ranks", ew_world_size(world));
    RANK_TRY(try_plan(world, gpu_problem(100, 64, 64, EW_FP16), "", &status));
    return expect_refused(world, status, EW_ERR_UNSUPPORTED, ranks, true, "too many ranks");
}

void check_bad_input(void)
{
    const ew_world_options options = gpu_options(20000);
    gpu_run(EW_RANKS_AS_THREADS, 1, NULL, gpu_problem(200, 264, 72, EW_FP16), "",
            refuse_all, NULL);
    try_largest_budgets();
    const int groups = gpu_here.sms / 8;
    if (ew_gpu_count() == 1 && groups < GPU_MAX_RANKS) {
        harness_context("W=%d", groups + 1);
        harness_run_with(EW_RANKS_AS_THREADS, groups + 1, &options, be_one_too_many, NULL);
    } else {
        gpu_remark("too many ranks: not tried on %d GPUs", ew_gpu_count());
    }
}

/* ---- Emulated link ---- */

/* What a rank gets from the others: contributions to what it sums, and their sums, or rows.
 */
static double bytes_over_link(const gpu_job *job, int64_t m)
{
    const ewx_spec *spec = job_engine(job)->spec;
    const ewx_grid grid = ewx_spec_grid(spec, m);
    const ewx_share share = ewx_spec_share(spec, m, job->rank);
    int64_t own = 0, results = 0;
    if (spec->op->gemm_waits)
        return (double)((m - ewx_part_rows(&grid, job->rank)) * job->problem.k * 2);
    for (int64_t i = 0; i < share.count; i++) {
        const ewx_tile tile = ewx_share_tile(&grid, &share, i);
        const ewx_tile_rows rows = ewx_share_tile_rows(&grid, &share, tile);
        own += (rows.end - rows.first) * ewx_tile_width(&grid, tile) * 2;
    }
    if (job->problem.op == EW_OP_GEMM_AR && ewx_has_results(share.ownership))
        results = m * job->problem.n * 2 - own;
    return (double)(own * (job->num_ranks - 1) + results);
}

/* A lower bound is physics; nothing here bounds speed. */
static int call_under_the_link(gpu_job *job, void *argument)
{
    const ew_world_options *link = argument;
    ew_world *world = job->world;
    const int64_t m = job->problem.max_m;
    for (uint32_t seed = 0; seed < 3; seed++) {
        const double bytes = bytes_over_link(job, m);
        RANK_TRY(job_fill(job, seed));
        RANK_TRY(job_poison(job));
        RANK_OK(ew_world_barrier(world));
        const int64_t start_ns = ew_now_ns();
        RANK_OK(job_call(job, m, job->A, job->B, job->C, NULL));
        RANK_OK(ew_plan_wait(job->plan));
        const int64_t took_ns = ew_now_ns() - start_ns;
        RANK_CHECK((double)took_ns >=
                       bytes * (1 + link->link_header_bytes / 128) * 8.0 / link->link_gbps +
                           link->link_latency_us * 1e3,
                   "%g bytes took %lld ns at %g Gb/s", bytes, (long long)took_ns,
                   link->link_gbps);
        RANK_TRY(job_verify(job, m, seed));
    }
    return 0;
}

void check_link(void)
{
    static const double links[][3] = {
        {368.0, 1.0, 0}, {8.0, 20.0, 16}, {0.5, 1000.0, 0}, {8.0, 20.0, 64}};
    static const char *const configs[] = {"", "order=contiguous,release=partition",
                                          "release=output", "transport=copy"};
    for (size_t i = 0; i < COUNT(links); i++)
        for (int W = 2; W <= 4; W += 2) {
            ew_world_options options = gpu_options(10000);
            options.link_gbps = links[i][0];
            options.link_latency_us = links[i][1];
            options.link_header_bytes = links[i][2];
            gpu_run(EW_RANKS_AS_THREADS, W, &options,
                    gpu_problem(130 * W + 1, 264, 72, EW_FP16), configs[i],
                    call_under_the_link, &options);
            ew_problem to_all = gpu_problem(130 * W + 1, 264, 72, EW_FP16);
            to_all.op = EW_OP_GEMM_AR;
            gpu_run(EW_RANKS_AS_THREADS, W, &options, to_all, i % 2 ? "shots=1" : "shots=2",
                    call_under_the_link, &options);
            ew_problem gathering = gpu_problem(130 * W + 1, 264, 72, EW_FP16);
            gathering.op = EW_OP_AG_GEMM;
            gpu_run(EW_RANKS_AS_THREADS, W, &options, gathering,
                    i % 2 ? "transport=copy,release=tile" : "transport=push",
                    call_under_the_link, &options);
        }
}

/* ---- The vendor's BLAS as the producer ---- */

void check_blas(void)
{
    const ew_world_options options = gpu_options(10000);
    trial t = {.kind = EW_RANKS_AS_THREADS, .config = EW_CONFIG_INIT, .options = &options};
    ew_forecast forecast;
    t.config.backend = EW_BACKEND_CUDA;
    t.config.producer = EW_PRODUCER_BLAS;
    const ew_problem probe = gpu_problem(128, 128, 64, EW_FP16);
    const ew_status status = ew_forecast_build(&probe, 1, &t.config, &forecast);
    if (status == EW_ERR_UNSUPPORTED)
        gpu_skip("%.*s", (int)strcspn(ew_last_error(), "\n"), ew_last_error());
    for (int W = 1; W <= 4; W *= 2)
        for (int variant = 0; variant < 4; variant++) {
            const int64_t rows = 131 * W + 1;
            t.num_ranks = W;
            t.problem = gpu_problem(rows, 264, 72, variant < 2 ? EW_BF16 : EW_FP16);
            t.problem.weight_layout = variant == 1 ? EW_WEIGHT_KN : EW_WEIGHT_NK;
            t.weight_per_call = variant % 2 == 1;
            t.weight_bound = variant == 2;
            t.seed = 5 + (uint32_t)variant;
            t.num_calls = 5;
            memcpy(t.rows, (const int64_t[]){rows, 1, 0, 130 * W, rows}, 5 * sizeof rows);
            trial_run(&t);
        }
}
