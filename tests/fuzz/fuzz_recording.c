/* Flight recordings, as `entwine status` and `entwine trace --merge` read them. */
#include "fuzz_json.h"

#include "trace/flight.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char why[CLI_WHY_BYTES];
    cli_recording *recording = NULL;
    json_t *document = fuzz_json(data, bytes);
    if (!document)
        return 0;
    if (cli_recording_parse(document, &recording, why)) {
        FUZZ_DEMAND(recording->num_ranks >= 1 && recording->num_ranks <= CLI_MAX_RANKS);
        (void)cli_recording_print(recording);
        cli_recording_free(recording);
    }
    json_decref(document);
    fuzz_json_end();
    return 0;
}
