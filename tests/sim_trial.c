#include "sim_trial.h"

#include <math.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

ewx_sim_profile sim_trial_gpu(void)
{
    ewx_sim_profile profile = {.name = "simple",
                               .gpus = 64,
                               .nodes = 1,
                               .sms = SIM_TRIAL_SMS,
                               .arch = 90,
                               .sm_registers = 65536,
                               .sm_shared_bytes = 233472,
                               .sm_threads = 2048,
                               .sm_ctas = 32,
                               .block_us_128 = {1, {1024}, {10}},
                               .block_us_256 = {1, {1024}, {10}},
                               .clock = 1,
                               .bf16_time = 1,
                               .blas_time = 1,
                               .half_time = 1,
                               .reducer_gbs = {1, {256}, {1e6}},
                               .reducer_us = 1};
    return profile;
}

ew_status sim_trial_try(const ewx_sim_profile *profile, int64_t m, int64_t n, int num_ranks,
                        const char *config, double link_gbs, int traced_rank,
                        ew_trace_event *events, sim_outcome *o)
{
    const ew_problem problem = EW_PROBLEM(m, n, 1024, profile->is_cpu ? EW_FP32 : EW_FP16);
    return sim_trial_call(profile, &problem, num_ranks, config, link_gbs, traced_rank,
                          events, o);
}

ew_status sim_trial_call(const ewx_sim_profile *profile, const ew_problem *problem,
                         int num_ranks, const char *config, double link_gbs,
                         int traced_rank, ew_trace_event *events, sim_outcome *o)
{
    return sim_trial_over(profile, problem, num_ranks, config, (sim_link){.gbs = link_gbs},
                          traced_rank, events, o);
}

ew_status sim_trial_over(const ewx_sim_profile *profile, const ew_problem *problem,
                         int num_ranks, const char *config_text, sim_link link,
                         int traced_rank, ew_trace_event *events, sim_outcome *o)
{
    ewx_machine machine;
    ew_config config = EW_CONFIG_INIT;
    memset(o, 0, sizeof *o);
    assert_int_equal(ew_config_parse(config_text, &config), EW_OK);
    config.backend = EW_BACKEND_SIM;
    assert_int_equal(ewx_sim_machine(profile, num_ranks, &machine), EW_OK);
    const ew_status built = ewx_spec_build(problem, num_ranks, &config, &machine, &o->spec);
    if (built != EW_OK)
        return built;
    const ewx_sim_request request = {.profile = profile,
                                     .spec = &o->spec,
                                     .rows = problem->max_m,
                                     .link_gbs = link.gbs,
                                     .link_us = link.us,
                                     .link_header_bytes = link.header_bytes,
                                     .together = true,
                                     .traced_rank = traced_rank,
                                     .events = events,
                                     .capacity = events ? SIM_TRIAL_EVENTS : 0};
    o->result.ranks = o->ranks;
    const ew_status status = ewx_sim_run(&request, &o->result);
    for (int rank = 0; rank < num_ranks && status == EW_OK; rank++) {
        const ew_timing *t = &o->ranks[rank].timing;
        const double gemm_us = (double)(t->gemm_end_ns - t->start_ns) * 1e-3;
        o->gemm_us = fmax(o->gemm_us, gemm_us);
        if ((double)(t->end_ns - t->start_ns) * 1e-3 > o->time_us) {
            o->time_us = (double)(t->end_ns - t->start_ns) * 1e-3;
            o->tail_us = o->time_us - gemm_us;
        }
    }
    return status;
}

sim_outcome sim_trial_run(const ewx_sim_profile *profile, int64_t m, int64_t n,
                          int num_ranks, const char *config, double link_gbs)
{
    sim_outcome o;
    if (sim_trial_try(profile, m, n, num_ranks, config, link_gbs, -1, NULL, &o) != EW_OK)
        fail_msg("%s: %s", config, ew_last_error());
    return o;
}

void sim_trial_near(double value, double want)
{
    if (fabs(value - want) > 0.002 + 1e-6 * fabs(want))
        fail_msg("%.4f instead of %.4f", value, want);
}
