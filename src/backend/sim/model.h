/* What a profile makes of a spec: how many CTAs fit where, and how long things take. */
#ifndef EWX_SIM_MODEL_H
#define EWX_SIM_MODEL_H

#include "backend/sim/simulate.h"
#include "plan/walk.h"

enum { EWX_SIM_MAX_PRODUCERS = 8 }; /* on one SM */

typedef struct ewx_sim_model {
    ewx_grid grid;     /* of the GEMM's blocks */
    ewx_grid crossing; /* ag-gemm: as the rows cross, a part for each rank */
    int sms;           /* of a rank; a CPU's workers */
    int sharers;       /* ranks on one GPU */
    int set_apart;     /* SMs that compute nothing: pool=static, or a vendor's calls */
    int producers_per_sm;
    int slots;                                      /* for producers, on all SMs */
    int reducers_beside[EWX_SIM_MAX_PRODUCERS + 1]; /* by producers on the SM */
    int64_t block_ps;    /* of a whole block, with all slots busy */
    int64_t tile_ps;     /* of one of a block's two tiles; 0: blocks are not split */
    double half_time;    /* factor of a block that fills half its tiles */
    double crowd_time;   /* share of block_ps that the other slots cost */
    double memory_ps;    /* of a whole wave's operands on their way from the memory */
    bool streams;        /* the GEMM of few rows, whose loads run far ahead */
    bool loads_in_pairs; /* the two CTAs of a cluster load for each other */
    bool waits;          /* the GEMM, for rows of other ranks */
    double jitter;
    int64_t tile_bytes;     /* of a whole tile's contribution */
    double steal_ps;        /* of producers, per byte that a reducer moves */
    double mem_ps, cta_ps;  /* per byte: of a GPU's memory, of one reducer */
    int64_t reducer_ps;     /* per tile */
    double shared_time;     /* factor of a reducer's times beside a producer */
    double copy_ps;         /* per byte, of all copies of a GPU */
    int64_t beside_ps;      /* of producers, for a kernel that starts in their midst */
    int64_t command_ps;     /* from one command of a stream to the next, beside GEMMs */
    double link_ps, nic_ps; /* per byte; 0: none */
    double asked_ps;        /* per byte that is read over a link, of its other direction */
    int64_t link_latency_ps, nic_latency_ps;
    bool nic_shared;
    double nic_cpu_ps; /* of the caller's thread, per byte that it sends or receives */
    int ranks_per_node, num_nodes;
    bool sums_in_nodes; /* levels=2, and there are several ranks in a node */
    int64_t start_ps, launch_ps, publish_ps, skew_ps;
    int64_t stagger_ps;  /* between launches of ranks that share a GPU */
    bool uses_nccl;      /* one call behind the GEMM, */
    bool calls_nccl;     /* or one for every group of tiles, in place of our kernels */
    double nccl_ps;      /* of a call, */
    double nccl_byte_ps; /* and more for every byte that comes to a rank */
} ewx_sim_model;

ew_status ewx_sim_model_build(const ewx_sim_request *request, ewx_sim_model *model_out);

/* The time of a rank's block, or of one of its tiles, in a wave of that many, with its
 * jitter.  The fewer SMs compute, the less they contend for L2 and memory, and the larger
 * each one's share of the capped power. */
int64_t ewx_sim_block_ps(const ewx_sim_model *model, int rank, ewx_taken taken,
                         ewx_block block, int64_t wave);

#endif
