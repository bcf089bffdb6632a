/* The man page, in the macros that every man knows. */
#include "options/help_pages.h"

#include <string.h>

#include "base/environment.h"
#include "options/option_rules.h"

/* A dash is a minus sign there, a line must not start like a request. */
static void print_text(const char *text, size_t length)
{
    if (length > 0 && (*text == '.' || *text == '\''))
        fputs("\\&", stdout);
    for (size_t at = 0; at < length; at++) {
        if (text[at] == '\\')
            fputs("\\e", stdout);
        else if (text[at] == '-')
            fputs("\\-", stdout);
        else
            putchar(text[at]);
    }
}

static void print_line(const char *text)
{
    print_text(text, strlen(text));
    putchar('\n');
}

/* Lines that start with blanks are tables or commands, and stay as they are. */
static void print_lines(const char *text)
{
    bool fixed = false;
    while (*text) {
        const size_t length = strcspn(text, "\n");
        const bool starts_blank = *text == ' ';
        if (starts_blank != fixed)
            puts(starts_blank ? ".nf" : ".fi");
        fixed = starts_blank;
        print_text(text, length);
        putchar('\n');
        text += length;
        text += *text == '\n';
    }
    if (fixed)
        puts(".fi");
}

static void print_command(const cli_command *command)
{
    printf(".SS entwine %s ", command->name);
    if (command->words) {
        print_text(command->words, strlen(command->words));
        putchar(' ');
    }
    puts("[options]");
    print_lines(command->text);
    puts(".PP");
    print_lines(command->examples);
}

static void print_option(cli_commands commands, const cli_option *option)
{
    const char *between = " (";
    puts(".TP");
    if (option->letter)
        printf("\\fB\\-%c\\fR, ", option->letter);
    fputs("\\fB\\-\\-", stdout);
    print_text(option->name, strlen(option->name));
    fputs("\\fR", stdout);
    if (option->argument) {
        fputs(" \\fI", stdout);
        print_text(option->argument, strlen(option->argument));
        fputs("\\fR", stdout);
    }
    putchar('\n');
    print_text(option->help, strlen(option->help));
    for (int at = 0; at < commands.count; at++)
        if (option->commands & (unsigned)commands.at[at].bit) {
            printf("%s%s", between, commands.at[at].name);
            between = ", ";
        }
    puts(")");
}

static void print_statuses(void)
{
    static const struct {
        cli_exit status;
        const char *meaning;
    } table[] = {{CLI_EXIT_OK, "All is well."},
                 {CLI_EXIT_WRONG, "Wrong values were computed."},
                 {CLI_EXIT_USAGE, "Usage, or a shape, config or file that cannot work."},
                 {CLI_EXIT_PEER, "A rank died, stalled or aborted."},
                 {CLI_EXIT_REGRESSION, "A regression."},
                 {CLI_EXIT_ENVIRONMENT, "Memory, operating system or installation."},
                 {CLI_EXIT_SKIPPED, "What was asked for is not available here."},
                 {CLI_EXIT_INTERRUPTED, "Interrupted; what was measured is written."}};
    puts(".SH EXIT STATUS");
    for (size_t at = 0; at < sizeof table / sizeof table[0]; at++)
        printf(".TP\n%d\n%s\n", (int)table[at].status, table[at].meaning);
}

static void print_environment(void)
{
    puts(".SH ENVIRONMENT");
    for (const cli_variable *at = cli_variables(); at->name; at++) {
        printf(".TP\n%s\n", at->name);
        print_line(at->meaning);
    }
}

void cli_help_man(cli_commands commands)
{
    printf(".TH ENTWINE 1 \"\" \"entwine %s\" \"User Commands\"\n", ew_version());
    puts(".SH NAME\n"
         "entwine \\- GEMM + ReduceScatter whose communication hides behind the "
         "computation\n"
         ".SH SYNOPSIS\n"
         ".B entwine\n.I COMMAND\n[options]\n"
         ".br\n.B entwine help\n[\\fICOMMAND\\fR]\n"
         ".br\n.B entwine \\-\\-version\n"
         ".SH DESCRIPTION\n"
         "Every measurement checks its results: inputs are small integers whose products\n"
         "and sums are exact in every type.\n"
         "Data goes to standard output and everything else to standard error.\n"
         ".PP\n"
         "Numbers may carry K, M or G (powers of 1024).\n"
         "\\fBbench\\fR and \\fBtune\\fR also take lists 8192,16384 and ranges\n"
         "1024\\-8192*2 and 1024\\-4096+512, and run their cartesian product.\n"
         ".SH COMMANDS");
    for (int at = 0; at < commands.count; at++)
        print_command(&commands.at[at]);
    puts(".SH OPTIONS\nThe commands that take an option are in parentheses.");
    for (const cli_option *option = NULL; (option = cli_options_next(NULL, option));)
        print_option(commands, option);
    print_statuses();
    print_environment();
}
