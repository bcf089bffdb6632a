/* The benchmark loop: entries side by side on one sampler. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "api/plan.h"
#include "backend/backend.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"
#include "base/versioned.h"
#include "entwine/measure.h"
#include "measure/sampler.h"
#include "plan/exact.h"

_Static_assert(EW_BENCH_MAX_RANKS == EWX_MAX_RANKS, "a detail has room for every rank");

#define GATE_TRIES 10 /* for each sample wanted */

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

/* ---- The loop ---- */

enum { TOTAL, GEMM, TAIL, NUM_PARTS };

typedef struct bench {
    ewx_sampler sampler;
    ew_bench_options options;
    const ew_bench_entry *entries;
    ew_bench_result *results;
    int count;
    ewx_runner *runners;        /* without a plan where the entry is custom or skipped */
    double *samples[NUM_PARTS]; /* [entry][iteration] in us */
    void **graphs;              /* NULLs: none */
    int *order;                 /* in which the entries of a round are run */
    int64_t *enqueue_ns;        /* of each entry; found while warming up */
} bench;

static bool is_active(const bench *b, int entry)
{
    return b->results[entry].status == EW_OK;
}

static ew_status load_inputs(bench *b, bool exact)
{
    EW_TRY(ewx_sampler_load(&b->sampler, exact));
    for (int entry = 0; entry < b->count; entry++)
        if (is_active(b, entry))
            EW_TRY(ewx_sampler_bind(&b->sampler, &b->runners[entry]));
    return EW_OK;
}

static ew_status check_all(bench *b)
{
    EW_TRY(load_inputs(b, true));
    for (int entry = 0; entry < b->count; entry++)
        if (is_active(b, entry))
            EW_TRY(ewx_sampler_check(&b->sampler, &b->runners[entry],
                                     &b->results[entry].check));
    return EW_OK;
}

/* As programs run: no gate, no launch for it, no delay of the last round. */
static void start_apart(const bench *b, int entry)
{
    if (b->sampler.backend->traits->enqueues && b->runners[entry].plan)
        b->sampler.backend->set_start(b->runners[entry].plan->state, (ewx_start){0});
}

/* Host time of a call among others: what a program pays that enqueues layer after layer.
 * A call of the CPU is its own time. */
static ew_status measure_enqueue(bench *b, int entry)
{
    enum { CALLS = 16 }; /* so few that the queue does not fill */
    ewx_sampler *sampler = &b->sampler;
    ew_plan *plan = b->runners[entry].plan;
    double mine, all[EWX_MAX_RANKS];
    if (!plan || !sampler->backend->traits->enqueues)
        return EW_OK;
    ewx_sampler_use(sampler, &b->runners[entry]);
    start_apart(b, entry);
    EW_TRY(ew_world_barrier(sampler->world));
    const int64_t start_ns = ewx_now_ns();
    for (int i = 0; i < CALLS; i++)
        EW_TRY(ewx_sampler_enqueue(sampler, &b->runners[entry], NULL));
    mine = (double)(ewx_now_ns() - start_ns) * 1e-3 / CALLS;
    EW_TRY(ew_plan_wait(plan));
    EW_TRY(ew_world_allgather(sampler->world, &mine, all, sizeof mine));
    for (int rank = 0; rank < sampler->world->num_ranks; rank++)
        if (all[rank] > b->results[entry].enqueue_us)
            b->results[entry].enqueue_us = all[rank];
    return EW_OK;
}

/* A number below `count`, equal on all ranks for equal arguments. */
static int random_below(const bench *b, int round, int which, int count)
{
    const uint32_t salt = ewx_random_salt(b->options.seed + 0x5bd1e995u);
    const uint32_t h =
        ewx_mix(salt ^ ewx_mix((uint32_t)round * 0x85ebca77u + (uint32_t)which));
    return (int)(((uint64_t)h * (uint64_t)count) >> 32);
}

/* Whoever always ran behind the same one would inherit its heat and its caches. */
static void shuffle(bench *b, int round)
{
    for (int at = 0; at < b->count; at++) {
        const int to = random_below(b, round, at, at + 1);
        b->order[at] = b->order[to];
        b->order[to] = at;
    }
}

