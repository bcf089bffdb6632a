/* Small ragged problems of every type, over and over until the time is used up. */
#include "doctor/doctor_selftest.h"

#include <stdlib.h>

#include "base/interrupt.h"

static const double budget_seconds = 1.0;

static void start_job(cli_job *job, ew_ranks_as kind, double timeout_s)
{
    const ew_bench_options bench = EW_BENCH_OPTIONS_INIT;
    const ew_world_options world = EW_WORLD_OPTIONS_INIT;
    *job = (cli_job){.bench = bench, .backend = EW_BACKEND_CPU};
    job->bench.iters = 20;
    job->bench.warmup = 1;
    job->ranks = (cli_ranks){kind, world, NULL};
    job->ranks.options.timeout_ms = timeout_s > 0 ? (uint32_t)(timeout_s * 1000.0) : 5000;
}

static cli_exit build_job(cli_job *job, ew_ranks_as kind, double timeout_s)
{
    static const int64_t shapes[][3] = {{200, 136, 64}, {131, 300, 50}, {256, 256, 128}};
    static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
    const ew_config open_config = EW_CONFIG_INIT;
    start_job(job, kind, timeout_s);
    cli_exit failed = cli_job_add_entry(job, "entwine", NULL, &open_config);
    for (int at = 0; at < 9 && !failed; at++) {
        const int64_t *shape = shapes[at / 3];
        ew_problem problem = EW_PROBLEM(shape[0], shape[1], shape[2], dtypes[at % 3]);
        cli_problem entry = {.problem = problem, .num_ranks = 2 + at % 2};
        failed = cli_job_add_problem(job, &entry);
    }
    return failed;
}

static cli_exit build_cuda_job(cli_job *job, int num_ranks, double timeout_s)
{
    static const ew_dtype dtypes[] = {EW_BF16, EW_FP16};
    ew_config config = EW_CONFIG_INIT;
    start_job(job, EW_RANKS_AS_PROCESSES, timeout_s > 0 ? timeout_s : 20.0);
    job->backend = config.backend = EW_BACKEND_CUDA;
    cli_exit failed = cli_job_add_entry(job, "entwine", NULL, &config);
    for (int at = 0; at < 2 && !failed; at++) {
        ew_problem problem = EW_PROBLEM(1000, 776, 264, dtypes[at]);
        cli_problem entry = {.problem = problem, .num_ranks = num_ranks};
        failed = cli_job_add_problem(job, &entry);
    }
    return failed;
}

/* Every problem at least once. */
static ew_status run_problems(const cli_job *job, int64_t start_ns, ew_bench_result *result,
                              cli_selftest *test)
{
    ew_status status = EW_OK;
    while (status == EW_OK && !cli_interrupted() &&
           (test->num_problems < job->num_problems || test->seconds < budget_seconds)) {
        const cli_problem *problem = &job->problems[test->num_problems % job->num_problems];
        status = cli_job_run(job, problem, result, test->error);
        if (status == EW_OK && result->status) {
            status = result->status;
            snprintf(test->error, sizeof test->error, "%s", result->error);
        }
        test->wrong += result->check.wrong;
        test->num_problems++;
        test->seconds = (double)(ew_now_ns() - start_ns) * 1e-9;
    }
    return status;
}

/* Ends the job. */
static ew_status run_job(cli_job *job, cli_exit built, cli_selftest *test_out)
{
    int64_t start_ns = ew_now_ns();
    ew_bench_result *result = calloc(CLI_MAX_METHODS, sizeof *result);
    ew_status status = EW_OK;
    *test_out = (cli_selftest){.num_problems = 0};
    if (!result || !cli_interrupt_open())
        status = EW_ERR_MEMORY;
    else if (built || cli_job_check(job))
        status = EW_ERR_SYSTEM;
    if (status == EW_OK) {
        cli_job_prepare(job);
        const char *mps = cli_mps_text(&job->mps);
        snprintf(test_out->mps, sizeof test_out->mps, "%s", mps ? mps : "");
        status = run_problems(job, start_ns, result, test_out);
    }
    cli_job_fini(job);
    cli_interrupt_close();
    free(result);
    return cli_interrupted() ? EW_ERR_ABORTED : status;
}

ew_status cli_selftest_run(ew_ranks_as kind, double timeout_s, cli_selftest *test_out)
{
    cli_job job = {.problems = NULL};
    cli_exit built = build_job(&job, kind, timeout_s);
    return run_job(&job, built, test_out);
}

ew_status cli_selftest_run_cuda(int num_ranks, double timeout_s, cli_selftest *test_out)
{
    cli_job job = {.problems = NULL};
    cli_exit built = build_cuda_job(&job, num_ranks, timeout_s);
    return run_job(&job, built, test_out);
}
