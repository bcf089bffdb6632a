/* Completion for bash, made from the tables of commands and options when the tool is built.
 * `entwine help --completion bash` prints it, for the build; no help mentions it. */
#ifndef ENTWINE_CLI_HELP_BASH_H
#define ENTWINE_CLI_HELP_BASH_H

#include "options/options.h"

/* The table of commands; `help` itself is not in it. */
typedef struct cli_commands {
    const cli_command *at;
    int count;
} cli_commands;

void cli_help_bash(cli_commands commands);

#endif
