/* What each option does to the settings: a rule says what its value is, within which bounds
 * and where it goes.  Rules are in option_rules.c, the few that need code of their own in
 * option_setters.c; what options must not be together is in option_checks.c. */
#ifndef ENTWINE_CLI_OPTION_RULES_H
#define ENTWINE_CLI_OPTION_RULES_H

#include "options/options.h"

typedef cli_exit cli_setter(cli_settings *settings, const cli_option *option,
                            const char *value);

typedef struct cli_choice {
    const char *name;
    int value;
} cli_choice;

typedef enum cli_value_kind {
    CLI_VALUE_OTHER, /* `set` takes it */
    CLI_VALUE_SWITCH,
    CLI_VALUE_COUNT,  /* int64_t */
    CLI_VALUE_LIST,   /* cli_values */
    CLI_VALUE_REAL,   /* double */
    CLI_VALUE_TEXT,   /* not empty */
    CLI_VALUE_CHOICE, /* an enum */
    CLI_VALUE_REFUSED /* known only to be refused: `fix` and `why` */
} cli_value_kind;

typedef struct cli_rule {
    cli_value_kind kind;
    size_t offset;       /* in cli_settings */
    double least, most;  /* of numbers */
    const char *fix;     /* of a number: what is accepted */
    const char *endings; /* of a REAL: letters that may follow it, ... */
    double factors[2];   /* ... what they multiply with; without one: the first */
    const cli_choice *choices;
    cli_setter *set;
    const char *why;
} cli_rule;

struct cli_option {
    char letter; /* 0: long name only */
    const char *name;
    const char *argument; /* what the help calls its value; NULL: takes none */
    unsigned commands;    /* cli_command_bit */
    const cli_rule *rule;
    const char *help; /* NULL: not shown */
};

extern const cli_rule cli_rule_ranks, cli_rule_plan_ranks, cli_rule_rows, cli_rule_cols,
    cli_rule_depth, cli_rule_dtypes, cli_rule_weight, cli_rule_suite, cli_rule_figure,
    cli_rule_methods, cli_rule_variant, cli_rule_baseline, cli_rule_config,
    cli_rule_backend, cli_rule_profile, cli_rule_sweep, cli_rule_merge, cli_rule_ranks_as,
    cli_rule_link, cli_rule_no_link, cli_rule_no_validate, cli_rule_iters, cli_rule_warmup,
    cli_rule_gate, cli_rule_idle, cli_rule_seed, cli_rule_timeout, cli_rule_gflops,
    cli_rule_budget, cli_rule_tuned, cli_rule_repeats, cli_rule_resume, cli_rule_dry_run,
    cli_rule_older, cli_rule_all, cli_rule_threshold, cli_rule_across_machines,
    cli_rule_format, cli_rule_output_path, cli_rule_json_path, cli_rule_verbose,
    cli_rule_quiet, cli_rule_help;

cli_setter cli_set_dtypes, cli_set_methods, cli_add_variant, cli_set_baseline,
    cli_set_config, cli_set_profile, cli_set_link;

/* Takes a value as the option's rule says.  On failure the error has been printed and the
 * settings are as they were. */
cli_exit cli_option_take(cli_settings *settings, const cli_option *option,
                         const char *value);

/* The value of the choice with this name; on failure the error lists the choices. */
cli_exit cli_choice_pick(const cli_option *option, const cli_choice *choices,
                         const char *name, int *picked_out);
extern const cli_choice cli_dtype_choices[];

/* "one of a, b, c" */
void cli_names_text(const char *const *names, char *text, size_t bytes);

/* The words that an option's value is one of, or a list of; at most CLI_MAX_CHOICES.
 * Returns how many: 0 for free text. */
enum { CLI_MAX_CHOICES = 16 };
int cli_option_choices(const cli_option *option, const char **names);

void cli_settings_init(cli_settings *settings);

/* What no single option can see: combinations, and lists where one value is wanted. */
cli_exit cli_settings_check(const cli_command *command, const cli_settings *settings);

#endif
