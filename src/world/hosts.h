/* A world on several hosts.  Ranks of one host share a control block; of a rank on another
 * host there is a replica of its post, private to this process, which letters keep fresh.
 * So collectives, departures and records are read in one way, wherever a rank is.
 *
 * Only the thread that joined the world may come here: a fabric serves one thread. */
#ifndef EWX_WORLD_HOSTS_H
#define EWX_WORLD_HOSTS_H

#include "world/world.h"

/* Someone above who gets letters of its own, by number. */
typedef struct ewx_listener {
    uint32_t number;
    void (*hear)(void *context, int src, const void *body, size_t bytes);
    void *context;
    struct ewx_listener *next;
} ewx_listener;

/* A number is given once in a world, in the same order on all ranks. */
void ewx_hosts_listen(ew_world *world, ewx_listener *listener);
void ewx_hosts_unlisten(ew_world *world, ewx_listener *listener);

/* To every rank of another host, for the listener of that number there. */
void ewx_hosts_tell(ew_world *world, uint32_t number, const void *body, size_t bytes);

/* A plan's way to receive data; `fix` is for a network that cannot take so many places. */
ew_status ewx_hosts_open_channel(const ew_world *world, const ew_place *places,
                                 size_t num_places, const char *fix,
                                 ew_channel **channel_out);

/* Reads what has come and passes on a fault that others may not know.  One host: nothing.
 */
void ewx_hosts_progress(ew_world *world);

/* The fabric has failed: no rank of another host can be reached any more. */
void ewx_hosts_fail(ew_world *world);

/* What has come from that rank cannot be right. */
void ewx_hosts_refuse(ew_world *world, int src);

/* Whether a number that the fabric gave is a rank of another host. */
static inline bool ewx_hosts_have(const ew_world *world, int rank)
{
    return rank >= 0 && rank < world->num_ranks && !ewx_world_is_local(world, rank);
}

/* Whether ranks of other hosts can still be reached. */
static inline bool ewx_hosts_reachable(const ew_world *world)
{
    return world->num_hosts > 1 && !world->fabric_failed;
}

/* ---- inside src/world ---- */

ew_status ewx_hosts_open(ew_world *world);
void ewx_hosts_close(ew_world *world); /* says good-bye; half-open is fine */
/* This rank enters a collective with these bytes. */
void ewx_hosts_enter_round(ew_world *world, uint32_t round, uint64_t meeting,
                           const void *mine, size_t bytes);
/* That rank has entered this rank's collective; refused unless with so many bytes. */
ew_status ewx_hosts_check_round(ew_world *world, int rank, size_t bytes);
void ewx_hosts_tell_operation(ew_world *world, uint64_t sequence,
                              const ewx_operation *operation);

#endif
