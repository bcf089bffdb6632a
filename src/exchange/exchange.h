/* Tiles between hosts, whatever backend computes them.  A message holds one tile or several
 * whose slots lie one after the other, a unit: as many as the plan's `release` puts
 * together. Tiles that this rank has computed are posted; a unit whose tiles have all been
 * posted is put to its owner over the world's fabric; a unit that has come is reported to
 * the backend.
 *
 * There are two kinds.  Contributions to a tile go to the ranks that sum it, and of a tile
 * with several owners each gets its own rows.  Where ranks wait for sums, the owner's
 * results go to all others; a unit is then a single tile, because consecutive ones have
 * different owners.
 *
 * Where the GEMM waits there is only one: a rank's rows of A, which go to all others.  They
 * are cut into slots of equal height, so that a unit is no larger than a message should be:
 * panels, or of long rows a part of a panel.
 *
 * A backend supplies where units leave from and arrive, and what happens when one has
 * arrived.  Everything but posting belongs to the caller's thread, the only one that may
 * call the fabric. */
#ifndef EWX_EXCHANGE_EXCHANGE_H
#define EWX_EXCHANGE_EXCHANGE_H

#include <stdatomic.h>

#include "plan/ownership.h"
#include "plan/spec.h"
#include "world/remote_ranks.h"

typedef enum ewx_cargo {
    EWX_CONTRIBUTIONS,
    EWX_ROWS = EWX_CONTRIBUTIONS, /* instead of them, where the GEMM waits */
    EWX_RESULTS,
    EWX_MAX_CARGOS
} ewx_cargo;

typedef struct ewx_exchange_backend {
    /* Where this rank's unit for dst lies when it is put, and where src's unit is received:
     * the address of the unit's first slot, in the slice of that parity. */
    const unsigned char *(*outgoing)(const void *engine, int dst, int64_t slot, int parity);
    unsigned char *(*incoming)(const void *engine, int src, ewx_cargo cargo, int64_t slot,
                               int parity);
    /* Tiles of src for this rank, in consecutive slots of a part, have arrived. */
    void (*arrived)(void *engine, int src, ewx_cargo cargo, int64_t slot, int64_t tiles);
    /* Whether src is known to be in this call, with this rank's m.  Where it is not, units
     * of another size are reported elsewhere, as a disagreement about m. */
    bool (*agrees)(const void *engine, int src);
    const char *fix; /* for the error when a fabric cannot take that many messages */
} ewx_exchange_backend;

typedef struct ewx_exchange {
    bool is_open;
    ew_world *world;
    const ewx_spec *spec;
    const ewx_exchange_backend *backend;
    void *engine; /* the backend's */
    bool by_host; /* the ranks of a host take turns in sending its sums (levels=2) */
    ew_channel *channel;
    int num_remotes; /* ranks of other hosts */
    int remotes[EWX_MAX_RANKS];
    int index_of[EWX_MAX_RANKS];   /* of a remote rank, in remotes */
    int host_ranks[EWX_MAX_RANKS]; /* of each host */
    int host_index[EWX_MAX_RANKS]; /* of each rank, on its host */
    /* What crosses of a part, in slots that lie one after the other: */
    int64_t part_slots;
    int64_t slot_rows; /* at most */
    size_t slot_bytes, row_bytes;
    int64_t unit_slots;
    int64_t part_units; /* units of one part */
    int num_cargos;
    int64_t num_units; /* of every cargo: results are numbered behind contributions */
    /* This call: */
    ewx_grid grid;
    ewx_share shares[EWX_MAX_RANKS];
    uint32_t epoch;
    /* Outgoing units, [remote][unit] and [remote]: */
    _Atomic int32_t *missing; /* tiles that have not been posted */
    int64_t *unput;           /* units that have not been put */
    _Atomic int32_t *notes;   /* 1 + remote * num_units + unit, in the order completed */
    _Alignas(64) _Atomic int64_t num_notes;
    int64_t notes_read;
    size_t unsent; /* messages, when last asked, and the target of one of them */
    int unsent_to;
    /* Incoming units: */
    bool *awaited; /* [remote][unit] */
    /* Units of the largest part in the order in which their tiles are computed: */
    int32_t *order;
    bool *listed; /* scratch, used to build it */
    int64_t num_order;
    int64_t order_rows; /* the m it is for */
    int64_t *cursors;   /* [remote][cargo]: what comes before in the order has arrived */
    int next_cursor;    /* the next one to ask about */
    int64_t moves;      /* counts units put and arrived: shows whether there is progress */
} ewx_exchange;

