/* Tiles between hosts.  Of every rank on another host this one has a replica of its heap
 * segment, in which only what this rank owns is ever touched.  Tiles arrive there by the
 * world's fabric, their flags are stored when they are complete, and letters keep the
 * header fresh: so whoever reads a segment need not know where its rank is.
 *
 * A message holds one or several tiles that lie one after the other, a unit: as many as
 * `release` puts together.  Only the caller's thread talks to the fabric; other workers
 * leave it a note. */
#ifndef EWX_CPU_WIRE_H
#define EWX_CPU_WIRE_H

#include "backend/cpu/route.h"
#include "plan/spec.h"
#include "world/hosts.h"

typedef struct ewx_wire {
    bool is_open;
    ew_channel *channel;
    ewx_listener listener;
    int num_remotes; /* ranks of other hosts */
    int remotes[EWX_MAX_RANKS];
    int index_of[EWX_MAX_RANKS];   /* of a remote rank, in remotes */
    int host_ranks[EWX_MAX_RANKS]; /* of each host */
    int host_index[EWX_MAX_RANKS]; /* of each rank, on its host */
    int64_t unit_slots;
    int64_t num_units; /* of one destination */
    /* This call's outgoing units, [remote][unit] and [remote]: */
    _Atomic int32_t *missing; /* tiles that are not computed yet */
    int64_t *unput;           /* units that have not been given to the fabric */
    _Atomic int32_t *notes;   /* 1 + remote * num_units + unit, in the order completed */
    _Alignas(64) _Atomic int64_t num_notes;
    int64_t notes_read;
    size_t unsent; /* as last asked */
    int unsent_to;
    /* Units of the largest partition in the order in which their tiles come: */
    int32_t *order;
    uint8_t *listed; /* scratch of its making */
    int64_t num_order;
    int64_t order_rows;  /* the m it is for */
    int64_t *cursors;    /* [remote]: what comes before in the order has arrived */
    int next_remote;     /* whose turn it is to be asked about */
    int64_t progress_ns; /* when the fabric was last looked at */
    int64_t beat_ns;     /* when the header was last told */
} ewx_wire;

/* Collective, after the heap; nothing on one host. */
ew_status ewx_wire_open(ewx_cpu_engine *engine);

/* A header has come; the listener's. */
void ewx_wire_hear(void *context, int src, const void *body, size_t bytes);

/* Around a call, on the caller's thread: before its first tile; when it is announced; when
 * all of its tiles are reduced and ewx_wire_is_idle. */
void ewx_wire_prepare(ewx_cpu_engine *engine);
void ewx_wire_announce(ewx_cpu_engine *engine);
void ewx_wire_finish(ewx_cpu_engine *engine);
/* Whether nothing of this call is left to be sent. */
bool ewx_wire_is_idle(ewx_cpu_engine *engine);

/* Whether src itself sends the tile in that slot to this rank, or one of its host does it
 * for all. */
bool ewx_wire_sends(const ewx_cpu_engine *engine, int src, int64_t slot);
/* How many tiles of that unit this rank sends to dst in this call. */
int64_t ewx_wire_owes(const ewx_cpu_engine *engine, int dst, int64_t unit);

#endif
