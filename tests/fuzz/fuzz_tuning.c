/* Tuning entries: files in a folder that anybody may have written to. */
#include "fuzz.h"

#include "entwine/tune.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes), printed[4096];
    ew_tuning tuning, again;
    if (ew_tuning_parse(text, bytes, &tuning) == EW_OK) {
        FUZZ_DEMAND(ew_tuning_print(&tuning, printed, sizeof printed) == EW_OK);
        FUZZ_DEMAND(ew_tuning_parse(printed, strlen(printed), &again) == EW_OK);
        FUZZ_DEMAND(strcmp(tuning.key, again.key) == 0);
    }
    free(text);
    return 0;
}