/* The same for all entries of a round, so that they can be compared. */
static ewx_sampling sampling_of(const bench *b, int round)
{
    enum { STEPS = 1 << 16 };
    ewx_sampling how = {.gate_ms = b->options.gate_ms};
    if (b->options.skew_us > 0)
        how.delay_ns =
            1 + (int64_t)(b->options.skew_us * 1e3 / STEPS *
                          random_below(b, round, -1 - b->sampler.world->rank, STEPS));
    return how;
}

static ew_status take_sample(bench *b, int entry, int iteration, ewx_sampling how)
{
    ew_bench_result *result = &b->results[entry];
    ewx_sample s = {0};
    bool kept = false;
    if (b->options.idle > 0)
        how.hold_ns = ewx_sampler_hold_ns(b->enqueue_ns, b->count, entry);
    do {
        EW_TRY(ewx_sampler_sample(&b->sampler, &b->runners[entry], how, &s, &kept));
        kept |= result->discarded >= GATE_TRIES * b->options.iters;
        result->discarded += !kept;
    } while (!kept);
    const size_t place = (size_t)entry * (size_t)b->options.iters + (size_t)iteration;
    b->samples[TOTAL][place] = (double)(s.end_ns - s.start_ns) * 1e-3;
    b->samples[GEMM][place] = (double)(s.gemm_end_ns - s.start_ns) * 1e-3;
    b->samples[TAIL][place] = (double)(s.end_ns - s.gemm_end_ns) * 1e-3;
    ewx_sampler_rest(&s, b->options.idle);
    return EW_OK;
}

static ew_status warm_up(bench *b, int entry, ewx_sampling how)
{
    ewx_sample s = {0};
    bool kept;
    EW_TRY(ewx_sampler_sample(&b->sampler, &b->runners[entry], how, &s, &kept));
    b->enqueue_ns[entry] = s.enqueue_ns; /* of the last one: the first loads kernels */
    ewx_sampler_rest(&s, b->options.idle);
    return EW_OK;
}

/* No call starts before its slowest rank has enqueued it. */
static ew_status agree_on_enqueue(bench *b, int entry)
{
    int64_t all[EWX_MAX_RANKS];
    EW_TRY(ew_world_allgather(b->sampler.world, &b->enqueue_ns[entry], all, sizeof *all));
    for (int rank = 0; rank < b->sampler.world->num_ranks; rank++)
        if (all[rank] > b->enqueue_ns[entry])
            b->enqueue_ns[entry] = all[rank];
    return EW_OK;
}

static ew_status run_round(bench *b, int round)
{
    const int iteration = round - b->options.warmup;
    const ewx_sampling how = sampling_of(b, round);
    int turn = 0;
    shuffle(b, round);
    for (int at = 0; at < b->count; at++) {
        const int entry = b->order[at];
        if (!is_active(b, entry))
            continue;
        EW_TRY(iteration < 0 ? warm_up(b, entry, how)
                             : take_sample(b, entry, iteration, how));
        if (iteration >= 0 && b->options.details)
            b->options.details[entry].turns[iteration] = turn;
        turn++;
    }
    return EW_OK;
}

/* ---- Graphs ---- */

typedef struct capture {
    bench *b;
    int entry;
} capture;

/* One call; the graph is launched once for each call that is wanted. */
static ew_status enqueue_call(void *context, ew_stream stream)
{
    const capture *c = context;
    return ewx_sampler_enqueue(&c->b->sampler, &c->b->runners[c->entry], stream);
}

static ew_status open_graph(bench *b, int entry)
{
    capture c = {b, entry};
    if (!is_active(b, entry) || !b->runners[entry].plan)
        return EW_OK;
    ewx_sampler_use(&b->sampler, &b->runners[entry]);
    start_apart(b, entry);
    EW_TRY(ew_world_barrier(b->sampler.world));
    const ew_status status = b->sampler.backend->graphs.open(
        b->runners[entry].plan->state, enqueue_call, &c, &b->graphs[entry]);
    return status == EW_ERR_UNSUPPORTED ? EW_OK : status;
}

static ew_status replay_graph(bench *b, int entry, double *us_out)
{
    double mine, all[EWX_MAX_RANKS];
    EW_TRY(ew_world_barrier(b->sampler.world));
    EW_TRY(
        b->sampler.backend->graphs.replay(b->graphs[entry], b->options.graph_calls, &mine));
    EW_TRY(ew_plan_wait(b->runners[entry].plan));
    EW_TRY(ew_world_allgather(b->sampler.world, &mine, all, sizeof mine));
    *us_out = 0;
    for (int rank = 0; rank < b->sampler.world->num_ranks; rank++)
        *us_out = fmax(*us_out, all[rank] / b->options.graph_calls);
    return EW_OK;
}

