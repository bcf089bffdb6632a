/* The sockets between the ranks of a host.  Inside src/world. */
#ifndef EWX_WORLD_MESH_H
#define EWX_WORLD_MESH_H

#include "world/world.h"

#define EWX_SECRET_BYTES 16

/* Where a rank listens, and what to say there. */
typedef struct ewx_doorbell {
    uint32_t address_bytes;
    unsigned char address[32];
    unsigned char secret[EWX_SECRET_BYTES];
} ewx_doorbell;

/* *listener_out is to be closed whenever it is not negative. */
ew_status ewx_mesh_listen(int num_ranks, int *listener_out, ewx_doorbell *doorbell_out);

/* Connects this rank with every other of its host; doorbells are by rank. */
ew_status ewx_mesh_build(ew_world *world, int listener, const ewx_doorbell *doorbells);

/* The lowest rank of a host owns its control block; all ranks there may write to it.  Its
 * descriptor stays open, so that `entwine status` can find it. */
ew_status ewx_mesh_share_control(ew_world *world);

#endif
