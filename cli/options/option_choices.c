/* The setters of options that take one of a few words, or a list of them, and the words
 * themselves: what is accepted, what an error lists and what a shell completes are one. */
#include <string.h>

#include "entwine/sim.h"
#include "output/figures.h"
#include "options/option_values.h"

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
static const choice sweep_choices[] = {
    {"mxk", CLI_RANGE_SHAPES}, {"W", CLI_RANGE_RANKS}, {NULL, 0}};
static const choice format_choices[] = {{"table", CLI_FORMAT_TABLE},
                                        {"csv", CLI_FORMAT_CSV},
                                        {"json", CLI_FORMAT_JSON},
                                        {"jsonl", CLI_FORMAT_JSONL},
                                        {NULL, 0}};

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

/* Which words belong to which option. */
static const choice *choices_of(const cli_option *option)
{
    static const struct {
        cli_setter *set;
        const choice *choices;
    } table[] = {{cli_set_dtypes, dtype_choices},      {cli_set_weight, weight_choices},
                 {cli_set_ranks_as, ranks_as_choices}, {cli_set_backend, backend_choices},
                 {cli_set_sweep, sweep_choices},       {cli_set_format, format_choices}};
    for (size_t at = 0; at < sizeof table / sizeof table[0]; at++)
        if (table[at].set == option->set)
            return table[at].choices;
    return NULL;
}

static int copy_names(const char *const *from, const char **names)
{
    int count = 0;
    while (count < CLI_MAX_CHOICES && from[count]) {
        names[count] = from[count];
        count++;
    }
    return count;
}

int cli_option_choices(const cli_command *command, const cli_option *option,
                       const char **names)
{
    int count = 0;
    if (option->set == cli_set_methods || option->set == cli_set_baseline)
        return copy_names(cli_method_names(), names);
    if (option->set == cli_set_profile)
        return copy_names(ew_sim_profiles(), names);
    if (option->set == cli_set_figure)
        return cli_figure_names(command, names);
    for (const choice *at = choices_of(option); at && at->name; at++)
        names[count++] = at->name;
    return count;
}

static cli_exit pick(const cli_option *option, const choice *choices, const char *value,
                     int *picked_out)
{
    const char *names[CLI_MAX_CHOICES + 1];
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

cli_exit cli_set_sweep(cli_settings *settings, const cli_option *option, const char *value)
{
    int picked = 0;
    cli_exit failed = pick(option, sweep_choices, value, &picked);
    if (!failed)
        settings->sweep = (cli_range)picked;
    return failed;
}

ew_bench_layer cli_method_layer(const char *name, int *length_out)
{
    static const struct {
        const char *ending;
        ew_bench_layer layer;
    } layers[] = {{"+fused", EW_BENCH_FUSED},
                  {"+following", EW_BENCH_FOLLOWING},
                  {"+separate", EW_BENCH_SEPARATE}};
    const char *plus = strrchr(name, '+');
    *length_out = (int)strlen(name);
    for (size_t at = 0; plus && at < sizeof layers / sizeof layers[0]; at++)
        if (strcmp(plus, layers[at].ending) == 0) {
            *length_out = (int)(plus - name);
            return layers[at].layer;
        }
    return EW_BENCH_BARE;
}

static cli_exit check_method(const cli_option *option, const char *name)
{
    char near[96], method[CLI_METHOD_BYTES];
    int length;
    const ew_bench_layer layer = cli_method_layer(name, &length);
    snprintf(method, sizeof method, "%.*s", length, name);
    if (layer && cli_method_needs_mpi(method))
        return cli_fail_usage("compare with blas+separate", "'%s' measures bare calls only",
                              method);
    for (const char *const *known = cli_method_names(); *known; known++)
        if (strcmp(*known, method) == 0)
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
