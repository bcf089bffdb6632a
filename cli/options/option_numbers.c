/* The setters of options whose values are numbers: sizes, counts, times and rates.  Each
 * checks its value and writes to the settings only when all is well. */
#include <stdio.h>
#include <string.h>

#include "options/option_values.h"

static cli_exit set_list(const cli_option *option, const char *value, int64_t most,
                         cli_values *values)
{
    char why[CLI_WHY_BYTES];
    if (cli_values_parse(value, (cli_bounds){1, most}, values, why))
        return cli_fail_usage(most == CLI_MAX_RANKS
                                  ? "1 to 256 ranks, such as 4 or 2,4,8 or 2-8*2"
                                  : "numbers such as 1024, 8K, 1024,2048 or 1024-8192*2",
                              "--%s: %s", option->name, why);
    return CLI_EXIT_OK;
}

cli_exit cli_set_ranks(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_list(option, value, CLI_MAX_RANKS, &settings->ranks);
}

/* Only the library knows whether they are simulated. */
cli_exit cli_set_plan_ranks(cli_settings *settings, const cli_option *option,
                            const char *value)
{
    return set_list(option, value, CLI_MAX_SIMULATED, &settings->ranks);
}

cli_exit cli_set_rows(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_list(option, value, INT64_MAX, &settings->rows);
}

cli_exit cli_set_cols(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_list(option, value, INT64_MAX, &settings->cols);
}

cli_exit cli_set_depth(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_list(option, value, INT64_MAX, &settings->depth);
}

cli_exit cli_set_link(cli_settings *settings, const cli_option *option, const char *value)
{
    char rate[CLI_METHOD_BYTES], why[CLI_WHY_BYTES];
    const size_t length = strcspn(value, ",");
    const char *at = value[length] ? value + length + 1 : NULL;
    const bool in_bits = length > 2 && strncmp(value + length - 2, "Gb", 2) == 0;
    double number, latency_us = -1.0;
    snprintf(rate, sizeof rate, "%.*s", (int)(in_bits ? length - 2 : length), value);
    if (cli_real_parse(rate, 0.0, 1e6, &number, why) ||
        (at && cli_real_parse(at, 0.0, 1e6, &latency_us, why)))
        return cli_fail_usage("GB/s, or gigabits per second as 2.5Gb; a latency in us may "
                              "follow: --link 46,1",
                              "--%s: %s", option->name, why);
    settings->link_gbs = in_bits ? number / 8 : number;
    settings->link_latency_us = latency_us;
    return CLI_EXIT_OK;
}

static cli_exit set_number(const cli_option *option, const char *value, cli_bounds bounds,
                           const char *fix, int64_t *number)
{
    char why[CLI_WHY_BYTES];
    if (cli_number_parse(value, bounds, number, why))
        return cli_fail_usage(fix, "--%s: %s", option->name, why);
    return CLI_EXIT_OK;
}

cli_exit cli_set_iters(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_number(option, value, (cli_bounds){1, EW_BENCH_MAX_SAMPLES},
                      "a count from 1 to 1024", &settings->iters);
}

cli_exit cli_set_warmup(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_number(option, value, (cli_bounds){0, 1000000}, "a count from 0 to 1000000",
                      &settings->warmup);
}

cli_exit cli_set_seed(cli_settings *settings, const cli_option *option, const char *value)
{
    int64_t seed = 0;
    cli_exit failed = set_number(option, value, (cli_bounds){0, UINT32_MAX},
                                 "a number from 0 to 4294967295", &seed);
    if (!failed)
        settings->seed = (uint32_t)seed;
    return failed;
}

static cli_exit set_real(const cli_option *option, const char *value, double least,
                         double most, const char *fix, double *number)
{
    char why[CLI_WHY_BYTES];
    if (cli_real_parse(value, least, most, number, why))
        return cli_fail_usage(fix, "--%s: %s", option->name, why);
    return CLI_EXIT_OK;
}

cli_exit cli_set_timeout(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    return set_real(option, value, 0.01, 86400.0, "seconds, from 0.01 to 86400",
                    &settings->timeout_s);
}

cli_exit cli_set_gate(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_real(option, value, 0.0, 1000.0,
                    "milliseconds, 20 is a good value, 0 is off", &settings->gate_ms);
}

cli_exit cli_set_idle(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_real(option, value, 0.0, 100.0,
                    "a multiple of the sample's time, 1 is a good value on a GPU, 0 is off",
                    &settings->idle);
}

cli_exit cli_set_gflops(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_real(option, value, 1e-3, 1e9, "GFLOP/s of one rank, for example 75",
                    &settings->gflops);
}

cli_exit cli_refuse_link(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    (void)settings, (void)value;
    return cli_fail_usage("tune without it; bench --link then measures what was found",
                          "--%s: entries are for this machine, not for an emulated link",
                          option->name);
}

/* A number with one of the endings; `ending` gets its place in the list, -1 for none. */
static int split_ending(const char *value, const char *endings, char *digits, size_t bytes)
{
    size_t length = strlen(value);
    const char *found = length > 1 ? strchr(endings, value[length - 1]) : NULL;
    snprintf(digits, bytes, "%.*s", (int)(found ? length - 1 : length), value);
    return found ? (int)(found - endings) : -1;
}

cli_exit cli_set_budget(cli_settings *settings, const cli_option *option, const char *value)
{
    char digits[CLI_METHOD_BYTES];
    double number = 0.0;
    int ending = split_ending(value, "sm", digits, sizeof digits);
    cli_exit failed = set_real(option, digits, 0.001, 86400.0,
                               "a time for each problem, such as 60s or 2m", &number);
    if (!failed)
        settings->budget_s = number * (ending == 1 ? 60.0 : 1.0);
    return failed;
}

cli_exit cli_set_threshold(cli_settings *settings, const cli_option *option,
                           const char *value)
{
    char digits[CLI_METHOD_BYTES];
    double percent = 0.0;
    split_ending(value, "%", digits, sizeof digits);
    cli_exit failed =
        set_real(option, digits, 0.0, 1000.0, "per cent, such as 5%", &percent);
    if (!failed)
        settings->threshold = percent / 100.0;
    return failed;
}

cli_exit cli_set_repeats(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    return set_number(option, value, (cli_bounds){1, CLI_MAX_REPEATS},
                      "a count from 1 to 100", &settings->repeats);
}

cli_exit cli_set_count(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_number(option, value, (cli_bounds){1, 1000000}, "a count from 1 to 1000000",
                      &settings->count);
}

cli_exit cli_set_older(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_real(option, value, 0.0, 36500.0, "a number of days, such as 30",
                    &settings->older_days);
}
