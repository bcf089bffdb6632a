/* Result documents, as `entwine compare` reads them back. */
#include "fuzz_json.h"

#include "output/result_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_t *document = fuzz_json(data, bytes);
    cli_result_file file;
    if (!document)
        return 0;
    if (cli_result_file_take(&file, "fuzz.json", document) == CLI_EXIT_OK)
        for (int at = 0; at < file.num_results; at++)
            FUZZ_DEMAND(!file.results[at].ran || file.results[at].median_us > 0);
    cli_result_file_close(&file);
    fuzz_json_end();
    return 0;
}
