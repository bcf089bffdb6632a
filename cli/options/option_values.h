/* What each option does to the settings: one setter per row of the option table, in
 * option_numbers.c, option_choices.c and, for the rest, option_values.c; what they must not
 * be together is in option_checks.c. */
#ifndef ENTWINE_CLI_OPTION_VALUES_H
#define ENTWINE_CLI_OPTION_VALUES_H

#include "options/options.h"

typedef cli_exit cli_setter(cli_settings *settings, const cli_option *option,
                            const char *value);

struct cli_option {
    char letter; /* 0: long name only */
    const char *name;
    const char *argument; /* what the help calls its value; NULL: takes none */
    unsigned commands;    /* cli_command_bit */
    cli_setter *set;
    const char *help; /* NULL: known only to be refused with a reason */
};

cli_setter cli_set_ranks, cli_set_rows, cli_set_cols, cli_set_depth, cli_set_dtypes,
    cli_set_weight, cli_set_suite, cli_set_figure, cli_set_methods, cli_add_variant,
    cli_set_baseline, cli_set_config, cli_set_backend, cli_set_ranks_as, cli_set_link,
    cli_set_iters, cli_set_warmup, cli_set_gate, cli_set_idle, cli_set_seed,
    cli_set_timeout, cli_set_gflops, cli_set_format, cli_set_json_path, cli_set_output_path,
    cli_set_quiet, cli_set_verbose, cli_set_help, cli_set_profile, cli_set_validate,
    cli_set_merge, cli_refuse_link, cli_set_budget, cli_set_repeats, cli_set_resume,
    cli_set_count, cli_set_dry_run, cli_set_older, cli_set_all, cli_set_threshold,
    cli_set_across_machines, cli_set_tuned, cli_set_sweep, cli_set_plan_ranks;

/* The words that an option's value is one of, or a list of, for a command; at most
 * CLI_MAX_CHOICES.  Returns how many: 0 for free text. */
enum { CLI_MAX_CHOICES = 16 };
int cli_option_choices(const cli_command *command, const cli_option *option,
                       const char **names);

void cli_settings_init(cli_settings *settings);

/* What no single option can see: combinations, and lists where one value is wanted. */
cli_exit cli_settings_check(const cli_command *command, const cli_settings *settings);

#endif
