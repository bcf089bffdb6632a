/* What the pages for man and for the shells have in common. */
#include "options/help_pages.h"

#include <string.h>

#include "cmd/explain.h"
#include "options/option_values.h"

cli_word_kind cli_help_words(const cli_command *command)
{
    if (!command->words)
        return CLI_NO_WORDS;
    return strstr(command->words, ".json") ? CLI_FILE_WORDS : CLI_NAMED_WORDS;
}

void cli_help_print_names(const cli_command *command, const char *separator)
{
    const char *between = "";
    for (int at = 0; command->bit == CLI_EXPLAIN && cli_explain_code(at); at++) {
        printf("%s%s", between, cli_explain_code(at));
        between = separator;
    }
    for (const char *line = command->text; *line;) {
        const size_t length = strcspn(line, "\n");
        if (strncmp(line, "  ", 2) == 0 && line[2] != ' ') {
            printf("%s%.*s", between, (int)strcspn(line + 2, " "), line + 2);
            between = separator;
        }
        line += length;
        line += *line == '\n';
    }
}

bool cli_help_takes_file(const cli_option *option)
{
    return option->argument && strcmp(option->argument, "FILE") == 0;
}

void cli_help_print_quoted(const char *text, const char *quote, const char *also)
{
    for (; *text; text++) {
        if (*text == '\'') {
            fputs(quote, stdout);
            continue;
        }
        if (strchr(also, *text))
            putchar('\\');
        putchar(*text);
    }
}
