/* The rules of options whose values are numbers, names or one of a few words, and the one
 * function that follows them.  What is accepted, what an error lists and what a shell
 * completes are the same list. */
#include "options/option_rules.h"

#include <stddef.h>
#include <string.h>

#include "entwine/sim.h"
#include "options/figure_lines.h"

/* ---- Words ---- */

const cli_choice cli_dtype_choices[] = {
    {"fp32", EW_FP32}, {"bf16", EW_BF16}, {"fp16", EW_FP16}, {NULL, 0}};
static const cli_choice weights[] = {{"nk", EW_WEIGHT_NK}, {"kn", EW_WEIGHT_KN}, {NULL, 0}};
static const cli_choice kinds_of_ranks[] = {
    {"processes", EW_RANKS_AS_PROCESSES}, {"threads", EW_RANKS_AS_THREADS}, {NULL, 0}};
static const cli_choice backends[] = {
    {"cpu", EW_BACKEND_CPU}, {"cuda", EW_BACKEND_CUDA}, {"sim", EW_BACKEND_SIM}, {NULL, 0}};
static const cli_choice ranges[] = {
    {"mxk", CLI_RANGE_SHAPES}, {"W", CLI_RANGE_RANKS}, {NULL, 0}};
static const cli_choice formats[] = {{"table", CLI_FORMAT_TABLE},
                                     {"csv", CLI_FORMAT_CSV},
                                     {"json", CLI_FORMAT_JSON},
                                     {"jsonl", CLI_FORMAT_JSONL},
                                     {NULL, 0}};

/* ---- Rules ---- */

/* clang-format off */
#define FIELD(field) offsetof(cli_settings, field)
#define SWITCH(field) {.kind = CLI_VALUE_SWITCH, .offset = FIELD(field)}
#define TEXT(field) {.kind = CLI_VALUE_TEXT, .offset = FIELD(field)}
#define CHOICE(field, list) {.kind = CLI_VALUE_CHOICE, .offset = FIELD(field), .choices = list}
#define COUNT(field, from, to, what) \
    {.kind = CLI_VALUE_COUNT, .offset = FIELD(field), .least = from, .most = to, .fix = what}
#define REAL(field, from, to, what) \
    {.kind = CLI_VALUE_REAL, .offset = FIELD(field), .least = from, .most = to, .fix = what}
#define LIST(field, to, what) \
    {.kind = CLI_VALUE_LIST, .offset = FIELD(field), .least = 1, .most = to, .fix = what}
#define OTHER(setter) {.kind = CLI_VALUE_OTHER, .set = setter}
#define REFUSED(reason, what) {.kind = CLI_VALUE_REFUSED, .why = reason, .fix = what}
#define SIZES "numbers such as 1024, 8K, 1024,2048 or 1024-8192*2"
#define SOME_RANKS "1 to 256 ranks, such as 4 or 2,4,8 or 2-8*2"
#define ANY 0x1p63

const cli_rule
    cli_rule_ranks = LIST(ranks, CLI_MAX_RANKS, SOME_RANKS),
    /* Only the library knows whether they are simulated. */
    cli_rule_plan_ranks = LIST(ranks, CLI_MAX_SIMULATED, SIZES),
    cli_rule_rows = LIST(rows, ANY, SIZES),
    cli_rule_cols = LIST(cols, ANY, SIZES),
    cli_rule_depth = LIST(depth, ANY, SIZES),
    cli_rule_iters = COUNT(iters, 1, EW_BENCH_MAX_SAMPLES, "a count from 1 to 1024"),
    cli_rule_warmup = COUNT(warmup, 0, 1000000, "a count from 0 to 1000000"),
    cli_rule_seed = COUNT(seed, 0, UINT32_MAX, "a number from 0 to 4294967295"),
    cli_rule_repeats = COUNT(repeats, 1, CLI_MAX_REPEATS, "a count from 1 to 100"),
    cli_rule_timeout = REAL(timeout_s, 0.01, 86400, "seconds, from 0.01 to 86400"),
    cli_rule_gate = REAL(gate_ms, 0, 1000, "milliseconds, 20 is a good value, 0 is off"),
    cli_rule_idle = REAL(idle, 0, 100,
        "a multiple of the sample's time, 1 is a good value on a GPU, 0 is off"),
    cli_rule_gflops = REAL(gflops, 1e-3, 1e9, "GFLOP/s of one rank, for example 75"),
    cli_rule_older = REAL(older_days, 0, 36500, "a number of days, such as 30"),
    cli_rule_budget = {.kind = CLI_VALUE_REAL, .offset = FIELD(budget_s), .least = 0.001,
        .most = 86400, .fix = "a time for each problem, such as 60s or 2m",
        .endings = "sm", .factors = {1, 60}},
    cli_rule_threshold = {.kind = CLI_VALUE_REAL, .offset = FIELD(threshold), .most = 1000,
        .fix = "per cent, such as 5%", .endings = "%", .factors = {0.01}},
    cli_rule_suite = TEXT(suite),
    cli_rule_figure = TEXT(figure),
    cli_rule_json_path = TEXT(json_path),
    cli_rule_output_path = TEXT(output_path),
    cli_rule_weight = CHOICE(weight, weights),
    cli_rule_ranks_as = CHOICE(ranks_as, kinds_of_ranks),
    cli_rule_backend = CHOICE(config.backend, backends),
    cli_rule_sweep = CHOICE(sweep, ranges),
    cli_rule_format = CHOICE(format, formats),
    cli_rule_merge = SWITCH(merge),
    cli_rule_tuned = SWITCH(tuned),
    cli_rule_resume = SWITCH(resume),
    cli_rule_dry_run = SWITCH(dry_run),
    cli_rule_all = SWITCH(all),
    cli_rule_across_machines = SWITCH(across_machines),
    cli_rule_verbose = SWITCH(verbose),
    cli_rule_quiet = SWITCH(quiet),
    cli_rule_help = SWITCH(help),
    cli_rule_dtypes = OTHER(cli_set_dtypes),
    cli_rule_methods = OTHER(cli_set_methods),
    cli_rule_baseline = OTHER(cli_set_baseline),
    cli_rule_variant = OTHER(cli_add_variant),
    cli_rule_config = OTHER(cli_set_config),
    cli_rule_profile = OTHER(cli_set_profile),
    cli_rule_link = OTHER(cli_set_link),
    cli_rule_no_link = REFUSED("entries are for this machine, not for an emulated link",
                               "tune without it; bench --link then measures what was found"),
    cli_rule_no_validate = REFUSED("the tool does not judge its simulations",
                                   "scripts/validate-sim of the sources does");
