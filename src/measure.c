/* The benchmark loop: the only stopwatch of the project. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cpu/blas.h"
#include "backend/cpu/kernels/kernel.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "entwine/measure.h"

/* A quiet core never shows a gap this long between two looks at the clock. */
#define GATE_GAP_NS 600000
#define GATE_TRIES 10

const char *ew_cpu_kernel_name(ew_dtype dtype)
{
    const ewx_kernel *kernel = ewx_kernel_select(dtype, NULL);
    return kernel ? kernel->name : "none";
}

const char *ew_blas_name(void)
{
    return ewx_blas_name();
}

ew_status ew_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                       const float *A, const float *B, float *C, int64_t c_stride)
{
    return ewx_blas_gemm(layout, m, n, k, A, B, C, c_stride);
}

/* ---- The loop ---- */

enum { TOTAL, GEMM, TAIL, NUM_PARTS };

typedef struct bench {
    ew_world *world;
    const ew_problem *problem;
    ew_bench_options options;
    const ew_bench_entry *entries;
    ew_bench_result *results;
    int count;
    const ewx_backend *backend;
    int64_t rows; /* m of the calls */
    size_t c_bytes;
    void *A, *B, *C;            /* in the backend's memory */
    ew_plan **plans;            /* NULL where the entry is custom or skipped */
    double *samples[NUM_PARTS]; /* [entry][iteration] in us */
} bench;

typedef struct sample {
    int64_t start_ns, gemm_end_ns, end_ns;
} sample;

static ew_status run_custom(bench *b, int entry, sample *s)
{
    const ew_bench_custom *custom = b->entries[entry].custom;
    s->start_ns = ewx_now_ns();
    const int code =
        custom->run(custom->context, b->rows, b->A, b->B, b->C, &s->gemm_end_ns);
    s->end_ns = ewx_now_ns();
    return code == 0 ? EW_OK
                     : ewx_fail(EW_ERR_ABORTED, "method %s failed with code %d",
                                b->entries[entry].label, code);
}

/* A GPU's calls are timed by its own clock, from the start of the first kernel to the end
 * of the last; the host's would add the launch and the wake-up. */
static ew_status run_plan(bench *b, int entry, sample *s)
{
    ew_plan *plan = b->plans[entry];
    ew_timing timing;
    const int64_t called_ns = ewx_now_ns();
    EW_TRY(ew_gemm_rs(plan, b->rows, b->A, NULL, b->C, NULL));
    EW_TRY(ew_plan_wait(plan));
    const int64_t ended_ns = ewx_now_ns();
    EW_TRY(ew_plan_timing(plan, &timing));
    const bool on_gpu = b->backend != &ewx_backend_cpu;
    s->start_ns = on_gpu ? timing.start_ns : called_ns;
    s->gemm_end_ns = timing.gemm_end_ns;
    s->end_ns = on_gpu ? timing.end_ns : ended_ns;
    return EW_OK;
}

static ew_status run_once(bench *b, int entry, sample *sample_out)
{
    return b->entries[entry].custom ? run_custom(b, entry, sample_out)
                                    : run_plan(b, entry, sample_out);
}

/* ---- Inputs ---- */

static bool is_active(const bench *b, int entry)
{
    return b->results[entry].status == EW_OK;
}

/* Exact inputs for a check, random ones for timing, in all plans. */
static ew_status load_inputs(bench *b, bool exact)
{
    const ew_problem *p = b->problem;
    const ewx_memory *memory = &b->backend->memory;
    ewx_input input = {.kind = exact ? EWX_INPUT_EXACT_A : EWX_INPUT_RANDOM,
                       .dtype = p->dtype,
                       .layout = p->weight_layout,
                       .seed = b->options.seed + (exact ? 0 : (uint32_t)b->world->rank),
                       .rank = b->world->rank,
                       .num_ranks = b->world->num_ranks,
                       .rows = b->rows,
                       .depth = p->k};
    EW_TRY(memory->generate(b->world, &input, b->A));
    if (exact)
        input.kind = EWX_INPUT_EXACT_B;
    input.rows = p->n;
    EW_TRY(memory->generate(b->world, &input, b->B));
    for (int entry = 0; entry < b->count; entry++)
        if (is_active(b, entry) && b->plans[entry])
            EW_TRY(ew_plan_set_weight(b->plans[entry], b->B));
    return EW_OK;
}

