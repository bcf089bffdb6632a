/* The report as its users see it: documents in, a page out. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/out_file.h"
#include "base/process.h"
#include "report_page.h"

cli_report *cli_report_create(void)
{
    return calloc(1, sizeof(cli_report));
}

void cli_report_destroy(cli_report *report)
{
    for (int at = 0; report && at < report->num_sources; at++) {
        report_source *source = report->sources[at];
        free(source->rows);
        free(source->problems);
        json_decref(source->trace);
        cli_result_file_close(&source->results);
        free(source);
    }
    if (report)
        free(report->sources);
    free(report);
}

static void choose_title(cli_report *report, report_source *source)
{
    const char *slash = strrchr(source->name, '/');
    const char *title = slash && slash[1] ? slash + 1 : source->name;
    for (int at = 0; at < report->num_sources; at++)
        if (strcmp(report->sources[at]->title, title) == 0) {
            report->sources[at]->title = report->sources[at]->name;
            return;
        }
    source->title = title;
}

cli_exit cli_report_add(cli_report *report, const char *name, json_t *document)
{
    report_source *source = calloc(1, sizeof *source);
    report_source **grown = realloc(report->sources, (size_t)(report->num_sources + 1) *
                                                         sizeof *report->sources);
    if (grown)
        report->sources = grown;
    if (!source || !grown) {
        free(source);
        json_decref(document);
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the report");
    }
    source->name = source->title = name;
    choose_title(report, source);
    report->sources[report->num_sources++] = source;
    return json_is_array(json_object_get(document, "traceEvents"))
               ? report_read_trace(source, document)
               : report_read_results(source, document);
}

cli_exit cli_report_save(cli_report *report, const char *path)
{
    cli_out_file file;
    cli_exit failed = cli_out_file_open(&file, "the report", path);
    if (failed)
        return failed;
    errno = 0;
    failed = report_write(report, file.stream);
    cli_exit not_closed = cli_out_file_close(&file, !failed);
    if (failed || not_closed)
        return failed ? failed : not_closed;
    if (file.stream != stdout)
        printf("# Report : %s\n", path);
    if (!cli_process_exists("gnuplot"))
        cli_warn("gnuplot was not found: the page has tables and timelines, no charts");
    return CLI_EXIT_OK;
}
