/* The ranks of one host: how they meet.  Inside src/world. */
#ifndef EWX_WORLD_LOCAL_RANKS_H
#define EWX_WORLD_LOCAL_RANKS_H

#include "world/sockets.h"

/* From the hellos of all ranks to a control block that the ranks of this host share, and a
 * socket between every two of them.  `addresses` are by rank. */
ew_status ewx_locals_meet(ew_world *world, int listener, const ewx_address *addresses);

#endif