static ew_status replay_round(bench *b, int round)
{
    shuffle(b, round);
    for (int at = 0; at < b->count; at++) {
        const int entry = b->order[at];
        ew_bench_detail *detail = &b->options.details[entry];
        double us;
        if (!b->graphs[entry])
            continue;
        EW_TRY(replay_graph(b, entry, &us));
        if (round > 0) /* the first warms up */
            detail->graphs_us[detail->num_graphs++] = us;
    }
    return EW_OK;
}

static ew_status measure_graphs(bench *b)
{
    for (int entry = 0; entry < b->count; entry++) {
        b->options.details[entry].num_graphs = 0;
        EW_TRY(open_graph(b, entry));
    }
    for (int round = 0; round <= b->options.iters; round++)
        EW_TRY(replay_round(b, round));
    for (int entry = 0; entry < b->count; entry++) {
        ew_bench_detail *detail = &b->options.details[entry];
        if (detail->num_graphs > 0)
            detail->graph_us = median(detail->graphs_us, detail->num_graphs);
    }
    return EW_OK;
}

static ew_status run_all(bench *b)
{
    const ew_bench_options *options = &b->options;
    const int num_rounds = options->warmup + options->iters;
    EW_TRY(check_all(b));
    EW_TRY(load_inputs(b, false));
    for (int round = 0; round < num_rounds; round++) {
        for (int entry = 0; round == options->warmup && entry < b->count; entry++)
            EW_TRY(agree_on_enqueue(b, entry));
        EW_TRY(run_round(b, round));
        if (options->progress && b->sampler.world->rank == 0)
            options->progress(options->context, round + 1, num_rounds);
    }
    for (int entry = 0; entry < b->count; entry++)
        if (is_active(b, entry))
            EW_TRY(measure_enqueue(b, entry));
    if (options->details && options->graph_calls > 0)
        EW_TRY(measure_graphs(b));
    return check_all(b);
}

/* ---- Results ---- */

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

/* `samples` has those of all ranks, one rank after the other. */
static void fill_detail(const bench *b, int entry, const double *samples)
{
    const int count = b->options.iters, num_ranks = b->sampler.world->num_ranks;
    if (!b->options.details)
        return;
    ew_bench_detail *detail = &b->options.details[entry];
    for (int rank = 0; rank < num_ranks; rank++) {
        const double *ranks = samples + (size_t)rank * (size_t)count;
        detail->ranks_us[rank] = median(ranks, count);
        for (int i = 0; i < count; i++)
            if (rank == 0 || ranks[i] > detail->calls_us[i])
                detail->calls_us[i] = ranks[i];
    }
}

/* The slowest rank's samples become everyone's. */
static ew_status share_samples(const bench *b, int entry, int slowest)
{
    const int count = b->options.iters;
    const size_t bytes = (size_t)count * sizeof(double);
    ew_bench_result *result = &b->results[entry];
    double *samples = malloc(bytes * (size_t)b->sampler.world->num_ranks);
    if (!samples)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %d samples", count);
    const ew_status status = ew_world_allgather(
        b->sampler.world, &b->samples[TOTAL][(size_t)entry * (size_t)count], samples,
        bytes);
    memcpy(result->samples_us, samples + (size_t)slowest * (size_t)count, bytes);
    fill_detail(b, entry, samples);
    free(samples);
    return status;
}

/* The slowest rank's figures become everyone's. */
static ew_status summarise(bench *b, int entry)
{
    const int count = b->options.iters, num_ranks = b->sampler.world->num_ranks;
    const size_t first = (size_t)entry * (size_t)count;
    double mine[NUM_PARTS], all[EWX_MAX_RANKS][NUM_PARTS];
    for (int part = 0; part < NUM_PARTS; part++)
        mine[part] = median(&b->samples[part][first], count);
    EW_TRY(ew_world_allgather(b->sampler.world, mine, all, sizeof mine));
    int slowest = 0;
    double gemm_us = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        if (all[rank][TOTAL] > all[slowest][TOTAL])
            slowest = rank;
        if (all[rank][GEMM] > gemm_us)
            gemm_us = all[rank][GEMM];
    }
    EW_TRY(share_samples(b, entry, slowest));
    ew_bench_result *result = &b->results[entry];
    result->num_samples = count;
    result->time_us = all[slowest][TOTAL];
    result->gemm_us = gemm_us;
    result->tail_us = all[slowest][TAIL];
    result->cv = variation(result->samples_us, count);
    return EW_OK;
}

