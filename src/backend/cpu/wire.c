/* Units, and when they leave and arrive. */
#include "backend/cpu/wire.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/wire_units.h"
#include "base/clock.h"

#define WINDOW 16         /* places asked about at once */
#define LOOK_AHEAD 64     /* units looked at to find them */
#define REMOTES_AT_ONCE 8 /* sources asked about at once */
#define BEATS 16          /* headers told in a timeout */

/* ---- Geometry ---- */

static int64_t unit_of(const ewx_cpu_engine *engine, int64_t slot)
{
    return slot % engine->spec->layout.slots_per_part / engine->wire.unit_slots;
}

/* Tiles of a unit that exist in this call. */
static int64_t unit_tiles(const ewx_cpu_engine *engine, int dst, int64_t unit)
{
    const int64_t rest =
        ewx_part_tiles(&engine->call.grid, dst) - unit * engine->wire.unit_slots;
    return rest < 0 ? 0 : ewx_min64(engine->wire.unit_slots, rest);
}

/* Whole slots, and of the last one what holds output. */
static size_t unit_bytes(const ewx_cpu_engine *engine, int dst, int64_t unit)
{
    const ewx_layout *layout = &engine->spec->layout;
    const int64_t tiles = unit_tiles(engine, dst, unit);
    const int64_t last = unit * engine->wire.unit_slots + tiles - 1;
    const ewx_tile tile = {last / layout->tile_cols, last % layout->tile_cols};
    const int64_t rows = ewx_tile_height(&engine->call.grid, dst, tile);
    return (size_t)(tiles - 1) * layout->slot_bytes +
           (size_t)(rows * layout->tile_stride) * engine->spec->elem_bytes;
}

bool ewx_wire_sends(const ewx_cpu_engine *engine, int src, int64_t slot)
{
    return ewx_world_is_local(engine->world, src) ||
           ewx_unit_is_from(engine, src, unit_of(engine, slot));
}

int64_t ewx_wire_owes(const ewx_cpu_engine *engine, int dst, int64_t unit)
{
    return ewx_unit_is_from(engine, engine->world->rank, unit)
               ? unit_tiles(engine, dst, unit)
               : 0;
}

/* ---- Sending ---- */

static void post(ewx_cpu_engine *engine, int dst, ewx_tile tile)
{
    ewx_wire *wire = &engine->wire;
    const int64_t unit = unit_of(engine, ewx_layout_slot(&engine->spec->layout, dst, tile));
    const int64_t at = wire->index_of[dst] * wire->num_units + unit;
    /* acq_rel: who completes the unit has seen what other workers wrote; with the release
     * of the note, so has the caller's thread. */
    if (atomic_fetch_sub_explicit(&wire->missing[at], 1, memory_order_acq_rel) > 1)
        return;
    const int64_t place =
        atomic_fetch_add_explicit(&wire->num_notes, 1, memory_order_relaxed);
    atomic_store_explicit(&wire->notes[place], (int32_t)(at + 1), memory_order_release);
}

static bool take_note(ewx_wire *wire, int64_t *at_out)
{
    if (wire->notes_read == wire->num_remotes * wire->num_units)
        return false;
    const int32_t note = atomic_load_explicit(&wire->notes[wire->notes_read],
                                              memory_order_acquire); /* pairs with post */
    *at_out = note - 1;
    wire->notes_read += note > 0;
    return note > 0;
}

static void put(ewx_cpu_engine *engine, int remote, int64_t unit)
{
    ewx_wire *wire = &engine->wire;
    ew_world *world = engine->world;
    const int parity = engine->call.epoch & 1, dst = wire->remotes[remote];
    const size_t bytes = unit_bytes(engine, dst, unit);
    /* The last one to each rank says when all have arrived. */
    const bool confirmed = --wire->unput[remote] == 0;
    world->traffic.tile_bytes += (int64_t)bytes;
    world->traffic.tile_messages++;
#if EW_MUTANT == 11 /* planted bug: a message is lost */
    if (unit == 1)
        return;
#endif
    if (world->fabric->put(wire->channel, dst, (int32_t)(unit * 2 + parity),
                           engine->heap.segments[world->rank] +
                               ewx_unit_offset(engine, dst, unit, parity),
                           bytes, confirmed))
        ewx_hosts_fail(world);
}

