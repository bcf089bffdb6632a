/* The simulated engines: when and where blocks and tasks run. */
#ifndef EWX_SIM_ENGINES_H
#define EWX_SIM_ENGINES_H

#include "backend/sim/sim_state.h"

/* ---- sim_blocks.c: a GPU's producers ---- */
/* The producers of a rank's GEMM, or of its next partition's. */
void ewx_sim_start_part(ewx_sim *sim, int rank);
/* Takes the next position for a slot that has room; false: none is left. */
bool ewx_sim_begin_block(ewx_sim *sim, int rank, int slot);
void ewx_sim_end_block(ewx_sim *sim, int rank, int slot);
/* Rows of a part have been sent to a rank, or all rows (EWX_EVERYONE): blocks of theirs
 * that wait for no others get their end. */
void ewx_sim_wake_blocks(ewx_sim *sim, int rank, int part);
/* The GEMM of a rank behind its movers. */
void ewx_sim_launch_gemm(ewx_sim *sim, int rank);
void ewx_sim_count_block(ewx_sim *sim, int rank);

/* ---- sim_reducers.c: a GPU's reducers, and the end of any task ---- */
void ewx_sim_launch_reducers(ewx_sim *sim, int rank);
/* The same when the kernel before has ended. */
void ewx_sim_launch_next(ewx_sim *sim, int rank);
/* An SM has room: pending reducers first, then producers. */
void ewx_sim_fill_sm(ewx_sim *sim, int rank, int sm);
/* A unit is complete: those who wait for it go on. */
void ewx_sim_wake_unit(ewx_sim *sim, int rank, int64_t unit);
void ewx_sim_resume(ewx_sim *sim, int rank, int consumer);
/* What a mover has stored takes its turns on the emulated link. */
void ewx_sim_send(ewx_sim *sim, int rank, int consumer);
void ewx_sim_deliver(ewx_sim *sim, int rank, int consumer);
void ewx_sim_end_reduce(ewx_sim *sim, int rank, int consumer);
void ewx_sim_finish_task(ewx_sim *sim, int rank, int worker, int64_t task,
                         int64_t begin_ps);

/* ---- sim_vendor.c: a vendor's collective ---- */
/* Behind the last rank's GEMM, in place of reducers. */
void ewx_sim_run_nccl(ewx_sim *sim);
/* A group's tiles are there, or a call has ended: books the next call if it can begin. */
void ewx_sim_book_call(ewx_sim *sim);
void ewx_sim_begin_call(ewx_sim *sim);
void ewx_sim_end_call(ewx_sim *sim);

/* ---- sim_workers.c: the CPU engine ---- */
void ewx_sim_start_workers(ewx_sim *sim, int rank);
void ewx_sim_worker_block(ewx_sim *sim, int rank, int worker);
void ewx_sim_worker_reduced(ewx_sim *sim, int rank, int worker);
void ewx_sim_wake_workers(ewx_sim *sim, int rank);

/* ---- sim_hosts.c: what the CPU engine does between hosts ---- */
/* `src` has completed a unit of another host: sends it, or counts it for the host's sum. */
void ewx_sim_contribute(ewx_sim *sim, int src, int dst, int64_t unit);
void ewx_sim_arrive(ewx_sim *sim, int dst, int64_t unit);
/* Begins the next sum for another host; false: there is none. */
bool ewx_sim_begin_sum(ewx_sim *sim, int rank, int worker);
void ewx_sim_end_sum(ewx_sim *sim, int rank, int worker);
/* By how much a worker's next step is delayed because it serves the network. */
int64_t ewx_sim_pay_network(ewx_sim *sim, int rank, int worker);
/* Serves the network while the worker has nothing else to do. */
void ewx_sim_serve_network(ewx_sim *sim, int rank, int worker);

#endif
