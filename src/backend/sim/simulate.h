/* One call of all ranks on an event clock: the plan's own tile map, layout and config, a
 * profile's times.  No data, no threads, no randomness: the same input, the same answer. */
#ifndef EWX_SIM_SIMULATE_H
#define EWX_SIM_SIMULATE_H

#include "backend/sim/profile.h"
#include "entwine/measure.h"
#include "plan/spec.h"

#define EWX_SIM_MAX_RANKS 1024

typedef struct ewx_sim_rank_result {
    ew_timing timing;
    int64_t remote_bytes;  /* that came from other ranks */
    int64_t crossed_bytes; /* of them, from other nodes */
} ewx_sim_rank_result;

typedef struct ewx_sim_request {
    const ewx_sim_profile *profile;
    const ewx_spec *spec;
    int64_t rows;             /* m of the call */
    double link_gbs;          /* in place of the profile's link; 0: the profile's */
    double link_us;           /* its latency */
    double link_header_bytes; /* its headers, where link_gbs is given (plan/link.h) */
    double nic_gbs;           /* in place of the profile's NIC; 0: the profile's */
    int nic_shared;    /* 1, -1: all nodes and directions share it or not; 0: as there */
    bool together;     /* ranks start at one time */
    int sampled_ranks; /* that are simulated, for all; 0: every rank */
    int traced_rank;   /* its events are wanted; -1: none */
    ew_trace_event *events; /* of that rank, in the order of their ends */
    size_t capacity;
} ewx_sim_request;

typedef struct ewx_sim_result {
    ewx_sim_rank_result *ranks; /* num_ranks, the caller's */
    uint64_t num_events;        /* of the queue */
    size_t num_traced;
} ewx_sim_result;

/* EW_ERR_CONFIG, with the reason: the schedule would never end. */
ew_status ewx_sim_run(const ewx_sim_request *request, ewx_sim_result *result);

/* EW_ERR_CONFIG: more reducers than can wait without keeping a producer out for ever. */
ew_status ewx_sim_check(const ewx_sim_profile *profile, const ewx_spec *spec);

/* The nodes that num_ranks ranks occupy, in rank order. */
typedef struct ewx_sim_nodes {
    int count, ranks_each; /* the last may have fewer */
} ewx_sim_nodes;
ewx_sim_nodes ewx_sim_nodes_of(const ewx_sim_profile *profile, int num_ranks);

/* What is between them. */
double ewx_sim_nic_gbs(const ewx_sim_request *request);
bool ewx_sim_nic_is_shared(const ewx_sim_request *request);

/* SMs, or cores, of one rank, and the ranks that share a GPU.  EW_ERR_SHAPE: the profile
 * has no room for so many ranks. */
ew_status ewx_sim_share(const ewx_sim_profile *profile, int num_ranks, int *sms_out,
                        int *sharers_out);

/* What the choice of a config knows about a rank of the profile. */
ew_status ewx_sim_machine(const ewx_sim_profile *profile, int num_ranks,
                          ewx_machine *machine_out);

#endif
