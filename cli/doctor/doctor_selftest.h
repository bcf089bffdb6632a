/* The doctor's last checks: real ranks, exact inputs, about a second per kind of rank. */
#ifndef ENTWINE_CLI_DOCTOR_SELFTEST_H
#define ENTWINE_CLI_DOCTOR_SELFTEST_H

#include "run/job.h"

typedef struct cli_selftest {
    int num_problems;
    int64_t wrong;
    double seconds;
    char mps[32]; /* as cli_mps_text has it; empty: not needed */
    char error[CLI_ERROR_BYTES];
} cli_selftest;

ew_status cli_selftest_run(ew_ranks_as kind, double timeout_s, cli_selftest *test_out);

/* The cuda backend, on num_ranks ranks as processes: the ranks exchange handles of their
 * GPU memory and map each other's. */
ew_status cli_selftest_run_cuda(int num_ranks, double timeout_s, cli_selftest *test_out);

#endif
