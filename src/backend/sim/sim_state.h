/* The state of one simulation.
 *
 *     simulate.c                    set-up, clock, dispatch, result
 *     sim_blocks.c, sim_reducers.c  a GPU's kernels: blocks, and tasks on SMs
 *     sim_vendor.c                  a vendor's collective in place of reducers
 *     sim_workers.c, sim_hosts.c    the CPU engine: workers, and sums between hosts
 *     ops/                          a program per operation: its tasks, what each of them
 *                                   waits for and moves
 *     sim_units.c                   release units: who waits for one, when it can be seen
 *     resources.c                   SMs, links, NICs, memory, copy engines, front ends
 */
#ifndef EWX_SIM_STATE_H
#define EWX_SIM_STATE_H

#include "backend/sim/model.h"
#include "backend/sim/queue.h"
#include "backend/sim/sim_time.h"
#include "backend/sim/way.h"
#include "plan/ownership.h"

enum ewx_sim_kind {
    EWX_SIM_START,      /* a rank's kernels begin */
    EWX_SIM_BLOCK_END,  /* who: producer slot, or worker */
    EWX_SIM_LAUNCH,     /* a rank's next reducing kernel begins */
    EWX_SIM_PART,       /* copy: the GEMM of a rank's next partition begins */
    EWX_SIM_RESUME,     /* who: a reducer whose tile has become ready */
    EWX_SIM_SEND,       /* who: a mover that has stored what it sends, */
    EWX_SIM_DELIVER,    /* and whose turn has come */
    EWX_SIM_REDUCE_END, /* who: reducer, or worker */
    EWX_SIM_WAKE,       /* a rank's idle workers look again */
    EWX_SIM_ARRIVAL,    /* CPU: a unit from another host; who: the unit */
    EWX_SIM_CALL,       /* a vendor's call for a group of tiles, of all ranks */
    EWX_SIM_CALL_END
};

/* Room for one producer CTA on an SM, or a worker of the CPU. */
typedef struct ewx_sim_producer {
    bool busy;
    int tile;     /* CPU: of the block, next to be computed; GPU: the only one, -1: all */
    int consumer; /* CPU: being served; -1: none */
    int64_t sum;  /* CPU: unit whose sum of this host is being made; -1: none */
    int served;   /* CPU: tiles of this visit */
    bool waits;   /* GPU: for rows of its block */
    int64_t position; /* of the block in hand */
    ewx_block block;
    int64_t begin_ps;
    int64_t block_ps;      /* GPU: what the block takes */
    int64_t num_awaited;   /* ag-gemm, GPU: chunks of its rows that it has found, */
    int64_t awaited_ps;    /* and when it has them, or has multiplied them */
    int64_t stolen_ps;     /* of the rank's, already paid for */
    int64_t stores_end_ps; /* push: of the block before */
} ewx_sim_producer;

typedef enum ewx_sim_phase {
    EWX_SIM_PENDING, /* not on an SM yet */
    EWX_SIM_WAITING, /* for contributions, on its SM */
    EWX_SIM_ACTIVE,  /* reducing, or about to */
    EWX_SIM_GONE
} ewx_sim_phase;

typedef struct ewx_sim_consumer {
    ewx_sim_phase phase;
    int sm;
    int64_t task, begin_ps;
    int64_t round, collected; /* gemm-ar: to be summed next, and to be copied next */
    ewx_sim_span sent;        /* ag-gemm: on the way out */
} ewx_sim_consumer;

typedef struct ewx_sim_sm {
    int16_t producers, reducers;
    bool only_reduces; /* pool=static */
} ewx_sim_sm;