static ew_status check_once(bench *b, int entry)
{
    ew_check check, all[EWX_MAX_RANKS], *total = &b->results[entry].check;
    sample ignored;
    const ewx_memory *memory = &b->backend->memory;
    EW_TRY(memory->fill(b->world, b->C, 0xff, b->c_bytes)); /* NaN in every type */
    EW_TRY(ew_world_barrier(b->world));
    EW_TRY(run_once(b, entry, &ignored));
    EW_TRY(memory->verify(b->world, b->problem, b->options.seed, b->rows, b->C, &check));
    EW_TRY(ew_world_allgather(b->world, &check, all, sizeof check));
    for (int rank = 0; rank < ew_world_size(b->world); rank++) {
        total->wrong += all[rank].wrong;
        if (!(all[rank].max_abs_err <= total->max_abs_err))
            total->max_abs_err = all[rank].max_abs_err;
    }
    return EW_OK;
}

/* Host time of a call among others: what a program pays that enqueues layer after layer.
 * A call of the CPU is its own time. */
static ew_status measure_enqueue(bench *b, int entry)
{
    enum { CALLS = 64 };
    double mine, all[EWX_MAX_RANKS];
    if (b->entries[entry].custom || b->backend == &ewx_backend_cpu)
        return EW_OK;
    EW_TRY(ew_world_barrier(b->world));
    const int64_t start_ns = ewx_now_ns();
    for (int i = 0; i < CALLS; i++)
        EW_TRY(ew_gemm_rs(b->plans[entry], b->rows, b->A, NULL, b->C, NULL));
    mine = (double)(ewx_now_ns() - start_ns) * 1e-3 / CALLS;
    EW_TRY(ew_plan_wait(b->plans[entry]));
    EW_TRY(ew_world_allgather(b->world, &mine, all, sizeof mine));
    for (int rank = 0; rank < ew_world_size(b->world); rank++)
        if (all[rank] > b->results[entry].enqueue_us)
            b->results[entry].enqueue_us = all[rank];
    return EW_OK;
}

static ew_status check_all(bench *b)
{
    EW_TRY(load_inputs(b, true));
    for (int entry = 0; entry < b->count; entry++)
        if (is_active(b, entry))
            EW_TRY(check_once(b, entry));
    return EW_OK;
}

/* ---- Samples ---- */

/* Spins for the gate's time; false when this core was taken away meanwhile. */
static bool core_is_quiet(double gate_ms)
{
    const int64_t end_ns = ewx_now_ns() + (int64_t)(gate_ms * 1e6);
    int64_t before = ewx_now_ns();
    for (;;) {
        const int64_t now = ewx_now_ns();
        if (now - before > GATE_GAP_NS)
            return false;
        if (now >= end_ns)
            return true;
        before = now;
    }
}

/* One sample, or *kept = false when some rank lost its core around it. */
static ew_status take_sample(bench *b, int entry, sample *sample_out, bool *kept)
{
    const double gate_ms = b->options.gate_ms;
    int32_t quiet = 1, all[EWX_MAX_RANKS];
    EW_TRY(ew_world_barrier(b->world));
    if (gate_ms > 0)
        quiet = core_is_quiet(gate_ms);
    EW_TRY(ew_world_barrier(b->world));
    EW_TRY(run_once(b, entry, sample_out));
    *kept = true;
    if (gate_ms <= 0)
        return EW_OK;
    quiet &= core_is_quiet(gate_ms);
    EW_TRY(ew_world_allgather(b->world, &quiet, all, sizeof quiet));
    for (int rank = 0; rank < ew_world_size(b->world); rank++)
        *kept &= all[rank] != 0;
    return EW_OK;
}

/* Lets the chip cool for as long as it was busy. */
static void rest(const bench *b, const sample *s)
{
    const int64_t end_ns =
        ewx_now_ns() + (int64_t)(b->options.idle * (double)(s->end_ns - s->start_ns));
    while (ewx_now_ns() < end_ns)
        ;
}

