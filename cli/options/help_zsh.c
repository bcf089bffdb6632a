/* Completion for zsh, through its _arguments. */
#include "options/help_pages.h"

#include "options/option_values.h"

/* Inside single quotes, in a specification of _arguments. */
static void print_text(const char *text)
{
    cli_help_print_quoted(text, "'\\''", "[]:\\");
}

static void print_option(const cli_command *command, const cli_option *option)
{
    const char *names[CLI_MAX_CHOICES];
    const int count = cli_option_choices(command, option, names);
    const char *repeats = option->set == cli_add_variant ? "*" : "";
    fputs(" \\\n        ", stdout);
    if (option->letter)
        printf("'(-%c --%s)'{-%c,--%s}", option->letter, option->name, option->letter,
               option->name);
    else
        printf("'%s--%s'", repeats, option->name);
    fputs("'[", stdout);
    print_text(option->help);
    putchar(']');
    if (option->argument) {
        putchar(':');
        print_text(option->argument);
        putchar(':');
        if (cli_help_takes_file(option))
            fputs("_files", stdout);
        for (int at = 0; at < count; at++)
            printf("%s%s", at ? " " : "(", names[at]);
        if (count > 0)
            putchar(')');
    }
    putchar('\'');
}

static void print_command(const cli_command *command)
{
    printf("%s)\n    _arguments -s", command->name);
    for (const cli_option *option = NULL; (option = cli_options_next(command, option));)
        print_option(command, option);
    if (cli_help_words(command) == CLI_NAMED_WORDS) {
        fputs(" \\\n        '1:word:(", stdout);
        cli_help_print_names(command, " ");
        fputs(")' '2:file:_files'", stdout);
    } else if (cli_help_words(command) == CLI_FILE_WORDS) {
        fputs(" \\\n        '*:file:_files'", stdout);
    }
    fputs(" ;;\n", stdout);
}

void cli_help_zsh(cli_commands commands)
{
    printf(
        "#compdef entwine\n"
        "# zsh completion for entwine %s, made from its tables of commands and options.\n"
        "local -a commands\ncommands=(\n",
        ew_version());
    for (int at = 0; at < commands.count; at++) {
        printf("    '%s:", commands.at[at].name);
        cli_help_print_quoted(commands.at[at].summary, "'\\''", "\\");
        fputs("'\n", stdout);
    }
    fputs("    'help:the list of commands, or the help of one'\n)\n"
          "if (( CURRENT == 2 )); then\n"
          "    _describe command commands\n"
          "    return\n"
          "fi\n"
          "local command=$words[2]\n"
          "shift words\n"
          "(( CURRENT-- ))\n"
          "case $command in\n"
          "help) _describe command commands ;;\n",
          stdout);
    for (int at = 0; at < commands.count; at++)
        print_command(&commands.at[at]);
    fputs("esac\n", stdout);
}
