/* entwine demo: one screen of 80 x 40 that shows what Entwine does and what it does not
 * do on this machine.  Every number in it was measured while it was printed. */
#include "cmd/commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/context.h"
#include "cmd/demo_report.h"
#include "base/interrupt.h"
#include "options/option_rules.h"
#include "output/output.h"
#include "run/job.h"
#include "run/launcher.h"
#include "base/text.h"

typedef struct demo {
    cli_settings settings;
    cli_context context;
    cli_demo_report report;
    ew_bench_result results[CLI_MAX_METHODS];
    int64_t wrong;
    char error[CLI_ERROR_BYTES];
} demo;

#define LINK_LATENCY_US 5.0
enum { STRIP_WIDTH = 62 };
static const char meaning[] =
    "On one host the reduction is CPU work, so overlap hides nothing there: the gain\n"
    "over blas is the packed weight and the zero-copy heap.  Where bytes move without\n"
    "the CPU, as over the emulated link, the overlap is real.";

static void choose_defaults(cli_settings *settings)
{
    settings->ranks = cli_values_or(&settings->ranks, 2);
    settings->rows = cli_values_or(&settings->rows, 2048);
    settings->cols = cli_values_or(&settings->cols, 2048);
    settings->depth = cli_values_or(&settings->depth, 512);
    settings->dtypes = cli_values_or(&settings->dtypes, EW_FP32);
    if (settings->iters < 0)
        settings->iters = 9;
    if (settings->warmup < 0)
        settings->warmup = 1;
}

static void print_head(const demo *d)
{
    const cli_settings *s = &d->settings;
    const cli_context *c = &d->context;
    printf("Entwine %s: GEMM + ReduceScatter, reduced tile by tile while the GEMM runs\n",
           ew_version());
    printf("problem  M=%" PRId64 " N=%" PRId64 " K=%" PRId64 " per rank, %s, W=%" PRId64
           " ranks as %s\n",
           s->rows.at[0], s->cols.at[0], s->depth.at[0],
           ew_dtype_name((ew_dtype)s->dtypes.at[0]), s->ranks.at[0],
           s->ranks_as == EW_RANKS_AS_THREADS ? "threads" : "processes");
    printf("machine  %.48s, %d usable core%s\n", c->cpu, c->cores_usable,
           ewx_text_plural(c->cores_usable));
    printf("kernels  own %s, BLAS %.40s\n", c->fp32_kernel, *c->blas ? c->blas : "none");
}

static void print_table(const cli_job *job, const ew_bench_result *results)
{
    const ew_bench_result *base = &results[job->baseline];
    for (int at = 0; at < job->num_entries; at++) {
        const ew_bench_result *result = &results[at];
        const char *label = job->entries[at].label;
        if (result->status) {
            int length = (int)strcspn(result->error, "\n");
            printf("  %-27s skipped: %.*s\n", label, length < 40 ? length : 40,
                   result->error);
            continue;
        }
        printf("  %-27s %8.0f %9.0f %9.0f %9.2f %8" PRId64 "\n", label, result->time_us,
               result->gemm_us, result->tail_us,
               base->status ? NAN : base->time_us / result->time_us, result->check.wrong);
    }
}

/* Unless the user gave a link: one that needs 0.8 of the GEMM's time for the bytes, so that
 * the demo shows the same thing on a slow and on a fast machine.  Two digits are enough. */
static void fit_link(demo *d)
{
    cli_settings *s = &d->settings;
    if (s->link_gbs > 0)
        return;
    const double bytes = ew_remote_bytes(s->rows.at[0], s->cols.at[0], (int)s->ranks.at[0],
                                         ew_dtype_bytes((ew_dtype)s->dtypes.at[0]));
    const double gbs = bytes * 1e-3 / (0.8 * d->results[0].gemm_us);
    const double digit = pow(10.0, floor(log10(gbs)) - 1.0);
    s->link_gbs = round(gbs / digit) * digit;
    s->link_latency_us = LINK_LATENCY_US;
}

/* One table; with the emulated link two more configs of the same engine. */
static cli_exit measure_table(demo *d, bool with_link)
{
    cli_settings settings = d->settings;
    cli_job job;
    if (!with_link)
        settings.link_gbs = 0.0;
    else if (cli_add_variant(&settings, NULL, "release=partition") ||
             cli_add_variant(&settings, NULL, "order=contiguous"))
        return CLI_EXIT_ENVIRONMENT;
    cli_exit result = cli_job_init(&job, &settings, NULL, "entwine,sequential,blas");
    if (!result)
        result = cli_job_check(&job);
    if (!result) {
        ew_status status = cli_job_run(&job, &job.problems[0], d->results, NULL, d->error);
        if (cli_interrupted())
            result = CLI_EXIT_INTERRUPTED;
        else if (status)
            result = cli_fail_status(status, d->error);
    }
    if (!result) {
        if (!with_link)
            print_head(d); /* not before: wrong input must print nothing here */
        char link[96];
        cli_link_text(&job, link, sizeof link);
        if (with_link)
            printf("over a link, %s\n", link);
        else
            printf("as this host is %21s %9s %9s %9s %8s\n", "time(us)", "gemm(us)",
                   "tail(us)", "speedup", "#wrong");
        print_table(&job, d->results);
        cli_demo_keep_results(&d->report, with_link ? "demo, emulated link" : "demo", &job,
                              d->results);
        for (int at = 0; at < job.num_entries; at++)
            d->wrong += d->results[at].status ? 0 : d->results[at].check.wrong;
    }
    cli_job_fini(&job);
    return result;
}

