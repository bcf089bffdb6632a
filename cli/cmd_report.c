/* entwine report: result files and timelines as one HTML page. */
#include "commands.h"

#include <errno.h>

#include "out_file.h"
#include "process.h"
#include "report.h"
#include "result_file.h"

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

static cli_exit write_page(cli_report *report, const char *path)
{
    cli_out_file file;
    cli_exit failed = cli_out_file_open(&file, "the report", path);
    if (failed)
        return failed;
    errno = 0;
    failed = cli_report_write(report, file.stream);
    if (!failed && (fflush(file.stream) || ferror(file.stream)))
        failed = cli_out_file_fail(&file);
    cli_exit not_closed = cli_out_file_close(&file, !failed);
    if (!failed && !not_closed && file.stream != stdout)
        printf("# Report : %s\n", path);
    return failed ? failed : not_closed;
}

cli_exit cli_report_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    if (settings->num_words == 0)
        return cli_fail_usage(fix_files, "'report' needs at least one result file");
    cli_report *report = cli_report_create();
    if (!report)
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the report");
    cli_exit result = add_files(report, settings);
    if (!result)
        result = write_page(report,
                            settings->output_path ? settings->output_path : "report.html");
    if (!result && !cli_process_exists("gnuplot"))
        cli_warn("gnuplot was not found: the page has tables and timelines, no charts");
    cli_report_destroy(report);
    return result;
}
