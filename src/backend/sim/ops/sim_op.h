/* An operation's program: what its tasks wait for, read and write.  It books resources; the
 * simulated engines decide when and where a task or a block runs. */
#ifndef EWX_SIM_OPS_SIM_OP_H
#define EWX_SIM_OPS_SIM_OP_H

#include "backend/sim/sim_state.h"

typedef struct ewx_sim_op {
    /* A rank's tasks, in the order in which reducers take them. */
    int64_t (*num_tasks)(const ewx_sim *sim, int rank);
    /* How many tasks a GPU's CTA takes together, its share; which CTA of the running launch
     * has a task, -1: none; and which one it takes next, likewise.  NULL: one, and every
     * x-th. */
    int64_t (*share_tasks)(const ewx_sim *sim);
    int (*cta_of)(const ewx_sim *sim, int rank, int64_t task);
    int64_t (*next_task)(const ewx_sim *sim, int rank, ewx_sim_consumer *consumer);
    /* Allocates and counts what each unit waits for; false: there is no memory. */
    bool (*set_up)(ewx_sim *sim);
    /* Takes a CPU's next block of those that are left, if its inputs are there; NULL: in
     * the config's order, and nothing is waited for. */
    bool (*next_block)(ewx_sim *sim, int rank, ewx_block *block_out);
    /* A GPU's block at a position of the rank's walk, and when one that a slot has begun
     * ends, -1: what it waits for has not been sent; NULL: as above. */
    ewx_block (*block_at)(const ewx_sim *sim, int rank, int64_t position);
    int64_t (*block_end)(const ewx_sim *sim, int rank, ewx_sim_producer *producer);
    /* A tile of the GEMM is complete on `src`. */
    void (*complete_tile)(ewx_sim *sim, int src, int part, ewx_tile tile);
    /* Books what a task whose inputs are ready reads and writes; returns when it ends.  One
     * that shares its SM with a producer is slower. */
    int64_t (*book_task)(ewx_sim *sim, int rank, int64_t task, bool shares_sm);
    /* On an emulated link, of a task that is sent when it is stored: books the way out from
     * now on, and when its turn has come there the way in; returns when it has arrived.
     * NULL: book_task has done all that. */
    ewx_sim_span (*send_task)(ewx_sim *sim, int rank, int64_t task);
    int64_t (*deliver_task)(ewx_sim *sim, int rank, int64_t task, ewx_sim_span sent);
    /* A CPU's message to a rank of another host, for a unit of its tasks. */
    int64_t (*message_bytes)(const ewx_sim *sim, int dst, int64_t unit);
    /* It can be seen by dst; NULL: its unit waits for it. */
    void (*receive)(ewx_sim *sim, int dst, int64_t unit, int64_t visible_ps);
    /* What the task is in a trace, without its times; NULL: it is in none. */
    ew_trace_event (*event)(const ewx_sim *sim, int rank, int64_t task);
    /* The task has ended; NULL: nobody waits for it. */
    void (*finish_task)(ewx_sim *sim, int rank, int64_t task);
    /* Bytes that come to a rank from all others, and from other nodes. */
    int64_t (*remote_bytes)(const ewx_sim *sim, int rank);
    int64_t (*crossed_bytes)(const ewx_sim *sim, int rank);
} ewx_sim_op;

extern const ewx_sim_op ewx_sim_gemm_rs, ewx_sim_gemm_ar, ewx_sim_ag_gemm, ewx_sim_ag_push;

/* NULL: the simulator does not have it. */
const ewx_sim_op *ewx_sim_op_of(const ewx_spec *spec, bool is_cpu);

#endif
