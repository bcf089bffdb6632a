/* From settings to a checked list of work.  Nothing is measured here. */
#include "run/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/tune.h"
#include "options/option_rules.h"
#include "run/simulated.h"

enum { FIGURE_ITERS = 25 }; /* fewer leave an interval too wide for leads of a per cent */

cli_exit cli_job_add_problem(cli_job *job, const cli_problem *problem)
{
    if (job->num_problems == CLI_MAX_PROBLEMS)
        return cli_fail_usage("split the lists", "more than %d problems in one run",
                              CLI_MAX_PROBLEMS);
    cli_problem *grown =
        realloc(job->problems, ((size_t)job->num_problems + 1) * sizeof *job->problems);
    if (!grown)
        return cli_fail_memory("for the problem list");
    job->problems = grown;
    job->problems[job->num_problems++] = *problem;
    return CLI_EXIT_OK;
}

static cli_exit add_entry(cli_job *job, const char *method, const char *variant,
                          const ew_config *config)
{
    if (job->num_entries == CLI_MAX_METHODS)
        return cli_fail_usage("run the rest in a second bench",
                              "more than %d methods and variants", CLI_MAX_METHODS);
    cli_entry *entry = &job->entries[job->num_entries++];
    int length;
    entry->symmetric = cli_method_symmetric(method, &length);
    entry->layer = cli_method_layer(method, &length);
    snprintf(entry->method, sizeof entry->method, "%.*s", length, method);
    if (variant)
        snprintf(entry->label, sizeof entry->label, "%s[%s]", method, variant);
    else
        snprintf(entry->label, sizeof entry->label, "%s", method);
    entry->base = entry->config = *config;
    return CLI_EXIT_OK;
}

static cli_exit add_methods(cli_job *job, const cli_settings *settings,
                            const char *default_methods)
{
    cli_settings named = *settings;
    cli_exit failed = CLI_EXIT_OK;
    if (settings->num_methods == 0 && *default_methods)
        failed = cli_set_methods(&named, NULL, default_methods);
    for (int at = 0; at < named.num_methods && !failed; at++) {
        const char *method = named.methods[at];
        if (cli_method_needs_mpi(method) &&
            !(job->ranks.launch && cli_launch_wants_join(job->ranks.launch, settings)))
            return cli_fail_usage("mpirun -np 2 entwine bench --method blas+mpi,...",
                                  "method '%s' runs under mpirun only", method);
        if (cli_method_needs_mpi(method) && !job->bed->on_cores)
            return cli_fail_usage("leave --backend out",
                                  "method '%s' is for the cpu backend", method);
        failed = add_entry(job, method, NULL, &settings->config);
    }
    for (int at = 0; at < settings->num_variants && !failed; at++) {
        ew_config config =
            cli_config_merge(&settings->config, &settings->variant_configs[at]);
        failed = add_entry(job, "entwine", settings->variants[at], &config);
    }
    return failed;
}

int cli_job_find(const cli_job *job, const char *method)
{
    for (int at = 0; at < job->num_entries; at++)
        if (strcmp(job->entries[at].method, method) == 0)
            return at;
    return -1;
}

static cli_exit choose_baseline(cli_job *job, const cli_settings *settings)
{
    const char *wanted =
        settings->baseline_method ? settings->baseline_method : "sequential";
    job->baseline = -1;
    for (int at = 0; at < job->num_entries && job->baseline < 0; at++)
        if (strcmp(job->entries[at].label, wanted) == 0)
            job->baseline = at;
    if (job->baseline < 0 && settings->baseline_method)
        return cli_fail_usage("add it to --method", "--baseline-method %s is not measured",
                              wanted);
    if (job->baseline < 0)
        job->baseline = 0;
    return CLI_EXIT_OK;
}

