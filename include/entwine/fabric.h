/* What carries a world's bytes between hosts.  A fabric knows ranks and addresses, but
 * nothing about plans or tiles.  The MPI module provides one (mpi_module.h); for another
 * network, fill in this table.
 *
 * All functions are called by one thread, the one that joined the world; none blocks unless
 * it says so.  They return 0 on success. */
#ifndef ENTWINE_FABRIC_H
#define ENTWINE_FABRIC_H

#include <stdbool.h>

#include "entwine/entwine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ew_channel ew_channel;

/* Where a message of a channel will be received: sender and receiver know it by its
 * number, which is unique for each source.  src -1: nothing will come. */
typedef struct ew_place {
    int32_t src;
    int32_t number;
    void *address;
    size_t bytes; /* at most; up to 1 GiB */
} ew_place;

#define EW_CONTROL_BYTES 4112   /* the longest control message */
#define EW_MESSAGE_BYTES 262144 /* of tiles, where the release is the library's choice */

typedef struct ew_fabric {
    uint32_t struct_size;
    int32_t rank, num_ranks;
    const char *name; /* for messages, e.g. "Open MPI v4.1.4" */
    void *context;

    /* An ew_allgather.  Blocks; used only while ranks join, by libraries that do not know
     * `gather`. */
    int (*allgather)(void *context, const void *mine, void *all, size_t bytes);

    /* Control messages are short and arrive in the order sent.  The sender may reuse its
     * memory at once.  *src_out is -1 when there is none.  unsent_control counts those
     * that still need this rank's help to leave, and may count confirmations that it owes:
     * before a function returns it is asked until there are none, or time is up. */
    int (*send_control)(void *context, int dst, const void *message, size_t bytes);
    int (*receive_control)(void *context, int *src_out, void *message, size_t *bytes_out);
    int (*unsent_control)(void *context, size_t *count_out);

    /* A channel carries one plan's tiles, straight into places that were named before.
     * Collective.  Every place is armed: it takes one message, then it must be armed
     * again.  Nothing is put to one that is not, nor before all ranks have opened. */
    int (*channel_open)(void *context, const ew_place *places, size_t num_places,
                        ew_channel **channel_out);
    /* What the receiver will use of it stays untouched until the message counts as sent;
     * of a tile whose rows several ranks sum, the others' rows between may change.  A
     * confirmed one counts when it has arrived, and then so have all that were put to dst
     * before. */
    int (*put)(ew_channel *channel, int dst, int32_t number, const void *address,
               size_t bytes, bool confirmed);
    /* Which of the places asked about have been filled since they were armed, each reported
     * once, and by how many bytes. */
    int (*arrivals)(ew_channel *channel, const size_t *asked, size_t num_asked,
                    size_t *filled_out, size_t *bytes_out, size_t *num_filled_out);
    /* Arms a place again; one that is armed stays so. */
    int (*rearm)(ew_channel *channel, size_t place);
    /* How many messages do not count as sent yet, and to whom one of them goes. */
    int (*unsent)(ew_channel *channel, size_t *count_out, int *dst_out);
    /* False: bytes may still come or go, so the channel's memory must stay.  `broken`: the
     * world has failed, and peers may be gone. */
    bool (*channel_close)(ew_channel *channel, bool broken);

    /* Places, and what is put, may lie in the memory of a CUDA GPU.  The fabric's CUDA
     * calls use the context that is current when a function of this table is called, and
     * their work is complete when the message counts as sent, or the place as filled. */
    bool takes_device_memory;

    /* An all-gather that does not block: called with the same arguments until it sets none
     * of missing_out, which has a place for each rank whose bytes have not come.  The first
     * call keeps a copy of `mine`.  It is not called again after the library has given up.
     * NULL: allgather is used, and a rank that never comes is waited for. */
    int (*gather)(void *context, const void *mine, void *all, size_t bytes,
                  bool *missing_out);
} ew_fabric;

/* Joins the world of the fabric's ranks, on one host or several: ew_world_create, with
 * shared memory between the ranks of a host and the fabric between hosts.  The fabric must
 * outlive the world and serves one world at a time: for a second one beside it, open
 * another.  All calls with this world must come from the thread that called this.  Where
 * there are several hosts a call on GPUs returns when it is complete. */
EW_API ew_status ew_world_join(const ew_fabric *fabric, const ew_world_options *options,
                               ew_world **world_out);

/* What a world's ranks have sent between hosts, and where they are. */
typedef struct ew_traffic {
    int32_t num_hosts;
    int32_t host;       /* of this rank, numbered by their lowest ranks */
    int32_t ranks_here; /* on this rank's host */
    int64_t tile_bytes; /* this rank's, to other hosts, since it joined */
    int64_t tile_messages;
    int64_t control_messages;
    int64_t device_bytes; /* of tile_bytes: given to the fabric in a GPU's memory ... */
    int64_t staged_bytes; /* ... or copied from there to pinned memory before */
} ew_traffic;
EW_API ew_status ew_world_traffic(const ew_world *world, ew_traffic *traffic_out);

#ifdef __cplusplus
}
#endif
#endif
