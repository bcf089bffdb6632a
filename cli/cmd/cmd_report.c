/* entwine report: result files and timelines as one HTML page. */
#include "cmd/commands.h"

#include <sys/stat.h>

#include "base/json_file.h"
#include "report/report.h"

static const char fix_files[] = "give files of `entwine bench -J` and `entwine trace`";

/* Results are what cannot be made again. */
static cli_exit check_page(const cli_settings *settings, const char *page)
{
    struct stat there, file;
    if (stat(page, &there) != 0)
        return CLI_EXIT_OK;
    for (int at = 0; at < settings->num_words; at++)
        if (stat(settings->words[at], &file) == 0 && file.st_dev == there.st_dev &&
            file.st_ino == there.st_ino)
            return cli_fail_usage("give the page a name of its own, such as -o report.html",
                                  "the page would replace '%.200s', which it is made of",
                                  settings->words[at]);
    return CLI_EXIT_OK;
}

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
    const char *page = settings->output_path ? settings->output_path : "report.html";
    cli_exit result = check_page(settings, page);
    if (result)
        return result;
    cli_report *report = cli_report_create();
    if (!report)
        return cli_fail_memory("for the report");
    result = add_files(report, settings);
    if (!result)
        result = cli_report_save(report, page);
    cli_report_destroy(report);
    return result;
}
