/* Small ragged problems of every type, over and over until the time is used up. */
#include "doctor/doctor.h"

#include <stdlib.h>

#include "base/interrupt.h"
#include "options/option_rules.h"

static const double budget_seconds = 1.0;

/* Every problem at least once. */
static ew_status run_problems(const cli_job *job, int64_t start_ns, ew_bench_result *result,
                              cli_selftest *test)
{
    ew_status status = EW_OK;
    while (status == EW_OK && !cli_interrupted() &&
           (test->num_problems < job->num_problems || test->seconds < budget_seconds)) {
        const cli_problem *problem = &job->problems[test->num_problems % job->num_problems];
        status = cli_job_run(job, problem, result, NULL, test->error);
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

static ew_status run_job(cli_settings *settings, double timeout_s, cli_selftest *test_out)
{
    const int64_t start_ns = ew_now_ns();
    ew_bench_result *result = calloc(CLI_MAX_METHODS, sizeof *result);
    cli_job job;
    ew_status status = EW_OK;
    settings->timeout_s = timeout_s;
    settings->iters = 20;
    settings->warmup = 1;
    *test_out = (cli_selftest){.num_problems = 0};
    const cli_exit failed = cli_job_init(&job, settings, NULL, "entwine");
    if (!result || !cli_interrupt_open())
        status = EW_ERR_MEMORY;
    else if (failed || cli_job_check(&job))
        status = EW_ERR_SYSTEM;
    if (status != EW_OK)
        snprintf(test_out->error, sizeof test_out->error,
                 "it could not begin; standard error says why\n"
                 "  fix: do what standard error says");
    if (status == EW_OK) {
        cli_job_prepare(&job);
        const char *mps = cli_mps_text(&job.mps);
        snprintf(test_out->mps, sizeof test_out->mps, "%s", mps ? mps : "");
        status = run_problems(&job, start_ns, result, test_out);
    }
    cli_job_fini(&job);
    cli_interrupt_close();
    free(result);
    return cli_interrupted() ? EW_ERR_ABORTED : status;
}

ew_status cli_selftest_run(ew_ranks_as kind, double timeout_s, cli_selftest *test_out)
{
    cli_settings s;
    cli_settings_init(&s);
    s.ranks_as = kind;
    s.ranks = (cli_values){{2, 3}, 2};
    s.rows = (cli_values){{131, 256}, 2};
    s.cols = (cli_values){{300}, 1};
    s.depth = (cli_values){{50}, 1};
    s.dtypes = (cli_values){{EW_FP32, EW_BF16, EW_FP16}, 3};
    return run_job(&s, timeout_s > 0 ? timeout_s : 5, test_out);
}

ew_status cli_selftest_run_cuda(int num_ranks, double timeout_s, cli_selftest *test_out)
{
    cli_settings s;
    cli_settings_init(&s);
    s.config.backend = EW_BACKEND_CUDA;
    s.ranks = (cli_values){{num_ranks}, 1};
    s.rows = (cli_values){{1000}, 1};
    s.cols = (cli_values){{776}, 1};
    s.depth = (cli_values){{264}, 1};
    s.dtypes = (cli_values){{EW_BF16, EW_FP16}, 2};
    return run_job(&s, timeout_s > 0 ? timeout_s : 20, test_out);
}
