/* Calls on simulated hardware whose times are easy to add up: a block takes 10 us, a tile's
 * reduction 1 us, and nothing else takes any time or is ever short. */
#ifndef TESTS_SIM_TRIAL_H
#define TESTS_SIM_TRIAL_H

#include "backend/sim/simulate.h"

enum { SIM_TRIAL_SMS = 4, SIM_TRIAL_EVENTS = 1 << 16 };

typedef struct sim_outcome {
    ewx_sim_rank_result ranks[EWX_MAX_RANKS];
    ewx_sim_result result;
    ewx_spec spec;
    double time_us, gemm_us, tail_us;
} sim_outcome;

ewx_sim_profile sim_trial_gpu(void);

typedef struct sim_link {
    double gbs, us, header_bytes;
} sim_link;

/* `events`, where not NULL, has room for SIM_TRIAL_EVENTS of the traced rank. */
ew_status sim_trial_call(const ewx_sim_profile *profile, const ew_problem *problem,
                         int num_ranks, const char *config, double link_gbs,
                         int traced_rank, ew_trace_event *events, sim_outcome *o);

/* The same over any link. */
ew_status sim_trial_over(const ewx_sim_profile *profile, const ew_problem *problem,
                         int num_ranks, const char *config, sim_link link, int traced_rank,
                         ew_trace_event *events, sim_outcome *o);

/* The same for GEMM-ReduceScatter of depth 1024. */
ew_status sim_trial_try(const ewx_sim_profile *profile, int64_t m, int64_t n, int num_ranks,
                        const char *config, double link_gbs, int traced_rank,
                        ew_trace_event *events, sim_outcome *o);

/* The same, where nothing may go wrong. */
sim_outcome sim_trial_run(const ewx_sim_profile *profile, int64_t m, int64_t n,
                          int num_ranks, const char *config, double link_gbs);

void sim_trial_near(double value, double want);

#endif
