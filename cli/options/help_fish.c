/* Completion for fish: one line for each command and for each option of it. */
#include "options/help_pages.h"

#include "options/option_values.h"

/* Fish knows backslashes inside single quotes. */
static void print_text(const char *text)
{
    cli_help_print_quoted(text, "\\'", "\\");
}

static void print_option(const cli_command *command, const cli_option *option)
{
    const char *names[CLI_MAX_CHOICES];
    const int count = cli_option_choices(command, option, names);
    printf("complete -c entwine -n '__fish_seen_subcommand_from %s' -l %s", command->name,
           option->name);
    if (option->letter)
        printf(" -s %c", option->letter);
    if (option->argument)
        fputs(cli_help_takes_file(option) ? " -r -F" : " -x", stdout);
    if (count > 0) {
        fputs(" -a '", stdout);
        for (int at = 0; at < count; at++)
            printf("%s%s", at ? " " : "", names[at]);
        putchar('\'');
    }
    fputs(" -d '", stdout);
    print_text(option->help);
    puts("'");
}

static void print_words(const cli_command *command)
{
    const cli_word_kind kind = cli_help_words(command);
    if (kind == CLI_NO_WORDS)
        return;
    printf("complete -c entwine -n '__fish_seen_subcommand_from %s'", command->name);
    if (kind == CLI_FILE_WORDS) {
        puts(" -F");
        return;
    }
    fputs(" -a '", stdout);
    cli_help_print_names(command, " ");
    puts("'");
}

static void print_command(const cli_command *command)
{
    printf("complete -c entwine -n __fish_use_subcommand -a %s -d '", command->name);
    print_text(command->summary);
    puts("'");
    print_words(command);
    for (const cli_option *option = NULL; (option = cli_options_next(command, option));)
        print_option(command, option);
}

void cli_help_fish(cli_commands commands)
{
    printf(
        "# fish completion for entwine %s, made from its tables of commands and options.\n"
        "complete -c entwine -f\n"
        "complete -c entwine -n __fish_use_subcommand -a help -d 'the list of commands, or "
        "the help of one'\n",
        ew_version());
    for (int at = 0; at < commands.count; at++)
        print_command(&commands.at[at]);
    fputs("complete -c entwine -n '__fish_seen_subcommand_from help' -a '", stdout);
    for (int at = 0; at < commands.count; at++)
        printf("%s%s", at ? " " : "", commands.at[at].name);
    puts("'");
}
