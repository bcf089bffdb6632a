/* The simulator without a world: one call, its times. */
#include <string.h>

#include "backend/backend.h"
#include "backend/sim/simulate.h"
#include "base/status.h"
#include "base/versioned.h"
#include "entwine/sim.h"
#include "plan/link.h"
#include "plan/policy.h"

const char *const *ew_sim_profiles(void)
{
    return ewx_sim_names;
}

ew_status ew_sim_describe(const char *profile, int num_ranks, ew_sim_hardware *hardware_out)
{
    ewx_sim_profile p;
    int sms = 0, sharers = 0;
    if (!hardware_out || num_ranks < 1)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_sim_describe needs ranks and a place");
    EW_TRY(ewx_sim_profile_load(profile, &p));
    EW_TRY(ewx_sim_share(&p, num_ranks, &sms, &sharers));
    ew_sim_hardware hardware = {.is_cpu = p.is_cpu,
                                .gpus = (int32_t)p.gpus,
                                .nodes = 1,
                                .sharers = sharers,
                                .sms = sms,
                                .arch = (int32_t)p.arch,
                                .link_gbs = p.link_gbs,
                                .nic_gbs = p.nic_gbs};
    if (sharers == 1)
        hardware.nodes = ewx_sim_nodes_of(&p, num_ranks).count;
    memcpy(hardware.name, p.name, sizeof hardware.name);
    *hardware_out = hardware;
    return EW_OK;
}

/* What the busiest of the links needs for Eq. 2, or less of it where nodes send sums. */
static double link_us(const ewx_sim_request *request)
{
    const ewx_sim_profile *p = request->profile;
    const ewx_spec *spec = request->spec;
    const ewx_sim_nodes nodes = ewx_sim_nodes_of(p, spec->num_ranks);
    const int peers = spec->num_ranks - 1;
    const int near = nodes.count > 1 ? nodes.ranks_each - 1 : peers;
    const int far = spec->config.levels == 2 ? nodes.count - 1 : peers - near;
    const double link =
        request->link_gbs > 0
            ? request->link_gbs / ewx_link_sent_per_byte(request->link_header_bytes)
            : p->link_gbs;
    const double tile_us = /* of one contribution to all that a rank owns, at 1 GB/s */
        peers > 0 ? ewx_spec_remote_bytes(spec, request->rows) / peers * 1e-3 : 0;
    const int nic_ranks = ewx_sim_nic_is_shared(request) ? spec->num_ranks
                          : p->is_cpu                    ? nodes.ranks_each
                                                         : 1;
    /* A GPU's reducers are taken to make the other nodes' sums too. */
    const int near_sums = spec->config.levels == 2 && !p->is_cpu ? nodes.count : 1;
    const double near_us = link > 0 ? near * near_sums * tile_us / link : 0;
    const double far_us =
        far > 0 ? far * nic_ranks * tile_us / ewx_sim_nic_gbs(request) : 0;
    return near_us > far_us ? near_us : far_us;
}

static void read_times(const ewx_sim_rank_result *ranks, int num_ranks,
                       ew_sim_report *report)
{
    for (int rank = 0; rank < num_ranks; rank++) {
        const ew_timing *t = &ranks[rank].timing;
        const double time_us = (double)(t->end_ns - t->start_ns) * 1e-3;
        const double gemm_us = (double)(t->gemm_end_ns - t->start_ns) * 1e-3;
        if (time_us > report->time_us) {
            report->time_us = time_us;
            report->tail_us = (double)(t->end_ns - t->gemm_end_ns) * 1e-3;
        }
        if (gemm_us > report->gemm_us)
            report->gemm_us = gemm_us;
        report->moved_bytes += ranks[rank].remote_bytes;
        report->crossed_bytes += ranks[rank].crossed_bytes;
    }
}

/* The spec as a plan of the sim backend would get it. */
static ew_status build_spec(const ew_problem *problem, int num_ranks,
                            const ew_config *config, const ewx_sim_profile *profile,
                            ewx_spec *spec_out)
{
    ewx_machine machine = {0};
    ew_problem asked;
    ew_config request;
    EW_TRY(ewx_problem_take(&asked, problem));
    EW_TRY(ewx_config_take(&request, config));
    request.backend = EW_BACKEND_SIM;
    EW_TRY(ewx_problem_check_shape(&asked));
    EW_TRY(ewx_sim_machine(profile, num_ranks, &machine));
    EW_TRY(ewx_spec_build(&asked, num_ranks, &request, &machine, spec_out));
    return ewx_sim_check(profile, spec_out);
}

/* Wider than any hardware, as the bounds of profiles and of an emulated link are. */
static ew_status check_options(const ew_sim_options *options)
{
    const struct {
        const char *name;
        double value, most;
        const char *zero;
    } numbers[] = {
        {"link_gbs", options->link_gbs, 1e6, "the profile's"},
        {"link_us", options->link_us, 1e6, "none"},
        {"link_header_bytes", options->link_header_bytes, EWX_MAX_HEADER_BYTES, "none"},
        {"nic_gbs", options->nic_gbs, 1e6, "the profile's"},
        {"sampled_ranks", options->sampled_ranks, EWX_SIM_MAX_RANKS, "all"}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (!(numbers[i].value >= 0 && numbers[i].value <= numbers[i].most))
            return ewx_fail(EW_ERR_ARGUMENT,
                            "the simulation's %s=%g is out of range\n"
                            "  fix: use 0 (%s) to %g",
                            numbers[i].name, numbers[i].value, numbers[i].zero,
                            numbers[i].most);
    if (options->nic_shared < -1 || options->nic_shared > 1)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the simulation's nic_shared=%d is out of range\n"
                        "  fix: use 1, -1, or 0 for what the profile says",
                        (int)options->nic_shared);
    return EW_OK;
}

ew_status ew_sim_call(const ew_problem *problem, int num_ranks, const ew_config *config,
                      const ew_sim_options *options, ew_sim_report *report_out)
{
    const ew_sim_options defaults = EW_SIM_OPTIONS_INIT;
    ew_sim_options o;
    ewx_sim_profile profile;
    ewx_spec spec;
    ewx_sim_rank_result ranks[EWX_SIM_MAX_RANKS];
    ewx_sim_result result = {.ranks = ranks};
    if (!report_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_sim_call needs a place for its answer");
    EW_TRY(ewx_struct_take(&o, sizeof o, options ? options : &defaults,
                           EWX_FIRST_SIM_OPTIONS, "the simulation's options",
                           "EW_SIM_OPTIONS_INIT"));
    EW_TRY(check_options(&o));
    EW_TRY(o.profile_text ? ewx_sim_profile_parse("the profile", o.profile_text, &profile)
                          : ewx_sim_profile_load(o.profile, &profile));
    EW_TRY(build_spec(problem, num_ranks, config, &profile, &spec));
    const ewx_sim_request request = {.profile = &profile,
                                     .spec = &spec,
                                     .rows = spec.problem.max_m,
                                     .link_gbs = o.link_gbs,
                                     .link_us = o.link_us,
                                     .link_header_bytes = o.link_header_bytes,
                                     .nic_gbs = o.nic_gbs,
                                     .nic_shared = o.nic_shared,
                                     .together = true,
                                     .sampled_ranks = o.sampled_ranks,
                                     .traced_rank = -1};
    EW_TRY(ewx_sim_run(&request, &result));
    ew_sim_report report = {
        .config = spec.config, .link_us = link_us(&request), .events = result.num_events};
    read_times(ranks, num_ranks, &report);
    *report_out = report;
    return EW_OK;
}
