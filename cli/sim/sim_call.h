/* Simulated calls of methods, and the search for a method's best schedule. */
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

/* Ranks that are simulated; more of them stand for the rest (ew_sim_options). */
enum { CLI_SIM_SAMPLE = 16 };

/* On the hardware of the profile in use. */
cli_sim_case cli_sim_case_of(const ew_problem *problem, int num_ranks);

/* One call of `method` with what `base` leaves open chosen as plans do. */
ew_status cli_sim_method(const cli_sim_case *what, const char *method,
                         const ew_config *base, ew_sim_report *report_out);

/* The values of each key that are tried, each list ending with 0. */
typedef struct cli_sim_space {
    int32_t block_n[4], group[6], budget[8], batch[4], release[4], transport[3];
} cli_sim_space;

/* Around the built-in choice for so many SMs. */
cli_sim_space cli_sim_space_for(const ew_sim_hardware *hardware);
/* The same with the values that matter most, for many searches. */
cli_sim_space cli_sim_narrow_space(const ew_sim_hardware *hardware);

/* Key by key from the built-in choice for `base` (or NULL) on, keeping what is faster.  A
 * large problem is searched with fewer rows.  *tried counts simulations. */
ew_status cli_sim_search(const cli_sim_case *what, const char *method,
                         const ew_config *base, const cli_sim_space *space,
                         ew_sim_report *best_out, int *tried);

#endif
