/* Making room for units: how large they are, the tables that follow them, the channel. */
#include <stdlib.h>

#include "backend/cpu/wire_units.h"
#include "base/status.h"

#define MAX_UNIT_BYTES ((int64_t)1 << 30)

static void find_remotes(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    const ew_world *world = engine->world;
    for (int rank = 0; rank < world->num_ranks; rank++) {
        wire->host_index[rank] = wire->host_ranks[world->hosts[rank]]++;
        if (ewx_world_is_local(world, rank))
            continue;
        wire->index_of[rank] = wire->num_remotes;
        wire->remotes[wire->num_remotes++] = rank;
    }
}

/* At least one, also of plans for no rows at all.  What is released as a whole leaves in
 * pieces: before a long message MPI asks for permission, which would come behind the other
 * side's long message, and the two directions would take turns. */
static void choose_units(ewx_cpu_engine *engine)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int32_t release = engine->spec->config.release;
    const int64_t slot_bytes = layout->slot_bytes > 0 ? (int64_t)layout->slot_bytes : 1;
    const int64_t wanted = release > 0 ? ewx_min64(release, MAX_UNIT_BYTES / slot_bytes)
                                       : EW_MESSAGE_BYTES / slot_bytes;
    const int64_t slots = ewx_min64(wanted, layout->slots_per_part);
    engine->wire.unit_slots = slots > 0 ? slots : 1;
    engine->wire.num_units =
        1 + (layout->slots_per_part > 0
                 ? (layout->slots_per_part - 1) / engine->wire.unit_slots
                 : 0);
}

static ew_status allocate_tables(ewx_wire *wire)
{
    const size_t remotes = (size_t)wire->num_remotes, units = (size_t)wire->num_units;
    wire->missing = calloc(remotes * units, sizeof *wire->missing);
    wire->notes = calloc(remotes * units, sizeof *wire->notes);
    wire->unput = calloc(remotes, sizeof *wire->unput);
    wire->cursors = calloc(remotes, sizeof *wire->cursors);
    wire->order = calloc(units, sizeof *wire->order);
    wire->listed = calloc(units, sizeof *wire->listed);
    wire->order_rows = -1;
    return wire->missing && wire->notes && wire->unput && wire->cursors && wire->order &&
                   wire->listed
               ? EW_OK
               : ewx_fail(EW_ERR_MEMORY, "no memory for %zu messages of %zu ranks", units,
                          remotes);
}

static ew_status open_channel(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    ew_world *world = engine->world;
    const ewx_layout *layout = &engine->spec->layout;
    const size_t count = (size_t)(wire->num_remotes * wire->num_units * 2);
    ew_place *places = calloc(count, sizeof *places);
    if (!places)
        return ewx_fail(EW_ERR_MEMORY, "no memory for %zu messages", count);
    for (int remote = 0; remote < wire->num_remotes; remote++)
        for (int64_t unit = 0; unit < wire->num_units; unit++)
            for (int parity = 0; parity < 2; parity++) {
                const int src = wire->remotes[remote];
                const int64_t slots = ewx_min64(
                    wire->unit_slots, layout->slots_per_part - unit * wire->unit_slots);
                places[ewx_unit_place(wire, remote, unit, parity)] = (ew_place){
                    .src = ewx_unit_is_from(engine, src, unit) ? src : -1,
                    .number = (int32_t)(unit * 2 + parity),
                    .address = engine->heap.segments[src] +
                               ewx_unit_offset(engine, world->rank, unit, parity),
                    .bytes = (size_t)slots * layout->slot_bytes};
            }
    const ew_status status = ewx_hosts_open_channel(
        world, places, count, "use fewer and larger ones (release), or fewer plans",
        &wire->channel);
    free(places);
    return status;
}

ew_status ewx_wire_open(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    if (engine->world->num_hosts == 1)
        return EW_OK;
    wire->is_open = true;
    wire->listener = (ewx_listener){.hear = ewx_wire_hear, .context = engine};
    ewx_hosts_listen(engine->world, &wire->listener);
    find_remotes(engine);
    choose_units(engine);
    EW_TRY(allocate_tables(wire));
    return open_channel(engine);
}
