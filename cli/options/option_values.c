/* The settings before any option, and the setters of those that are configs, names or
 * plain switches.  Each checks its value, says what is wrong with it in one message, and
 * writes to the settings only when all is well. */
#include "options/option_values.h"

#include <stdlib.h>

#include "entwine/sim.h"

void cli_settings_init(cli_settings *settings)
{
    const ew_config open_config = EW_CONFIG_INIT;
    *settings = (cli_settings){.config = open_config,
                               .iters = -1,
                               .warmup = -1,
                               .link_latency_us = -1.0,
                               .idle = -1.0,
                               .ranks_as = EW_RANKS_AS_PROCESSES,
                               .weight = EW_WEIGHT_NK,
                               .repeats = 1,
                               .count = 10,
                               .older_days = -1.0,
                               .threshold = 0.05,
                               .seed = 1};
}

ew_config cli_config_merge(const ew_config *base, const ew_config *over)
{
    ew_config merged = *over;
#define TAKE_OPEN(field) \
    if (!merged.field)   \
        merged.field = base->field;
    TAKE_OPEN(backend)
    TAKE_OPEN(producer)
    TAKE_OPEN(block_m)
    TAKE_OPEN(block_n)
    TAKE_OPEN(order)
    TAKE_OPEN(group)
    TAKE_OPEN(release)
    TAKE_OPEN(budget)
    TAKE_OPEN(batch)
    TAKE_OPEN(pool)
    TAKE_OPEN(transport)
    TAKE_OPEN(workers)
    TAKE_OPEN(kernel)
    TAKE_OPEN(ctas)
    TAKE_OPEN(cluster)
    TAKE_OPEN(launches)
    TAKE_OPEN(levels)
#undef TAKE_OPEN
    return merged;
}

ew_backend cli_settings_backend(const cli_settings *settings)
{
    return settings->config.backend ? settings->config.backend : EW_BACKEND_CPU;
}

cli_exit cli_add_variant(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    const int most = CLI_MAX_METHODS - 8; /* leaves room for every method */
    if (settings->num_variants == most)
        return cli_fail_usage("run the rest in a second bench",
                              "--%s given more than %d times", option->name, most);
    ew_status status =
        ew_config_parse(value, &settings->variant_configs[settings->num_variants]);
    if (status)
        return cli_fail_status(status, ew_last_error());
    settings->variants[settings->num_variants++] = value;
    return CLI_EXIT_OK;
}

cli_exit cli_set_config(cli_settings *settings, const cli_option *option, const char *value)
{
    ew_config parsed;
    (void)option;
    ew_status status = ew_config_parse(value, &parsed);
    if (status)
        return cli_fail_status(status, ew_last_error());
    /* --backend may have come first and need not be repeated in the text. */
    settings->config = cli_config_merge(&settings->config, &parsed);
    return CLI_EXIT_OK;
}

static cli_exit set_text(const cli_option *option, const char *value, const char **text)
{
    if (!*value)
        return cli_fail_usage("leave the option out instead", "--%s is empty",
                              option->name);
    *text = value;
    return CLI_EXIT_OK;
}

cli_exit cli_set_suite(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_text(option, value, &settings->suite);
}

cli_exit cli_set_figure(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_text(option, value, &settings->figure);
}

cli_exit cli_set_json_path(cli_settings *settings, const cli_option *option,
                           const char *value)
{
    return set_text(option, value, &settings->json_path);
}

cli_exit cli_set_output_path(cli_settings *settings, const cli_option *option,
                             const char *value)
{
    return set_text(option, value, &settings->output_path);
}

/* The library reads the variable, in this process and in ranks that it starts. */
cli_exit cli_set_profile(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    ew_sim_hardware hardware;
    cli_exit failed = set_text(option, value, &settings->profile);
    if (failed)
        return failed;
    ew_status status = ew_sim_describe(value, 1, &hardware);
    if (status)
        return cli_fail_status(status, ew_last_error());
    if (!settings->config.backend)
        settings->config.backend = EW_BACKEND_SIM;
    if (setenv("ENTWINE_PROFILE", value, 1))
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the profile");
    return CLI_EXIT_OK;
}

/* An option without a value switches one field on. */
#define SWITCH(setter, field)                                                            \
    cli_exit setter(cli_settings *settings, const cli_option *option, const char *value) \
    {                                                                                    \
        (void)option, (void)value;                                                       \
        settings->field = true;                                                          \
        return CLI_EXIT_OK;                                                              \
    }
SWITCH(cli_set_quiet, quiet)
SWITCH(cli_set_verbose, verbose)
SWITCH(cli_set_validate, validate)
SWITCH(cli_set_merge, merge)
SWITCH(cli_set_resume, resume)
SWITCH(cli_set_dry_run, dry_run)
SWITCH(cli_set_tuned, tuned)
SWITCH(cli_set_all, all)
SWITCH(cli_set_across_machines, across_machines)
SWITCH(cli_set_help, help)
