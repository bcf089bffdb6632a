/* Numbers, lists and ranges as users type them. */
#include "fuzz.h"

#include "base/number.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const cli_bounds bounds[] = {{1, INT64_MAX}, {INT64_MIN, INT64_MAX}, {0, 256}};
    char *text = fuzz_text(data, bytes), why[CLI_WHY_BYTES];
    double real;
    for (size_t at = 0; at < sizeof bounds / sizeof bounds[0]; at++) {
        cli_values values = {.count = 0};
        int64_t value;
        if (cli_values_parse(text, bounds[at], &values, why) == 0)
            for (int i = 0; i < values.count; i++)
                FUZZ_DEMAND(values.at[i] >= bounds[at].least &&
                            values.at[i] <= bounds[at].most);
        if (cli_number_parse(text, bounds[at], &value, why) == 0)
            FUZZ_DEMAND(value >= bounds[at].least && value <= bounds[at].most);
    }
    if (cli_real_parse(text, 0, 1e6, &real, why) == 0)
        FUZZ_DEMAND(real >= 0 && real <= 1e6);
    free(text);
    return 0;
}
