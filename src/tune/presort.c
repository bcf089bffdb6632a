#include "tune/presort.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "entwine/tune.h"
#include "plan/backend_traits.h"
#include "plan/tuning.h"

/* Above this, a candidate is not worth a measurement: errors of the simulator are smaller
 * (docs/SIMULATOR.md), those of ratios between configs much smaller. */
static const double hopeless = 1.15;
/* Simulating this many blocks, over all simulated ranks, takes milliseconds. */
static const int64_t most_blocks = 10000;
enum { SAMPLED_RANKS = 8 };

/* A calibrated profile has the name as tuning keys print it, others as the driver does. */
static bool is_device(const char *device, const char *named)
{
    size_t at = 0;
    while (named[at] && ewx_tuning_plain(named[at]) == ewx_tuning_plain(device[at]))
        at++;
    return at > 0 && !named[at] && device[at] == '/';
}

static bool fits(const ewx_sim_profile *profile, int num_ranks, bool is_cpu,
                 const ewx_machine *machine)
{
    ewx_machine simulated;
    if (profile->is_cpu != is_cpu || !is_device(machine->device, profile->device) ||
        ewx_sim_machine(profile, num_ranks, &simulated) != EW_OK)
        return false;
    return is_cpu ? simulated.cores == machine->cores &&
                        simulated.hosts == (machine->hosts > 1 ? machine->hosts : 1)
                  : simulated.gpu_sms == machine->gpu_sms &&
                        simulated.gpu_sharers == machine->gpu_sharers;
}

static const char *calibrated_name(bool is_cpu)
{
    return is_cpu ? "cpu.profile" : "cuda.profile";
}

static bool load_calibrated(bool is_cpu, ewx_sim_profile *profile_out)
{
    char folder[PATH_MAX - 32], path[PATH_MAX];
    if (ew_tuning_folder(folder, sizeof folder) != EW_OK)
        return false;
    snprintf(path, sizeof path, "%s/%s", folder, calibrated_name(is_cpu));
    return ewx_sim_profile_load(path, profile_out) == EW_OK;
}

static bool find_profile(ewx_presort *planner, bool is_cpu, const ewx_machine *machine)
{
    ewx_sim_profile *profile = &planner->profile;
    if (load_calibrated(is_cpu, profile) &&
        fits(profile, planner->num_ranks, is_cpu, machine)) {
        snprintf(profile->name, sizeof profile->name, "%s", calibrated_name(is_cpu));
        return true;
    }
    for (const char *const *name = ewx_sim_names; *name; name++)
        if (ewx_sim_profile_load(*name, profile) == EW_OK &&
            fits(profile, planner->num_ranks, is_cpu, machine))
            return true;
    return false;
}

/* As few rows as tell the candidates apart. */
static void shrink(ew_problem *problem, int num_ranks)
{
    const int64_t cols = ewx_div_up(problem->n, EWX_TILE_N);
    const int simulated = num_ranks < SAMPLED_RANKS ? num_ranks : SAMPLED_RANKS;
    while (problem->max_m >= 4 * EWX_TILE_M * (int64_t)num_ranks &&
           problem->max_m / EWX_TILE_M > most_blocks / simulated / cols)
        problem->max_m /= 2;
}

void ewx_presort_open(ewx_presort *planner, const ew_problem *problem, int num_ranks,
                      ew_backend backend, const ewx_machine *machine)
{
    *planner = (ewx_presort){.problem = *problem, .num_ranks = num_ranks};
    shrink(&planner->problem, num_ranks);
    const ewx_traits *traits = ewx_traits_of(backend);
    if (traits->simulated)
        planner->ready = ewx_sim_profile_load(NULL, &planner->profile) == EW_OK;
    else
        planner->ready = find_profile(planner, !traits->is_gpu, machine);
}

double ewx_presort_time_us(const ewx_presort *planner, const ew_config *config)
{
    ewx_machine machine = {0};
    ewx_spec spec;
    ewx_sim_rank_result ranks[EWX_SIM_MAX_RANKS];
    ewx_sim_result result = {.ranks = ranks};
    ew_config simulated = *config;
    double time_us = 0;
    simulated.backend = EW_BACKEND_SIM;
    if (!planner->ready ||
        ewx_sim_machine(&planner->profile, planner->num_ranks, &machine) != EW_OK ||
        ewx_spec_build(&planner->problem, planner->num_ranks, &simulated, &machine,
                       &spec) != EW_OK)
        return 0;
    const ewx_sim_request request = {.profile = &planner->profile,
                                     .spec = &spec,
                                     .rows = planner->problem.max_m,
                                     .link_gbs = planner->link_gbs,
                                     .link_us = planner->link_us,
                                     .link_header_bytes = planner->link_header_bytes,
                                     .together = true,
                                     .sampled_ranks = SAMPLED_RANKS,
                                     .traced_rank = -1};
    if (ewx_sim_run(&request, &result) != EW_OK)
        return 0;
    for (int rank = 0; rank < planner->num_ranks; rank++) {
        const ew_timing *t = &ranks[rank].timing;
        const double us = (double)(t->end_ns - t->start_ns) * 1e-3;
        time_us = us > time_us ? us : time_us;
    }
    return time_us;
}

int ewx_presort_rank(const double *times_us, int count, double best_us, int *order)
{
    double least = best_us;
    int kept = 0;
    for (int at = 0; at < count; at++)
        if (times_us[at] > 0 && (!(least > 0) || times_us[at] < least))
            least = times_us[at];
    for (int at = 0; at < count; at++) {
        const double time_us = times_us[at];
        if (time_us > hopeless * least)
            continue;
        int to = kept++;
        for (; to > 0 && time_us > 0 &&
               (times_us[order[to - 1]] > time_us || !(times_us[order[to - 1]] > 0));
             to--)
            order[to] = order[to - 1];
        order[to] = at;
    }
    return kept;
}
