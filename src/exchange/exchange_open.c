/* Making room for units: how large they are, the tables that follow them, the channel. */
#include <stdlib.h>

#include "base/status.h"
#include "exchange/exchange.h"

#define MAX_UNIT_BYTES ((int64_t)1 << 30)

static void find_remotes(ewx_exchange *x)
{
    for (int rank = 0; rank < x->world->num_ranks; rank++) {
        x->host_index[rank] = x->host_ranks[x->world->hosts[rank]]++;
        if (ewx_world_is_local(x->world, rank))
            continue;
        x->index_of[rank] = x->num_remotes;
        x->remotes[x->num_remotes++] = rank;
    }
}

static void cut_into_tiles(ewx_exchange *x)
{
    x->part_slots = x->spec->layout.slots_per_part;
    x->slot_rows = EWX_TILE_M;
    x->slot_bytes = x->spec->layout.slot_bytes;
}

/* Panels, halved until they are no longer than a message. */
static void cut_into_rows(ewx_exchange *x)
{
    x->slot_rows = EWX_TILE_M;
    while (x->slot_rows > 1 && (size_t)x->slot_rows * x->row_bytes > EW_MESSAGE_BYTES)
        x->slot_rows /= 2;
    x->part_slots = ewx_div_up(x->spec->layout.rows_per_rank, x->slot_rows);
    x->slot_bytes = (size_t)x->slot_rows * x->row_bytes;
}

/* What is released as a whole leaves in pieces: before a long message MPI asks for
 * permission, which would come behind the other side's long message, and the two directions
 * would take turns. */
static int64_t wanted_slots(const ewx_exchange *x)
{
    const int32_t release = x->spec->config.release;
    const int64_t bytes = x->slot_bytes > 0 ? (int64_t)x->slot_bytes : 1;
    if (x->spec->layout.num_parts == 1) /* neighbours belong to different ranks */
        return 1;
    if (x->slot_rows < EWX_TILE_M) /* a slot is a message */
        return 1;
    return release > 0 ? ewx_min64(release, MAX_UNIT_BYTES / bytes)
                       : EW_MESSAGE_BYTES / bytes;
}

/* At least one, even in plans for no rows. */
static void choose_units(ewx_exchange *x)
{
    x->row_bytes = (size_t)x->spec->layout.tile_stride * x->spec->elem_bytes;
    (x->spec->op->gemm_waits ? cut_into_rows : cut_into_tiles)(x);
    const int64_t slots = ewx_min64(wanted_slots(x), x->part_slots);
    x->unit_slots = slots > 0 ? slots : 1;
    x->part_units = 1 + (x->part_slots > 0 ? (x->part_slots - 1) / x->unit_slots : 0);
    x->num_cargos = x->spec->layout.num_parts == 1 ? EWX_MAX_CARGOS : 1;
    x->num_units = x->part_units * x->num_cargos;
}

static ew_status allocate_tables(ewx_exchange *x)
{
    const size_t remotes = (size_t)x->num_remotes, units = (size_t)x->num_units;
    x->missing = calloc(remotes * units, sizeof *x->missing);
    x->notes = calloc(remotes * units, sizeof *x->notes);
    x->unput = calloc(remotes, sizeof *x->unput);
    x->cursors = calloc(remotes * (size_t)x->num_cargos, sizeof *x->cursors);
    x->awaited = calloc(remotes * units, sizeof *x->awaited);
    x->order = calloc((size_t)x->part_units, sizeof *x->order);
    x->listed = calloc((size_t)x->part_units, sizeof *x->listed);
    x->order_rows = -1;
    return x->missing && x->notes && x->unput && x->cursors && x->awaited && x->order &&
                   x->listed
               ? EW_OK
               : ewx_fail(EW_ERR_MEMORY, "no memory for %zu messages of %zu ranks", units,
                          remotes);
}

/* Room for that many slots; the last rows of a slice may not fill one. */
static size_t place_bytes(const ewx_exchange *x, int64_t slot, int64_t slots)
{
    const int64_t rows = x->spec->layout.rows_per_rank - slot * x->slot_rows;
    return x->spec->op->gemm_waits
               ? (size_t)ewx_min64(slots * x->slot_rows, rows) * x->row_bytes
               : (size_t)slots * x->slot_bytes;
}

static ew_place place_of(const ewx_exchange *x, int src, int64_t unit, int parity)
{
    const ewx_cargo cargo = (ewx_cargo)(unit / x->part_units);
    const int64_t slot = unit % x->part_units * x->unit_slots;
    const int64_t slots = ewx_min64(x->unit_slots, x->part_slots - slot);
    return (ew_place){.src = ewx_unit_is_from(x, src, unit) ? src : -1,
                      .number = ewx_unit_number(unit, parity),
                      .address = x->backend->incoming(x->engine, src, cargo, slot, parity),
                      .bytes = place_bytes(x, slot, slots)};
}

static size_t num_places(const ewx_exchange *x)
{
    return (size_t)(x->num_remotes * x->num_units * 2);
}

