/* entwine run and entwine bench: build a job, check it, join or start ranks, measure
 * problem by problem, print. */
#include "cmd/commands.h"

#include <stdlib.h>

#include "run/context.h"
#include "base/interrupt.h"
#include "output/output.h"
#include "run/progress.h"
#include "base/text.h"

/* Everything for stderr before the first result. */
static void announce(const cli_job *job, const cli_settings *settings,
                     const cli_context *context)
{
    const ew_bench_options *bench = &job->bench;
    char calls[192], idle[32] = "", skew[32] = "", tuned[64] = "";
    if (bench->idle > 0)
        snprintf(idle, sizeof idle, ", idle %g", bench->idle);
    if (bench->skew_us > 0)
        snprintf(skew, sizeof skew, ", skew %g us", bench->skew_us);
    if (job->tune_budget_s > 0)
        snprintf(tuned, sizeof tuned, ", each method tuned in up to %g s",
                 job->tune_budget_s);
    else if (job->tuned)
        snprintf(tuned, sizeof tuned, ", each method tuned first");
    snprintf(calls, sizeof calls, ", %d warm-up and %d timed call%s, seed %u%s%s%s",
             bench->warmup, bench->iters, ewx_text_plural(bench->iters), bench->seed, idle,
             skew, tuned);
    if (!settings->quiet && settings->format != CLI_FORMAT_TABLE)
        cli_caveats_print(job, stderr);
    cli_context_announce(context, job, settings, calls);
    if (!settings->quiet && cli_job_find(job, "blas+mpi") >= 0 &&
        cli_job_find(job, "blas+mpi-best") >= 0)
        cli_warn("blas+mpi and blas+mpi-best share malloc in one run and disturb each "
                 "other: measure them in separate runs");
}

/* Who watches the rounds of which problem. */
typedef struct watch {
    const cli_progress *progress;
    int at;
    int64_t shown_ns;
} watch;

/* In rank 0's process, whose stderr is ours. */
static void show_round(void *context, int round, int num_rounds)
{
    watch *w = context;
    const int64_t now_ns = ew_now_ns();
    char text[48];
    if (now_ns - w->shown_ns < 100000000)
        return;
    w->shown_ns = now_ns;
    snprintf(text, sizeof text, ", round %d/%d", round, num_rounds);
    cli_progress_show(w->progress, w->at, (double)round / num_rounds, text);
}

static cli_exit measure_all(cli_job *job, const cli_settings *settings, cli_output *output)
{
    ew_bench_result *results = calloc(CLI_MAX_METHODS, sizeof *results);
    cli_extra *extras = calloc(CLI_MAX_METHODS, sizeof *extras);
    cli_progress progress;
    watch w = {.progress = &progress};
    char error[CLI_ERROR_BYTES];
    ew_status status = results && extras ? EW_OK : EW_ERR_MEMORY;
    cli_progress_init(&progress, job, settings->quiet || !output);
    if (progress.shown) {
        job->bench.progress = show_round;
        job->bench.context = &w;
    }
    for (int at = 0; at < job->num_problems && status == EW_OK; at++) {
        const cli_problem *problem = &job->problems[at];
        w.at = at;
        cli_progress_show(&progress, at, 0.0, "");
        status = cli_job_run(job, problem, results, extras, error);
        cli_progress_end(&progress, at);
        if (cli_interrupted())
            break;
        if (status == EW_OK && output)
            cli_output_problem(output, problem, results, extras);
    }
    free(extras);
    free(results);
    if (cli_interrupted())
        return CLI_EXIT_INTERRUPTED;
    return status ? cli_launch_fail(job->ranks.launch, status, error) : CLI_EXIT_OK;
}

/* Measures and prints; on ranks of a launcher other than 0 only measures. */
static cli_exit measure_job(cli_job *job, const cli_settings *settings,
                            const cli_context *context, int argc, char **argv)
{
    cli_output *output = NULL;
    const cli_launch *launch = job->ranks.launch;
    if (!cli_launch_prints(launch))
        return measure_all(job, settings, NULL);
    cli_exit result = cli_output_open(
        job, settings, cli_context_of_job(context, job, argc, argv), &output);
    if (result)
        return result;
    announce(job, settings, context);
    result = measure_all(job, settings, output);
    const cli_exit closed = cli_output_close(output, result == CLI_EXIT_OK);
    return result ? result : closed;
}

static cli_exit measure(const cli_settings *settings, const char *default_methods, int argc,
                        char **argv)
{
    cli_job job;
    cli_launch launch;
    cli_context context;
    cli_launch_detect(&launch);
    cli_exit result = cli_job_init(&job, settings, &launch, default_methods);
    if (!result)
        result = cli_job_check(&job);
    if (result) {
        cli_job_fini(&job);
        return result;
    }
    /* These fork, so they come before MPI starts. */
    cli_context_init(&context);
    if (!cli_interrupt_open())
        result = cli_fail_memory("for the ranks");
    else
        cli_job_prepare(&job);
    if (!result && cli_launch_wants_join(&launch, settings))
        result = cli_launch_join(&launch, &job.ranks.options);
    if (!result)
        result = measure_job(&job, settings, &context, argc, argv);
    cli_launch_close(&launch, result);
    cli_interrupt_close();
    cli_job_fini(&job);
    return result;
}

cli_exit cli_run_main(const cli_settings *settings, int argc, char **argv)
{
    return measure(settings, "entwine", argc, argv);
}

cli_exit cli_bench_main(const cli_settings *settings, int argc, char **argv)
{
    /* A figure names what it compares. */
    return measure(settings, settings->figure ? "" : "entwine,sequential,blas", argc, argv);
}
