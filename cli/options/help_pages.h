/* Pages made from the tables of commands and options when the tool is built: the man page
 * and what shells complete.  `entwine help --man` and `entwine help --completion SHELL`
 * print them, for the build; no help mentions it. */
#ifndef ENTWINE_CLI_HELP_PAGES_H
#define ENTWINE_CLI_HELP_PAGES_H

#include "options/options.h"

/* The table of commands; `help` itself is not in it. */
typedef struct cli_commands {
    const cli_command *at;
    int count;
} cli_commands;

void cli_help_man(cli_commands commands);
void cli_help_bash(cli_commands commands);

/* What a command's arguments that are no options may be. */
typedef enum cli_word_kind { CLI_NO_WORDS, CLI_NAMED_WORDS, CLI_FILE_WORDS } cli_word_kind;
cli_word_kind cli_help_words(const cli_command *command);

/* The words that a command takes: the names that its text explains, one a line behind two
 * blanks.  Prints them with `separator` between. */
void cli_help_print_names(const cli_command *command, const char *separator);

/* Whether an option's value is the path of a file. */
bool cli_help_takes_file(const cli_option *option);

#endif
