/* Random shapes and configs without end, in one process whose ranks are threads: right
 * bits each time, no wait for ever, and memory that stays as it was.  A world per seed, of
 * several plans one after the other; small calls of fresh plans whose launches come in many
 * parts (transport=copy, producer=blas) are the most frequent, for there a rank whose host
 * is late has the most to be late with. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "trial.h"

enum { TIMEOUT_MS = 5000, PLANS_PER_WORLD = 8, MAX_RANKS = 8, LEAST_WORLDS = 8 };
enum { MAX_FAILURES = 3, MOST_GROWTH_MIB = 64 };
#define SECOND_NS 1000000000LL
#define MIB (1 << 20)

/* ---- What is drawn ---- */

typedef struct world_of_plans {
    int num_ranks;
    trial trials[PLANS_PER_WORLD];
} world_of_plans;

static bool has_blas;

/* cuBLAS loads kernels for every new shape and keeps them, on the host and on the GPU:
 * worlds in which it may be drawn say nothing about ours. */
static bool uses_blas(uint32_t seed)
{
    return has_blas && seed % 3 == 0;
}

#define PICK(random, list) \
    (list)[harness_between(random, 0, (int64_t)(sizeof(list) / sizeof(list)[0]) - 1)]

static const char *draw_kernel(harness_random *random)
{
    static const char *const kernels[] = {
        "kernel=sm80,block=128x128",           "kernel=sm80,block=128x256",
        "kernel=sm90,block=128x128,cluster=1", "kernel=sm90,block=128x128,cluster=2",
        "kernel=sm90,block=128x256,cluster=1", "kernel=sm90,block=128x256,cluster=2"};
    return kernels[harness_between(random, 0, gpu_has_kernel(EW_KERNEL_SM90) ? 5 : 1)];
}

static void draw_own(harness_random *random, char *text, size_t bytes)
{
    static const char *const transports[] = {"pull", "push"};
    static const char *const orders[] = {"interleaved", "default", "contiguous"};
    static const char *const releases[] = {"tile", "3", "partition", "output"};
    static const char *const pools[] = {
        "pool=shared,ctas=persistent", "pool=shared,ctas=block", "pool=after,ctas=block",
        "pool=after,ctas=persistent", "pool=static,ctas=persistent"};
    static const int threads[] = {128, 256, 512};
    const char *kernel = draw_kernel(random), *transport = PICK(random, transports);
    const char *order = PICK(random, orders), *release = PICK(random, releases);
    const char *pool = PICK(random, pools);
    snprintf(text, bytes, "%s,transport=%s,order=%s,release=%s,%s,b=%d", kernel, transport,
             order, release, pool, PICK(random, threads));
}

static ew_config draw_config(harness_random *random, bool may_be_blas)
{
    char text[EW_CONFIG_TEXT_BYTES];
    ew_config config = EW_CONFIG_INIT;
    const int64_t kind = harness_between(random, 0, 9);
    if (kind < 4)
        snprintf(text, sizeof text, "transport=copy,%s", draw_kernel(random));
    else if (kind < 7 && may_be_blas)
        snprintf(text, sizeof text, "producer=blas");
    else
        draw_own(random, text, sizeof text);
    if (ew_config_parse(text, &config) != EW_OK)
        harness_fail("%s: %s", text, ew_last_error());
    config.backend = EW_BACKEND_CUDA;
    return config;
}

/* Statement by statement: a seed means the same whatever the compiler. */
static trial draw_trial(harness_random *random, int num_ranks, bool may_be_blas,
                        const ew_world_options *options)
{
    trial t = {.kind = EW_RANKS_AS_THREADS, .num_ranks = num_ranks, .options = options};
    t.config = draw_config(random, may_be_blas);
    const bool is_small = harness_between(random, 0, 2) > 0;
    const int64_t most = harness_between(random, 1, (is_small ? 4 : 300) * num_ranks);
    const int64_t n = 8 * harness_between(random, 1, 70);
    const int64_t k = 8 * harness_between(random, 1, 20);
    t.problem = gpu_problem(most, n, k, harness_between(random, 0, 1) ? EW_FP16 : EW_BF16);
    t.problem.weight_layout = harness_between(random, 0, 1) ? EW_WEIGHT_NK : EW_WEIGHT_KN;
    t.weight_per_call = harness_between(random, 0, 1);
    t.weight_bound = !t.weight_per_call && harness_between(random, 0, 1);
    t.start_together = harness_between(random, 0, 3) == 0;
    t.seed = (uint32_t)harness_next(random);
    t.num_calls = (int)harness_between(random, 1, 4);
    for (int call = 0; call < t.num_calls; call++)
        t.rows[call] = harness_between(random, 0, most);
    return t;
}

