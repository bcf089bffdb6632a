/* The settings before any option, and the setters of options that no rule describes.  Each
 * checks its value, says what is wrong with it in one message, and writes to the settings
 * only when all is well. */
#include <stdlib.h>
#include <string.h>

#include "entwine/sim.h"
#include "options/option_rules.h"

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
                               .older_days = -1.0,
                               .threshold = 0.05,
                               .seed = 1};
}

const cli_bed *cli_settings_bed(const cli_settings *settings)
{
    return cli_bed_of(settings->config.backend);
}

ew_problem cli_settings_problem(const cli_settings *settings, int64_t rows, int64_t cols,
                                int64_t depth, ew_dtype dtype)
{
    ew_problem problem = EW_PROBLEM(rows, cols, depth, dtype);
    problem.weight_layout = settings->weight;
    problem.op = settings->op;
    return problem;
}

int64_t cli_value_or(const cli_values *given, int64_t otherwise)
{
    return given->count ? given->at[0] : otherwise;
}

/* ---- Configs ---- */

/* Every field of a config is one word, and 0 where it is open. */
ew_config cli_config_merge(const ew_config *base, const ew_config *over)
{
    enum { WORDS = sizeof(ew_config) / sizeof(int32_t) };
    _Static_assert(sizeof(ew_config) == WORDS * sizeof(int32_t), "a config is words");
    int32_t below[WORDS], merged[WORDS];
    ew_config config;
    memcpy(below, base, sizeof below);
    memcpy(merged, over, sizeof merged);
    for (int at = 0; at < WORDS; at++)
        merged[at] = merged[at] ? merged[at] : below[at];
    memcpy(&config, merged, sizeof config);
    return config;
}

cli_exit cli_add_variant(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    const int most = CLI_MAX_METHODS - 14; /* leaves room for every method */
    if (settings->num_variants == most)
        return cli_fail_usage("run the rest in a second bench",
                              "--%s given more than %d times", option->name, most);
    if (strlen(value) >= CLI_VARIANT_BYTES)
        return cli_fail_usage("give each key once, and no number more digits than it needs",
                              "--%s %.40s... is longer than %d bytes", option->name, value,
                              CLI_VARIANT_BYTES - 1);
    ew_config *config = &settings->variant_configs[settings->num_variants];
    *config = (ew_config)EW_CONFIG_INIT;
    ew_status status = ew_config_parse(value, config);
    if (status)
        return cli_fail_status(status, ew_last_error());
    settings->variants[settings->num_variants++] = value;
    return CLI_EXIT_OK;
}

cli_exit cli_set_config(cli_settings *settings, const cli_option *option, const char *value)
{
    ew_config parsed = EW_CONFIG_INIT;
    (void)option;
    ew_status status = ew_config_parse(value, &parsed);
    if (status)
        return cli_fail_status(status, ew_last_error());
    /* --backend may have come first and need not be repeated in the text. */
    settings->config = cli_config_merge(&settings->config, &parsed);
    return CLI_EXIT_OK;
}

/* The library reads the variable, in this process and in ranks that it starts. */
cli_exit cli_set_profile(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    ew_sim_hardware hardware;
    if (!*value)
        return cli_fail_usage("leave the option out instead", "--%s is empty",
                              option->name);
    ew_status status = ew_sim_describe(value, 1, &hardware);
    if (status)
        return cli_fail_status(status, ew_last_error());
    if (setenv("ENTWINE_PROFILE", value, 1))
        return cli_fail_memory("for the profile");
    settings->profile = value;
    if (!settings->config.backend)
        settings->config.backend = EW_BACKEND_SIM;
    return CLI_EXIT_OK;
}

/* Cuts the next comma-separated word out of *at; false at the end of the list. */
static bool next_word(const char **at, char *word, size_t bytes)
{
    if (!*at)
        return false;
    size_t length = strcspn(*at, ",");
    snprintf(word, bytes, "%.*s", (int)length, *at);
    *at = (*at)[length] ? *at + length + 1 : NULL;
    return true;
}

/* RATE[,US[,BYTES]]; returns 0, or writes what is wrong.  The rate is within the library's
 * bounds of link_gbps, which the message has in the unit of the text. */
static int parse_link(cli_settings *settings, const char *value, char *why)
{
    static const double least_gbps = 1e-3, most_gbps = 1e6;
    char rate[CLI_METHOD_BYTES], latency[CLI_METHOD_BYTES];
    double number;
    next_word(&value, rate, sizeof rate);
    const bool has_latency = next_word(&value, latency, sizeof latency);
    const size_t length = strlen(rate);
    const bool in_bits = length > 2 && strcmp(rate + length - 2, "Gb") == 0;
    const double unit = in_bits ? 1 : 8;
    rate[in_bits ? length - 2 : length] = '\0';
    settings->link_latency_us = -1.0;
    settings->link_header_bytes = 0.0;
    if (cli_real_parse(rate, 0.0, most_gbps / unit, &number, why))
        return -1;
    if (number > 0 && number * unit < least_gbps) {
        snprintf(why, CLI_WHY_BYTES, "'%.60s' is less than %g, and not 0", rate,
                 least_gbps / unit);
        return -1;
    }
    settings->link_gbs = number * unit / 8;
    if (has_latency && cli_real_parse(latency, 0.0, 1e6, &settings->link_latency_us, why))
        return -1;
    return value ? cli_real_parse(value, 0.0, 1024.0, &settings->link_header_bytes, why)
                 : 0;
}

