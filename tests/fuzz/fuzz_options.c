/* Command lines: a first byte for the command, then arguments, one a line. */
#include "fuzz.h"

#include <getopt.h>

#include "options/options.h"

enum { MAX_ARGUMENTS = 32, NUM_COMMANDS = 13 };

/* The tool parses one command line in its life; getopt remembers the middle of a refused
 * one. */
static void forget_last_line(void)
{
    char *nothing[] = {"fuzz", NULL};
    optind = 0; /* glibc: start anew */
    (void)getopt(1, nothing, "");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static cli_settings settings;
    char *arguments[MAX_ARGUMENTS + 2] = {"fuzz"}, *rest = NULL;
    int count = 1;
    if (bytes == 0)
        return 0;
    const cli_command command = {.name = "fuzz",
                                 .bit = (cli_command_bit)(1 << data[0] % NUM_COMMANDS),
                                 .words = data[0] >= 128 ? "WORD..." : NULL};
    char *text = fuzz_text(data + 1, bytes - 1);
    for (char *word = strtok_r(text, "\n", &rest); word && count <= MAX_ARGUMENTS;
         word = strtok_r(NULL, "\n", &rest))
        /* Files are read by other targets, and a path could name one that never ends. */
        if (strncmp(word, "--pro", 5) != 0)
            arguments[count++] = word;
    forget_last_line();
    if (cli_options_parse(&command, count, arguments, &settings) == CLI_EXIT_OK)
        FUZZ_DEMAND(settings.num_words <= CLI_MAX_WORDS &&
                    settings.num_methods <= CLI_MAX_METHODS &&
                    settings.ranks.count <= CLI_MAX_VALUES);
    free(text);
    return 0;
}
