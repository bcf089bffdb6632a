/* What simulated work occupies, and for how long: SMs, links, NICs, memory, copy engines
 * and the GPU's front end.  Each serves its bookings in their order.  Nothing
 * here knows an operation. */
#ifndef EWX_SIM_RESOURCES_H
#define EWX_SIM_RESOURCES_H

#include "backend/sim/sim_state.h"

/* ---- Nodes ---- */
bool ewx_sim_share_node(const ewx_sim *sim, int a, int b);
/* Ranks on this rank's node, itself included. */
int ewx_sim_ranks_of_node(const ewx_sim *sim, int rank);

/* ---- The front end ---- */
/* Starts a kernel behind another that ends at `ready_ps`; returns its start.  Ranks that
 * share a GPU take turns. */
int64_t ewx_sim_book_launch(ewx_sim *sim, int rank, int64_t ready_ps);
/* Books time of the thread that serves a rank's network; returns when it is over. */
int64_t ewx_sim_book_core(ewx_sim *sim, int rank, int64_t from_ps, double duration_ps);

/* ---- SMs ---- */
bool ewx_sim_fits_producer(const ewx_sim *sim, int rank, int sm);
bool ewx_sim_fits_reducer(const ewx_sim *sim, int rank, int sm);
void ewx_sim_add_producers(ewx_sim *sim, int rank, int sm, int change);
void ewx_sim_add_reducers(ewx_sim *sim, int rank, int sm, int change);

/* ---- Memory ---- */
/* Books `bytes` of the memory of a rank's GPU; returns from when to when they move. */
ewx_sim_span ewx_sim_book_memory(ewx_sim *sim, int rank, double bytes);
/* Delays a rank's producers by what a kernel costs that starts in their midst. */
void ewx_sim_interrupt_producers(ewx_sim *sim, int rank);
/* ... by what moving `bytes` beside them costs. */
void ewx_sim_delay_producers(ewx_sim *sim, int rank, double bytes);

/* ---- Links, NICs and copy engines; these return arrivals ---- */
/* First the sender's way out; when its turn has come there, the receiver's way in.  One
 * call books both, or the second is booked when that time has come. */
int64_t ewx_sim_book_send(ewx_sim *sim, int64_t from_ps, int src, int dst, int64_t bytes);
ewx_sim_span ewx_sim_book_way_out(ewx_sim *sim, int64_t from_ps, int src, int dst,
                                  int64_t bytes);
int64_t ewx_sim_book_way_in(ewx_sim *sim, ewx_sim_span sent, int src, int dst,
                            int64_t bytes);
/* From every near or every far rank at once, `bytes` from each; of far ones, with
 * `per_node`, only from the rank of each node that has this one's place. */
int64_t ewx_sim_book_pull(ewx_sim *sim, int rank, bool near, bool per_node, int64_t from_ps,
                          int64_t bytes);
/* One copy after the other. */
int64_t ewx_sim_book_copy(ewx_sim *sim, int src, int dst, int64_t bytes);

#endif
