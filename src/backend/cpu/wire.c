/* What the exchange needs to know of the heap, and what else travels between hosts. */
#include "backend/cpu/wire.h"

#include <stdlib.h>
#include <string.h>

#include "backend/cpu/cpu_engine.h"
#include "backend/cpu/cpu_weight.h"
#include "base/clock.h"
#include "base/status.h"

/* Headers are sent this often in a timeout and at least in this time, because a rank that
 * waits for us may have a shorter one. */
#define BEATS 16
#define BEAT_NS 100000000

/* ---- The exchange's view of the heap ---- */

static unsigned char *slot_at(const ewx_cpu_engine *engine, int rank, int dst, int64_t slot,
                              int parity)
{
    const ewx_exchange *exchange = &engine->wire.exchange;
    return engine->heap.segments[rank] + engine->spec->layout.slice_offset[parity] +
           (size_t)(dst * exchange->part_slots + slot) * exchange->slot_bytes;
}

/* The part of a segment with the tiles that a rank sums; a segment has no more than one
 * where they go to all, or are rows. */
static int part_of(const ewx_cpu_engine *engine, int rank)
{
    const bool has_one =
        engine->spec->layout.num_parts == 1 || engine->spec->op->gemm_waits;
    return has_one ? 0 : rank;
}

/* A result lies in place of the contribution. */
static const unsigned char *outgoing(const void *context, int dst, int64_t slot, int parity)
{
    const ewx_cpu_engine *engine = context;
    return slot_at(engine, engine->world->rank, part_of(engine, dst), slot, parity);
}

/* Not so here: where owners share a tile, rows of both cross, which come in any order. */
static unsigned char *incoming(const void *context, int src, ewx_cargo cargo, int64_t slot,
                               int parity)
{
    const ewx_cpu_engine *engine = context;
    if (cargo == EWX_RESULTS)
        return ewx_heap_result(&engine->heap, &engine->spec->layout, src, slot, parity);
    return slot_at(engine, src, part_of(engine, engine->world->rank), slot, parity);
}

/* Rows of src have come, in one panel or in several. */
static void rows_arrived(ewx_cpu_engine *engine, int src, int64_t first, int64_t end)
{
    const ewx_exchange *exchange = &engine->wire.exchange;
    int64_t *panel_rows = engine->wire.panel_rows +
                          exchange->index_of[src] * engine->spec->layout.max_tile_rows;
    for (int64_t row = first, next; row < end; row = next) {
        const int64_t panel = row / EWX_TILE_M;
        next = ewx_min64(end, (panel + 1) * EWX_TILE_M);
        panel_rows[panel] += next - row;
#if EW_MUTANT != 56 /* planted bug: a panel is there with its first rows */
        if (panel_rows[panel] <
            ewx_tile_height(&engine->call.grid, src, (ewx_tile){panel, 0}))
            continue;
#endif
        panel_rows[panel] = 0;
        ewx_flag_publish(ewx_heap_flag(&engine->heap, src, panel), engine->call.epoch);
    }
}

static void arrived(void *context, int src, ewx_cargo cargo, int64_t slot, int64_t tiles)
{
    ewx_cpu_engine *engine = context;
    if (engine->spec->op->gemm_waits) {
        const int64_t rows = engine->wire.exchange.slot_rows;
        rows_arrived(
            engine, src, slot * rows,
            ewx_min64((slot + tiles) * rows, ewx_part_rows(&engine->call.grid, src)));
        return;
    }
    const int64_t first =
        part_of(engine, engine->world->rank) * engine->spec->layout.slots_per_part + slot;
    ewx_flag *flags = ewx_heap_flag(&engine->heap, src, first);
    for (int64_t tile = 0; tile < tiles; tile++)
        ewx_word_publish(cargo == EWX_RESULTS ? &flags[tile].result : &flags[tile].epoch,
                         engine->call.epoch);
}

/* Where src has another m, or another form, reduce_stage.c:ewx_peer_in_call reports it. */
static bool agrees(const void *context, int src)
{
    const ewx_cpu_engine *engine = context;
    const ewx_call_record *record =
        &ewx_heap_header(&engine->heap, src)->calls[engine->call.epoch & 1];
    return atomic_load_explicit(&record->epoch, memory_order_relaxed) ==
               engine->call.epoch &&
           record->rows == engine->call.grid.rows &&
           ewx_forms_agree(record->form, engine->call.form);
}

static const ewx_exchange_backend heap_of_cpu = {
    .outgoing = outgoing,
    .incoming = incoming,
    .arrived = arrived,
    .agrees = agrees,
    .fix =
        "use fewer and larger ones (release), or fewer or smaller plans; those that were "
        "destroyed count, too"};

