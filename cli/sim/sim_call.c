#include "sim/sim_call.h"

#include <stddef.h>

/* Simulations of a search stay below so many blocks, over all ranks that are simulated. */
static const double search_blocks = 40000;

cli_sim_case cli_sim_case_of(const ew_problem *problem, int num_ranks)
{
    const ew_sim_options options = EW_SIM_OPTIONS_INIT;
    cli_sim_case what = {*problem, num_ranks, options};
    what.options.sampled_ranks = CLI_SIM_SAMPLE;
    return what;
}

ew_status cli_sim_method(const cli_sim_case *what, const char *method,
                         const ew_config *base, ew_sim_report *report_out)
{
    ew_config open = EW_CONFIG_INIT, config;
    if (base)
        open = *base;
    open.backend = EW_BACKEND_SIM;
    ew_status status = ew_method_config(method, &open, &config);
    if (status == EW_OK)
        status = ew_sim_call(&what->problem, what->num_ranks, &config, &what->options,
                             report_out);
    return status;
}

cli_sim_space cli_sim_space_for(const ew_sim_hardware *hardware)
{
    const int sms = hardware->sms;
    if (hardware->is_cpu) /* x and b are the workers' own business there */
        return (cli_sim_space){.block_n = {128, 256, 1024}, .release = {1, 4}};
    return (cli_sim_space){.block_n = {128, 256},
                           .group = {1, 2, 4, 8, 16},
                           .budget = {sms / 8, sms / 4, sms / 2, sms - 1, sms, 2 * sms},
                           .batch = {128, 256, 512},
                           .release = {1, 2, 4},
                           .transport = {EW_TRANSPORT_PULL, EW_TRANSPORT_PUSH}};
}

cli_sim_space cli_sim_narrow_space(const ew_sim_hardware *hardware)
{
    const int sms = hardware->sms;
    if (hardware->is_cpu)
        return cli_sim_space_for(hardware);
    return (cli_sim_space){.block_n = {128, 256},
                           .budget = {sms / 4, sms},
                           .transport = {EW_TRANSPORT_PULL, EW_TRANSPORT_PUSH}};
}

/* The problem with as few rows as the search needs. */
static cli_sim_case shrink(const cli_sim_case *what)
{
    cli_sim_case small = *what;
    const double cols = (double)what->problem.n / 128.0;
    const int sample = what->options.sampled_ranks;
    const int simulated = sample > 0 && sample < what->num_ranks ? sample : what->num_ranks;
    while (small.problem.max_m >= 512 * (int64_t)what->num_ranks &&
           (double)small.problem.max_m / 128.0 * cols * simulated > 2 * search_blocks)
        small.problem.max_m /= 2;
    return small;
}

typedef struct search {
    cli_sim_case small;
    const char *method;
    ew_sim_report best;
    int tried;
} search;

static void try_config(search *s, const ew_config *config)
{
    ew_sim_report report;
    s->tried++;
    if (cli_sim_method(&s->small, s->method, config, &report) == EW_OK &&
        report.time_us < s->best.time_us * 0.999) /* a tie keeps the simpler config */
        s->best = report;
}

/* What a plan would choose for a block is left to it unless the key itself is tried. */
static ew_config with_block(const ew_config *config, int32_t block_n)
{
    ew_config wide = *config;
    wide.block_n = block_n;
    wide.cluster = 0;
    wide.group = 0;
    return wide;
}

static void try_keys(search *s, const cli_sim_space *space)
{
    for (const int32_t *value = space->block_n; *value; value++) {
        const ew_config config = with_block(&s->best.config, *value);
        try_config(s, &config);
    }
    const struct {
        const int32_t *values;
        size_t offset;
    } keys[] = {
        {space->transport, offsetof(ew_config, transport)},
        {space->batch, offsetof(ew_config, batch)},
        {space->budget, offsetof(ew_config, budget)},
        {space->group, offsetof(ew_config, group)},
        {space->release, offsetof(ew_config, release)},
    };
    for (size_t key = 0; key < sizeof keys / sizeof keys[0]; key++) {
        for (const int32_t *value = keys[key].values; *value; value++) {
            ew_config config = s->best.config;
            *(int32_t *)(void *)((char *)&config + keys[key].offset) = *value;
            try_config(s, &config);
        }
    }
}

ew_status cli_sim_search(const cli_sim_case *what, const char *method,
                         const ew_config *base, const cli_sim_space *space,
                         ew_sim_report *best_out, int *tried)
{
    search s = {.small = shrink(what), .method = method, .tried = 1};
    ew_status status = cli_sim_method(&s.small, method, base, &s.best);
    if (status == EW_OK) {
        try_keys(&s, space);
        status = cli_sim_method(what, method, &s.best.config, best_out);
    }
    *tried += s.tried + 1;
    return status;
}
