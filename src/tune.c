/* The tuner: rounds of candidates around the best config so far, each round one benchmark
 * whose entries alternate sample by sample.  Results are equal on all ranks, so all ranks
 * take the same decisions; only what depends on a clock or on the caller is rank 0's. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/status.h"
#include "plan/tuning.h"

#define MOST_CANDIDATES 10 /* of a round, the best and the built-in choice among them */
#define ROUND_SAMPLES 5
#define LAST_ROUND_FACTOR 3
#define GAIN_WANTED 0.99 /* a smaller gain is noise, and the next tuning would flip it */

typedef struct search {
    ew_world *world;
    const ew_problem *problem;
    const ewx_backend *backend;
    ew_tune_options options;
    ewx_machine machine;
    ew_config built_in, best;
    double built_in_us, best_us;
    ew_config candidates[MOST_CANDIDATES];
    int count;
    int num_measured, num_refused;
    int64_t started_ns;
    ew_bench_result *results;
} search;

/* ---- Candidates ---- */

static bool same_config(const ew_config *a, const ew_config *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static void add(search *s, const ew_config *config)
{
    for (int i = 0; i < s->count; i++)
        if (same_config(&s->candidates[i], config))
            return;
    if (s->count < MOST_CANDIDATES)
        s->candidates[s->count++] = *config;
}

static void vary_block(search *s)
{
    static const int32_t cpu_cols[] = {128, 256, 512, 1024};
    static const struct {
        int32_t cols, cluster;
        ew_ctas ctas;
    } gpu[] = {{256, 1, EW_CTAS_PERSISTENT},
               {256, 2, EW_CTAS_PERSISTENT},
               {128, 1, EW_CTAS_PERSISTENT},
               {128, 1, EW_CTAS_BLOCK},
               {256, 1, EW_CTAS_BLOCK}};
    ew_config config = s->best;
    if (s->built_in.backend != EW_BACKEND_CUDA) {
        for (size_t i = 0; i < sizeof cpu_cols / sizeof cpu_cols[0]; i++) {
            config.block_n = cpu_cols[i];
            add(s, &config);
        }
        return;
    }
    for (size_t i = 0; i < sizeof gpu / sizeof gpu[0]; i++) {
        config.block_n = gpu[i].cols;
        config.cluster = gpu[i].cluster;
        config.ctas = gpu[i].ctas;
        add(s, &config);
    }
}

static void vary_walk(search *s)
{
    ew_config config = s->best;
    config.group = s->best.group > 1 ? s->best.group / 2 : 1;
    for (; config.group <= 4 * s->best.group; config.group *= 2)
        add(s, &config);
}

static void vary_budget(search *s)
{
    static const int32_t batches[] = {1, 2, 4};
    ew_config config = s->best;
    if (s->built_in.backend != EW_BACKEND_CUDA) {
        for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
            for (int32_t x = 1; x <= s->best.workers; x *= 2) {
                config.batch = batches[i];
                config.budget = x;
                add(s, &config);
            }
        return;
    }
    const int32_t sms = s->machine.gpu_sms;
    const int32_t pairs[][2] = {{sms, 256},     {sms, 128},     {2 * sms, 128},
                                {sms / 2, 256}, {sms / 2, 512}, {sms / 4, 512},
                                {sms, 512}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        config.budget = pairs[i][0] > 0 ? pairs[i][0] : 1;
        config.batch = pairs[i][1];
        add(s, &config);
    }
}

static void vary_nothing(search *s)
{
    (void)s; /* the best against the built-in choice */
}

static const struct {
    void (*vary)(search *s);
    int32_t samples_factor;
} rounds[] = {
    {vary_block, 1}, {vary_walk, 1}, {vary_budget, 1}, {vary_nothing, LAST_ROUND_FACTOR}};
enum { NUM_ROUNDS = sizeof rounds / sizeof rounds[0] };

/* ---- Rounds ---- */

static ew_status measure_candidates(search *s, int32_t samples)
{
    ew_bench_options options = EW_BENCH_OPTIONS_INIT;
    ew_bench_entry entries[MOST_CANDIDATES];
    options.warmup = 1;
    options.iters = samples;
    options.seed = s->options.seed;
    options.idle = s->built_in.backend == EW_BACKEND_CUDA ? 1.0 : 0.0;
    for (int i = 0; i < s->count; i++)
        entries[i] = (ew_bench_entry){"candidate", s->candidates[i], NULL};
    return ew_bench_run(s->world, s->problem, &options, entries, s->count, s->results);
}

/* The best of a round replaces the best so far, whose time in the same round counts. */
static ew_status judge_round(search *s)
{
    double best_us = 0;
    for (int i = 0; i < s->count; i++) {
        const ew_bench_result *result = &s->results[i];
        if (result->status != EW_OK) {
            s->num_refused++;
            continue;
        }
        if (result->check.wrong > 0)
            return ewx_fail(EW_ERR_SYSTEM,
                            "a candidate gave %lld wrong values: nothing was tuned",
                            (long long)result->check.wrong);
        s->num_measured++;
        if (same_config(&s->candidates[i], &s->built_in))
            s->built_in_us = result->time_us;
        if (best_us == 0 || result->time_us < best_us) {
            best_us = result->time_us;
            s->best = s->candidates[i];
        }
    }
    s->best_us = best_us;
    return EW_OK;
}

static ew_status run_round(search *s, int number)
{
    const int32_t samples = s->options.samples > 0 ? s->options.samples : ROUND_SAMPLES;
    s->count = 0;
    add(s, &s->built_in);
    add(s, &s->best);
    rounds[number].vary(s);
    EW_TRY(measure_candidates(
        s, (int32_t)ewx_min64((int64_t)samples * rounds[number].samples_factor,
                              EW_BENCH_MAX_SAMPLES)));
    return judge_round(s);
}

/* Whether to go on is rank 0's to say: its clock, its caller. */
static ew_status ask_rank_0(search *s, int number, bool *go_on)
{
    char config[EW_CONFIG_TEXT_BYTES];
    int32_t stop = 0, all[EWX_MAX_RANKS];
    if (s->world->rank == 0) {
        const double spent_s = (double)(ewx_now_ns() - s->started_ns) * 1e-9;
        EW_TRY(ew_config_print(&s->best, config, sizeof config));
        if (s->options.progress &&
            s->options.progress(s->options.context, number + 1, NUM_ROUNDS, config,
                                s->best_us, s->built_in_us) != 0)
            stop = 1;
        /* A round more would take about as long as one did on average. */
        if (s->options.budget_s > 0 &&
            spent_s * (number + 2) / (number + 1) > s->options.budget_s)
            stop = 1;
    }
    EW_TRY(ew_world_allgather(s->world, &stop, all, sizeof stop));
    *go_on = all[0] == 0;
    return EW_OK;
}

static ew_status run_rounds(search *s, bool *complete)
{
    *complete = true;
    for (int number = 0; number < NUM_ROUNDS && *complete; number++) {
        EW_TRY(run_round(s, number));
        bool go_on;
        EW_TRY(ask_rank_0(s, number, &go_on));
        *complete = go_on || number == NUM_ROUNDS - 1;
    }
    if (s->best_us > GAIN_WANTED * s->built_in_us) {
        s->best = s->built_in;
        s->best_us = s->built_in_us;
    }
    return EW_OK;
}

/* ---- The whole ---- */

static ew_status begin(search *s, ew_backend backend)
{
    ewx_spec spec;
    ew_config request = EW_CONFIG_INIT;
    request.backend = backend;
    EW_TRY(ewx_backend_find(backend, &s->backend));
    EW_TRY(ewx_problem_check(s->problem, s->world->num_ranks));
    EW_TRY(s->backend->survey(s->world, s->world->num_ranks, &s->machine));
    EW_TRY(ewx_spec_build(s->problem, s->world->num_ranks, &request, &s->machine, &spec));
    EW_TRY(s->backend->check(&spec));
    s->built_in = s->best = spec.config;
    s->started_ns = ewx_now_ns();
    return EW_OK;
}

static ew_status store(const search *s, const ew_tuning *tuning)
{
    const ew_status status =
        s->options.store && s->world->rank == 0 ? ew_tuning_store(tuning) : EW_OK;
    return ewx_world_agree(s->world, status, "store the tuning entry");
}

ew_status ew_tune(ew_world *world, const ew_problem *problem, ew_backend backend,
                  const ew_tune_options *options, ew_tune_result *result_out)
{
    const ew_tune_options defaults = EW_TUNE_OPTIONS_INIT;
    if (!world || !problem || !result_out ||
        (options && options->struct_size < sizeof *options))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_tune needs a world, a problem and a place for its result\n"
                        "  fix: initialise the options with EW_TUNE_OPTIONS_INIT");
    search s = {
        .world = world, .problem = problem, .options = options ? *options : defaults};
    ew_tune_result result = {0};
    bool complete = false;
    EW_TRY(ewx_world_agree(world, begin(&s, backend), "tune"));
    s.results = calloc(MOST_CANDIDATES, sizeof *s.results);
    ew_status status =
        s.results ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for the candidates");
    status = ewx_world_agree(world, status, "tune");
    if (status == EW_OK)
        status = run_rounds(&s, &complete);
    free(s.results);
    EW_TRY(status);
    ewx_text key = ewx_text_in(result.tuning.key, sizeof result.tuning.key);
    ewx_tuning_key(problem, world->num_ranks, s.built_in.backend, s.machine.device,
                   ewx_tuning_bucket(problem->max_m), &key);
    result.tuning.config = s.best;
    result.tuning.time_us = s.best_us;
    result.tuning.default_us = s.built_in_us;
    result.tuning.when = (int64_t)time(NULL);
    result.num_candidates = s.num_measured;
    result.num_refused = s.num_refused;
    result.complete = complete;
    EW_TRY(store(&s, &result.tuning));
    *result_out = result;
    return EW_OK;
}
