/* The best schedule by simulation: the tuner's knobs, with the simulator in place of
 * measurements. */
#include "base/status.h"
#include "base/versioned.h"
#include "entwine/sim.h"
#include "tune/candidates.h"
#include "tune/presort.h"

#define MOST_BLOCKS 80000 /* of all simulated ranks: a simulation takes milliseconds */
#define GAIN_WANTED 0.999 /* else the simpler config stays */

typedef struct sim_search {
    ewx_candidate_space space;
    ew_problem small; /* with as few rows as tell the candidates apart */
    const ew_sim_options *options;
    ew_config request; /* of the best so far */
    ew_sim_report best;
    int32_t tried;
} sim_search;

static void shrink(ew_problem *problem, int num_ranks, int sampled_ranks)
{
    const int64_t cols = ewx_div_up(problem->n, EWX_TILE_N);
    const int simulated =
        sampled_ranks > 0 && sampled_ranks < num_ranks ? sampled_ranks : num_ranks;
    while (problem->max_m >= 4 * EWX_TILE_M * (int64_t)num_ranks &&
           problem->max_m / EWX_TILE_M > MOST_BLOCKS / simulated / cols)
        problem->max_m /= 2;
}

/* A candidate that cannot run is none; one that lacked memory might have been the best. */
static ew_status try_knob(sim_search *s, int knob)
{
    ew_config requests[EWX_KNOB_VALUES];
    const int count =
        ewx_candidate_vary(&s->space, knob, &s->request, &s->best.config, requests);
    for (int i = 0; i < count; i++) {
        ew_sim_report report;
        s->tried++;
        const ew_status status =
            ew_sim_call(&s->small, s->space.num_ranks, &requests[i], s->options, &report);
        if (status == EW_ERR_MEMORY)
            return status;
        if (status == EW_OK && report.time_us < GAIN_WANTED * s->best.time_us) {
            s->best = report;
            s->request = requests[i];
        }
    }
    return EW_OK;
}

static ew_status find_machine(const ew_sim_options *options, int num_ranks,
                              ewx_machine *machine_out)
{
    ewx_sim_profile profile;
    EW_TRY(options && options->profile_text
               ? ewx_sim_profile_parse("the profile", options->profile_text, &profile)
               : ewx_sim_profile_load(options ? options->profile : NULL, &profile));
    return ewx_sim_machine(&profile, num_ranks, machine_out);
}

ew_status ew_sim_search(const ew_problem *problem, int num_ranks, const ew_config *config,
                        const ew_sim_options *options, ew_sim_report *report_out,
                        int32_t *tried_out)
{
    ew_problem asked;
    sim_search s = {.options = options, .tried = 2}; /* the built-in choice; the winner */
    if (!report_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_sim_search needs a place for its answer");
    EW_TRY(ewx_problem_take(&asked, problem));
    EW_TRY(ewx_problem_check_shape(&asked));
    EW_TRY(ewx_config_take(&s.request, config));
    EW_TRY(find_machine(options, num_ranks, &s.space.machine));
    s.request.backend = EW_BACKEND_SIM;
    s.small = asked;
    shrink(&s.small, num_ranks, options ? options->sampled_ranks : 0);
    EW_TRY(ew_sim_call(&s.small, num_ranks, &s.request, options, &s.best));
    s.space.problem = &asked;
    s.space.num_ranks = num_ranks;
    s.space.fixed = s.request;
    s.space.built_in = s.best.config;
    for (int knob = 0; knob < EWX_KNOBS; knob++)
        if (ewx_candidate_applies(&s.space, knob))
            EW_TRY(try_knob(&s, knob));
    EW_TRY(ew_sim_call(&asked, num_ranks, &s.best.config, options, report_out));
    if (tried_out)
        *tried_out = s.tried;
    return EW_OK;
}
