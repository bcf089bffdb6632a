/* The rules of ENTWINE_FAULT. */
#include "fuzz.h"

#include "base/inject.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes);
    ewx_rule rules[EWX_MAX_RULES];
    int count = 0;
    if (ewx_inject_parse(text, rules, &count) == EW_OK)
        FUZZ_DEMAND(count >= 0 && count <= EWX_MAX_RULES);
    free(text);
    return 0;
}