static ew_status take_gated_sample(bench *b, int entry, int iteration)
{
    ew_bench_result *result = &b->results[entry];
    sample s = {0};
    bool kept = false;
    do {
        EW_TRY(take_sample(b, entry, &s, &kept));
        kept |= result->discarded >= GATE_TRIES * b->options.iters;
        result->discarded += !kept;
    } while (!kept);
    const size_t place = (size_t)entry * (size_t)b->options.iters + (size_t)iteration;
    b->samples[TOTAL][place] = (double)(s.end_ns - s.start_ns) * 1e-3;
    b->samples[GEMM][place] = (double)(s.gemm_end_ns - s.start_ns) * 1e-3;
    b->samples[TAIL][place] = (double)(s.end_ns - s.gemm_end_ns) * 1e-3;
    rest(b, &s);
    return EW_OK;
}

static ew_status run_all(bench *b)
{
    EW_TRY(check_all(b));
    EW_TRY(load_inputs(b, false));
    for (int i = 0; i < b->options.warmup; i++)
        for (int entry = 0; entry < b->count; entry++) {
            sample ignored;
            bool kept;
            if (is_active(b, entry))
                EW_TRY(take_sample(b, entry, &ignored, &kept));
        }
    for (int i = 0; i < b->options.iters; i++)
        for (int entry = 0; entry < b->count; entry++)
            if (is_active(b, entry))
                EW_TRY(take_gated_sample(b, entry, i));
    for (int entry = 0; entry < b->count; entry++)
        if (is_active(b, entry))
            EW_TRY(measure_enqueue(b, entry));
    return check_all(b);
}

/* ---- Statistics ---- */

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const double *values, int count)
{
    double sorted[EW_BENCH_MAX_SAMPLES];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return count % 2 ? sorted[count / 2]
                     : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
}

static double variation(const double *values, int count)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < count; i++)
        sum += values[i];
    const double mean = sum / count;
    for (int i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return count > 1 && mean > 0 ? sqrt(squares / (count - 1)) / mean : 0;
}

/* The slowest rank's figures become everyone's. */
static ew_status summarise(bench *b, int entry)
{
    const int count = b->options.iters, num_ranks = ew_world_size(b->world);
    const size_t first = (size_t)entry * (size_t)count;
    double mine[NUM_PARTS], all[EWX_MAX_RANKS][NUM_PARTS];
    for (int part = 0; part < NUM_PARTS; part++)
        mine[part] = median(&b->samples[part][first], count);
    EW_TRY(ew_world_allgather(b->world, mine, all, sizeof mine));
    int slowest = 0;
    double gemm_us = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        if (all[rank][TOTAL] > all[slowest][TOTAL])
            slowest = rank;
        if (all[rank][GEMM] > gemm_us)
            gemm_us = all[rank][GEMM];
    }
    const size_t bytes = (size_t)count * sizeof(double);
    double *samples = malloc(bytes * (size_t)num_ranks);
    if (!samples)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d samples", count);
    const ew_status status =
        ew_world_allgather(b->world, &b->samples[TOTAL][first], samples, bytes);
    ew_bench_result *result = &b->results[entry];
    memcpy(result->samples_us, samples + (size_t)slowest * (size_t)count, bytes);
    free(samples);
    result->num_samples = count;
    result->time_us = all[slowest][TOTAL];
    result->gemm_us = gemm_us;
    result->tail_us = all[slowest][TAIL];
    result->cv = variation(result->samples_us, count);
    return status;
}

/* ---- Set-up ---- */

static bool concerns_entry_alone(ew_status status)
{
    return status == EW_ERR_UNSUPPORTED || status == EW_ERR_SHAPE ||
           status == EW_ERR_CONFIG || status == EW_ERR_ARGUMENT;
}

static ew_status open_entry(bench *b, int entry)
{
    ew_bench_result *result = &b->results[entry];
    memset(result, 0, sizeof *result);
    if (b->entries[entry].custom)
        return EW_OK;
    result->status =
        ew_plan_create(b->world, b->problem, &b->entries[entry].config, &b->plans[entry]);
    if (result->status == EW_OK) {
        EW_TRY(ew_plan_config(b->plans[entry], &result->config));
        return ew_plan_start_together(b->plans[entry]);
    }
    strncpy(result->error, ew_last_error(), sizeof result->error - 1);
    return concerns_entry_alone(result->status) ? EW_OK : result->status;
}

