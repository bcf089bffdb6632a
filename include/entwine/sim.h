/* Opt-in header: how long a call would take on hardware that a profile describes.
 * Nothing runs and nothing is measured; docs/SIMULATOR.md says what is modelled
 * and how far to trust it.  Plans with backend=sim use the same simulation, with the
 * profile that the variable ENTWINE_PROFILE names. */
#ifndef ENTWINE_SIM_H
#define ENTWINE_SIM_H

#include "entwine/measure.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The built-in profiles, ending with NULL. */
EW_API const char *const *ew_sim_profiles(void);

#define EW_SIM_NAME_BYTES 64

/* A profile, for num_ranks ranks. */
typedef struct ew_sim_hardware {
    char name[EW_SIM_NAME_BYTES];
    int32_t is_cpu;
    int32_t gpus;    /* of a node */
    int32_t nodes;   /* on which the ranks are */
    int32_t sharers; /* ranks on one GPU; above 1 it is a virtual node */
    int32_t sms;     /* of one rank; a CPU's cores */
    double link_gbs; /* per rank and direction, inside a node; 0: memory alone */
    double nic_gbs;  /* between nodes; of a rank, of a CPU's node for all its ranks */
    int32_t arch;    /* of a GPU: 80, 90, ... */
} ew_sim_hardware;

/* `profile` is a built-in name or a path; NULL: ENTWINE_PROFILE, else "h200-8". */
EW_API ew_status ew_sim_describe(const char *profile, int num_ranks,
                                 ew_sim_hardware *hardware_out);

typedef struct ew_sim_options {
    uint32_t struct_size;
    const char *profile; /* as above */
    double link_gbs; /* in place of the profile's link inside a node; 0: the profile's */
    double link_us;  /* its latency */
    /* Ranks that are simulated and stand for all, where every rank has a GPU of its own:
     * the others do the same at the same time.  0: every rank. */
    int32_t sampled_ranks;
    const char *profile_text; /* the profile itself, in place of its name; or NULL */
    double nic_gbs;     /* in place of the profile's between nodes; 0: the profile's */
    int32_t nic_shared; /* 1: all nodes and both directions share its rate, -1: they do
                         * not; 0: as in the profile */
    double link_header_bytes; /* of the link that link_gbs gives, as in a world's options */
} ew_sim_options;
#define EW_SIM_OPTIONS_INIT                                          \
    {                                                                \
        sizeof(ew_sim_options), NULL, 0.0, 0.0, 0, NULL, 0.0, 0, 0.0 \
    }

/* Times as in ew_bench_result: of the slowest rank, when all start at one time. */
typedef struct ew_sim_report {
    ew_config config; /* every field chosen */
    double time_us, gemm_us, tail_us;
    double link_us;        /* the time that the busiest link alone needs */
    int64_t moved_bytes;   /* from other ranks, of all ranks together */
    uint64_t events;       /* of the simulation */
    int64_t crossed_bytes; /* of moved_bytes, between nodes */
} ew_sim_report;

/* One simulated call of problem->max_m rows, with up to 1024 ranks.  config may be NULL or
 * partly zero; its backend is taken to be sim. */
EW_API ew_status ew_sim_call(const ew_problem *problem, int num_ranks,
                             const ew_config *config, const ew_sim_options *options,
                             ew_sim_report *report_out);

/* The best schedule that a search finds: fields that `config` (or NULL) leaves open are
 * varied as ew_tune does, with simulations in place of measurements.  A large problem is
 * searched with fewer rows; the report is of the whole.  tried_out, which may be NULL, gets
 * the number of simulations. */
EW_API ew_status ew_sim_search(const ew_problem *problem, int num_ranks,
                               const ew_config *config, const ew_sim_options *options,
                               ew_sim_report *report_out, int32_t *tried_out);

#ifdef __cplusplus
}
#endif
#endif
