/* Outputs of more than 2^31 elements: no offset anywhere is counted in 32 bits.  Made and
 * checked by the GPU, where they lie. */
#include "backend/cuda/cuda_memory.h"
#include "gpu_check.h"
#include "gpukit.h"

enum { TIMEOUT_MS = 20000, SEED = 3 };
#define GIB (1 << 30)

typedef struct large {
    int num_ranks;
    int64_t m, n, k;
    const char *config;
    bool is_long; /* with --long only */
} large;

/* One rank: all offsets into its output.  Two: those into the heaps of both slices. */
static const large cases[] = {
    {1, 46400, 46400, 16, "", false},
    {1, 46400, 46400, 16, "kernel=sm80", false},
    {2, 4194400, 520, 16, "", false},
    {2, 4194400, 520, 16, "kernel=sm80,transport=push", true},
    {2, 4194400, 520, 16, "transport=copy", true},
    {2, 520, 4194400, 16, "release=output,pool=after", true},
    {2, 92800, 46400, 16, "", true},
};
enum { NUM_CASES = sizeof cases / sizeof cases[0] };

/* ---- A rank ---- */

typedef struct stand {
    ew_world *world;
    ew_problem problem;
    ew_config config;
    ew_plan *plan;
    void *A, *B, *C;
    size_t c_bytes;
} stand;

static int generate(stand *s, ewx_input_kind kind, int64_t rows, void *matrix)
{
    ew_world *world = s->world;
    const ewx_input input = {.kind = kind,
                             .dtype = s->problem.dtype,
                             .layout = s->problem.weight_layout,
                             .seed = SEED,
                             .rank = ew_world_rank(world),
                             .num_ranks = ew_world_size(world),
                             .rows = rows,
                             .depth = s->problem.k};
    RANK_OK(ewx_cuda_generate(world, &input, matrix));
    return 0;
}

static int prepare(stand *s)
{
    ew_world *world = s->world;
    const ew_problem *p = &s->problem;
    const int W = ew_world_size(world);
    s->c_bytes = (size_t)((p->max_m / W + 1) * p->n) * 2;
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, (size_t)(p->max_m * p->k) * 2, &s->A));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, (size_t)(p->n * p->k) * 2, &s->B));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, s->c_bytes, &s->C));
    RANK_OK(ew_plan_create(world, p, &s->config, &s->plan));
    RANK_TRY(generate(s, EWX_INPUT_EXACT_A, p->max_m, s->A));
    return generate(s, EWX_INPUT_EXACT_B, p->n, s->B);
}

/* Twice, for there are two slices. */
static int compute(stand *s)
{
    ew_world *world = s->world;
    const int64_t m = s->problem.max_m;
    for (int call = 0; call < 2; call++) {
        ew_check check;
        RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, s->C, 0xff, s->c_bytes));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(ew_gemm_rs(s->plan, m, s->A, s->B, s->C, NULL));
        RANK_OK(ew_plan_wait(s->plan));
        RANK_OK(ewx_cuda_verify(world, &s->problem, SEED, m, s->C, &check));
        RANK_CHECK(check.wrong == 0, "call %d: %lld wrong, max error %g", call,
                   (long long)check.wrong, check.max_abs_err);
    }
    return 0;
}

static int large_body(ew_world *world, void *argument)
{
    const large *l = argument;
    stand s = {.world = world,
               .problem = gpu_problem(l->m, l->n, l->k, EW_FP16),
               .config = EW_CONFIG_INIT};
    RANK_OK(ew_config_parse(l->config, &s.config));
    s.config.backend = EW_BACKEND_CUDA;
    const int failed = prepare(&s) || compute(&s);
    if (failed)
        ew_world_abort(world);
    ew_plan_destroy(s.plan);
    void *matrices[] = {s.A, s.B, s.C};
    for (int i = 0; i < 3; i++)
        if (matrices[i])
            ew_memory_free(world, EW_BACKEND_CUDA, matrices[i]);
    return failed;
}

/* ---- The check ---- */

/* Of all ranks, with a tenth to spare; all of them may share one GPU. */
static double wanted_bytes(const large *l)
{
    const ew_problem problem = gpu_problem(l->m, l->n, l->k, EW_FP16);
    ew_config config = EW_CONFIG_INIT;
    ew_forecast forecast;
    ew_status status = ew_config_parse(l->config, &config);
    config.backend = EW_BACKEND_CUDA;
    if (status == EW_OK)
        status = ew_forecast_build(&problem, l->num_ranks, &config, &forecast);
    if (status != EW_OK)
        harness_fail("W=%d %s: %s", l->num_ranks, l->config, ew_last_error());
    const double matrices =
        2.0 * (double)(l->m * l->k + l->n * l->k + (l->m / l->num_ranks + 1) * l->n);
    return 1.1 * l->num_ranks * ((double)forecast.total_bytes + matrices);
}

void check_large(void)
{
    int done = 0, too_large = 0;
    for (int i = 0; i < NUM_CASES; i++) {
        large l = cases[i];
        if (l.is_long && !gpu_long)
            continue;
        const double wanted = wanted_bytes(&l), here = (double)gpu_free_bytes();
        if (wanted > here) {
            gpu_remark("SKIPPED: W=%d %lld x %lld %s needs %.1f GiB, %.1f are free",
                       l.num_ranks, (long long)l.m, (long long)l.n, l.config, wanted / GIB,
                       here / GIB);
            too_large++;
            continue;
        }
        const ew_world_options options = gpu_options(TIMEOUT_MS);
        harness_context("W=%d fp16 m=%lld N=%lld K=%lld config=%s", l.num_ranks,
                        (long long)l.m, (long long)l.n, (long long)l.k, l.config);
        harness_run_with(EW_RANKS_AS_THREADS, l.num_ranks, &options, large_body, &l);
        done++;
    }
    if (done == 0)
        gpu_skip("no output of 2^31 elements fits");
    gpu_remark("%d outputs of more than 2^31 elements, %d left out", done, too_large);
}