static ew_status allocate_all(bench *b)
{
    const size_t elem = ew_dtype_bytes(b->problem->dtype);
    const int rank = ew_world_rank(b->world), num_ranks = ew_world_size(b->world);
    int64_t first, owned;
    EW_TRY(ew_owned_rows(b->rows, num_ranks, rank, &first, &owned));
    const size_t num_samples = (size_t)b->count * (size_t)b->options.iters;
    const ewx_memory *memory = &b->backend->memory;
    b->c_bytes = (size_t)(owned * b->problem->n) * elem;
    EW_TRY(memory->allocate(b->world, (size_t)(b->rows * b->problem->k) * elem, &b->A));
    EW_TRY(
        memory->allocate(b->world, (size_t)(b->problem->n * b->problem->k) * elem, &b->B));
    EW_TRY(memory->allocate(b->world, b->c_bytes, &b->C));
    b->plans = calloc((size_t)b->count, sizeof *b->plans);
    bool enough = b->plans != NULL;
    for (int part = 0; part < NUM_PARTS; part++) {
        b->samples[part] = malloc(num_samples * sizeof(double));
        enough &= b->samples[part] != NULL;
    }
    return enough ? EW_OK
                  : ewx_fail(EW_ERR_MEMORY, "no memory for the benchmark\n"
                                            "  fix: use a smaller shape or fewer ranks");
}

static void close_all(bench *b)
{
    for (int entry = 0; b->plans && entry < b->count; entry++)
        ew_plan_destroy(b->plans[entry]);
    for (int part = 0; part < NUM_PARTS; part++)
        free(b->samples[part]);
    free(b->plans);
    void *matrices[] = {b->C, b->B, b->A};
    for (int i = 0; i < 3; i++)
        if (matrices[i])
            b->backend->memory.release(b->world, matrices[i]);
}

static ew_status check_options(const ew_problem *problem, const ew_bench_options *options)
{
    if (options->struct_size < sizeof *options)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the bench options were not initialised\n"
                        "  fix: initialise them with EW_BENCH_OPTIONS_INIT");
    if (options->iters < 1 || options->iters > EW_BENCH_MAX_SAMPLES || options->warmup < 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%d iterations after %d warm-ups\n"
                        "  fix: use 1 to %d iterations and no fewer than 0 warm-ups",
                        options->iters, options->warmup, EW_BENCH_MAX_SAMPLES);
    if (options->m < 0 || options->m > problem->max_m)
        return ewx_fail(EW_ERR_SHAPE, "m=%lld is outside 0..%lld", (long long)options->m,
                        (long long)problem->max_m);
    return EW_OK;
}

static ew_status find_backend(const ew_bench_entry *entries, int count,
                              const ewx_backend **backend_out)
{
    const ewx_backend *found = NULL;
    for (int entry = 0; entry < count; entry++) {
        const ewx_backend *wanted = &ewx_backend_cpu;
        if (!entries[entry].custom)
            EW_TRY(ewx_backend_find(entries[entry].config.backend, &wanted));
        if (found && found != wanted)
            return ewx_fail(EW_ERR_ARGUMENT,
                            "the entries of a benchmark are of different backends\n"
                            "  fix: measure them in two runs");
        found = wanted;
    }
    *backend_out = found;
    return EW_OK;
}

ew_status ew_bench_run(ew_world *world, const ew_problem *problem,
                       const ew_bench_options *options, const ew_bench_entry *entries,
                       int count, ew_bench_result *results)
{
    const ew_bench_options defaults = EW_BENCH_OPTIONS_INIT;
    if (!world || !problem || !entries || !results || count < 1)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_bench_run needs a world, a problem and entries");
    const ewx_backend *backend = NULL;
    ew_forecast forecast; /* refuses a bad problem before anything is allocated */
    EW_TRY(find_backend(entries, count, &backend));
    EW_TRY(ew_forecast_build(problem, ew_world_size(world), NULL, &forecast));
    EW_TRY(check_options(problem, options ? options : &defaults));
    bench b = {.world = world,
               .problem = problem,
               .options = options ? *options : defaults,
               .entries = entries,
               .results = results,
               .count = count,
               .backend = backend};
    b.rows = b.options.m > 0 ? b.options.m : problem->max_m;
    ew_status status = EW_OK;
    EW_TRY_TO(status, allocate_all(&b), out);
    for (int entry = 0; entry < count; entry++)
        EW_TRY_TO(status, open_entry(&b, entry), out);
    EW_TRY_TO(status, run_all(&b), out);
    for (int entry = 0; entry < count; entry++)
        if (is_active(&b, entry))
            EW_TRY_TO(status, summarise(&b, entry), out);
out:
    close_all(&b);
    return status;
}
