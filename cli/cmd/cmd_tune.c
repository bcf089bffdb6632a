/* entwine tune: the library's tuner over a list of problems, whose entries are stored one
 * by one, so that a run that was interrupted can be resumed. */
#include "cmd/commands.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "run/context.h"
#include "base/interrupt.h"
#include "run/progress.h"
#include "tune/tune_output.h"
#include "tune/tuning_files.h"

/* Keys of all problems, found in a child: a driver must not start in a process that forks
 * ranks. */
typedef struct key_call {
    const cli_job *job;
    ew_status status;
    char error[CLI_ERROR_BYTES];
    char keys[][EW_TUNING_KEY_BYTES];
} key_call;

typedef struct tuner {
    const cli_settings *settings;
    cli_job job;
    cli_launch launch;
    cli_context context;
    cli_progress progress;
    cli_tuning_files files; /* those that were there before */
    key_call *keys;         /* with --resume, else NULL */
    cli_tuned tuned;
} tuner;

/* Shared with forked ranks; rank 0 fills the result. */
typedef struct tune_call {
    const tuner *t;
    int at;
    ew_tune_result result;
} tune_call;

/* ---- One tuning ---- */

/* In rank 0's process, whose stderr is ours. */
static int show_round(void *context, int round, int num_rounds, const char *best_config,
                      double best_us, double default_us)
{
    const tune_call *call = context;
    const tuner *t = call->t;
    double part = num_rounds > 0 ? (double)round / num_rounds : 0.0;
    char text[96];
    (void)best_config;
    snprintf(text, sizeof text, ", round %d/%d, %.0f us, gain %.3f", round, num_rounds,
             best_us, best_us > 0 ? default_us / best_us : 1.0);
    cli_progress_show(&t->progress, call->at, part < 1 ? part : 1, text);
    return 0;
}

static ew_status tune_body(ew_world *world, void *argument)
{
    tune_call *call = argument;
    const cli_settings *settings = call->t->settings;
    ew_tune_options options = EW_TUNE_OPTIONS_INIT;
    ew_tune_result mine;
    options.budget_s = settings->budget_s;
    options.samples = settings->iters > 0 ? (int32_t)settings->iters : 0;
    options.seed = (uint32_t)settings->seed;
    options.store = !settings->dry_run;
    options.progress = show_round;
    options.context = call;
    options.method = call->t->job.entries[0].method;
    ew_status status = ew_tune(world, &call->t->job.problems[call->at].problem,
                               &settings->config, &options, &mine);
    if (status == EW_OK && ew_world_rank(world) == 0)
        call->result = mine;
    return status;
}

static ew_status run_tuning(tuner *t, int at)
{
    tune_call *call = cli_shared_alloc(sizeof *call);
    if (!call) {
        snprintf(t->tuned.error, CLI_ERROR_BYTES,
                 "no memory for the results\n  fix: free some");
        return EW_ERR_MEMORY;
    }
    *call = (tune_call){.t = t, .at = at};
    ew_status status = cli_ranks_run(&t->job.ranks, t->job.problems[at].num_ranks,
                                     tune_body, call, t->tuned.error);
    t->tuned.result = call->result;
    cli_shared_free(call, sizeof *call);
    return status;
}

/* ---- One problem ---- */

static const cli_tuning_file *find_entry(const tuner *t, int at)
{
    return t->keys ? cli_tuning_files_find(&t->files, t->keys->keys[at]) : NULL;
}

static ew_status tune_or_resume(tuner *t, int at)
{
    const cli_tuning_file *there = find_entry(t, at);
    t->tuned.problem = &t->job.problems[at];
    if (there) {
        t->tuned.kind = CLI_TUNE_RESUMED;
        t->tuned.result = (ew_tune_result){.tuning = there->tuning};
        return EW_OK;
    }
    cli_progress_show(&t->progress, at, 0.0, "");
    const ew_status status = run_tuning(t, at);
    cli_progress_end(&t->progress, at);
    t->tuned.kind = status == EW_ERR_UNSUPPORTED ? CLI_TUNE_SKIPPED : CLI_TUNED;
    return status == EW_ERR_UNSUPPORTED ? EW_OK : status;
}

/* ---- All problems ---- */

static cli_exit tune_all(tuner *t, cli_tune_output *output)
{
    ew_status status = EW_OK;
    cli_progress_init(&t->progress, &t->job, t->settings->quiet || !output);
    for (int at = 0; at < t->job.num_problems; at++)
        if (find_entry(t, at))
            cli_progress_leave_out(&t->progress, at);
    for (int at = 0; at < t->job.num_problems && status == EW_OK; at++) {
        status = tune_or_resume(t, at);
        if (cli_interrupted())
            return CLI_EXIT_INTERRUPTED;
        if (status == EW_OK && output)
            cli_tune_output_problem(output, &t->tuned);
    }
    return status ? cli_launch_fail(&t->launch, status, t->tuned.error) : CLI_EXIT_OK;
}

