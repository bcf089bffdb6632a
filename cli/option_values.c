/* The setters behind the option table.  Each checks its value, says what is wrong with
 * it in one message, and writes to the settings only when all is well. */
#include "option_values.h"

#include <stdlib.h>
#include <string.h>

#include "entwine/sim.h"

enum { MAX_CHOICES = 8 };

typedef struct choice {
    const char *name;
    int value;
} choice;

static const choice dtype_choices[] = {
    {"fp32", EW_FP32}, {"bf16", EW_BF16}, {"fp16", EW_FP16}, {NULL, 0}};
static const choice weight_choices[] = {
    {"nk", EW_WEIGHT_NK}, {"kn", EW_WEIGHT_KN}, {NULL, 0}};
static const choice ranks_as_choices[] = {
    {"processes", EW_RANKS_AS_PROCESSES}, {"threads", EW_RANKS_AS_THREADS}, {NULL, 0}};
static const choice backend_choices[] = {
    {"cpu", EW_BACKEND_CPU}, {"cuda", EW_BACKEND_CUDA}, {"sim", EW_BACKEND_SIM}, {NULL, 0}};
static const choice format_choices[] = {{"table", CLI_FORMAT_TABLE},
                                        {"csv", CLI_FORMAT_CSV},
                                        {"json", CLI_FORMAT_JSON},
                                        {"jsonl", CLI_FORMAT_JSONL},
                                        {NULL, 0}};

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
#undef TAKE_OPEN
    return merged;
}

ew_backend cli_settings_backend(const cli_settings *settings)
{
    return settings->config.backend ? settings->config.backend : EW_BACKEND_CPU;
}

/* The library's methods are known only to the library, the MPI module's only under
 * mpirun; a user may name either anywhere and must get the right answer. */
const char *const *cli_method_names(void)
{
    static const char *const with_mpi[] = {
        "entwine", "sequential", "blas",     "static",        "wavegroup",
        "chunked", "fused-push", "blas+mpi", "blas+mpi-best", NULL};
    return with_mpi;
}

bool cli_method_needs_mpi(const char *method)
{
    return strncmp(method, "blas+mpi", strlen("blas+mpi")) == 0;
}

static cli_exit pick(const cli_option *option, const choice *choices, const char *value,
                     int *picked_out)
{
    const char *names[MAX_CHOICES + 1];
    char near[96], fix[128] = "one of";
    int count = 0;
    for (const choice *at = choices; at->name; at++) {
        if (strcmp(at->name, value) == 0) {
            *picked_out = at->value;
            return CLI_EXIT_OK;
        }
        names[count++] = at->name;
        snprintf(fix + strlen(fix), sizeof fix - strlen(fix), "%s %s", count > 1 ? "," : "",
                 at->name);
    }
    names[count] = NULL;
    cli_suggestion(value, names, near, sizeof near);
    return cli_fail_usage(fix, "--%s does not know '%.60s'%s", option->name, value, near);
}

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

