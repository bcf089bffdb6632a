/* Inputs of a report: result documents and traces. */
#include "fuzz_json.h"

#include "report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_t *document = fuzz_json(data, bytes);
    if (!document)
        return 0;
    cli_report *report = cli_report_create();
    FUZZ_DEMAND(report);
    (void)cli_report_add(report, "fuzz.json", document);
    cli_report_destroy(report);
    fuzz_json_end();
    return 0;
}
