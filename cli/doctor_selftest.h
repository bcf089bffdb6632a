/* The doctor's last check: real ranks, exact inputs, about a second per kind of rank. */
#ifndef ENTWINE_CLI_DOCTOR_SELFTEST_H
#define ENTWINE_CLI_DOCTOR_SELFTEST_H

#include "job.h"

typedef struct cli_selftest {
    int num_problems;
    int64_t wrong;
    double seconds;
    char error[CLI_ERROR_BYTES];
} cli_selftest;

ew_status cli_selftest_run(ew_ranks_as kind, double timeout_s, cli_selftest *test_out);

#endif
