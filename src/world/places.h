/* Where the ranks of a host run: each shows the others which cores it may use, so that all
 * know what is left for each and, on a machine with several domains, whose is which. */
#ifndef EWX_WORLD_PLACES_H
#define EWX_WORLD_PLACES_H

#include <stdatomic.h>

#include "base/cores.h"
#include "base/numa.h"
#include "entwine/entwine.h"

/* An ewx_cpu_share in the rank's mailbox; the rank alone writes it.  Who reads it meanwhile
 * may count a core too many or too few. */
typedef struct ewx_place_card {
    _Alignas(64) _Atomic uint64_t words[sizeof(ewx_cpu_share) / sizeof(uint64_t)];
} ewx_place_card;

/* Shows what the calling thread may use.  Ranks do so before they meet, and before a step
 * of all of them in which it matters: it may have changed. */
void ewx_place_post(ew_world *world);

/* What the cards say that ranks of this host get.  From then on they wait accordingly: a
 * rank that has a core to itself may spin. */
ewx_provision ewx_places_provide(ew_world *world);

/* Without a world: as if `num_ranks` were started here; most_domains_out is how many
 * domains one of them would have at most (0: not known). */
ewx_provision ewx_places_forecast(int num_ranks, int *most_domains_out);

/* Where this rank should run and have its memory. */
void ewx_place_home(const ew_world *world, ewx_home *home_out);

/* Binds the calling thread, for good, to the home of a rank that is started here. */
void ewx_place_bind(int rank, int num_ranks);

#endif
