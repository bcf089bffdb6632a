/* Config texts, as users type them and tuning entries hold them. */
#include "fuzz.h"

#include "entwine/entwine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes), printed[EW_CONFIG_TEXT_BYTES];
    ew_config config = EW_CONFIG_INIT, again = EW_CONFIG_INIT;
    if (ew_config_parse(text, &config) == EW_OK) {
        FUZZ_DEMAND(ew_config_print(&config, printed, sizeof printed) == EW_OK);
        FUZZ_DEMAND(ew_config_parse(printed, &again) == EW_OK);
        FUZZ_DEMAND(memcmp(&config, &again, sizeof config) == 0);
    }
    free(text);
    return 0;
}
