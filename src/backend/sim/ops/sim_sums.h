/* What operations whose tasks sum contributions have in common. */
#ifndef EWX_SIM_OPS_SIM_SUMS_H
#define EWX_SIM_OPS_SIM_SUMS_H

#include "backend/sim/sim_state.h"

/* push: the epilogue's stores are on their way as soon as a tile is computed; returns when
 * they have arrived. */
int64_t ewx_sim_push_tile(ewx_sim *sim, int src, int dst, int64_t bytes);
/* When what a rank has pushed so far has arrived. */
int64_t ewx_sim_stored_ps(const ewx_sim *sim, int src);

/* Books the sum of a tile of `bytes`, and `pushed` copies of it that its CTA writes
 * besides; returns when it ends. */
int64_t ewx_sim_book_sum(ewx_sim *sim, int rank, int64_t bytes, int pushed, bool shares_sm);
/* Books what a reducer reads and writes from `begin_ps` on, in its own memory. */
int64_t ewx_sim_book_moves(ewx_sim *sim, int rank, double moved, int64_t begin_ps,
                           bool shares_sm);
/* Books what a mover reads, and writes to another rank.  It has as many loads in flight as
 * a reducer of eight contributions, and waits for no store: so what it reads takes as long.
 */
int64_t ewx_sim_book_push(ewx_sim *sim, int rank, int64_t bytes, bool shares_sm);

#endif
