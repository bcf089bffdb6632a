/* Documents as bench and trace would write them, handed to the report. */
#include "cmd/demo_report.h"

#include <stdlib.h>
#include <unistd.h>

#include "output/output.h"
#include "report/report.h"

static void keep(cli_demo_report *report, const char *name, json_t *document)
{
    report->at[report->count].name = name;
    report->at[report->count++].document = document;
}

void cli_demo_keep_results(cli_demo_report *report, const char *name, const cli_job *job,
                           const ew_bench_result *results)
{
    json_t *rows = json_array();
    for (int at = 0; at < job->num_entries; at++) {
        cli_row row;
        cli_row_derive(job, &job->problems[0], at, results, NULL, &row);
        json_array_append_new(rows, cli_row_json(&row));
    }
    keep(report, name,
         json_pack("{ss so sb so}", "schema", CLI_SCHEMA, "context",
                   cli_context_json(report->context, NULL, report->argc, report->argv),
                   "complete", 1, "results", rows));
}

/* The trace as its file would hold it; NULL: no memory. */
static json_t *trace_document(const cli_demo_report *report, const cli_job *job,
                              const cli_trace *trace)
{
    cli_trace_numbers numbers;
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    cli_trace_derive(trace, &numbers);
    json_t *metadata = cli_trace_metadata(
        job, trace, &numbers,
        cli_context_json(report->context, NULL, report->argc, report->argv));
    const bool written = stream && metadata && cli_trace_write(trace, metadata, stream);
    if (stream)
        fclose(stream);
    json_t *document = written ? json_loadb(text, bytes, 0, NULL) : NULL;
    json_decref(metadata);
    free(text);
    return document;
}

cli_exit cli_demo_trace(cli_demo_report *report, const char *name,
                        const cli_settings *settings, ew_order order, cli_trace **trace_out)
{
    const ew_config open_config = EW_CONFIG_INIT;
    cli_settings traced = *settings;
    cli_job job;
    traced.config = open_config;
    traced.config.order = order;
    traced.config.block_m = traced.config.block_n = 256; /* few enough for the eye */
    traced.config.workers = 1;
    traced.iters = 5;
    cli_exit result = cli_job_init(&job, &traced, NULL, "entwine,sequential");
    if (!result)
        result = cli_job_check(&job);
    if (!result)
        result = cli_trace_record(&job, trace_out);
    if (!result)
        keep(report, name, trace_document(report, &job, *trace_out));
    cli_job_fini(&job);
    return result;
}

cli_exit cli_demo_write_page(cli_demo_report *report)
{
    if (access(".", W_OK)) {
        cli_warn("no %s: this folder cannot be written to", CLI_DEMO_PAGE);
        return CLI_EXIT_OK;
    }
    cli_report *page = cli_report_create();
    cli_exit result = page ? CLI_EXIT_OK : cli_fail_memory("for the report");
    /* Last things first: the page opens with the timelines, and with the link. */
    for (int at = report->count - 1; at >= 0 && !result; at--) {
        result = cli_report_add(page, report->at[at].name, report->at[at].document);
        report->at[at].document = NULL;
    }
    if (!result)
        result = cli_report_save(page, CLI_DEMO_PAGE);
    cli_report_destroy(page);
    return result;
}

void cli_demo_report_fini(cli_demo_report *report)
{
    for (int at = 0; at < report->count; at++)
        json_decref(report->at[at].document);
    report->count = 0;
}
