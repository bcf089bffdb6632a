/* What no single option can see: combinations, and lists where one value is wanted. */
#include <string.h>

#include "options/option_rules.h"

/* What is tuned, and by whom. */
static cli_exit check_tuning(const cli_command *command, const cli_settings *settings)
{
    const bool tunes = command->bit == CLI_TUNE;
    const char *method = settings->num_methods ? settings->methods[0] : "entwine";
    if (tunes && cli_method_needs_mpi(method))
        return cli_fail_usage("entwine bench measures it",
                              "method '%s' has nothing to tune", method);
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
    const cli_bed *bed = cli_settings_bed(settings);
    if (command->bit == CLI_DEMO && !bed->on_cores)
        return cli_fail_usage("entwine bench --backend NAME measures another",
                              "'demo' shows the cpu backend");
    if (command->bit == CLI_DEMO && settings->ranks.count && settings->ranks.at[0] < 2)
        return cli_fail_usage("-W 2, or more; entwine run -W 1 measures one",
                              "'demo' shows ranks that exchange tiles, and one has none to "
                              "exchange");
    if (settings->graph && !bed->on_gpus)
        return cli_fail_usage("add --backend cuda, or leave it out",
                              "--graph captures calls into CUDA graphs");
    if (settings->profile && !bed->is_simulated)
        return cli_fail_usage("leave --backend out, or use --backend sim",
                              "--profile describes hardware for the sim backend");
    for (int at = 0; at < settings->num_variants; at++) {
        ew_backend other = settings->variant_configs[at].backend;
        if (other && other != bed->backend)
            return cli_fail_usage("give --backend, and leave it out of --variant",
                                  "--variant %.60s has another backend than the rest",
                                  settings->variants[at]);
    }
    return CLI_EXIT_OK;
}

/* A forecast compares all methods, at the rates of its hardware. */
static cli_exit check_forecast(const cli_command *command, const cli_settings *settings)
{
    if (command->bit != CLI_PLAN || !cli_settings_bed(settings)->is_simulated)
        return CLI_EXIT_OK;
    if (settings->num_methods > 0)
        return cli_fail_usage("leave it out, or entwine bench --profile NAME --method A,B",
                              "--method: with a profile 'plan' shows every method");
    if (settings->gflops > 0)
        return cli_fail_usage("leave it out", "--gflops: a profile has rates of its own");
    return CLI_EXIT_OK;
}

/* What follows a call changes neither its plan nor what is tuned. */
static cli_exit check_layers(const cli_command *command, const cli_settings *settings)
{
    for (int at = 0; at < settings->num_methods; at++) {
        int length;
        const char *name = settings->methods[at];
        if ((command->bit & (CLI_PLAN | CLI_TUNE)) &&
            (cli_method_layer(name, &length) || cli_method_symmetric(name, &length)))
            return cli_fail_usage("leave the ending out", "'%s' takes no method '%s'",
                                  command->name, name);
    }
    return CLI_EXIT_OK;
}

cli_exit cli_settings_check(const cli_command *command, const cli_settings *settings)
{
    const cli_settings *s = settings;
    const cli_values *const lists[] = {&s->ranks, &s->rows, &s->cols, &s->depth,
                                       &s->dtypes};
    static const char *const names[] = {"ranks", "rows", "cols", "depth", "datatype"};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (lists[at]->count > 1 && !(command->bit & (CLI_BENCH | CLI_TUNE)))
            return cli_fail_usage("entwine bench takes lists and ranges",
                                  "'%s' takes one value for --%s, not %d", command->name,
                                  names[at], lists[at]->count);
    if (s->suite && (s->rows.count || s->cols.count || s->depth.count))
        return cli_fail_usage("leave -m, -N and -k out, or write your own suite",
                              "--suite already says which problems to run");
    if ((command->bit & (CLI_PLAN | CLI_TUNE)) && s->num_methods > 1)
        return cli_fail_usage(command->bit == CLI_PLAN
                                  ? "plan one method at a time"
                                  : "tune one method at a time, or entwine bench --tuned",
                              "'%s' takes one value for --method, not %d", command->name,
                              s->num_methods);
    if (!(command->bit & (CLI_RUN | CLI_BENCH)) && s->format == CLI_FORMAT_CSV)
        return cli_fail_usage("-o table or -o json", "'%s' prints no csv", command->name);
    cli_exit failed = check_layers(command, s);
    if (!failed)
        failed = check_tuning(command, s);
    if (!failed)
        failed = check_forecast(command, s);
    return failed ? failed : check_backends(command, s);
}