static ew_status list_places(const ewx_exchange *x, ew_place **places_out)
{
    ew_place *places = calloc(num_places(x), sizeof *places);
    if (!places)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %zu messages", num_places(x));
    for (int remote = 0; remote < x->num_remotes; remote++)
        for (int64_t unit = 0; unit < x->num_units; unit++)
            for (int parity = 0; parity < 2; parity++)
                places[ewx_unit_place(x, remote, unit, parity)] =
                    place_of(x, x->remotes[remote], unit, parity);
    *places_out = places;
    return EW_OK;
}

ew_status ewx_exchange_open(ewx_exchange *x, ew_world *world, const ewx_spec *spec,
                            const ewx_exchange_backend *backend, void *engine, bool by_host,
                            ew_status ready)
{
    ew_place *places = NULL;
    x->world = world;
    x->spec = spec;
    if (world->num_hosts == 1)
        return ready;
    x->is_open = true;
    x->backend = backend;
    x->engine = engine;
    x->by_host = by_host;
    find_remotes(x);
    choose_units(x);
    if (ready == EW_OK)
        ready = allocate_tables(x);
    if (ready == EW_OK)
        ready = list_places(x, &places);
#if EW_MUTANT != 69 /* planted bug: a rank without memory has one channel fewer */
    ready = ewx_world_agree(world, ready, "make room for what other hosts send");
#endif
    if (ready == EW_OK)
        ready = ewx_remotes_open_channel(world, places, num_places(x), backend->fix,
                                         &x->channel);
    free(places);
    return ready;
}

bool ewx_exchange_close(ewx_exchange *x)
{
    if (!x->is_open)
        return true;
    const ew_world *world = x->world;
    const bool broken = world->fabric_failed || atomic_load(&world->control->abort) != 0;
    const bool closed = !x->channel || world->fabric->channel_close(x->channel, broken);
    free((void *)x->missing);
    free((void *)x->notes);
    free(x->unput);
    free(x->cursors);
    free(x->awaited);
    free(x->order);
    free(x->listed);
    x->is_open = false;
    return closed;
}

/* ---- A first message ---- */

typedef struct rehearsal {
    size_t places[2 * EWX_MAX_RANKS];
    int arrived[EWX_MAX_RANKS]; /* of each remote */
} rehearsal;

static void put_first(ewx_exchange *x, int remote, int parity)
{
    const int dst = x->remotes[remote];
    if (x->world->fabric->put(x->channel, dst, ewx_unit_number(0, parity),
                              x->backend->outgoing(x->engine, dst, 0, parity),
                              x->slot_bytes, parity))
        ewx_remotes_fail(x->world);
}

static bool have_come(ewx_exchange *x, rehearsal *r)
{
    const size_t count = 2 * (size_t)x->num_remotes;
    const ew_fabric *fabric = x->world->fabric;
    size_t filled[2 * EWX_MAX_RANKS], bytes[2 * EWX_MAX_RANKS], num_filled = 0;
    const size_t per_remote = (size_t)x->num_units * 2;
    bool all = true;
    ewx_remotes_progress(x->world);
    if (!ewx_remotes_reachable(x->world))
        return true;
    if (fabric->arrivals(x->channel, r->places, count, filled, bytes, &num_filled) ||
        fabric->unsent(x->channel, &x->unsent, &x->unsent_to))
        ewx_remotes_fail(x->world);
    for (size_t i = 0; i < num_filled && i < count; i++)
        if (filled[i] < (size_t)x->num_remotes * per_remote)
            r->arrived[filled[i] / per_remote]++;
    for (int remote = 0; remote < x->num_remotes; remote++)
        all = all && r->arrived[remote] == 2;
    return all && x->unsent == 0;
}

static void blame_silent(const ewx_exchange *x, const rehearsal *r)
{
    int culprit = x->unsent_to;
    for (int remote = 0; remote < x->num_remotes; remote++)
        if (r->arrived[remote] < 2)
            culprit = x->remotes[remote];
    (void)ewx_world_raise(x->world, &(ewx_fault){.status = EW_ERR_TIMEOUT,
                                                 .culprit = culprit,
                                                 .reporter = x->world->rank,
                                                 .code = EWX_FAULT_MEETING});
}

ew_status ewx_exchange_rehearse(ewx_exchange *x)
{
    rehearsal r = {.arrived = {0}};
    ew_world *world = x->world;
    size_t count = 0;
    ew_status waited;
    if (x->part_slots == 0) /* a plan for no rows */
        return EW_OK;
    for (int remote = 0; remote < x->num_remotes; remote++)
        for (int parity = 0; parity < 2; parity++) {
            r.places[count++] = ewx_unit_place(x, remote, 0, parity);
            put_first(x, remote, parity);
        }
    ewx_wait wait = ewx_world_wait(world);
    EWX_AWAIT(waited, &wait, have_come(x, &r));
    if (waited == EW_ERR_TIMEOUT)
        blame_silent(x, &r);
    for (size_t i = 0; i < count && waited == EW_OK && ewx_remotes_reachable(world); i++)
        if (world->fabric->rearm(x->channel, r.places[i]))
            ewx_remotes_fail(world);
    return ewx_world_check(world);
}
