/* What the pages for man and for the shells have in common. */
#include "options/help_pages.h"

#include <string.h>

#include "options/option_rules.h"

cli_word_kind cli_help_words(const cli_command *command)
{
    if (!command->words)
        return CLI_NO_WORDS;
    return strstr(command->words, ".json") ? CLI_FILE_WORDS : CLI_NAMED_WORDS;
}

void cli_help_print_names(const cli_command *command, const char *separator)
{
    const char *between = "";
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
