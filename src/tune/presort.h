/* The simulator beside the tuner: where a profile describes the machine, candidates are
 * measured in the order of their simulated times, and hopeless ones are not. */
#ifndef EWX_TUNE_PRESORT_H
#define EWX_TUNE_PRESORT_H

#include "backend/sim/simulate.h"

typedef struct ewx_presort {
    bool ready;              /* false: no profile fits, and nothing is foretold */
    ewx_sim_profile profile; /* its name that of its file, where it has one */
    ew_problem problem;      /* with as many rows as are simulated */
    int num_ranks;
    double link_gbs, link_us, link_header_bytes; /* of an emulated link; 0: the profile's */
} ewx_presort;

/* Looks for a profile whose device, and share of it that a rank gets, are the machine's: a
 * calibrated one among the tuning entries (cpu.profile, cuda.profile), else a built-in one;
 * for the sim backend the one that it simulates.  A file that cannot be read is none. */
void ewx_presort_open(ewx_presort *planner, const ew_problem *problem, int num_ranks,
                      ew_backend backend, const ewx_machine *machine);

/* The simulated time of a call; 0: not foretold. */
double ewx_presort_time_us(const ewx_presort *planner, const ew_config *config);

/* The order in which `count` candidates with these times (0: not foretold) are measured
 * beside the best so far: fastest first, then those not foretold; ties as they were.  Those
 * too far behind the fastest are left out.  Returns how many are in `order`. */
int ewx_presort_rank(const double *times_us, int count, double best_us, int *order);

#endif
