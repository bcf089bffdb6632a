/* The sockets between the ranks of a host.  Inside src/world. */
#ifndef EWX_WORLD_SOCKETS_H
#define EWX_WORLD_SOCKETS_H

#include "world/world.h"

#define EWX_SECRET_BYTES 16

/* Where a rank listens, and the secret to present there. */
typedef struct ewx_address {
    uint32_t bytes; /* of the name */
    unsigned char name[32];
    unsigned char secret[EWX_SECRET_BYTES];
} ewx_address;

/* *listener_out is to be closed whenever it is not negative. */
ew_status ewx_sockets_listen(int num_ranks, int *listener_out, ewx_address *address_out);

/* These wait for nothing but what they say, and fail without a text with
 *   EW_ERR_TIMEOUT    the peer's queue is full, or nothing has come until the deadline
 *   EW_ERR_PEER_DIED  the peer is gone
 * What that means for the world its caller decides (local_ranks.c). */

/* Learns which process listens there, if that is to be known, without a greeting: the rank
 * takes it for a stranger. */
ew_status ewx_sockets_find_pid(ew_world *world, int rank, const ewx_address *peer);

/* Connects to a rank and says who we are. */
ew_status ewx_sockets_connect(ew_world *world, int rank, const ewx_address *peer);

/* Takes one connection; strangers are dropped, and *rank_out is -1 then. */
ew_status ewx_sockets_accept(ew_world *world, int listener, const ewx_address *mine,
                             int64_t deadline_ns, int *rank_out);

ew_status ewx_sockets_send_fd(const ew_world *world, int rank, int fd);
ew_status ewx_sockets_receive_fd(const ew_world *world, int rank, int64_t deadline_ns,
                                 int *fd_out);

/* Whether there is a connection, and the peer has closed it. */
bool ewx_sockets_hung_up(const ew_world *world, int rank);

ew_status ewx_sockets_check_job(const ew_world *world, const ewx_job_id *theirs, int rank,
                                pid_t pid);

#endif
