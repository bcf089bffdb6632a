#include "sim/sim_call.h"

/* Ranks that are simulated and stand for the rest (ew_sim_options). */
enum { SAMPLED_RANKS = 16 };

cli_sim_case cli_sim_case_of(const ew_problem *problem, int num_ranks)
{
    const ew_sim_options options = EW_SIM_OPTIONS_INIT;
    cli_sim_case what = {*problem, num_ranks, options};
    what.options.sampled_ranks = SAMPLED_RANKS;
    return what;
}

static ew_status config_of(const char *method, const ew_config *base, ew_config *config_out)
{
    ew_config open = *base;
    open.backend = EW_BACKEND_SIM;
    return ew_method_config(method, &open, config_out);
}

ew_status cli_sim_method(const cli_sim_case *what, const char *method,
                         const ew_config *base, ew_sim_report *report_out)
{
    ew_config config;
    ew_status status = config_of(method, base, &config);
    if (status == EW_OK)
        status = ew_sim_call(&what->problem, what->num_ranks, &config, &what->options,
                             report_out);
    return status;
}

ew_status cli_sim_best(const cli_sim_case *what, const ew_config *base,
                       ew_sim_report *report_out, int32_t *tried_out)
{
    ew_config config;
    ew_status status = config_of("entwine", base, &config);
    if (status == EW_OK)
        status = ew_sim_search(&what->problem, what->num_ranks, &config, &what->options,
                               report_out, tried_out);
    return status;
}
