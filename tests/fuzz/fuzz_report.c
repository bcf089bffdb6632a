/* Inputs of a report: result documents, collections of them and traces, and their page. */
#include "fuzz_json.h"

#include "report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    json_t *document = fuzz_json(data, bytes);
    if (!document)
        return 0;
    cli_report *report = cli_report_create();
    FUZZ_DEMAND(report);
    if (!cli_report_add(report, "fuzz.json", document))
        FUZZ_DEMAND(cli_report_save(report, "/dev/null") == CLI_EXIT_OK);
    cli_report_destroy(report);
    fuzz_json_end();
    return 0;
}