static int column_of(const ew_timing *timing, int64_t when_ns, double axis_us)
{
    const double us = (double)(when_ns - timing->start_ns) * 1e-3;
    const int column = (int)(us / axis_us * STRIP_WIDTH);
    return column < 0 ? 0 : column >= STRIP_WIDTH ? STRIP_WIDTH - 1 : column;
}

/* Two lines about the last rank; the full width stands for `axis_us`. */
static void print_strip(const cli_trace *trace, const char *order, double axis_us)
{
    const int rank = trace->num_ranks - 1;
    const ew_timing *timing = &trace->ranks[rank].timing;
    const ew_trace_event *events = cli_trace_events(trace, rank);
    char computed[STRIP_WIDTH + 1] = "", reduced[STRIP_WIDTH + 1] = "";
    memset(computed, ' ', STRIP_WIDTH);
    memset(reduced, ' ', STRIP_WIDTH);
    for (size_t at = 0; at < trace->ranks[rank].num_events; at++) {
        const ew_trace_event *event = &events[at];
        const int from = column_of(timing, event->begin_ns, axis_us);
        const int to = column_of(timing, event->end_ns, axis_us);
        if (event->kind == EW_TRACE_REDUCE && event->dst == rank)
            reduced[to] = '*';
        if (event->kind == EW_TRACE_BLOCK)
            memset(computed + from, '0' + event->dst % 10, (size_t)(to - from + 1));
    }
    const int end = column_of(timing, timing->end_ns, axis_us);
    if (end < STRIP_WIDTH - 1)
        computed[end + 1] = reduced[end + 1] = '|';
    printf("  %-11s %s\n  %-11s %s\n", order, computed, "", reduced);
}

/* Both orders over the emulated link, here and for the page. */
static cli_exit show_orders(demo *d)
{
    static const ew_order orders[] = {EW_ORDER_CONTIGUOUS, EW_ORDER_INTERLEAVED};
    static const char *const names[] = {"demo, contiguous", "demo, interleaved"};
    cli_trace *traces[2] = {NULL};
    double axis_us = 0.0;
    cli_exit result = CLI_EXIT_OK;
    for (int at = 0; at < 2 && !result; at++) {
        cli_trace_numbers numbers;
        result =
            cli_demo_trace(&d->report, names[at], &d->settings, orders[at], &traces[at]);
        if (result)
            break;
        cli_trace_derive(traces[at], &numbers);
        axis_us = fmax(axis_us, numbers.time_us);
        d->wrong += numbers.wrong;
    }
    if (!result) {
        const int shown = traces[0]->num_ranks - 1;
        printf("\nThe idea, traced over that link.  Upper line: whose tiles rank %d "
               "computes.\n"
               "Lower line, *: when rank %d's own tiles are reduced.  Time runs to the "
               "right,\n"
               "%.1f ms in all; | is the end.\n",
               shown, shown, axis_us * 1e-3);
        for (int at = 0; at < 2; at++)
            print_strip(traces[at], names[at] + strlen("demo, "), axis_us);
    }
    for (int at = 0; at < 2; at++)
        cli_trace_free(traces[at]);
    return result;
}

static void print_rest(const demo *d, const char *tool)
{
    printf("\ntry next\n"
           "  %s bench --suite smoke           many shapes and types\n"
           "  %s plan -m 8K -N 8K -k 1K -W 8   grid, memory, bandwidth\n"
           "  %s doctor                        what this machine offers\n",
           tool, tool, tool);
    printf("# Wrong values : %" PRId64 " %s\n", d->wrong, d->wrong ? "FAILED" : "OK");
}

cli_exit cli_demo_main(const cli_settings *settings, int argc, char **argv)
{
    cli_launch launch;
    cli_launch_detect(&launch);
    if (launch.found && launch.launcher.rank != 0)
        return CLI_EXIT_OK; /* one demo is enough */
    demo *d = calloc(1, sizeof *d);
    if (!d || !cli_interrupt_open()) {
        free(d);
        return cli_fail_memory("for the demo");
    }
    d->settings = *settings;
    choose_defaults(&d->settings);
    cli_context_init(&d->context);
    d->report = (cli_demo_report){.context = &d->context, .argc = argc, .argv = argv};
    cli_exit result = measure_table(d, false);
    if (!result) {
        fit_link(d);
        result = measure_table(d, true);
    }
    if (!result) {
        puts(meaning);
        fflush(stdout);
        result = show_orders(d);
    }
    if (!result) {
        print_rest(d, argv[0]);
        fflush(stdout);
        result = d->wrong ? CLI_EXIT_WRONG : cli_demo_write_page(&d->report);
    }
    cli_demo_report_fini(&d->report);
    cli_interrupt_close();
    free(d);
    return result;
}
