/* Hardware profiles of the simulator. */
#include "fuzz.h"

#include "backend/sim/profile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = fuzz_text(data, bytes);
    ewx_sim_profile profile;
    if (ewx_sim_profile_parse("fuzz.profile", text, &profile) == EW_OK) {
        const double us = ewx_sim_curve_at(&profile.block_us_128, 4096);
        FUZZ_DEMAND(us == us); /* no NAN from what was accepted */
    }
    free(text);
    return 0;
}
