/* Numbers as users type them: 8192, 8K, lists 8192,16384 and ranges 1024-8192*2.  Every
 * conversion is checked; on failure `why`, CLI_WHY_BYTES long, says what is wrong with
 * which piece of text. */
#ifndef ENTWINE_CLI_NUMBER_H
#define ENTWINE_CLI_NUMBER_H

#include <stdint.h>

enum { CLI_MAX_VALUES = 64, CLI_WHY_BYTES = 160 };

typedef struct cli_values {
    int64_t at[CLI_MAX_VALUES];
    int count; /* 0: the option was not given */
} cli_values;

/* `given`, or one value where there are none. */
cli_values cli_values_or(const cli_values *given, int64_t value);

typedef struct cli_bounds {
    int64_t least;
    int64_t most;
} cli_bounds;

/* All return 0, or -1 with the reason in `why` and nothing written to the result. */
int cli_number_parse(const char *text, cli_bounds bounds, int64_t *value_out, char *why);
int cli_values_parse(const char *text, cli_bounds bounds, cli_values *values_out,
                     char *why);
int cli_real_parse(const char *text, double least, double most, double *value_out,
                   char *why);

#endif