static cli_exit add_product(cli_job *job, const cli_settings *settings, int default_ranks)
{
    const ew_dtype default_dtype = cli_ranks_are_gpus(job->bed) ? EW_BF16 : EW_FP32;
    cli_values dims[5] = {cli_values_or(&settings->dtypes, default_dtype),
                          cli_values_or(&settings->ranks, default_ranks),
                          cli_values_or(&settings->rows, 1024),
                          cli_values_or(&settings->cols, 1024),
                          cli_values_or(&settings->depth, 512)};
    int at[5] = {0};
    for (;;) {
        const cli_problem problem = {
            .problem = cli_settings_problem(settings, dims[2].at[at[2]], dims[3].at[at[3]],
                                            dims[4].at[at[4]], (ew_dtype)dims[0].at[at[0]]),
            .num_ranks = (int)dims[1].at[at[1]]};
        cli_exit failed = cli_job_add_problem(job, &problem);
        if (failed)
            return failed;
        int dim = 4; /* an odometer: the last dimension turns fastest */
        while (dim >= 0 && ++at[dim] == dims[dim].count)
            at[dim--] = 0;
        if (dim < 0)
            return CLI_EXIT_OK;
    }
}

/* Under a launcher W is fixed; a suite's other problems are left out, and said so. */
static cli_exit keep_launchers_ranks(cli_job *job, int num_ranks, bool quiet)
{
    int kept = 0;
    for (int at = 0; at < job->num_problems; at++)
        if (job->problems[at].num_ranks == num_ranks)
            job->problems[kept++] = job->problems[at];
    if (kept == 0)
        return cli_fail_usage("start as many ranks as the problems have",
                              "no problem has the launcher's W=%d", num_ranks);
    if (kept < job->num_problems && !quiet && job->ranks.launch->launcher.rank == 0)
        cli_warn("%d of %d problems have another W than the launcher's %d: left out",
                 job->num_problems - kept, job->num_problems, num_ranks);
    job->num_problems = kept;
    return CLI_EXIT_OK;
}

static void set_options(cli_job *job, const cli_settings *settings)
{
    const bool on_gpu = cli_ranks_are_gpus(job->bed);
    ew_world_options *world = &job->ranks.options;
    world->timeout_ms = (uint32_t)(settings->timeout_s * 1000.0 + 0.5);
    if (settings->link_gbs > 0) {
        double latency_us = settings->link_latency_us;
        world->link_gbps = settings->link_gbs * 8;
        world->link_latency_us = latency_us >= 0 ? latency_us : on_gpu ? 1.0 : 5.0;
        world->link_header_bytes = settings->link_header_bytes;
    }
    job->bench.seed = (uint32_t)settings->seed;
    job->bench.gate_ms = settings->gate_ms;
    job->bench.idle = settings->idle >= 0 ? settings->idle : job->bed->on_gpus ? 1.0 : 0.0;
    job->tuned = settings->tuned;
    job->tune_budget_s = settings->budget_s;
    job->bench.skew_us = settings->skew_us;
    job->graph = settings->graph;
    if (settings->figure)
        job->bench.iters = FIGURE_ITERS;
    if (settings->iters >= 0)
        job->bench.iters = (int32_t)settings->iters;
    if (settings->warmup >= 0)
        job->bench.warmup = (int32_t)settings->warmup;
}

cli_exit cli_job_init(cli_job *job, const cli_settings *settings, cli_launch *launch,
                      const char *default_methods)
{
    const ew_bench_options bench = EW_BENCH_OPTIONS_INIT;
    const ew_world_options world = EW_WORLD_OPTIONS_INIT;
    bool join = launch && cli_launch_wants_join(launch, settings);
    *job = (cli_job){.bench = bench, .bed = cli_settings_bed(settings)};
    job->ranks = (cli_ranks){settings->ranks_as, world, launch};
    set_options(job, settings);
    cli_exit failed = launch ? cli_launch_check(settings) : CLI_EXIT_OK;
    if (!failed)
        failed = add_methods(job, settings, default_methods);
    if (!failed)
        failed = choose_baseline(job, settings);
    /* Ours, where a figure is made: every run then says how far to trust its numbers. */
    job->repeated =
        settings->figure && !job->bed->is_simulated && job->num_entries < CLI_MAX_METHODS
            ? cli_job_find(job, "entwine")
            : -1;
    if (!failed)
        failed = settings->suite
                     ? cli_suite_load(settings, job)
                     : add_product(job, settings, join ? launch->launcher.num_ranks : 2);
    if (!failed && join)
        failed = keep_launchers_ranks(job, launch->launcher.num_ranks, settings->quiet);
    return failed;
}

bool cli_job_is_virtual(const cli_job *job, const cli_problem *problem)
{
    return job->bed->on_gpus && cli_gpu_sharers(&job->gpus, problem->num_ranks) > 1;
}