/* So many ranks as threads are tried, on one GPU; as many worlds in a row have them all. */
static uint32_t most_ranks(void)
{
    const int slices = gpu_here.sms / 8;
    return (uint32_t)(slices < MAX_RANKS ? slices : MAX_RANKS);
}

static world_of_plans draw_world(uint32_t seed, const ew_world_options *options)
{
    harness_random random = harness_seed(seed);
    world_of_plans w = {.num_ranks = 1 + (int)(seed % most_ranks())};
    for (int i = 0; i < PLANS_PER_WORLD; i++)
        w.trials[i] = draw_trial(&random, w.num_ranks, uses_blas(seed), options);
    return w;
}

static int world_body(ew_world *world, void *argument)
{
    world_of_plans *w = argument;
    for (int i = 0; i < PLANS_PER_WORLD; i++) {
        trial_describe(&w->trials[i]);
        RANK_TRY(trial_body(world, &w->trials[i]));
    }
    return 0;
}

/* True when all went well; else says what, and how to see it again. */
static bool run_world(uint32_t seed, const ew_world_options *options)
{
    char text[HARNESS_TEXT_BYTES];
    world_of_plans w = draw_world(seed, options);
    const ew_status status = harness_try(EW_RANKS_AS_THREADS, w.num_ranks, options,
                                         world_body, &w, NULL, text, sizeof text);
    if (status == EW_OK && !text[0])
        return true;
    gpu_remark("%s\n  again: gpu_check --only random --seed %u (with ENTWINE_DUMP_DIR=. "
               "for what each rank was doing)",
               text[0] ? text : ew_last_error(), seed);
    return false;
}

/* ---- Memory over the worlds ---- */

/* Least squares over samples 0, 1, 2, ... */
typedef struct trend {
    double count, sum, weighted;
} trend;

static void trend_add(trend *t, double value)
{
    t->weighted += t->count * value;
    t->sum += value;
    t->count++;
}

static double trend_slope(const trend *t)
{
    const double n = t->count, x = n * (n - 1) / 2, xx = (n - 1) * n * (2 * n - 1) / 6;
    return (n * t->weighted - x * t->sum) / (n * xx - x * x);
}

static double resident_mib(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &pages, &resident) != 2)
        harness_fail("/proc/self/statm cannot be read");
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / MIB;
}

static double used_mib(void)
{
    return -(double)gpu_free_bytes() / MIB;
}

static void judge(const char *what, const trend *t)
{
    const double growth = trend_slope(t) * t->count;
    gpu_remark("%s: %+.2f MiB per 100 worlds after the first ones", what,
               100 * trend_slope(t));
    if (growth > MOST_GROWTH_MIB)
        harness_fail("%s grew by %.0f MiB in %.0f worlds", what, growth, t->count);
}

/* ---- The check ---- */

void check_random(void)
{
    const ew_world_options options = gpu_options(TIMEOUT_MS);
    const int64_t length_ns = (gpu_long ? 600 : 10) * SECOND_NS, start_ns = ew_now_ns();
    trend on_gpu = {0}, on_host = {0};
    uint32_t seed = gpu_seed;
    double gpu_mib = 0, host_mib = 0; /* what worlds without cuBLAS have added */
    double blas_mib = 0;              /* what those with it have added on the GPU */
    int failures = 0;
    (void)gpu_free_bytes(); /* the GPU stays open from here on */
    has_blas = gpu_has_blas();
    while (failures < MAX_FAILURES &&
           (ew_now_ns() < start_ns + length_ns || on_gpu.count < LEAST_WORLDS)) {
        const double resident_before = resident_mib(), used_before = used_mib();
        const bool by_blas = uses_blas(seed);
        failures += !run_world(seed++, &options);
        if (ew_now_ns() < start_ns + length_ns / 3 || seed - gpu_seed < most_ranks())
            continue;
        host_mib += by_blas ? 0 : resident_mib() - resident_before;
        *(by_blas ? &blas_mib : &gpu_mib) += used_mib() - used_before;
        trend_add(&on_gpu, gpu_mib);
        trend_add(&on_host, host_mib);
    }
    gpu_remark("%u worlds of %d plans each, seeds from %u%s", seed - gpu_seed,
               PLANS_PER_WORLD, gpu_seed, has_blas ? "" : ", without cuBLAS");
    if (failures > 0)
        harness_fail("%d worlds failed", failures);
    gpu_remark("cuBLAS has kept %.0f MiB more of the GPU", blas_mib);
    judge("memory of the GPU", &on_gpu);
    judge("memory of the host", &on_host);
}
