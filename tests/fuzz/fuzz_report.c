/* Inputs of a report: result documents and traces. */
#include "fuzz.h"

#include "report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_error_t error;
    json_t *document =
        json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!document)
        return 0;
    cli_report *report = cli_report_create();
    FUZZ_DEMAND(report);
    (void)cli_report_add(report, "fuzz.json", document);
    cli_report_destroy(report);
    return 0;
}