void cli_job_prepare(cli_job *job)
{
    const cli_launch *launch = job->ranks.launch;
    bool shared = false;
    for (int at = 0; at < job->num_problems; at++)
        shared = shared || cli_job_is_virtual(job, &job->problems[at]);
    if (!shared)
        return;
    if (launch && launch->found) { /* a daemon of one rank would not be the others' */
        bool runs = cli_mps_probe() == CLI_MPS_RUNNING;
        job->mps = (cli_mps){.kind = runs ? CLI_MPS_RUNNING : CLI_MPS_NONE,
                             .why = "none was started before the ranks"};
    } else if (job->ranks.kind == EW_RANKS_AS_PROCESSES) {
        cli_mps_open(&job->mps);
    }
}

void cli_job_fini(cli_job *job)
{
    cli_mps_close(&job->mps);
    free(job->problems);
    job->problems = NULL;
}

/* ---- The check before the run -------------------------------------------------------- */

typedef struct check_call {
    /* A copy: problems are read through the pointer, entries and GPUs written here. */
    cli_job job;
    double memory_bytes;     /* of the host, for the problem that needs most */
    double gpu_memory_bytes; /* of one GPU */
    int num_runnable;
    ew_status failure;     /* of a problem or config that can never run */
    ew_status unsupported; /* of one that cannot run on this machine */
    char text[CLI_ERROR_BYTES];
    char unsupported_text[CLI_ERROR_BYTES];
} check_call;

static bool is_unsupported(check_call *call, ew_status status)
{
    if (status != EW_ERR_UNSUPPORTED)
        return false;
    call->unsupported = status;
    snprintf(call->unsupported_text, sizeof call->unsupported_text, "%s", ew_last_error());
    return true;
}

/* Of C, on one rank. */
static double output_rows(const cli_problem *problem)
{
    const bool all = problem->problem.op != EW_OP_GEMM_RS;
    return (double)problem->problem.max_m / (all ? 1 : problem->num_ranks);
}

/* What one rank needs for its matrices, beside the plan. */
static double matrix_bytes(const cli_problem *problem)
{
    const ew_problem *shape = &problem->problem;
    const bool shares_a = shape->op == EW_OP_AG_GEMM;
    double m = (double)shape->max_m, n = (double)shape->n, k = (double)shape->k;
    return (double)ew_dtype_bytes(shape->dtype) *
           (m / (shares_a ? problem->num_ranks : 1) * k + n * k + output_rows(problem) * n);
}

/* And for the rest of a layer: residual and normed, and the host's copies to check them;
 * and for outputs in symmetric memory. */
static double entry_bytes(const cli_job *job, const cli_problem *problem)
{
    const ew_problem *shape = &problem->problem;
    bool layers = false, symmetric = false, symmetric_layers = false;
    for (int at = 0; at < job->num_entries; at++) {
        const cli_entry *entry = &job->entries[at];
        layers = layers || entry->layer;
        symmetric = symmetric || entry->symmetric;
        symmetric_layers = symmetric_layers || (entry->symmetric && entry->layer);
    }
    return (5.0 * layers + symmetric + symmetric_layers) *
           (double)ew_dtype_bytes(shape->dtype) * output_rows(problem) * (double)shape->n;
}

/* On a GPU a rank's matrices pass through host memory one at a time. */
static double staging_bytes(const cli_problem *problem)
{
    const ew_problem *shape = &problem->problem;
    double m = (double)shape->max_m, n = (double)shape->n, k = (double)shape->k;
    return (double)ew_dtype_bytes(shape->dtype) *
           fmax(fmax(m * k, n * k), output_rows(problem) * n);
}

/* Takes `rank_bytes`, the matrices and plans of one rank, into the account. */
static void add_memory(check_call *call, const cli_problem *problem, double rank_bytes)
{
    double host_bytes = rank_bytes * problem->num_ranks;
    if (call->job.bed->is_simulated)
        return; /* its matrices lie nowhere */
    if (call->job.bed->on_gpus) {
        double gpu_bytes =
            rank_bytes * cli_gpu_sharers(&call->job.gpus, problem->num_ranks);
        call->gpu_memory_bytes = fmax(call->gpu_memory_bytes, gpu_bytes);
        host_bytes = staging_bytes(problem) * problem->num_ranks;
    }
    call->memory_bytes = fmax(call->memory_bytes, host_bytes);
}

