/* entwine run and entwine bench: build a job, check it, join or start ranks, measure
 * problem by problem, print. */
#include "cmd/commands.h"

#include <stdlib.h>
#include <string.h>

#include "run/context.h"
#include "base/interrupt.h"
#include "output/output.h"
#include "run/progress.h"

static bool has_entry(const cli_job *job, const char *method)
{
    for (int at = 0; at < job->num_entries; at++)
        if (strcmp(job->entries[at].method, method) == 0)
            return true;
    return false;
}

/* Everything for stderr before the first result. */
static void print_context(const cli_job *job, const cli_settings *settings,
                          const cli_context *context)
{
    if (job->mps.kind == CLI_MPS_NONE)
        cli_warn("ranks will take turns on the GPU, without MPS: %s", job->mps.why);
    if (settings->quiet)
        return;
    if (settings->format == CLI_FORMAT_TABLE) {
        bool on_gpu = job->backend == EW_BACKEND_CUDA;
        const char *mps = cli_mps_text(&job->mps);
        cli_context_print(context, job->ranks.launch, on_gpu ? &job->gpus : NULL);
        fprintf(stderr, "# ranks as %s%s%s, %d warm-up and %d timed calls, seed %u",
                cli_ranks_as_name(&job->ranks), mps ? ", " : "", mps ? mps : "",
                job->bench.warmup, job->bench.iters, job->bench.seed);
        if (job->bench.idle > 0)
            fprintf(stderr, ", idle %g", job->bench.idle);
        if (job->tune_budget_s > 0)
            fprintf(stderr, ", each method tuned in up to %g s", job->tune_budget_s);
        fputc('\n', stderr);
    } else {
        cli_caveats_print(job, stderr);
    }
    cli_environment_warn();
    if (has_entry(job, "blas+mpi") && has_entry(job, "blas+mpi-best"))
        cli_warn("blas+mpi and blas+mpi-best share malloc in one run and disturb each "
                 "other: measure them in separate runs");
}

/* The exit status of a job that ran to its end. */
static cli_exit judge(const cli_summary *summary)
{
    if (summary->wrong)
        return CLI_EXIT_WRONG;
    if (summary->entry_failure)
        return cli_exit_of(summary->entry_failure);
    return summary->num_ok ? CLI_EXIT_OK : CLI_EXIT_SKIPPED;
}

static cli_exit measure_all(const cli_job *job, const cli_settings *settings,
                            cli_output *output)
{
    ew_bench_result *results = calloc(CLI_MAX_METHODS, sizeof *results);
    cli_progress progress;
    char error[CLI_ERROR_BYTES];
    ew_status status = results ? EW_OK : EW_ERR_MEMORY;
    cli_progress_init(&progress, job, settings->quiet || !output);
    for (int at = 0; at < job->num_problems && status == EW_OK; at++) {
        const cli_problem *problem = &job->problems[at];
        cli_progress_show(&progress, at, problem);
        status = cli_job_run(job, problem, results, error);
        cli_progress_clear(&progress);
        cli_progress_advance(&progress, problem);
        if (cli_interrupted())
            break;
        if (status == EW_OK && output)
            cli_output_problem(output, problem, results);
    }
    free(results);
    if (cli_interrupted())
        return CLI_EXIT_INTERRUPTED;
    if (status && output)
        return cli_fail_status(status, error);
    return status ? cli_exit_of(status) : CLI_EXIT_OK;
}

static json_t *context_json(const cli_job *job, const cli_context *context, int argc,
                            char **argv)
{
    json_t *object = cli_context_json(context, job->ranks.launch, argc, argv);
    const char *mps = cli_mps_text(&job->mps);
    if (job->backend == EW_BACKEND_CUDA) {
        json_object_set_new(object, "gpus", cli_gpus_json(&job->gpus));
        json_object_set_new(object, "mps", mps ? json_string(mps) : json_null());
    }
    return object;
}

/* Measures and prints; on ranks of a launcher other than 0 only measures. */
static cli_exit measure_job(cli_job *job, const cli_settings *settings,
                            const cli_context *context, int argc, char **argv)
{
    cli_output *output = NULL;
    const cli_launch *launch = job->ranks.launch;
    if (!cli_launch_prints(launch))
        return measure_all(job, settings, NULL);
    cli_exit result =
        cli_output_open(job, settings, context_json(job, context, argc, argv), &output);
    if (result)
        return result;
    print_context(job, settings, context);
    result = measure_all(job, settings, output);
    bool complete = result == CLI_EXIT_OK;
    if (complete)
        result = judge(cli_output_summary(output));
    cli_exit failed = cli_output_close(output, complete);
    return result ? result : failed;
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
        result = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the ranks");
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