cli_exit cli_set_link(cli_settings *settings, const cli_option *option, const char *value)
{
    char why[CLI_WHY_BYTES];
    if (parse_link(settings, value, why))
        return cli_fail_usage("GB/s, or gigabits per second as 2.5Gb; a latency in us may "
                              "follow, and after it the bytes of a header: --link 46,1,16",
                              "--%s: %s", option->name, why);
    if (option->commands == CLI_DEMO && !(settings->link_gbs > 0))
        return cli_fail_usage("give a rate, or leave it out: demo then chooses one",
                              "--%s %.40s: 'demo' shows what a link changes", option->name,
                              value);
    return CLI_EXIT_OK;
}

/* ---- Lists of names ---- */

cli_exit cli_set_dtypes(cli_settings *settings, const cli_option *option, const char *value)
{
    char word[CLI_METHOD_BYTES];
    settings->dtypes.count = 0;
    while (next_word(&value, word, sizeof word)) {
        int dtype = 0;
        cli_exit failed = cli_choice_pick(option, cli_dtype_choices, word, &dtype);
        if (failed)
            return failed;
        for (int seen = 0; seen < settings->dtypes.count; seen++)
            if (settings->dtypes.at[seen] == dtype)
                return cli_fail_usage("name each type once", "--%s names %s twice",
                                      option->name, word);
        settings->dtypes.at[settings->dtypes.count++] = dtype;
    }
    return CLI_EXIT_OK;
}

/* The library's methods and those of the MPI module, ending with NULL.  A user may name any
 * of them anywhere and must get the right answer. */
static const char *const *method_names(void)
{
    static const char *names[CLI_MAX_CHOICES + 1];
    int count = 0;
    for (const char *const *at = ew_method_list(); *at && count < CLI_MAX_CHOICES - 2; at++)
        names[count++] = *at;
    names[count++] = "blas+mpi";
    names[count++] = "blas+mpi-best";
    names[count] = NULL;
    return names;
}

bool cli_method_needs_mpi(const char *method)
{
    return strncmp(method, "blas+mpi", strlen("blas+mpi")) == 0;
}

bool cli_method_symmetric(const char *name, int *length_out)
{
    static const char ending[] = "+symmetric";
    const size_t length = strlen(name), tail = sizeof ending - 1;
    const bool ends = length > tail && strcmp(name + length - tail, ending) == 0;
    *length_out = (int)(ends ? length - tail : length);
    return ends;
}

ew_bench_layer cli_method_layer(const char *name, int *length_out)
{
    static const struct {
        const char *ending;
        ew_bench_layer layer;
    } layers[] = {{"+fused", EW_BENCH_FUSED},
                  {"+following", EW_BENCH_FOLLOWING},
                  {"+separate", EW_BENCH_SEPARATE}};
    (void)cli_method_symmetric(name, length_out);
    for (size_t at = 0; at < sizeof layers / sizeof layers[0]; at++) {
        const int before = *length_out - (int)strlen(layers[at].ending);
        if (before > 0 &&
            strncmp(name + before, layers[at].ending, strlen(layers[at].ending)) == 0) {
            *length_out = before;
            return layers[at].layer;
        }
    }
    return EW_BENCH_BARE;
}

static cli_exit check_method(const cli_option *option, const char *name)
{
    char near[96], fix[192], method[CLI_METHOD_BYTES];
    int length, whole;
    const ew_bench_layer layer = cli_method_layer(name, &length);
    const bool ends = layer || cli_method_symmetric(name, &whole);
    snprintf(method, sizeof method, "%.*s", length, name);
    if (ends && cli_method_needs_mpi(method))
        return cli_fail_usage("compare with blas+separate", "'%s' measures bare calls only",
                              method);
    for (const char *const *known = method_names(); *known; known++)
        if (strcmp(*known, method) == 0)
            return CLI_EXIT_OK;
    cli_names_text(method_names(), fix, sizeof fix);
    cli_suggestion(name, method_names(), near, sizeof near);
    return cli_fail_usage(fix, "--%s does not know '%s'%s", option->name, name, near);
}

cli_exit cli_set_methods(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    char word[CLI_METHOD_BYTES];
    settings->num_methods = 0;
    while (next_word(&value, word, sizeof word)) {
        cli_exit failed = check_method(option, word);
        if (failed)
            return failed;
        for (int seen = 0; seen < settings->num_methods; seen++)
            if (strcmp(settings->methods[seen], word) == 0)
                return cli_fail_usage("name each method once", "--%s names '%s' twice",
                                      option->name, word);
        memcpy(settings->methods[settings->num_methods++], word, sizeof word);
    }
    return CLI_EXIT_OK;
}

cli_exit cli_set_baseline(cli_settings *settings, const cli_option *option,
                          const char *value)
{
    cli_exit failed = check_method(option, value);
    if (!failed)
        settings->baseline_method = value;
    return failed;
}