/* ---- Set-up ---- */

/* The form that the entry is named for; a GPU's plan knows from which m on fusing pays, and
 * keeps that choice. */
static void set_form(const ewx_traits *traits, ew_bench_layer layer, ew_config *config)
{
    if (layer == EW_BENCH_FOLLOWING)
        config->epilogue = EW_EPILOGUE_AFTER;
    else if (layer == EW_BENCH_SEPARATE)
        config->epilogue = EW_EPILOGUE_SEPARATE;
    else if (!traits->is_gpu)
        config->epilogue = EW_EPILOGUE_FUSED;
}

static ew_status check_epilogue(const ewx_sampler *sampler)
{
    if (sampler->backend->traits->simulated)
        return ewx_fail(EW_ERR_UNSUPPORTED, "the simulator knows no epilogue");
    if (ewx_op_of(sampler->problem)->gemm_waits)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%s has no epilogue, since it adds up nothing\n"
                        "  fix: measure it without",
                        ew_op_name(sampler->problem->op));
    return EW_OK;
}

/* Only the first 64 entries have a bit. */
static bool wants_symmetric(const bench *b, int entry)
{
    return entry < 64 && b->options.symmetric >> entry & 1;
}

static ew_status open_entry(bench *b, int entry)
{
    ew_bench_result *result = &b->results[entry];
    ewx_runner *runner = &b->runners[entry];
    memset(result, 0, sizeof *result);
    *runner = (ewx_runner){NULL, b->entries[entry].custom, b->entries[entry].label,
                           b->entries[entry].layer, wants_symmetric(b, entry)};
    if (runner->symmetric)
        EW_TRY(ewx_sampler_open_symmetric(&b->sampler));
    if (runner->custom)
        return EW_OK;
    ew_config formed;
    const ew_config *config = &b->entries[entry].config;
    if (runner->layer && ewx_config_take(&formed, config) == EW_OK) {
        set_form(b->sampler.backend->traits, runner->layer, &formed);
        config = &formed;
    }
    result->status =
        ew_plan_create(b->sampler.world, b->sampler.problem, config, &runner->plan);
    if (result->status == EW_OK && runner->layer)
        result->status = check_epilogue(&b->sampler);
    if (result->status == EW_OK) {
        result->config = (ew_config)EW_CONFIG_INIT;
        EW_TRY(ew_plan_config(runner->plan, &result->config));
        if (b->options.details)
            runner->plan->backend->describe(runner->plan->state,
                                            b->options.details[entry].note,
                                            sizeof b->options.details[entry].note);
        return ew_plan_start_together(runner->plan);
    }
    strncpy(result->error, ew_last_error(), sizeof result->error - 1);
    return ewx_sampler_refuses(result->status) ? EW_OK : result->status;
}

static ew_status allocate_all(bench *b)
{
    const size_t num_samples = (size_t)b->count * (size_t)b->options.iters;
    b->runners = calloc((size_t)b->count, sizeof *b->runners);
    b->order = calloc((size_t)b->count, sizeof *b->order);
    b->graphs = calloc((size_t)b->count, sizeof *b->graphs);
    b->enqueue_ns = calloc((size_t)b->count, sizeof *b->enqueue_ns);
    bool enough = b->runners && b->order && b->graphs && b->enqueue_ns;
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
    for (int entry = 0; b->graphs && entry < b->count; entry++)
        if (b->graphs[entry])
            b->sampler.backend->graphs.close(b->graphs[entry]);
    for (int entry = 0; b->runners && entry < b->count; entry++)
        ew_plan_destroy(b->runners[entry].plan);
    for (int part = 0; part < NUM_PARTS; part++)
        free(b->samples[part]);
    free(b->enqueue_ns);
    free(b->graphs);
    free(b->order);
    free(b->runners);
    ewx_sampler_close(&b->sampler);
}

/* Times become whole nanoseconds; longer ones would never be over. */
#define MOST_OF_A_TIME 1e6

