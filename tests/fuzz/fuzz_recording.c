/* Flight recordings, as `entwine status` and `entwine trace --merge` read them. */
#include "fuzz.h"

#include "recording.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_error_t error;
    char why[CLI_WHY_BYTES];
    cli_recording *recording = NULL;
    json_t *document =
        json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!document)
        return 0;
    if (cli_recording_parse(document, &recording, why)) {
        FUZZ_DEMAND(recording->num_ranks >= 1 && recording->num_ranks <= CLI_MAX_RANKS);
        (void)cli_recording_print(recording, stdout);
        cli_recording_free(recording);
    }
    json_decref(document);
    return 0;
}