/* ---- Around a plan ---- */

/* Collective; on one host there is nothing to open.  What the exchange points to outlives
 * it.  `ready`: whether this rank has what it needs for its plan; a rank that has not comes
 * too, since fabrics count channels: all ranks open one, or none does. */
ew_status ewx_exchange_open(ewx_exchange *exchange, ew_world *world, const ewx_spec *spec,
                            const ewx_exchange_backend *backend, void *engine, bool by_host,
                            ew_status ready);
/* Collective: one message to and from every remote, in both slices and with and without
 * confirmation; their content does not matter.  Whatever a fabric and its driver set up for
 * the first message of a kind is then set up. */
ew_status ewx_exchange_rehearse(ewx_exchange *exchange);
/* False: the fabric may still read or write the memory of units, so that must stay.
 * Half-open is fine. */
bool ewx_exchange_close(ewx_exchange *exchange);

/* ---- Around a call ---- */

void ewx_exchange_begin(ewx_exchange *exchange, const ewx_grid *grid,
                        ewx_ownership ownership, uint32_t epoch);
/* When everything has been put and has arrived: makes room for the call after next. */
void ewx_exchange_finish(ewx_exchange *exchange);

/* This rank's tile in that slot of dst's part is complete.  Any thread. */
void ewx_exchange_post(ewx_exchange *exchange, int dst, int64_t slot);
/* This rank's tile in that slot of the only part is complete: it goes to every remote rank
 * that waits for it.  Any thread; on one host there is none. */
void ewx_exchange_post_to_all(ewx_exchange *exchange, ewx_cargo cargo, int64_t slot);
/* The same of a panel of this rank's rows. */
void ewx_exchange_post_panel(ewx_exchange *exchange, int64_t panel);
/* The next unit whose tiles have all been posted; its memory is visible to the caller. */
bool ewx_exchange_take(ewx_exchange *exchange, int *dst_out, int64_t *unit_out);
/* Puts such a unit; returns its bytes. */
size_t ewx_exchange_put(ewx_exchange *exchange, int dst, int64_t unit);
/* Asks the fabric for some of the units that are awaited. */
void ewx_exchange_receive(ewx_exchange *exchange);
/* Whether nothing of this call is left to be sent; else unsent_to says to whom. */
bool ewx_exchange_is_idle(ewx_exchange *exchange);

/* ---- Units ---- */

static inline int64_t ewx_exchange_unit(const ewx_exchange *exchange, int64_t slot)
{
    return slot % exchange->part_slots / exchange->unit_slots;
}

/* Bytes of a unit with tiles of that rank's share: whole slots, and of the last one the
 * share's rows.  Contributions belong to the share of the rank that gets them, results and
 * gathered rows to the share of the one that sends them. */
size_t ewx_exchange_unit_bytes(const ewx_exchange *exchange, int owner, int64_t unit);
/* Whether src itself sends the tile in that slot to another host, or one of its host's
 * ranks does so for all. */
bool ewx_exchange_sends(const ewx_exchange *exchange, int src, int64_t slot);
/* How many tiles of that unit this rank sends to dst in this call. */
int64_t ewx_exchange_owes(const ewx_exchange *exchange, int dst, int64_t unit);

/* ---- Inside src/exchange ---- */

static inline bool ewx_unit_is_from(const ewx_exchange *exchange, int src, int64_t unit)
{
    return !exchange->by_host || unit % exchange->host_ranks[exchange->world->hosts[src]] ==
                                     exchange->host_index[src];
}

/* The number by which sender and receiver know a unit's place, and the place. */
static inline int32_t ewx_unit_number(int64_t unit, int parity)
{
    return (int32_t)(unit * 2 + parity);
}

static inline size_t ewx_unit_place(const ewx_exchange *exchange, int remote, int64_t unit,
                                    int parity)
{
    return (size_t)(remote * exchange->num_units * 2 + ewx_unit_number(unit, parity));
}

#endif
