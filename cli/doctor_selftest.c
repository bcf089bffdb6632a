/* Small ragged problems of every type, over and over until the time is used up. */
#include "doctor_selftest.h"

#include <stdlib.h>

#include "interrupt.h"

static const double budget_seconds = 1.0;

static cli_exit build_job(cli_job *job, ew_ranks_as kind, double timeout_s)
{
    static const int64_t shapes[][3] = {{200, 136, 64}, {131, 300, 50}, {256, 256, 128}};
    static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
    const ew_bench_options bench = EW_BENCH_OPTIONS_INIT;
    const ew_world_options world = EW_WORLD_OPTIONS_INIT;
    const ew_config open_config = EW_CONFIG_INIT;
    *job = (cli_job){.bench = bench};
    job->bench.iters = 20;
    job->bench.warmup = 1;
    job->ranks = (cli_ranks){kind, world, NULL};
    job->ranks.options.timeout_ms = timeout_s > 0 ? (uint32_t)(timeout_s * 1000.0) : 5000;
    cli_exit failed = cli_job_add_entry(job, "entwine", NULL, &open_config);
    for (int at = 0; at < 9 && !failed; at++) {
        const int64_t *shape = shapes[at / 3];
        ew_problem problem = EW_PROBLEM(shape[0], shape[1], shape[2], dtypes[at % 3]);
        cli_problem entry = {.problem = problem, .num_ranks = 2 + at % 2};
        failed = cli_job_add_problem(job, &entry);
    }
    return failed;
}

ew_status cli_selftest_run(ew_ranks_as kind, double timeout_s, cli_selftest *test_out)
{
    cli_job job = {.problems = NULL};
    ew_status status = EW_OK;
    int64_t start_ns = ew_now_ns();
    ew_bench_result *result = calloc(CLI_MAX_METHODS, sizeof *result);
    *test_out = (cli_selftest){.num_problems = 0};
    if (!result || !cli_interrupt_open())
        status = EW_ERR_MEMORY;
    else if (build_job(&job, kind, timeout_s) || cli_job_check(&job))
        status = EW_ERR_SYSTEM;
    while (status == EW_OK && test_out->seconds < budget_seconds && !cli_interrupted()) {
        const cli_problem *problem =
            &job.problems[test_out->num_problems % job.num_problems];
        status = cli_job_run(&job, problem, result, test_out->error);
        if (status == EW_OK && result->status) {
            status = result->status;
            snprintf(test_out->error, sizeof test_out->error, "%s", result->error);
        }
        test_out->wrong += result->check.wrong;
        test_out->num_problems++;
        test_out->seconds = (double)(ew_now_ns() - start_ns) * 1e-9;
    }
    cli_interrupt_close();
    cli_job_fini(&job);
    free(result);
    return cli_interrupted() ? EW_ERR_ABORTED : status;
}
