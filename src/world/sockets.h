/* The sockets between the ranks of a host.  Inside src/world. */
#ifndef EWX_WORLD_SOCKETS_H
#define EWX_WORLD_SOCKETS_H

#include "world/world.h"

#define EWX_SECRET_BYTES 16

/* Where a rank listens, and what to say there. */
typedef struct ewx_address {
    uint32_t bytes; /* of the name */
    unsigned char name[32];
    unsigned char secret[EWX_SECRET_BYTES];
} ewx_address;

/* *listener_out is to be closed whenever it is not negative. */
ew_status ewx_sockets_listen(int num_ranks, int *listener_out, ewx_address *address_out);

/* Connects this rank with every other of its host; addresses are by rank. */
ew_status ewx_sockets_connect(ew_world *world, int listener, const ewx_address *addresses);

/* The lowest rank of a host owns its control block; all ranks there may write to it.  Its
 * descriptor stays open, so that `entwine status` can find it. */
ew_status ewx_sockets_share_control(ew_world *world);

#endif
