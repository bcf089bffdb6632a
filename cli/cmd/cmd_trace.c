/* entwine trace: one call as a timeline for Perfetto or Chrome, and what it says about the
 * overlap in four numbers. */
#include "cmd/commands.h"

#include <inttypes.h>

#include "run/context.h"
#include "base/interrupt.h"
#include "base/out_file.h"
#include "output/output.h"
#include "trace/trace.h"
#include "base/text.h"

static void print_numbers(const cli_job *job, const cli_trace *trace,
                          const cli_trace_numbers *n)
{
    const ew_problem *shape = &trace->problem;
    cli_caveats_print(job, stdout);
    printf("problem    M=%" PRId64 " N=%" PRId64 " K=%" PRId64 " per rank, W=%d, %s\n",
           shape->max_m, shape->n, shape->k, trace->num_ranks, ew_dtype_name(shape->dtype));
    printf("config     %s\n", n->config);
    printf("traced     the quickest of %d call%s, %.1f us\n", job->bench.iters,
           ewx_text_plural(job->bench.iters), n->time_us);
    printf(
        "overlap    efficiency %.3f: GEMM of a sequential call, %.1f us, over that time\n",
        n->overlap, n->gemm_alone_us);
    printf("tail       %.1f us after the GEMM, %.1f %% of the time\n", n->tail_us,
           100.0 * n->tail_share);
    printf("bandwidth  %.3f GB/s per rank needed to hide all (Eq. 4), %.3f achieved\n",
           n->breq, n->achieved);
    printf("GEMM       %.1f us, %.3f times as long as in the sequential call\n", n->gemm_us,
           n->slowdown);
    if (job->bed->is_simulated)
        puts("# Wrong values : not applicable, SIMULATED");
    else
        printf("# Wrong values : %" PRId64 " %s\n", n->wrong, n->wrong ? "FAILED" : "OK");
}

typedef struct timeline {
    const cli_trace *trace;
    const json_t *metadata;
} timeline;

static bool write_timeline(const void *context, FILE *stream)
{
    const timeline *t = context;
    return t->metadata && cli_trace_write(t->trace, t->metadata, stream);
}

static cli_exit write_trace(const cli_job *job, const cli_trace *trace, json_t *context,
                            const cli_out_file *file)
{
    cli_trace_numbers numbers;
    cli_trace_derive(trace, &numbers);
    json_t *metadata = cli_trace_metadata(job, trace, &numbers, context);
    const timeline t = {trace, metadata};
    cli_exit failed = cli_out_file_write(file, write_timeline, &t);
    json_decref(metadata);
    if (failed)
        return failed;
    if (file->kind != CLI_OUT_STDOUT) {
        print_numbers(job, trace, &numbers);
        cli_print(stdout, "# Trace : %s; open it in ui.perfetto.dev or chrome://tracing\n",
                  file->path);
    }
    return numbers.wrong ? CLI_EXIT_WRONG : CLI_EXIT_OK;
}

static cli_exit record_and_write(const cli_job *job, const cli_context *context, int argc,
                                 char **argv, const cli_out_file *file)
{
    cli_trace *trace = NULL;
    cli_exit result = cli_trace_record(job, &trace);
    if (!result)
        result = write_trace(job, trace, cli_context_json(context, NULL, argc, argv), file);
    cli_trace_free(trace);
    return result;
}

static void announce(const cli_job *job, const cli_settings *settings,
                     const cli_context *context, bool to_stdout)
{
    char calls[128];
    snprintf(calls, sizeof calls, ", %d warm-up and %d timed call%s, seed %u",
             job->bench.warmup, job->bench.iters, ewx_text_plural(job->bench.iters),
             job->bench.seed);
    if (to_stdout && !settings->quiet) /* else it stands above the numbers */
        cli_caveats_print(job, stderr);
    cli_context_announce(context, job, settings, calls);
}

cli_exit cli_trace_main(const cli_settings *settings, int argc, char **argv)
{
    cli_job job;
    cli_context context;
    cli_out_file file;
    if (settings->merge)
        return cli_trace_merge(settings);
    if (settings->num_words)
        return cli_fail_usage("--merge puts flight recordings together",
                              "'trace' does not take the argument '%.60s'",
                              settings->words[0]);
    cli_exit result = cli_launch_refuse("trace", settings);
    if (result)
        return result;
    result = cli_job_init(&job, settings, NULL, "entwine,sequential");
    if (!result)
        result = cli_job_check(&job);
    if (!result)
        result =
            cli_out_file_open(&file, "the trace",
                              settings->output_path ? settings->output_path : "trace.json");
    if (!result) {
        cli_context_init(&context);
        if (cli_interrupt_open()) {
            announce(&job, settings, &context, file.kind == CLI_OUT_STDOUT);
            result = record_and_write(&job, &context, argc, argv, &file);
            cli_interrupt_close();
        } else {
            result = cli_fail_memory("for the ranks");
        }
    }
    cli_job_fini(&job);
    return result;
}