static ew_status check_times(const ew_bench_options *options)
{
    const struct {
        const char *name;
        double value;
    } times[] = {{"gate_ms", options->gate_ms},
                 {"idle", options->idle},
                 {"skew_us", options->skew_us}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++)
        if (!(times[i].value >= 0 && times[i].value <= MOST_OF_A_TIME))
            return ewx_fail(EW_ERR_ARGUMENT,
                            "the benchmark's %s=%g is out of range\n"
                            "  fix: use 0 (off) to %g",
                            times[i].name, times[i].value, MOST_OF_A_TIME);
    return EW_OK;
}

static ew_status check_layers(const ew_bench_entry *entries, int count)
{
    for (int entry = 0; entry < count; entry++)
        if ((int)entries[entry].layer < EW_BENCH_BARE ||
            entries[entry].layer > EW_BENCH_SEPARATE)
            return ewx_fail(EW_ERR_ARGUMENT,
                            "layer %d of entry %d is unknown\n"
                            "  fix: use an EW_BENCH_... value",
                            (int)entries[entry].layer, entry);
    return EW_OK;
}

static ew_status check_options(const ew_problem *problem, const ew_bench_options *options,
                               const ewx_backend *backend)
{
    EW_TRY(check_times(options));
    if (options->graph_calls < 0)
        return ewx_fail(EW_ERR_ARGUMENT, "%d calls of a graph\n  fix: use 0 (off) or more",
                        options->graph_calls);
    if (options->iters < 1 || options->iters > EW_BENCH_MAX_SAMPLES || options->warmup < 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "iters=%d or warmup=%d is out of range\n"
                        "  fix: use 1 to %d iterations and 0 or more warm-ups",
                        options->iters, options->warmup, EW_BENCH_MAX_SAMPLES);
    if (options->skew_us > 0 && backend->traits->simulated)
        return ewx_fail(EW_ERR_UNSUPPORTED, "the simulator starts all ranks at one time\n"
                                            "  fix: leave the skew out");
    if (options->m < 0 || options->m > problem->max_m)
        return ewx_fail(EW_ERR_SHAPE,
                        "m=%lld is outside 0..%lld\n"
                        "  fix: use at most the problem's max_m, or 0 for that",
                        (long long)options->m, (long long)problem->max_m);
    return EW_OK;
}

static ew_status find_backend(const ew_bench_entry *entries, int count,
                              const ewx_backend **backend_out)
{
    const ewx_backend *found = NULL;
    for (int entry = 0; entry < count; entry++) {
        const ewx_backend *wanted;
        EW_TRY(ewx_backend_find(entries[entry].custom ? (ew_backend)0
                                                      : entries[entry].config.backend,
                                &wanted));
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
    if (!world || !entries || !results || count < 1)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_bench_run needs a world, entries and a place for results");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_bench_run"));
    const ewx_backend *backend = NULL;
    ew_forecast forecast; /* refuses a bad problem before anything is allocated */
    ew_problem asked;
    bench b = {.entries = entries, .results = results, .count = count};
    EW_TRY(find_backend(entries, count, &backend));
    EW_TRY(ewx_problem_take(&asked, problem));
    EW_TRY(ew_forecast_build(&asked, ew_world_size(world), NULL, &forecast));
    EW_TRY(ewx_struct_take(&b.options, sizeof b.options, options ? options : &defaults,
                           EWX_FIRST_BENCH_OPTIONS, "the benchmark's options",
                           "EW_BENCH_OPTIONS_INIT"));
    EW_TRY(check_options(&asked, &b.options, backend));
    EW_TRY(check_layers(entries, count));
    const int64_t rows = b.options.m > 0 ? b.options.m : asked.max_m;
    ew_status status = EW_OK;
    EW_TRY_TO(status,
              ewx_sampler_open(&b.sampler, world, &asked, backend, rows, b.options.seed),
              out);
    EW_TRY_TO(status, allocate_all(&b), out);
    for (int entry = 0; entry < count; entry++) {
        if (entries[entry].layer && !b.sampler.residual)
            EW_TRY_TO(status, ewx_sampler_open_layer(&b.sampler), out);
        EW_TRY_TO(status, open_entry(&b, entry), out);
    }
    EW_TRY_TO(status, run_all(&b), out);
    for (int entry = 0; entry < count; entry++)
        if (is_active(&b, entry))
            EW_TRY_TO(status, summarise(&b, entry), out);
out:
    close_all(&b);
    return status;
}