ew_status ewx_wire_open(ewx_cpu_engine *engine, ew_status ready)
{
    ewx_wire *wire = &engine->wire;
    wire->listener = (ewx_listener){.handle = ewx_wire_hear, .context = engine};
    if (engine->world->num_hosts > 1)
        ewx_remotes_listen(engine->world, &wire->listener);
    EW_TRY(ewx_exchange_open(&wire->exchange, engine->world, engine->spec, &heap_of_cpu,
                             engine, engine->reduce.levels == 2, ready));
    const size_t panels =
        (size_t)(wire->exchange.num_remotes * engine->spec->layout.max_tile_rows);
    return engine->spec->op->gemm_waits && wire->exchange.num_remotes > 0
               ? ewx_buffer_allocate(panels * sizeof *wire->panel_rows,
                                     "the panels that arrive", (void **)&wire->panel_rows)
               : EW_OK;
}

/* ---- Headers ---- */

/* A header as it travels. */
typedef struct header_note {
    uint64_t waiting;
    int64_t rows[2];
    uint32_t epochs[2];
    int32_t forms[2];
    uint32_t done;
    uint32_t progress;
    uint32_t looks; /* of the rank's lane */
    uint32_t unused;
} header_note;

static void tell_header(ewx_cpu_engine *engine)
{
    const ewx_segment_header *own = ewx_heap_header(&engine->heap, engine->world->rank);
    header_note note = {
        .waiting = atomic_load_explicit(&own->waiting, memory_order_relaxed),
        .done = atomic_load_explicit(&own->done, memory_order_relaxed),
        .progress = atomic_load_explicit(&own->progress, memory_order_relaxed),
        .looks =
            atomic_load_explicit(&engine->world->mailboxes[engine->world->rank]->lane.looks,
                                 memory_order_relaxed)};
    for (int parity = 0; parity < 2; parity++) {
        note.epochs[parity] =
            atomic_load_explicit(&own->calls[parity].epoch, memory_order_relaxed);
        note.rows[parity] = own->calls[parity].rows;
        note.forms[parity] = own->calls[parity].form;
    }
    ewx_remotes_send(engine->world, engine->wire.listener.number, &note, sizeof note);
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
        ewx_remotes_refuse(engine->world, src);
        return;
    }
    for (int parity = 0; parity < 2; parity++) {
        ewx_call_record *record = &replica->calls[parity];
        if (atomic_load_explicit(&record->epoch, memory_order_relaxed) ==
            note.epochs[parity])
            continue;
        record->rows = note.rows[parity];
        record->form = note.forms[parity];
        /* Release: pairs with the acquire in reduce_stage.c:ewx_peer_in_call. */
        atomic_store_explicit(&record->epoch, note.epochs[parity], memory_order_release);
    }
    atomic_store_explicit(&replica->progress, note.progress, memory_order_relaxed);
    atomic_store_explicit(&replica->waiting, note.waiting, memory_order_relaxed);
    ewx_lane *lane = &engine->world->mailboxes[src]->lane;
    atomic_store_explicit(&lane->waiting, (uint32_t)note.waiting, memory_order_relaxed);
    atomic_store_explicit(&lane->looks, note.looks, memory_order_relaxed);
    atomic_store_explicit(&replica->done, note.done, memory_order_release);
}

void ewx_wire_announce(ewx_cpu_engine *engine)
{
    if (engine->wire.exchange.is_open)
        tell_header(engine);
}

void ewx_wire_finish(ewx_cpu_engine *engine)
{
    if (!engine->wire.exchange.is_open)
        return;
    ewx_exchange_finish(&engine->wire.exchange);
    tell_header(engine);
    ewx_remotes_see_off(engine->world);
}

/* ---- The route ---- */

static void post(ewx_cpu_engine *engine, int part, ewx_tile tile)
{
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, part, tile);
    const int owner = ewx_engine_owner(engine, part, tile);
    if (owner != EWX_EVERYONE) {
        ewx_exchange_post(&engine->wire.exchange, owner, slot);
        return;
    }
    engine->to_all_here->post(engine, part, tile);
    ewx_exchange_post_to_all(&engine->wire.exchange, EWX_CONTRIBUTIONS, slot);
}

static void progress(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    int dst;
    int64_t unit;
    ewx_remotes_progress(engine->world);
    while (ewx_remotes_reachable(engine->world) &&
           ewx_exchange_take(&wire->exchange, &dst, &unit))
        (void)ewx_exchange_put(&wire->exchange, dst, unit);
    ewx_exchange_receive(&wire->exchange);
    wire->progress_ns = ewx_now_ns();
#if EW_MUTANT != 12 /* planted bug: no sign of life */
    if (wire->progress_ns - wire->beat_ns >
        ewx_min64(engine->call.timeout_ns / BEATS, BEAT_NS))
        tell_header(engine);
#endif
}

static void close_wire(ewx_cpu_engine *engine)
{
    ewx_wire *wire = &engine->wire;
    if (!wire->exchange.is_open)
        return;
    ewx_remotes_progress(engine->world);
    ewx_remotes_unlisten(engine->world, &wire->listener);
    if (!ewx_exchange_close(&wire->exchange))
        ewx_heap_abandon(&engine->heap);
    free(wire->panel_rows);
}

const ewx_route ewx_route_wire = {
    .post = post, .ready = ewx_heap_ready, .progress = progress, .close = close_wire};
