/* What each option does to the settings: a rule says what its value is, within which bounds
 * and where it goes.  The few that need code of their own are in option_setters.c; what
 * options must not be together is in option_checks.c. */
#ifndef ENTWINE_CLI_OPTION_RULES_H
#define ENTWINE_CLI_OPTION_RULES_H

#include "options/options.h"

typedef struct cli_option cli_option;
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

#define CLI_ANY_COUNT 0x1p63 /* no upper bound */

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
    cli_rule rule;
    const char *help; /* NULL: not shown */
};

cli_setter cli_set_dtypes, cli_set_methods, cli_add_variant, cli_set_baseline,
    cli_set_config, cli_set_profile, cli_set_link;

/* Takes a value as the option's rule says.  On failure the error has been printed and the
 * settings are as they were. */
cli_exit cli_option_take(cli_settings *settings, const cli_option *option,
                         const char *value);

/* The value of the choice with this name; on failure the error lists the choices. */
cli_exit cli_choice_pick(const cli_option *option, const cli_choice *choices,
                         const char *name, int *picked_out);
/* The same without an error; NULL: there is none. */
const cli_choice *cli_choice_find(const cli_choice *choices, const char *name);
extern const cli_choice cli_dtype_choices[], cli_weight_choices[], cli_op_choices[];

/* "one of a, b, c": what a shell completes is made of these texts, too. */
void cli_names_text(const char *const *names, char *text, size_t bytes);

enum { CLI_MAX_CHOICES = 16 };

void cli_settings_init(cli_settings *settings);

/* What no single option can see: combinations, and lists where one value is wanted. */
cli_exit cli_settings_check(const cli_command *command, const cli_settings *settings);

#endif
