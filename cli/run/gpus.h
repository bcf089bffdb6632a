/* The GPUs of this machine, as far as the tool talks about them.  CUDA itself is asked in
 * children only: a process that has used it cannot fork ranks any more. */
#ifndef ENTWINE_CLI_GPU_H
#define ENTWINE_CLI_GPU_H

#include <jansson.h>

#include "entwine/measure.h"

enum { CLI_MAX_GPUS = 16 };

typedef struct cli_gpus {
    int count; /* 0: none can be used, `why` says why */
    ew_gpu at[CLI_MAX_GPUS];
    char driver[32]; /* "580.95.05"; empty: no driver is loaded */
    char why[256];
} cli_gpus;

/* Asks the library in this process, so call it in a child. */
void cli_gpus_find(cli_gpus *gpus_out);

/* The same from a process that is going to fork. */
void cli_gpus_survey(cli_gpus *gpus_out);

/* Ranks on one GPU, and what each of them gets: ranks go to the GPUs in turn, and those
 * that meet on one share its SMs in whole groups of 8. */
int cli_gpu_sharers(const cli_gpus *gpus, int num_ranks);
int cli_gpu_sms_per_rank(const cli_gpus *gpus, int num_ranks);

/* Sets what CUDA reads when it starts, where the user has not: one queue for each of the
 * ranks' streams, and no kernel loaded while another waits for it. */
void cli_cuda_environment(bool one_process);

/* "NVIDIA H200, 132 SMs, ...", one line. */
void cli_gpus_text(const cli_gpus *gpus, char *text, size_t bytes);
json_t *cli_gpus_json(const cli_gpus *gpus);

/* Clocks, power and temperature now: an array with a line of nvidia-smi per GPU, or null
 * where it is not installed. */
#define CLI_CLOCKS_QUERY \
    "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu,driver_version"
json_t *cli_gpu_clocks(void);

#endif