static void put_completed(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    int64_t at;
    while (take_note(wire, &at) && ewx_hosts_reachable(engine->world))
        put(engine, (int)(at / wire->num_units), at % wire->num_units);
}

bool ewx_wire_is_idle(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    if (!wire->is_open || !ewx_hosts_reachable(engine->world))
        return true;
    wire->unsent = 1;
    for (int remote = 0; remote < wire->num_remotes; remote++)
        if (wire->unput[remote] > 0) {
            wire->unsent_to = engine->world->rank;
            return false;
        }
    if (engine->world->fabric->unsent(wire->channel, &wire->unsent, &wire->unsent_to) ||
        (wire->unsent > 0 && !ewx_hosts_have(engine->world, wire->unsent_to))) {
        wire->unsent_to = engine->world->rank;
        ewx_hosts_fail(engine->world);
    }
    return wire->unsent == 0;
}

/* ---- Receiving ---- */

static ewx_flag *first_flag(const ewx_cpu_engine *engine, int src, int64_t unit)
{
    return ewx_heap_flag(&engine->heap, src,
                         engine->world->rank * engine->spec->layout.slots_per_part +
                             unit * engine->wire.unit_slots);
}

static bool is_awaited(const ewx_cpu_engine *engine, int src, int64_t unit)
{
    return ewx_unit_is_from(engine, src, unit) &&
           unit_tiles(engine, engine->world->rank, unit) > 0 &&
           !ewx_flag_reached(first_flag(engine, src, unit), engine->call.epoch);
}

/* The next units to come from a rank, as places. */
static size_t list_awaited(ewx_cpu_engine *engine, int remote, size_t *asked)
{
    ewx_wire *wire = &engine->wire;
    const int src = wire->remotes[remote], parity = engine->call.epoch & 1;
    int64_t *cursor = &wire->cursors[remote];
    size_t count = 0;
    while (*cursor < wire->num_order && !is_awaited(engine, src, wire->order[*cursor]))
        ++*cursor;
    const int64_t end = ewx_min64(wire->num_order, *cursor + LOOK_AHEAD);
    for (int64_t at = *cursor; at < end && count < WINDOW; at++)
        if (is_awaited(engine, src, wire->order[at]))
            asked[count++] = ewx_unit_place(wire, remote, wire->order[at], parity);
    return count;
}

static bool has_our_rows(const ewx_cpu_engine *engine, int src)
{
    const ewx_call_record *record =
        &ewx_heap_header(&engine->heap, src)->calls[engine->call.epoch & 1];
    return atomic_load_explicit(&record->epoch, memory_order_relaxed) ==
               engine->call.epoch &&
           record->rows == engine->call.grid.rows;
}

/* A message has come; nothing of another call can: its sender has waited for our `done`. */
static void accept(ewx_cpu_engine *engine, int src, int64_t unit, size_t bytes)
{
    ewx_flag *flags = first_flag(engine, src, unit);
    if (bytes != unit_bytes(engine, engine->world->rank, unit)) {
        if (has_our_rows(engine, src)) /* else consume.c:peer_in_call says so */
            ewx_hosts_refuse(engine->world, src);
        return;
    }
    /* The first one last: is_awaited looks at it. */
    for (int64_t tile = unit_tiles(engine, engine->world->rank, unit); tile-- > 0;)
        ewx_flag_publish(&flags[tile], engine->call.epoch);
}

