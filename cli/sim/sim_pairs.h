/* Measured results beside their simulations. */
#ifndef ENTWINE_CLI_SIM_PAIRS_H
#define ENTWINE_CLI_SIM_PAIRS_H

#include <jansson.h>
#include <stdbool.h>

typedef struct sim_pair {
    json_int_t m, n, k, ranks;
    double link_gbps;
    double nic_gbps;                     /* between hosts that were emulated; 0: one host */
    int nic_shared;                      /* by both directions */
    const char *dtype, *method, *config; /* the document's */
    int workload;                        /* equal for the results of one problem */
    double measured_us;                  /* and simulated: */
    double time_us;
    double scatter; /* of the measured samples: deviation over mean */
    bool skipped;
} sim_pair;

typedef struct sim_pairs {
    sim_pair *at;
    int count, num_workloads;
    int num_others; /* results that are not simulated */
    const char *profile;
    bool is_cpu;
    bool has_hosts; /* the profile is of several */
} sim_pairs;

/* What the simulator would have picked of a workload's measured configs. */
typedef struct sim_choice {
    int workload;
    bool several; /* configs; else there was nothing to choose */
    const sim_pair *chosen, *best;
    double regret; /* 0.03: three per cent slower than the best */
} sim_choice;

/* At most num_workloads; returns how many. */
int sim_choices(const sim_pairs *all, sim_choice *choices);
double sim_choices_median(const sim_choice *choices, int count, double *worst_out);
void sim_choices_print(const sim_choice *choices, int count);
json_t *sim_choices_json(const sim_choice *choices, int count);

#endif