cli_exit cli_set_dtypes(cli_settings *settings, const cli_option *option, const char *value)
{
    char word[CLI_METHOD_BYTES];
    settings->dtypes.count = 0;
    while (next_word(&value, word, sizeof word)) {
        int dtype = 0;
        cli_exit failed = pick(option, dtype_choices, word, &dtype);
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

cli_exit cli_set_weight(cli_settings *settings, const cli_option *option, const char *value)
{
    int picked = 0;
    cli_exit failed = pick(option, weight_choices, value, &picked);
    if (!failed)
        settings->weight = (ew_weight_layout)picked;
    return failed;
}

cli_exit cli_set_ranks_as(cli_settings *settings, const cli_option *option,
                          const char *value)
{
    int picked = 0;
    cli_exit failed = pick(option, ranks_as_choices, value, &picked);
    if (!failed)
        settings->ranks_as = (ew_ranks_as)picked;
    return failed;
}

cli_exit cli_set_format(cli_settings *settings, const cli_option *option, const char *value)
{
    int picked = 0;
    cli_exit failed = pick(option, format_choices, value, &picked);
    if (!failed)
        settings->format = (cli_format)picked;
    return failed;
}

cli_exit cli_set_backend(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    int picked = 0;
    cli_exit failed = pick(option, backend_choices, value, &picked);
    if (!failed)
        settings->config.backend = (ew_backend)picked;
    return failed;
}

static cli_exit check_method(const cli_option *option, const char *name)
{
    char near[96];
    for (const char *const *known = cli_method_names(); *known; known++)
        if (strcmp(*known, name) == 0)
            return CLI_EXIT_OK;
    cli_suggestion(name, cli_method_names(), near, sizeof near);
    return cli_fail_usage("one of entwine, sequential, blas, static, wavegroup, chunked, "
                          "fused-push, blas+mpi, blas+mpi-best",
                          "--%s does not know '%s'%s", option->name, name, near);
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

cli_exit cli_set_link(cli_settings *settings, const cli_option *option, const char *value)
{
    char rate[CLI_METHOD_BYTES], why[CLI_WHY_BYTES];
    const char *at = value;
    double number, latency_us = -1.0;
    next_word(&at, rate, sizeof rate);
    if (cli_real_parse(rate, 0.0, 1e6, &number, why) ||
        (at && cli_real_parse(at, 0.0, 1e6, &latency_us, why)))
        return cli_fail_usage(
            "Gb/s (cuda: GB/s) and, if wanted, a latency in us: --link 2.5,5", "--%s: %s",
            option->name, why);
    settings->link_rate = number;
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

cli_exit cli_set_quiet(cli_settings *settings, const cli_option *option, const char *value)
{
    (void)option, (void)value;
    settings->quiet = true;
    return CLI_EXIT_OK;
}

cli_exit cli_set_verbose(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    (void)option, (void)value;
    settings->verbose = true;
    return CLI_EXIT_OK;
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

cli_exit cli_set_validate(cli_settings *settings, const cli_option *option,
                          const char *value)
{
    (void)option, (void)value;
    settings->validate = true;
    return CLI_EXIT_OK;
}

cli_exit cli_set_help(cli_settings *settings, const cli_option *option, const char *value)
{
    (void)option, (void)value;
    settings->help = true;
    return CLI_EXIT_OK;
}

/* ---- tune, cache, compare ---- */

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

cli_exit cli_set_older(cli_settings *settings, const cli_option *option, const char *value)
{
    return set_real(option, value, 0.0, 36500.0, "a number of days, such as 30",
                    &settings->older_days);
}

cli_exit cli_set_resume(cli_settings *settings, const cli_option *option, const char *value)
{
    (void)option, (void)value;
    settings->resume = true;
    return CLI_EXIT_OK;
}

cli_exit cli_set_dry_run(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    (void)option, (void)value;
    settings->dry_run = true;
    return CLI_EXIT_OK;
}

cli_exit cli_set_tuned(cli_settings *settings, const cli_option *option, const char *value)
{
    (void)option, (void)value;
    settings->tuned = true;
    return CLI_EXIT_OK;
}

cli_exit cli_set_all(cli_settings *settings, const cli_option *option, const char *value)
{
    (void)option, (void)value;
    settings->all = true;
    return CLI_EXIT_OK;
}

cli_exit cli_set_across_machines(cli_settings *settings, const cli_option *option,
                                 const char *value)
{
    (void)option, (void)value;
    settings->across_machines = true;
    return CLI_EXIT_OK;
}

/* ---- Combinations ---- */

static bool uses_method(const cli_settings *settings, const char *name)
{
    for (int at = 0; at < settings->num_methods; at++)
        if (strcmp(settings->methods[at], name) == 0)
            return true;
    return false;
}

static cli_exit check_single(const cli_command *command, const char *option,
                             const cli_values *values)
{
    if (values->count <= 1)
        return CLI_EXIT_OK;
    return cli_fail_usage("entwine bench takes lists and ranges",
                          "'%s' takes one value for --%s, not %d", command->name, option,
                          values->count);
}

/* What is tuned, and by whom. */
static cli_exit check_tuning(const cli_command *command, const cli_settings *settings)
{
    const bool tunes = command->bit == CLI_TUNE;
    const char *method = settings->num_methods ? settings->methods[0] : "entwine";
    if (tunes && settings->num_methods > 1)
        return cli_fail_usage("tune one method at a time, or entwine bench --tuned",
                              "'tune' takes one value for --method, not %d",
                              settings->num_methods);
    if (tunes && cli_method_needs_mpi(method))
        return cli_fail_usage("entwine bench measures it", "method '%s' has nothing to tune",
                              method);
    if (tunes && settings->resume && strcmp(method, "entwine") != 0)
        return cli_fail_usage("leave --resume out",
                              "--resume: nothing is stored for method '%s'", method);
    if (!tunes && settings->budget_s > 0 && !settings->tuned)
        return cli_fail_usage("add --tuned", "--tune-budget is for --tuned");
    return CLI_EXIT_OK;
}

/* One run is one backend: its matrices, its clock, its link. */
static cli_exit check_backends(const cli_command *command, const cli_settings *settings)
{
    const ew_backend backend = cli_settings_backend(settings);
    if (command->bit == CLI_DEMO && backend != EW_BACKEND_CPU)
        return cli_fail_usage("entwine bench --backend NAME measures another",
                              "'demo' shows the cpu backend");
    if (settings->profile && backend != EW_BACKEND_SIM)
        return cli_fail_usage("leave --backend out, or use --backend sim",
                              "--profile describes hardware for the sim backend");
    for (int at = 0; at < settings->num_variants; at++) {
        ew_backend other = settings->variant_configs[at].backend;
        if (other && other != backend)
            return cli_fail_usage("give --backend, and leave it out of --variant",
                                  "--variant %.60s has another backend than the rest",
                                  settings->variants[at]);
    }
    return CLI_EXIT_OK;
}

cli_exit cli_settings_check(const cli_command *command, const cli_settings *settings)
{
    const cli_settings *s = settings;
    cli_exit failed = CLI_EXIT_OK;
    if (!(command->bit & (CLI_BENCH | CLI_ABLATE | CLI_SWEEP | CLI_TUNE)) &&
        ((failed = check_single(command, "ranks", &s->ranks)) ||
         (failed = check_single(command, "rows", &s->rows)) ||
         (failed = check_single(command, "cols", &s->cols)) ||
         (failed = check_single(command, "depth", &s->depth)) ||
         (failed = check_single(command, "datatype", &s->dtypes))))
        return failed;
    if (s->suite && (s->rows.count || s->cols.count || s->depth.count))
        return cli_fail_usage("leave -m, -N and -k out, or write your own suite",
                              "--suite already says which problems to run");
    if (s->baseline_method && s->num_methods && !uses_method(s, s->baseline_method))
        return cli_fail_usage("add it to --method", "--baseline-method %s is not measured",
                              s->baseline_method);
    if (command->bit == CLI_PLAN && s->num_methods > 1)
        return cli_fail_usage("plan one method at a time",
                              "'plan' takes one value for --method, not %d",
                              s->num_methods);
    if (!(command->bit & (CLI_RUN | CLI_BENCH | CLI_ABLATE | CLI_SWEEP)) &&
        (s->format == CLI_FORMAT_CSV || s->format == CLI_FORMAT_JSONL))
        return cli_fail_usage("-o table or -o json", "'%s' prints no csv or jsonl",
                              command->name);
    failed = check_tuning(command, s);
    return failed ? failed : check_backends(command, s);
}