/* The unit of a place that is said to be filled; false when it was not asked about. */
static bool find_unit(const ewx_cpu_engine *engine, int remote, size_t place,
                      int64_t *unit_out)
{
    const ewx_wire *wire = &engine->wire;
    const int64_t unit = (int64_t)(place / 2) - remote * wire->num_units;
    *unit_out = unit;
    return place % 2 == (engine->call.epoch & 1) && unit >= 0 && unit < wire->num_units &&
           is_awaited(engine, wire->remotes[remote], unit);
}

static void take_arrivals(ewx_cpu_engine *engine, int remote)
{
    ewx_wire *wire = &engine->wire;
    const ew_fabric *fabric = engine->world->fabric;
    size_t asked[WINDOW], filled[WINDOW], bytes[WINDOW], num_filled = 0;
    const size_t num_asked = list_awaited(engine, remote, asked);
    if (num_asked == 0)
        return;
    if (fabric->arrivals(wire->channel, asked, num_asked, filled, bytes, &num_filled))
        ewx_hosts_fail(engine->world);
#if EW_MUTANT == 10 /* planted bug: what is expected counts as arrived */
    for (num_filled = 0; num_filled < num_asked; num_filled++) {
        filled[num_filled] = asked[num_filled];
        bytes[num_filled] =
            unit_bytes(engine, engine->world->rank,
                       (int64_t)(asked[num_filled] / 2) - remote * wire->num_units);
    }
#endif
    for (size_t i = 0; i < num_filled && i < num_asked; i++) {
        int64_t unit;
        if (find_unit(engine, remote, filled[i], &unit))
            accept(engine, wire->remotes[remote], unit, bytes[i]);
        else
            ewx_hosts_fail(engine->world);
    }
}

/* ---- Headers ---- */

/* A header as it travels. */
typedef struct header_note {
    uint64_t waiting;
    int64_t rows[2];
    uint32_t epochs[2];
    uint32_t done;
    uint32_t progress;
} header_note;

static void tell_header(ewx_cpu_engine *engine)
{
    const ewx_segment_header *own = ewx_heap_header(&engine->heap, engine->world->rank);
    header_note note = {
        .waiting = atomic_load_explicit(&own->waiting, memory_order_relaxed),
        .done = atomic_load_explicit(&own->done, memory_order_relaxed),
        .progress = atomic_load_explicit(&own->progress, memory_order_relaxed)};
    for (int parity = 0; parity < 2; parity++) {
        note.epochs[parity] =
            atomic_load_explicit(&own->calls[parity].epoch, memory_order_relaxed);
        note.rows[parity] = own->calls[parity].rows;
    }
    ewx_hosts_tell(engine->world, engine->wire.listener.number, &note, sizeof note);
    engine->wire.beat_ns = ewx_now_ns();
}

void ewx_wire_hear(void *context, int src, const void *body, size_t bytes)
{
    ewx_cpu_engine *engine = context;
    ewx_segment_header *replica = ewx_heap_header(&engine->heap, src);
    header_note note;
    if (bytes == sizeof note)
        memcpy(&note, body, sizeof note);
    if (bytes != sizeof note ||
        (uint32_t)note.waiting > (uint32_t)engine->spec->num_ranks) {
        ewx_hosts_refuse(engine->world, src);
        return;
    }
    for (int parity = 0; parity < 2; parity++) {
        ewx_call_record *record = &replica->calls[parity];
        if (atomic_load_explicit(&record->epoch, memory_order_relaxed) ==
            note.epochs[parity])
            continue;
        record->rows = note.rows[parity];
        /* Release: pairs with the acquire in consume.c:peer_in_call. */
        atomic_store_explicit(&record->epoch, note.epochs[parity], memory_order_release);
    }
    atomic_store_explicit(&replica->progress, note.progress, memory_order_relaxed);
    atomic_store_explicit(&replica->waiting, note.waiting, memory_order_relaxed);
    atomic_store_explicit(&replica->done, note.done, memory_order_release);
}

