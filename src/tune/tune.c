/* The tuner's public side: whose knobs are turned, what becomes of the result. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cores.h"
#include "base/status.h"
#include "base/versioned.h"
#include "plan/tuning.h"
#include "tune/search.h"

ew_status ew_tuning_key(const ew_problem *problem, int num_ranks, ew_backend backend,
                        char *text, size_t bytes)
{
    const ewx_backend *found;
    ewx_machine machine = {.cores = ewx_usable_cores()};
    ew_problem asked;
    if (!text)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_tuning_key needs a buffer");
    EW_TRY(ewx_backend_find(backend, &found));
    EW_TRY(ewx_problem_take(&asked, problem));
    EW_TRY(ewx_problem_check(&asked, num_ranks));
    EW_TRY(found->survey(NULL, num_ranks, &machine));
    ewx_text key = ewx_text_in(text, bytes);
    ewx_tuning_key(&asked, num_ranks, found->traits->id, machine.device,
                   ewx_tuning_bucket(asked.max_m), &key);
    return key.truncated ? ewx_fail(EW_ERR_ARGUMENT,
                                    "%zu bytes are too few for a key\n"
                                    "  fix: use EW_TUNING_KEY_BYTES",
                                    bytes)
                         : EW_OK;
}

static ew_status begin(ewx_search *s, const ew_config *fixed)
{
    ew_config wish;
    const char *method = s->options.method;
    EW_TRY(ewx_config_take(&wish, fixed));
    ew_config base = wish;
    if (method)
        EW_TRY(ew_method_config(method, &wish, &base));
    s->space.fixed = base;
    if (base.release > 0 && !wish.release) /* a method's group, of a size to be found */
        s->space.fixed.release = 0;
    EW_TRY(ewx_backend_find(base.backend, &s->sampler.backend));
    EW_TRY(ewx_problem_check(s->sampler.problem, s->space.num_ranks));
    EW_TRY(s->sampler.backend->survey(s->sampler.world, s->space.num_ranks,
                                      &s->space.machine));
    s->built_in.request = base;
    EW_TRY(ewx_search_choose(s, &base, &s->built_in.config));
    s->space.built_in = s->built_in.config;
    if (s->sampler.world->rank == 0) { /* the others may have other files */
        ewx_presort_open(&s->planner, s->sampler.problem, s->space.num_ranks,
                         s->built_in.config.backend, &s->space.machine);
        s->planner.link_gbs = s->sampler.world->link_gbps / 8;
        s->planner.link_us = (double)s->sampler.world->link_latency_ns * 1e-3;
        s->planner.link_header_bytes = s->sampler.world->link_header_bytes;
    }
    return EW_OK;
}

static ew_status share_profile(ewx_search *s)
{
    char all[EWX_MAX_RANKS][EWX_SIM_NAME_BYTES];
    char mine[EWX_SIM_NAME_BYTES] = "";
    if (s->planner.ready)
        memcpy(mine, s->planner.profile.name, sizeof mine);
    EW_TRY(ew_world_allgather(s->sampler.world, mine, all, sizeof mine));
    memcpy(s->profile, all[0], sizeof s->profile);
    return EW_OK;
}

static void fill_result(const ewx_search *s, ew_tune_result *result)
{
    ew_tuning *tuning = &result->tuning;
    ewx_text key = ewx_text_in(tuning->key, sizeof tuning->key);
    ewx_tuning_key(s->sampler.problem, s->space.num_ranks, s->built_in.config.backend,
                   s->space.machine.device, ewx_tuning_bucket(s->sampler.problem->max_m),
                   &key);
    tuning->config = s->best.config;
    tuning->time_us = s->best_us;
    tuning->default_us = s->built_in_us;
    tuning->when = (int64_t)time(NULL);
    result->num_candidates = s->num_measured;
    result->num_refused = s->num_refused;
    result->complete = !s->cut_short;
    result->num_left_out = s->num_left_out;
    memcpy(result->profile, s->profile, sizeof result->profile);
    memcpy(tuning->profile, s->profile, sizeof tuning->profile);
}

/* An entry speaks for plans that leave everything open, on the machine as it is. */
static ew_status store(const ewx_search *s, ew_tune_result *result)
{
    result->stored = s->options.store && ewx_tuning_serves(&s->built_in.request) &&
                     s->sampler.world->link_gbps <= 0;
    const ew_status status = result->stored && s->sampler.world->rank == 0
                                 ? ew_tuning_store(&result->tuning)
                                 : EW_OK;
    return ewx_world_agree(s->sampler.world, status, "store the tuning entry");
}

static ew_status tune(ewx_search *s, const ew_config *fixed, ew_tune_result *result)
{
    ew_world *world = s->sampler.world;
    const ew_problem *problem = s->sampler.problem;
    EW_TRY(ewx_world_agree(world, begin(s, fixed), "tune"));
    EW_TRY(share_profile(s));
    ew_status status = ewx_sampler_open(&s->sampler, world, problem, s->sampler.backend,
                                        problem->max_m, s->options.seed);
    status = ewx_world_agree(world, status, "allocate the matrices");
    if (status == EW_OK)
        status = ewx_search_run(s);
    ewx_search_close(s);
    ewx_sampler_close(&s->sampler);
    EW_TRY(status);
    fill_result(s, result);
    if (s->options.effort)
        *s->options.effort =
            (ew_tune_effort){s->num_calls, (double)(ewx_now_ns() - s->started_ns) * 1e-9};
    return store(s, result);
}

ew_status ew_tune(ew_world *world, const ew_problem *problem, const ew_config *fixed,
                  const ew_tune_options *options, ew_tune_result *result_out)
{
    const ew_tune_options defaults = EW_TUNE_OPTIONS_INIT;
    ew_tune_options wanted;
    ew_problem asked;
    if (!world || !result_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_tune needs a world and a place for its result");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_tune"));
    EW_TRY(ewx_problem_take(&asked, problem));
    EW_TRY(ewx_struct_take(&wanted, sizeof wanted, options ? options : &defaults,
                           EWX_FIRST_TUNE_OPTIONS, "the tuning's options",
                           "EW_TUNE_OPTIONS_INIT"));
    if (!(wanted.budget_s >= 0))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "a budget of %g s\n  fix: use 0 for no limit, or more",
                        wanted.budget_s);
    if (wanted.budget_calls < 0)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "budget_calls=%lld is negative\n  fix: use 0 for no limit, or more",
                        (long long)wanted.budget_calls);
    if (wanted.samples < 0 || wanted.samples > EW_BENCH_MAX_SAMPLES)
        return ewx_fail(EW_ERR_ARGUMENT, "samples=%d is out of range\n  fix: use 0 to %d",
                        wanted.samples, EW_BENCH_MAX_SAMPLES);
    ewx_search *s = calloc(1, sizeof *s);
    const ew_status there =
        s ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for the candidates");
    ew_tune_result result = {0};
    ew_status status = ewx_world_agree(world, there, "tune");
    if (status == EW_OK) {
        s->sampler = (ewx_sampler){.world = world, .problem = &asked};
        s->options = wanted;
        s->space.problem = &asked;
        s->space.num_ranks = world->num_ranks;
        status = tune(s, fixed, &result);
    }
    free(s);
    if (status == EW_OK)
        *result_out = result;
    return status;
}
