/* Simulated calls of methods. */
#ifndef ENTWINE_CLI_SIM_CALL_H
#define ENTWINE_CLI_SIM_CALL_H

#include <stdbool.h>

#include "entwine/sim.h"

/* A problem on hardware. */
typedef struct cli_sim_case {
    ew_problem problem;
    int num_ranks;
    ew_sim_options options;
} cli_sim_case;

/* On the hardware of the profile in use. */
cli_sim_case cli_sim_case_of(const ew_problem *problem, int num_ranks);

/* One call of `method` with what `base` leaves open chosen as plans do. */
ew_status cli_sim_method(const cli_sim_case *what, const char *method,
                         const ew_config *base, ew_sim_report *report_out);

/* One call of entwine with the best schedule that a search finds around `base`. */
ew_status cli_sim_best(const cli_sim_case *what, const ew_config *base,
                       ew_sim_report *report_out, int32_t *tried_out);

#endif
