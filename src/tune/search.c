/* Heats and rounds. */
#include "tune/search.h"

#include <string.h>

#include "base/clock.h"
#include "base/status.h"

#define GAIN_WANTED 0.99 /* a smaller gain is noise, and the next tuning would flip it */
_Static_assert(EWX_RACE_MOST == EW_TUNE_PLANS, "one plan for each candidate of a heat");

/* ---- Candidates ---- */

static bool same_config(const ew_config *a, const ew_config *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

ew_status ewx_search_choose(const ewx_search *s, const ew_config *request,
                            ew_config *config_out)
{
    ewx_spec spec;
    EW_TRY(ewx_spec_build(s->sampler.problem, s->space.num_ranks, request,
                          &s->space.machine, &spec));
    EW_TRY(s->sampler.backend->check(&spec));
    *config_out = spec.config;
    return EW_OK;
}

static bool is_new(ewx_search *s, const ew_config *config)
{
    for (int i = 0; i < s->num_seen; i++)
        if (same_config(&s->seen[i], config))
            return false;
    s->seen[s->num_seen++] = *config;
    return true;
}

/* The values of a knob that differ from all that was seen before. */
static int list_candidates(ewx_search *s, int knob, ewx_candidate *found)
{
    ew_config requests[EWX_KNOB_VALUES];
    const int num_requests =
        ewx_candidate_vary(&s->space, knob, &s->best.request, &s->best.config, requests);
    int count = 0;
    for (int i = 0; i < num_requests; i++) {
        ewx_candidate c = {.request = requests[i]};
        if (ewx_search_choose(s, &c.request, &c.config) != EW_OK)
            s->num_refused++;
        else if (is_new(s, &c.config))
            found[count++] = c;
    }
    return count;
}

/* What rank 0's planner says; then all ranks do the same. */
static ew_status plan_candidates(ewx_search *s, ewx_candidate *found, int *count)
{
    double mine[EWX_KNOB_VALUES + 1] = {0}, all[EWX_MAX_RANKS][EWX_KNOB_VALUES + 1];
    ewx_candidate unsorted[EWX_KNOB_VALUES];
    int order[EWX_KNOB_VALUES];
    if (s->planner.ready && *count > 0)
        mine[*count] = ewx_presort_time_us(&s->planner, &s->best.config);
    for (int i = 0; i < *count && s->planner.ready; i++)
        mine[i] = ewx_presort_time_us(&s->planner, &found[i].config);
    EW_TRY(ew_world_allgather(s->sampler.world, mine, all, sizeof mine));
    memcpy(unsorted, found, (size_t)*count * sizeof *found);
    const int kept = ewx_presort_rank(all[0], *count, all[0][*count], order);
    for (int i = 0; i < kept; i++)
        found[i] = unsorted[order[i]];
    s->num_left_out += *count - kept;
    *count = kept;
    return EW_OK;
}

/* ---- Plans ---- */

static void close_plan(ewx_candidate *c)
{
    ew_plan_destroy(c->plan);
    c->plan = NULL;
}

static ew_status open_plan(ewx_search *s, ewx_candidate *c)
{
    EW_TRY(ew_plan_create(s->sampler.world, s->sampler.problem, &c->config, &c->plan));
    const ew_status status = ew_plan_start_together(c->plan);
    if (status != EW_OK)
        close_plan(c);
    return status;
}

static ew_status check_values(ewx_search *s, ewx_candidate *c)
{
    const ewx_runner runner = {.plan = c->plan};
    char config[EW_CONFIG_TEXT_BYTES];
    ew_check check = {0};
    EW_TRY(ewx_sampler_bind(&s->sampler, &runner));
    EW_TRY(ewx_sampler_check(&s->sampler, &runner, &check));
    if (check.wrong == 0)
        return EW_OK;
    EW_TRY(ew_config_print(&c->config, config, sizeof config));
    return ewx_fail(EW_ERR_SYSTEM,
                    "a candidate gave %lld wrong values: nothing was tuned\n"
                    "  fix: report it, with its config: %s",
                    (long long)check.wrong, config);
}

/* Fills the heat behind its first from `queue`: those that this machine can run, and as
 * many as memory holds.  Returns how many of the queue are dealt with. */
static ew_status open_heat(ewx_search *s, ewx_candidate *queue, int count, int *taken_out)
{
    int taken = 0;
    while (taken < count && s->heat_count < EW_TUNE_PLANS) {
        ewx_candidate *next = &s->heat[s->heat_count];
        *next = queue[taken];
        const ew_status status = open_plan(s, next);
        if (status == EW_ERR_MEMORY && s->heat_count > 1)
            break; /* the next heat has room */
        taken++;
        if (status == EW_OK)
            s->heat_count++;
        else if (ewx_sampler_refuses(status))
            s->num_refused++;
        else
            return status;
    }
    *taken_out = taken;
    return EW_OK;
}

/* ---- Heats ---- */

/* A call takes as long as its slowest rank. */
static ew_status time_call(void *context, int racer, double *us_out)
{
    ewx_search *s = context;
    const ewx_runner runner = {.plan = s->heat[racer].plan};
    struct {
        double us;
        int64_t enqueue_ns;
    } mine, all[EWX_MAX_RANKS];
    ewx_sampling how = {0};
    ewx_sample sample = {0};
    bool kept;
    for (int other = 0; other < s->heat_count; other++)
        if (s->race.racers[other].out)
            s->enqueue_ns[other] = 0;
    if (s->race.idle > 0)
        how.hold_ns = ewx_sampler_hold_ns(s->enqueue_ns, s->heat_count, racer);
    EW_TRY(ewx_sampler_sample(&s->sampler, &runner, how, &sample, &kept));
    s->num_calls++;
    mine.us = (double)(sample.end_ns - sample.start_ns) * 1e-3;
    mine.enqueue_ns = sample.enqueue_ns;
    EW_TRY(ew_world_allgather(s->sampler.world, &mine, all, sizeof mine));
    *us_out = 0;
    s->enqueue_ns[racer] = 0;
    for (int rank = 0; rank < s->space.num_ranks; rank++) {
        *us_out = all[rank].us > *us_out ? all[rank].us : *us_out;
        if (all[rank].enqueue_ns > s->enqueue_ns[racer])
            s->enqueue_ns[racer] = all[rank].enqueue_ns;
    }
    ewx_sampler_rest(&sample, s->race.idle);
    return EW_OK;
}

/* Checks the heat from `first_new` on, then lets all of it race. */
static ew_status race_heat(ewx_search *s, int first_new, bool whole)
{
    const bool is_gpu = s->sampler.backend->traits->is_gpu;
    if (first_new < s->heat_count) {
        EW_TRY(ewx_sampler_load(&s->sampler, true));
        for (int i = first_new; i < s->heat_count; i++)
            EW_TRY(check_values(s, &s->heat[i]));
        EW_TRY(ewx_sampler_load(&s->sampler, false));
    }
    for (int i = 0; i < s->heat_count; i++)
        EW_TRY(ewx_sampler_bind(&s->sampler, &(ewx_runner){.plan = s->heat[i].plan}));
    memset(s->enqueue_ns, 0, sizeof s->enqueue_ns);
    s->race.count = s->heat_count;
    s->race.lap = s->options.samples;
    s->race.idle = is_gpu ? 1.0 : 0.0;
    s->race.lap_us = is_gpu ? 10e3 : 100e3; /* GPUs' calls of 1 ms scatter by 0.6 % */
    s->race.whole = whole;
    return ewx_race_run(&s->race, time_call, s);
}

/* The heat's place `kept` becomes the best; the others' plans are closed. */
static void end_heat(ewx_search *s, int kept)
{
    for (int i = 0; i < s->heat_count; i++)
        if (i != kept)
            close_plan(&s->heat[i]);
    s->best = s->heat[kept];
    s->best_us = s->race.racers[kept].time_us;
    s->heat_count = 0;
}

/* Another heat, and the last comparison, must fit. */
static bool is_spent(const ewx_search *s, int64_t now_ns)
{
    const ew_tune_options *options = &s->options;
    return (options->budget_s > 0 &&
            (double)(now_ns - s->started_ns + 2 * s->heat_ns) * 1e-9 > options->budget_s) ||
           (options->budget_calls > 0 &&
            s->num_calls + 2 * s->heat_calls > options->budget_calls);
}

/* Time is rank 0's to measure. */
static ew_status mind_the_budget(ewx_search *s, int64_t heat_started_ns,
                                 int64_t calls_before)
{
    int32_t stop, all[EWX_MAX_RANKS];
    const int64_t now_ns = ewx_now_ns(), calls = s->num_calls - calls_before;
    if (now_ns - heat_started_ns > s->heat_ns)
        s->heat_ns = now_ns - heat_started_ns;
    if (calls > s->heat_calls)
        s->heat_calls = calls;
    stop = is_spent(s, now_ns);
    EW_TRY(ew_world_allgather(s->sampler.world, &stop, all, sizeof stop));
    s->stopped |= all[0] != 0;
    return EW_OK;
}

static ew_status run_heat(ewx_search *s, ewx_candidate *queue, int count, int *taken_out)
{
    const int64_t started_ns = ewx_now_ns(), calls_before = s->num_calls;
    const bool is_first = s->best_us == 0;
    s->heat[0] = s->best;
    s->best.plan = NULL; /* the heat's now */
    s->heat_count = 1;
    EW_TRY(open_heat(s, queue, count, taken_out));
    s->num_measured += s->heat_count - !is_first;
    EW_TRY(race_heat(s, is_first ? 0 : 1, false));
    if (is_first)
        s->built_in_us = s->race.racers[0].time_us;
    end_heat(s, ewx_race_winner(&s->race));
    return mind_the_budget(s, started_ns, calls_before);
}

/* ---- Rounds ---- */

/* What the caller says is rank 0's too. */
static ew_status report_round(ewx_search *s)
{
    char config[EW_CONFIG_TEXT_BYTES];
    int32_t stop = 0, all[EWX_MAX_RANKS];
    s->round++;
    EW_TRY(ew_config_print(&s->best.config, config, sizeof config));
    if (s->options.progress && s->sampler.world->rank == 0)
        stop = s->options.progress(s->options.context, s->round, s->num_rounds, config,
                                   s->best_us, s->built_in_us) != 0;
    EW_TRY(ew_world_allgather(s->sampler.world, &stop, all, sizeof stop));
    s->stopped |= all[0] != 0;
    return EW_OK;
}

static ew_status run_round(ewx_search *s, int knob)
{
    ewx_candidate found[EWX_KNOB_VALUES];
    int count = list_candidates(s, knob, found), done = 0, taken;
    EW_TRY(plan_candidates(s, found, &count));
    for (; (done < count || s->best_us == 0) && !s->stopped; done += taken)
        EW_TRY(run_heat(s, found + done, count - done, &taken));
    s->cut_short |= done < count;
    return report_round(s);
}

/* The best against the built-in choice, with more calls: a gain must be confirmed. */
static ew_status confirm(ewx_search *s)
{
    if (same_config(&s->best.config, &s->built_in.config)) {
        s->best_us = s->built_in_us;
        return report_round(s);
    }
    s->heat[1] = s->best;
    s->best.plan = NULL;
    s->heat[0] = s->built_in;
    s->heat_count = 2;
    EW_TRY(open_plan(s, &s->heat[0]));
    EW_TRY(race_heat(s, s->heat_count, true));
    s->built_in_us = s->race.racers[0].time_us;
    end_heat(s, s->race.racers[1].time_us < GAIN_WANTED * s->built_in_us);
    return report_round(s);
}

ew_status ewx_search_run(ewx_search *s)
{
    int taken;
    for (int knob = 0; knob < EWX_KNOBS; knob++)
        s->num_rounds += ewx_candidate_applies(&s->space, knob);
    s->num_rounds++;
    s->best = s->built_in;
    (void)is_new(s, &s->best.config);
    s->started_ns = ewx_now_ns();
    EW_TRY(open_plan(s, &s->best));
    for (int knob = 0; knob < EWX_KNOBS; knob++) {
        if (!ewx_candidate_applies(&s->space, knob))
            continue;
        if (s->stopped)
            s->cut_short = true;
        else
            EW_TRY(run_round(s, knob));
    }
    if (s->best_us == 0) /* there is nothing to vary */
        EW_TRY(run_heat(s, NULL, 0, &taken));
    return confirm(s);
}

void ewx_search_close(ewx_search *s)
{
    for (int i = 0; i < s->heat_count; i++)
        close_plan(&s->heat[i]);
    close_plan(&s->best);
}