/* clang-format on */

_Static_assert(sizeof(ew_backend) == sizeof(int) && sizeof(cli_format) == sizeof(int),
               "choices are stored as int");

/* ---- Following them ---- */

/* A number with one of the endings; returns what it is to be multiplied with. */
static double split_ending(const cli_rule *rule, const char *value, char *digits,
                           size_t bytes)
{
    const size_t length = strlen(value);
    const char *found =
        rule->endings && length > 1 ? strchr(rule->endings, value[length - 1]) : NULL;
    snprintf(digits, bytes, "%.*s", (int)(found ? length - 1 : length), value);
    return !rule->endings ? 1.0 : rule->factors[found ? found - rule->endings : 0];
}

static int take_number(const cli_rule *rule, const char *value, void *place, char *why)
{
    const cli_bounds bounds = {(int64_t)rule->least,
                               rule->most < ANY ? (int64_t)rule->most : INT64_MAX};
    char digits[CLI_METHOD_BYTES];
    double real;
    if (rule->kind == CLI_VALUE_COUNT)
        return cli_number_parse(value, bounds, place, why);
    if (rule->kind == CLI_VALUE_LIST)
        return cli_values_parse(value, bounds, place, why);
    const double factor = split_ending(rule, value, digits, sizeof digits);
    if (cli_real_parse(digits, rule->least, rule->most, &real, why))
        return -1;
    *(double *)place = real * factor;
    return 0;
}

cli_exit cli_choice_pick(const cli_option *option, const cli_choice *choices,
                         const char *name, int *picked_out)
{
    const char *names[CLI_MAX_CHOICES + 1];
    char near[96], fix[128];
    int count = 0;
    for (const cli_choice *at = choices; at->name; at++) {
        if (strcmp(at->name, name) == 0) {
            *picked_out = at->value;
            return CLI_EXIT_OK;
        }
        names[count++] = at->name;
    }
    names[count] = NULL;
    cli_names_text(names, fix, sizeof fix);
    cli_suggestion(name, names, near, sizeof near);
    return cli_fail_usage(fix, "--%s does not know '%.60s'%s", option->name, name, near);
}

cli_exit cli_option_take(cli_settings *settings, const cli_option *option,
                         const char *value)
{
    const cli_rule *rule = option->rule;
    void *place = (char *)settings + rule->offset;
    char why[CLI_WHY_BYTES];
    switch (rule->kind) {
    case CLI_VALUE_SWITCH:
        *(bool *)place = true;
        return CLI_EXIT_OK;
    case CLI_VALUE_TEXT:
        if (!*value)
            return cli_fail_usage("leave the option out instead", "--%s is empty",
                                  option->name);
        *(const char **)place = value;
        return CLI_EXIT_OK;
    case CLI_VALUE_CHOICE:
        return cli_choice_pick(option, rule->choices, value, place);
    case CLI_VALUE_COUNT:
    case CLI_VALUE_LIST:
    case CLI_VALUE_REAL:
        return take_number(rule, value, place, why)
                   ? cli_fail_usage(rule->fix, "--%s: %s", option->name, why)
                   : CLI_EXIT_OK;
    case CLI_VALUE_REFUSED:
        return cli_fail_usage(rule->fix, "--%s: %s", option->name, rule->why);
    case CLI_VALUE_OTHER:
        break;
    }
    return rule->set(settings, option, value);
}

/* ---- Names ---- */

void cli_names_text(const char *const *names, char *text, size_t bytes)
{
    size_t used = (size_t)snprintf(text, bytes, "one of");
    for (int at = 0; names[at] && used < bytes; at++)
        used +=
            (size_t)snprintf(text + used, bytes - used, "%s %s", at ? "," : "", names[at]);
}

int cli_option_choices(const cli_option *option, const char **names)
{
    const cli_rule *rule = option->rule;
    const cli_choice *choices =
        rule == &cli_rule_dtypes ? cli_dtype_choices : rule->choices;
    const char *const *from = rule == &cli_rule_methods || rule == &cli_rule_baseline
                                  ? cli_method_names()
                              : rule == &cli_rule_profile ? ew_sim_profiles()
                              : rule == &cli_rule_figure  ? cli_figure_names()
                                                          : NULL;
    int count = 0;
    for (; from && from[count] && count < CLI_MAX_CHOICES; count++)
        names[count] = from[count];
    for (; choices && choices->name; choices++)
        names[count++] = choices->name;
    return count;
}