typedef struct ewx_sim_rank {
    bool mirrored;                  /* not simulated */
    int place;                      /* among those that are */
    double near_weight, far_weight; /* senders for which a simulated one stands */
    ewx_sim_producer *producers;
    ewx_sim_consumer *consumers;
    ewx_sim_sm *sms;
    int budget;                     /* x, or as many as there are tasks */
    int num_ctas;                   /* of the reducing kernel in flight */
    int num_slots;                  /* for producers */
    int num_computing;              /* producers at work */
    int first_pending;              /* reducers from here on are not on an SM */
    int num_resident;               /* reducers on SMs */
    int next_sm;                    /* where the next reducer is tried first */
    int64_t first_share, end_share; /* of tasks, of the reducing kernel in flight */
    int64_t next_position, blocks_left, tasks_left;
    int num_parts;                      /* copy: GEMMs started, one per destination */
    int64_t first_of_part, end_of_part; /* of the GEMM in flight, as next_position counts */
    int64_t first_position;             /* where that count begins */
    int64_t first_split;                /* blocks from here on are taken by tiles */
    int next_tile;                      /* of the next block, if it is split */
    int64_t start_ps, gemm_end_ps, end_ps;
    int64_t gemm_begin_ps; /* of the first block; -1: none has begun */
    int64_t stolen_ps;     /* from every producer slot so far */
    int64_t owed_ps;       /* copy: to be stolen from the next part, beside which it runs */
    ewx_sim_way egress, ingress, nic_out, nic_in;
    int64_t copying_ps;             /* copy: the last one's end */
    int64_t arrival_ps;             /* push: of the last tile sent */
    int64_t chunks_left, chunks_ps; /* ag-gemm, GPU: to come to it; the last one is seen */
    int64_t remote_bytes, crossed_bytes;
    /* CPU, several hosts: */
    int64_t network_owed_ps;     /* of the caller's thread, as it computes */
    int64_t network_ps;          /* busy with the network until, as it waits */
    int64_t first_sum, last_sum; /* units to be summed for other hosts; -1: none */
    bool summing;
} ewx_sim_rank;

/* ag-gemm: one rank's rows, as another sees them. */
typedef struct ewx_sim_source {
    int64_t num_arrived; /* panels, from the first on */
    int64_t num_taken;   /* blocks */
} ewx_sim_source;

/* Ranks compute the same blocks in the same order, so a few of them, spread over all, can
 * stand for the rest, the mirrored ranks: those own tiles that are not reduced here, and
 * what they contribute comes when a simulated rank's contribution does.  A pull books the
 * owner's way in for all sources; a push books the source's way out, and the owner's way in
 * for all the sources that this one stands for; copies go round, one to an owner at a time.
 */
typedef struct ewx_sim {
    const ewx_sim_request *request;
    const ewx_spec *spec;
    const struct ewx_sim_op *op;
    ewx_sim_model model;
    ewx_sim_queue queue;
    ewx_ownership ownership; /* who sums what in this call */
    ewx_release unit_tasks;  /* which tasks make up a release unit */
    int num_ranks;
    int num_simulated; /* of them; the others do as these do */
    int64_t now_ps;
    ewx_sim_rank ranks[EWX_SIM_MAX_RANKS];
    int64_t memory_ps[EWX_SIM_MAX_RANKS];      /* of each GPU: busy until */
    int64_t copies_ps[EWX_SIM_MAX_RANKS];      /* of each GPU: its copies, until */
    int64_t front_ps[EWX_SIM_MAX_RANKS];       /* of each GPU: its next kernel may start */
    int64_t first_unit[EWX_SIM_MAX_RANKS + 1]; /* of the units for which a rank waits */
    int32_t *missing;        /* [unit] contributions that are not published yet */
    int64_t *ready_ps;       /* [unit] when the last of those published is visible */
    int64_t *unreleased;     /* [src][unit] tiles missing; NULL when a tile is a unit */
    ewx_sim_way medium;      /* of all NICs where they share their rate */
    int32_t *unsummed;       /* [node][unit] contributions missing to the node's sum */
    int64_t *next_sum;       /* [node][unit] to be made after it; -1: none */
    int64_t *shared_ps;      /* ag-gemm: when a rank sees some rows of another */
    ewx_sim_source *sources; /* ag-gemm: [rank][source] */
    int64_t num_calls;       /* of a vendor's collective that have ended */
    bool calling;            /* the next is booked */
    size_t num_traced;
} ewx_sim;

/* ---- simulate.c ---- */
/* Zeroed; clears *enough when there is no memory. */
void *ewx_sim_allocate(size_t count, size_t bytes, bool *enough);
void ewx_sim_trace(ewx_sim *sim, int rank, const ew_trace_event *event);
/* The block that a producer slot or worker has just finished. */
void ewx_sim_trace_block(ewx_sim *sim, int rank, int worker, int64_t publish_ps);

#endif
