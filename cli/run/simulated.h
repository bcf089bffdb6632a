/* What the tool says about simulated ranks, so that no simulated number passes for a
 * measured one. */
#ifndef ENTWINE_CLI_SIM_VIEW_H
#define ENTWINE_CLI_SIM_VIEW_H

#include <jansson.h>

#include "options/options.h"

/* Whether ranks are GPUs, real or simulated. */
bool cli_ranks_are_gpus(const cli_bed *bed);

/* "SIMULATED : profile h200-8, 8 ranks of 132 SMs; nothing was computed or measured". */
void cli_sim_text(const char *profile, int num_ranks, char *text, size_t bytes);

/* What an operation other than gemm-rs is, with a line's end; empty for gemm-rs. */
const char *cli_op_text(ew_op op);

/* `simulated` and `profile` for the parameters of a result. */
void cli_sim_params(json_t *params, int num_ranks);

#endif
