/* entwine report: result files and timelines as one HTML page. */
#include "cmd/commands.h"

#include "output/result_file.h"
#include "report/report.h"

static const char fix_files[] = "give files of `entwine bench -J` and `entwine trace`";

static cli_exit add_files(cli_report *report, const cli_settings *settings)
{
    cli_exit failed = CLI_EXIT_OK;
    for (int at = 0; at < settings->num_words && !failed; at++) {
        json_t *document = NULL;
        failed = cli_json_load(settings->words[at], fix_files, &document);
        if (!failed)
            failed = cli_report_add(report, settings->words[at], document);
    }
    return failed;
}

cli_exit cli_report_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (settings->num_words == 0)
        return cli_fail_usage(fix_files, "'report' needs at least one result file");
    cli_report *report = cli_report_create();
    if (!report)
        return cli_fail_memory("for the report");
    cli_exit result = add_files(report, settings);
    if (!result)
        result = cli_report_save(report, settings->output_path ? settings->output_path
                                                               : "report.html");
    cli_report_destroy(report);
    return result;
}