static void announce(const tuner *t)
{
    const char *wish = getenv("ENTWINE_TUNING");
    char seed[32];
    snprintf(seed, sizeof seed, ", seed %u", (uint32_t)t->settings->seed);
    cli_context_announce(&t->context, &t->job, t->settings, seed);
    if (!t->settings->quiet && wish && strcmp(wish, "off") == 0)
        cli_warn("plans use no entries as long as ENTWINE_TUNING is off");
}

static cli_exit tune_and_print(tuner *t, int argc, char **argv)
{
    cli_tune_output output;
    if (!cli_launch_prints(&t->launch))
        return tune_all(t, NULL);
    cli_exit result =
        cli_tune_output_open(&output, t->settings, &t->job, t->files.folder,
                             cli_context_of_job(&t->context, &t->job, argc, argv));
    if (!result) {
        announce(t);
        result = tune_all(t, &output);
    }
    cli_exit closed = cli_tune_output_close(&output, result == CLI_EXIT_OK);
    return result ? result : closed;
}

static void find_keys_in_child(void *argument)
{
    key_call *call = argument;
    for (int at = 0; at < call->job->num_problems && call->status == EW_OK; at++) {
        const cli_problem *problem = &call->job->problems[at];
        call->status =
            ew_tuning_key(&problem->problem, problem->num_ranks, call->job->bed->backend,
                          call->keys[at], sizeof call->keys[at]);
    }
    if (call->status)
        snprintf(call->error, sizeof call->error, "%s", ew_last_error());
}

static cli_exit find_keys(tuner *t)
{
    const size_t bytes =
        sizeof *t->keys + (size_t)t->job.num_problems * EW_TUNING_KEY_BYTES;
    t->keys = calloc(1, bytes);
    if (!t->keys)
        return cli_fail_memory("for the keys");
    t->keys->job = &t->job;
    if (cli_run_in_child(find_keys_in_child, t->keys, bytes))
        return cli_fail(EW_ERR_SYSTEM, "entwine doctor looks for the reason",
                        "the search for entries ended abnormally");
    return t->keys->status ? cli_fail_status(t->keys->status, t->keys->error) : CLI_EXIT_OK;
}

/* Better now than after the work: the folder, or the nearest above it, must take files. */
static cli_exit check_folder(const char *folder)
{
    char path[PATH_MAX];
    struct stat about;
    snprintf(path, sizeof path, "%s", folder);
    while (stat(path, &about) != 0 && errno == ENOENT) {
        char *slash = strrchr(path, '/');
        if (slash == path || !slash)
            snprintf(path, sizeof path, "%s", slash ? "/" : ".");
        else
            *slash = '\0';
    }
    if (access(path, W_OK | X_OK) == 0 && stat(path, &about) == 0 && S_ISDIR(about.st_mode))
        return CLI_EXIT_OK;
    return cli_fail(EW_ERR_SYSTEM, "give ENTWINE_CACHE_DIR a folder, or --dry-run",
                    "entries cannot be stored in %.200s", folder);
}

static cli_exit prepare(tuner *t)
{
    cli_launch_detect(&t->launch);
    cli_exit result = cli_job_init(&t->job, t->settings, &t->launch, "entwine");
    t->job.num_plans = EW_TUNE_PLANS;
    if (!result)
        result = cli_job_check(&t->job);
    if (!result && (t->settings->resume || cli_tune_stores(t->settings)))
        result = cli_tuning_files_open(&t->files);
    if (!result && t->settings->resume)
        result = find_keys(t);
    if (!result && cli_tune_stores(t->settings))
        result = check_folder(t->files.folder);
    if (result)
        return result;
    /* These fork, so they come before MPI starts. */
    cli_context_init(&t->context);
    if (!cli_interrupt_open())
        return cli_fail_memory("for the ranks");
    cli_job_prepare(&t->job);
    /* All ranks have read the folder by now: none sees what another stores. */
    if (cli_launch_wants_join(&t->launch, t->settings))
        result = cli_launch_join(&t->launch, &t->job.ranks.options);
    return result;
}

cli_exit cli_tune_main(const cli_settings *settings, int argc, char **argv)
{
    tuner *t = calloc(1, sizeof *t);
    if (!t)
        return cli_fail_memory("for the tuner");
    t->settings = settings;
    cli_exit result = prepare(t);
    if (!result)
        result = tune_and_print(t, argc, argv);
    cli_launch_close(&t->launch, result);
    cli_interrupt_close();
    free(t->keys);
    cli_job_fini(&t->job);
    cli_tuning_files_close(&t->files);
    free(t);
    return result;
}