static ew_status check_pair(check_call *call, const cli_problem *problem, cli_entry *entry,
                            double *bytes)
{
    ew_forecast forecast;
    if (cli_method_needs_mpi(entry->method)) {
        call->num_runnable++;
        *bytes += matrix_bytes(problem);
        return EW_OK;
    }
    ew_status status =
        ew_forecast_build(&problem->problem, problem->num_ranks, &entry->config, &forecast);
    if (is_unsupported(call, status))
        return EW_OK;
    if (status == EW_OK) {
        call->num_runnable++;
        *bytes +=
            (double)forecast.total_bytes * (call->job.num_plans ? call->job.num_plans : 1);
        entry->uses_nccl = forecast.uses_nccl;
    }
    return status;
}

static ew_status check_all(check_call *call)
{
    cli_job *job = &call->job;
    bool known[CLI_MAX_METHODS] = {false};
    if (job->bed->on_gpus)
        cli_gpus_find(&job->gpus);
    for (int at = 0; at < job->num_entries; at++) {
        cli_entry *entry = &job->entries[at];
        ew_config config = entry->config;
        ew_status status = EW_OK;
        if (!cli_method_needs_mpi(entry->method))
            status = ew_method_config(entry->method, &entry->config, &config);
        entry->config = config;
        known[at] = status == EW_OK;
        if (status && !is_unsupported(call, status))
            return status;
    }
    for (int which = 0; which < job->num_problems; which++) {
        const cli_problem *problem = &job->problems[which];
        double bytes = matrix_bytes(problem) + entry_bytes(job, problem);
        double before, largest = 0;
        for (int at = 0; at < job->num_entries; at++) {
            ew_status status = EW_OK;
            before = bytes;
            if (known[at])
                status = check_pair(call, problem, &job->entries[at], &bytes);
            if (status)
                return status;
            largest = fmax(largest, bytes - before);
            if (at == job->repeated)
                bytes += bytes - before;
        }
        if (job->tuned)
            bytes = fmax(bytes, matrix_bytes(problem) + EW_TUNE_PLANS * largest);
        add_memory(call, problem, bytes);
    }
    return EW_OK;
}

static void check_in_child(void *argument)
{
    check_call *call = argument;
    call->failure = check_all(call);
    if (call->failure)
        snprintf(call->text, sizeof call->text, "%s", ew_last_error());
}

static cli_exit fail_memory(const char *whose, double needed, double there)
{
    return cli_fail(EW_ERR_MEMORY,
                    "smaller -m, -N or -k, fewer ranks, or one method at a time",
                    "the largest problem needs %.1f GiB%s, %.1f GiB are available",
                    needed / 0x1p30, whose, there / 0x1p30);
}

static cli_exit judge(cli_job *job, const check_call *call)
{
    double free_bytes = (double)ew_available_memory();
    double gpu_bytes = (double)call->job.gpus.at[0].memory_bytes;
    if (call->failure)
        return cli_fail_status(call->failure, call->text);
    if (call->num_runnable == 0)
        return cli_fail_status(call->unsupported, call->unsupported_text);
    if (free_bytes > 0 && call->memory_bytes > free_bytes)
        return fail_memory("", call->memory_bytes, free_bytes);
    if (gpu_bytes > 0 && call->gpu_memory_bytes > gpu_bytes)
        return fail_memory(" on a GPU", call->gpu_memory_bytes, gpu_bytes);
    memcpy(job->entries, call->job.entries, sizeof job->entries);
    job->gpus = call->job.gpus;
    return CLI_EXIT_OK;
}

cli_exit cli_job_check(cli_job *job)
{
    check_call call = {.job = *job};
    if (job->bed->on_gpus)
        cli_cuda_environment(job->ranks.kind == EW_RANKS_AS_THREADS);
    const ew_status status = cli_run_in_child(check_in_child, &call, sizeof call);
    if (status == EW_ERR_MEMORY)
        return cli_fail_memory("to check the job");
    return status ? cli_fail(EW_ERR_SYSTEM, "entwine doctor looks for the reason",
                             "the check of the job ended abnormally")
                  : judge(job, &call);
}
