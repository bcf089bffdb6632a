/* The page that the demo leaves behind: what it measured, and timelines of both orders. */
#ifndef ENTWINE_CLI_DEMO_REPORT_H
#define ENTWINE_CLI_DEMO_REPORT_H

#include "run/context.h"
#include "trace/trace.h"

#define CLI_DEMO_PAGE "entwine-demo.html"

typedef struct cli_demo_report {
    const cli_context *context;
    int argc;
    char **argv; /* the demo's */
    struct {
        const char *name;
        json_t *document; /* owned until the page is written */
    } at[4];
    int count;
} cli_demo_report;

/* Keeps the results of the job's first problem. */
void cli_demo_keep_results(cli_demo_report *report, const char *name, const cli_job *job,
                           const ew_bench_result *results);

/* Traces a call in the given order and keeps it.  On failure the error has been printed;
 * free the trace either way. */
cli_exit cli_demo_trace(cli_demo_report *report, const char *name,
                        const cli_settings *settings, ew_order order,
                        cli_trace **trace_out);

/* Writes the page and prints one line about it; where the folder cannot be written to,
 * that is all. */
cli_exit cli_demo_write_page(cli_demo_report *report);
void cli_demo_report_fini(cli_demo_report *report);

#endif