static void progress(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    ewx_hosts_progress(engine->world);
    put_completed(engine);
    const int turns = (int)ewx_min64(REMOTES_AT_ONCE, wire->num_remotes);
    for (int turn = 0; turn < turns && ewx_hosts_reachable(engine->world); turn++) {
        take_arrivals(engine, wire->next_remote);
        wire->next_remote = (wire->next_remote + 1) % wire->num_remotes;
    }
    wire->progress_ns = ewx_now_ns();
#if EW_MUTANT != 12 /* planted bug: no sign of life */
    if (wire->progress_ns - wire->beat_ns > engine->world->timeout_ns / BEATS)
        tell_header(engine);
#endif
}

/* ---- A call ---- */

static void expect_puts(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    const int64_t most = wire->num_remotes * wire->num_units;
    for (int64_t note = 0; note < most; note++)
        atomic_store_explicit(&wire->notes[note], 0, memory_order_relaxed);
    atomic_store_explicit(&wire->num_notes, 0, memory_order_relaxed);
    wire->notes_read = 0;
    for (int remote = 0; remote < wire->num_remotes; remote++) {
        const int dst = wire->remotes[remote];
        wire->cursors[remote] = wire->unput[remote] = 0;
        for (int64_t unit = 0; unit < wire->num_units; unit++) {
            wire->unput[remote] += ewx_wire_owes(engine, dst, unit) > 0;
            atomic_store_explicit(&wire->missing[remote * wire->num_units + unit],
                                  (int32_t)unit_tiles(engine, dst, unit),
                                  memory_order_relaxed);
        }
    }
}

/* Units in the order of their first tiles.  The first partition is the largest: others skip
 * what they do not have. */
static void list_order(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    const ewx_grid *grid = &engine->call.grid;
    if (wire->order_rows == grid->rows)
        return;
    wire->order_rows = grid->rows;
    wire->num_order = 0;
    memset(wire->listed, 0, (size_t)wire->num_units);
    const int64_t tasks = ewx_part_tiles(grid, 0);
    for (int64_t task = 0; task < tasks; task++) {
        const ewx_tile tile = ewx_task_tile(grid, 0, task);
        const int64_t unit =
            unit_of(engine, ewx_layout_slot(&engine->spec->layout, 0, tile));
        if (!wire->listed[unit])
            wire->order[wire->num_order++] = (int32_t)unit;
        wire->listed[unit] = 1;
    }
}

void ewx_wire_prepare(ewx_cpu_engine *engine)
{
    if (!engine->wire.is_open)
        return;
    list_order(engine);
    expect_puts(engine);
}

void ewx_wire_announce(ewx_cpu_engine *engine)
{
    if (engine->wire.is_open)
        tell_header(engine);
}

void ewx_wire_finish(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    const int parity = engine->call.epoch & 1;
    if (!wire->is_open)
        return;
    for (int remote = 0; remote < wire->num_remotes; remote++)
        for (int64_t at = 0; at < wire->num_order; at++)
            if (engine->world->fabric->rearm(
                    wire->channel, ewx_unit_place(wire, remote, wire->order[at], parity)))
                ewx_hosts_fail(engine->world);
    tell_header(engine);
}

/* ---- The route ---- */

static void close_wire(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    ew_world *world = engine->world;
    if (!wire->is_open)
        return;
    ewx_hosts_progress(world);
    ewx_hosts_unlisten(world, &wire->listener);
    const bool broken = world->fabric_failed || atomic_load(&world->control->abort) != 0;
    if (wire->channel && !world->fabric->channel_close(wire->channel, broken))
        ewx_heap_abandon(&engine->heap); /* the fabric may still read or write there */
    free((void *)wire->missing);
    free((void *)wire->notes);
    free(wire->unput);
    free(wire->cursors);
    free(wire->order);
    free(wire->listed);
    wire->is_open = false;
}

const ewx_route ewx_route_wire = {
    .post = post, .ready = ewx_heap_ready, .progress = progress, .close = close_wire};
