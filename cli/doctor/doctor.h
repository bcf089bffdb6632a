/* What the doctor's checks have in common: where they leave their findings. */
#ifndef ENTWINE_CLI_DOCTOR_H
#define ENTWINE_CLI_DOCTOR_H

#include "run/context.h"
#include "run/launcher.h"

typedef enum cli_verdict { VERDICT_OK, VERDICT_WARN, VERDICT_FAIL } cli_verdict;

typedef struct cli_doctor {
    const cli_settings *settings;
    cli_context context;
    cli_launch launch;
    json_t *checks;
    json_t *kernels; /* of the GPU, with --verbose; NULL: none */
    bool as_json;
    bool colour;
    int num_verdicts[3];
} cli_doctor;

/* Records one finding; `fix` is shown unless all is well. */
void cli_doctor_say(cli_doctor *d, cli_verdict found, const char *name, const char *fix,
                    const char *format, ...) __attribute__((format(printf, 5, 6)));

/* The fix that a library's error ends with, or `otherwise` where it has none. */
const char *cli_doctor_fix(const char *error, const char *otherwise);

/* Whether Ctrl-C has ended the check called `name`; if so, says that. */
bool cli_doctor_interrupted(cli_doctor *d, const char *name);

/* The variables that are set, unknown ones too. */
void cli_doctor_variables(cli_doctor *d);

/* Whether there is a core for every rank. */
void cli_doctor_cores(cli_doctor *d, int num_cores, int num_ranks);

/* All but what needs MPI, ending with self-tests. */
void cli_doctor_check(cli_doctor *d);

/* GPUs, MPS, and ranks on them.  Never FAILs for the lack of a GPU. */
void cli_doctor_gpus(cli_doctor *d);

/* Under mpirun, all ranks: their cores, the hosts and what lies between them.  Nothing
 * elsewhere. */
cli_exit cli_doctor_hosts(cli_doctor *d);

/* ---- The last checks: real ranks, exact inputs, about a second per kind of rank ---- */

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
