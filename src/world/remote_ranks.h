/* Ranks on other hosts.  Ranks of one host share a control block; for a rank on another
 * host this process has a private replica of its mailbox, kept up to date by control
 * messages. So collectives, departures and records are read in the same way, wherever a
 * rank is.
 *
 * Only the thread that joined the world may come here: a fabric serves one thread. */
#ifndef EWX_WORLD_REMOTE_RANKS_H
#define EWX_WORLD_REMOTE_RANKS_H

#include "world/world.h"

/* A layer above that receives control messages of its own, by number. */
typedef struct ewx_listener {
    uint32_t number;
    void (*handle)(void *context, int src, const void *body, size_t bytes);
    void *context;
    struct ewx_listener *next;
} ewx_listener;

/* Once for each plan, while it is created: its number is that of the plan, which all ranks
 * count alike, also after one that failed on a single rank. */
void ewx_remotes_listen(ew_world *world, ewx_listener *listener);
void ewx_remotes_unlisten(ew_world *world, ewx_listener *listener);

/* Sends to every rank of another host, for its listener of that number. */
void ewx_remotes_send(ew_world *world, uint32_t number, const void *body, size_t bytes);

/* A plan's way to receive data; `fix` is for a network that cannot take this many places.
 */
ew_status ewx_remotes_open_channel(const ew_world *world, const ew_place *places,
                                   size_t num_places, const char *fix,
                                   ew_channel **channel_out);

/* Reads what has come and passes on a fault that others may not know.  One host: nothing.
 */
void ewx_remotes_progress(ew_world *world);

/* Helps control messages on their way until none needs that any more: what comes next may
 * be a long time without a call.  Bounded by the timeout; whoever then misses one will name
 * this rank. */
void ewx_remotes_see_off(ew_world *world);

/* The fabric has failed: ranks of other hosts can no longer be reached. */
void ewx_remotes_fail(ew_world *world);

/* A message from that rank is malformed. */
void ewx_remotes_refuse(ew_world *world, int src);

/* Whether a number that the fabric gave is a rank of another host. */
static inline bool ewx_is_remote(const ew_world *world, int rank)
{
    return rank >= 0 && rank < world->num_ranks && !ewx_world_is_local(world, rank);
}

/* Whether ranks of other hosts can still be reached. */
static inline bool ewx_remotes_reachable(const ew_world *world)
{
    return world->num_hosts > 1 && world->fabric && !world->fabric_failed;
}

/* ---- inside src/world ---- */

ew_status ewx_remotes_open(ew_world *world);
void ewx_remotes_close(ew_world *world); /* sends a farewell message; half-open is fine */
/* Sends a fault to all other hosts, for a rank that has no control block. */
void ewx_remotes_tell(ew_world *world, const ewx_fault *fault);
/* This rank enters a collective with these bytes. */
void ewx_remotes_enter_round(ew_world *world, uint32_t round, uint64_t meeting,
                             const void *mine, size_t bytes);
/* Refuses a rank that has entered this collective with another number of bytes. */
ew_status ewx_remotes_check_round(ew_world *world, int rank, size_t bytes);
void ewx_remotes_send_operation(ew_world *world, uint64_t sequence,
                                const ewx_operation *operation);

#endif
