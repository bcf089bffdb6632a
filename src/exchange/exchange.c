/* A call's units: when they leave, arrive and are complete. */
#include "exchange/exchange.h"

#include <string.h>

#define WINDOW 16         /* places asked about at once */
#define LOOK_AHEAD 64     /* units looked at to find them */
#define CURSORS_AT_ONCE 8 /* sources and cargos asked about at once */

/* ---- Geometry ---- */

/* Tiles of a unit of a part that exist in this call. */
static int64_t unit_tiles(const ewx_exchange *x, int part, int64_t unit)
{
    const int64_t rest = ewx_part_tiles(&x->grid, part) - unit * x->unit_slots;
    return rest < 0 ? 0 : ewx_min64(x->unit_slots, rest);
}

/* What crosses of a unit: its first `tiles` tiles and, of the last one, only these rows. */
typedef struct crossing {
    int64_t tiles;
    int pieces;         /* of each of them */
    ewx_tile_rows rows; /* of the last tile's last piece */
} crossing;

/* The same of the rows that a rank gives to all others, which lie in one part. */
static crossing rows_of(const ewx_exchange *x, int src, int64_t unit)
{
    const int64_t rows = ewx_part_rows(&x->grid, src), first = unit * x->unit_slots;
    const int64_t rest = ewx_div_up(rows, x->slot_rows) - first;
    crossing c = {.tiles = rest < 0 ? 0 : ewx_min64(x->unit_slots, rest), .pieces = 1};
    if (c.tiles > 0)
        c.rows.end = ewx_min64(x->slot_rows, rows - (first + c.tiles - 1) * x->slot_rows);
    return c;
}

static crossing crossing_of(const ewx_exchange *x, int owner, int64_t unit)
{
    if (x->spec->op->gemm_waits)
        return rows_of(x, owner, unit);
    const ewx_share *share = &x->shares[owner];
    const int64_t index = unit % x->part_units;
    const bool is_result = unit >= x->part_units;
    crossing c = {.tiles = unit_tiles(x, share->part, index),
                  .pieces = is_result ? 1 : x->spec->layout.num_pieces};
    if (is_result && !ewx_has_results(share->ownership))
        c.tiles = 0;
    if (c.tiles == 0)
        return c;
    const int64_t last = index * x->unit_slots + c.tiles - 1;
    const int64_t cols = x->spec->layout.tile_cols;
    c.rows = ewx_share_rows_in(&x->grid, share, (ewx_tile){last / cols, last % cols});
    if (c.rows.end == c.rows.first)
        c.tiles = 0;
    return c;
}

/* Whose share a unit belongs to that src sends to dst. */
static int owner_of(const ewx_exchange *x, int src, int dst, int64_t unit)
{
#if EW_MUTANT == 57 /* planted bug: as many rows cross as the receiver has */
    const bool is_sender = false;
#else
    const bool is_sender = x->spec->op->gemm_waits;
#endif
    return unit < x->part_units && !is_sender ? dst : src;
}

static size_t bytes_of(const ewx_exchange *x, const crossing *c)
{
    return (size_t)(c->tiles - 1) * x->slot_bytes +
           (size_t)(c->pieces - 1) * x->spec->layout.piece_bytes +
           (size_t)(c->rows.end - c->rows.first) * x->row_bytes;
}

size_t ewx_exchange_unit_bytes(const ewx_exchange *x, int owner, int64_t unit)
{
    const crossing c = crossing_of(x, owner, unit);
    return bytes_of(x, &c);
}

bool ewx_exchange_sends(const ewx_exchange *x, int src, int64_t slot)
{
    return ewx_world_is_local(x->world, src) ||
           ewx_unit_is_from(x, src, ewx_exchange_unit(x, slot));
}

int64_t ewx_exchange_owes(const ewx_exchange *x, int dst, int64_t unit)
{
    const int rank = x->world->rank;
    return ewx_unit_is_from(x, rank, unit)
               ? crossing_of(x, owner_of(x, rank, dst, unit), unit).tiles
               : 0;
}

/* ---- Sending ---- */

/* A tile of the unit at that place of the tables. */
static void post_tile(ewx_exchange *x, int64_t at)
{
    /* acq_rel: the worker that completes the unit has seen what the others wrote; through
     * the release of the note, so has the caller's thread. */
    if (atomic_fetch_sub_explicit(&x->missing[at], 1, memory_order_acq_rel) > 1)
        return;
    const int64_t place = atomic_fetch_add_explicit(&x->num_notes, 1, memory_order_relaxed);
    atomic_store_explicit(&x->notes[place], (int32_t)(at + 1), memory_order_release);
}

void ewx_exchange_post(ewx_exchange *x, int dst, int64_t slot)
{
    post_tile(x, x->index_of[dst] * x->num_units + ewx_exchange_unit(x, slot));
}

void ewx_exchange_post_to_all(ewx_exchange *x, ewx_cargo cargo, int64_t slot)
{
    for (int remote = 0; remote < x->num_remotes; remote++) {
        const int64_t at =
            remote * x->num_units + cargo * x->part_units + ewx_exchange_unit(x, slot);
        /* Nothing is missing where nothing crosses: every tile is posted once. */
        if (atomic_load_explicit(&x->missing[at], memory_order_relaxed) > 0)
            post_tile(x, at);
    }
}

void ewx_exchange_post_panel(ewx_exchange *x, int64_t panel)
{
    if (!x->is_open)
        return;
    const int64_t slots = EWX_TILE_M / x->slot_rows; /* which the last panel may not have */
    for (int64_t slot = panel * slots; slot < (panel + 1) * slots; slot++)
        if (slot < x->part_slots)
            ewx_exchange_post_to_all(x, EWX_ROWS, slot);
}

bool ewx_exchange_take(ewx_exchange *x, int *dst_out, int64_t *unit_out)
{
    if (x->notes_read == x->num_remotes * x->num_units)
        return false;
    const int32_t note = atomic_load_explicit(&x->notes[x->notes_read],
                                              memory_order_acquire); /* pairs with post */
    if (note == 0)
        return false;
    x->notes_read++;
    *dst_out = x->remotes[(note - 1) / x->num_units];
    *unit_out = (note - 1) % x->num_units;
    return true;
}

size_t ewx_exchange_put(ewx_exchange *x, int dst, int64_t unit)
{
    ew_world *world = x->world;
    const int parity = x->epoch & 1;
    const int64_t slot = unit % x->part_units * x->unit_slots;
    const crossing c = crossing_of(x, owner_of(x, world->rank, dst, unit), unit);
    const size_t bytes = bytes_of(x, &c);
#if EW_MUTANT == 33 /* planted bug: of a tile with several owners the first one's rows */
    const size_t skipped = 0;
#else
    const size_t skipped = (size_t)c.rows.first * x->row_bytes;
#endif
    /* The last one to each rank says when all have arrived. */
    const bool confirmed = --x->unput[x->index_of[dst]] == 0;
    world->traffic.tile_bytes += (int64_t)bytes;
    world->traffic.tile_messages++;
    x->moves++;
#if EW_MUTANT == 11 /* planted bug: a message is lost */
    if (unit == 1)
        return bytes;
#endif
    if (world->fabric->put(x->channel, dst, ewx_unit_number(unit, parity),
                           x->backend->outgoing(x->engine, dst, slot, parity) + skipped,
                           bytes, confirmed))
        ewx_remotes_fail(world);
    return bytes;
}

bool ewx_exchange_is_idle(ewx_exchange *x)
{
    if (!x->is_open || !ewx_remotes_reachable(x->world))
        return true;
    const size_t before = x->unsent;
    x->unsent = 1;
    for (int remote = 0; remote < x->num_remotes; remote++)
        if (x->unput[remote] > 0) {
            x->unsent_to = x->world->rank;
            return false;
        }
    if (x->world->fabric->unsent(x->channel, &x->unsent, &x->unsent_to) ||
        (x->unsent > 0 && !ewx_is_remote(x->world, x->unsent_to))) {
        x->unsent_to = x->world->rank;
        ewx_remotes_fail(x->world);
    }
    x->moves += x->unsent != before;
    return x->unsent == 0;
}

/* ---- Receiving ---- */

/* The next units of a cargo to come from a rank, as places. */
static size_t list_awaited(ewx_exchange *x, int remote, int cargo, size_t *asked)
{
    int64_t *cursor = &x->cursors[remote * x->num_cargos + cargo];
    const int64_t first = cargo * x->part_units;
    const bool *awaited = x->awaited + remote * x->num_units + first;
    size_t count = 0;
    while (*cursor < x->num_order && !awaited[x->order[*cursor]])
        ++*cursor;
    const int64_t end = ewx_min64(x->num_order, *cursor + LOOK_AHEAD);
    for (int64_t at = *cursor; at < end && count < WINDOW; at++)
        if (awaited[x->order[at]])
            asked[count++] = ewx_unit_place(x, remote, first + x->order[at], x->epoch & 1);
    return count;
}

/* A message has come; it cannot be of another call: its sender has waited for our `done`.
 */
static void accept(ewx_exchange *x, int remote, int64_t unit, size_t bytes)
{
    const int src = x->remotes[remote];
    const crossing c = crossing_of(x, owner_of(x, src, x->world->rank, unit), unit);
    if (bytes != bytes_of(x, &c)) {
        if (x->backend->agrees(x->engine, src))
            ewx_remotes_refuse(x->world, src);
        return;
    }
    x->awaited[remote * x->num_units + unit] = false;
    x->moves++;
    x->backend->arrived(x->engine, src, (ewx_cargo)(unit / x->part_units),
                        unit % x->part_units * x->unit_slots, c.tiles);
}

/* The unit of a place that is reported as filled; false when it was not asked about. */
static bool find_unit(const ewx_exchange *x, int remote, int cargo, size_t place,
                      int64_t *unit_out)
{
    const int64_t unit = (int64_t)(place / 2) - remote * x->num_units;
    *unit_out = unit;
    return place % 2 == (x->epoch & 1) && unit >= 0 && unit / x->part_units == cargo &&
           x->awaited[remote * x->num_units + unit];
}

static void receive_from(ewx_exchange *x, int remote, int cargo)
{
    size_t asked[WINDOW], filled[WINDOW], bytes[WINDOW], num_filled = 0;
    const size_t num_asked = list_awaited(x, remote, cargo, asked);
    if (num_asked == 0)
        return;
    if (x->world->fabric->arrivals(x->channel, asked, num_asked, filled, bytes,
                                   &num_filled))
        ewx_remotes_fail(x->world);
#if EW_MUTANT == 10 /* planted bug: what is expected counts as arrived */
    for (num_filled = 0; num_filled < num_asked; num_filled++) {
        filled[num_filled] = asked[num_filled];
        const int64_t unit = (int64_t)(asked[num_filled] / 2) - remote * x->num_units;
        bytes[num_filled] = ewx_exchange_unit_bytes(
            x, owner_of(x, x->remotes[remote], x->world->rank, unit), unit);
    }
#endif
    for (size_t i = 0; i < num_filled && i < num_asked; i++) {
        int64_t unit;
        if (find_unit(x, remote, cargo, filled[i], &unit))
            accept(x, remote, unit, bytes[i]);
        else
            ewx_remotes_fail(x->world);
    }
}

void ewx_exchange_receive(ewx_exchange *x)
{
    const int num_cursors = x->num_remotes * x->num_cargos;
    const int turns = (int)ewx_min64(CURSORS_AT_ONCE, num_cursors);
    for (int turn = 0; turn < turns && ewx_remotes_reachable(x->world); turn++) {
        receive_from(x, x->next_cursor / x->num_cargos, x->next_cursor % x->num_cargos);
        x->next_cursor = (x->next_cursor + 1) % num_cursors;
    }
}

/* ---- A call ---- */

/* How many tiles a unit has, whether this rank sends it or, for all of its host, another.
 */
static void expect_puts(ewx_exchange *x)
{
    const int64_t most = x->num_remotes * x->num_units;
    for (int64_t note = 0; note < most; note++)
        atomic_store_explicit(&x->notes[note], 0, memory_order_relaxed);
    atomic_store_explicit(&x->num_notes, 0, memory_order_relaxed);
    x->notes_read = 0;
    for (int remote = 0; remote < x->num_remotes; remote++) {
        const int dst = x->remotes[remote];
        x->unput[remote] = 0;
        for (int64_t unit = 0; unit < x->num_units; unit++) {
            x->unput[remote] += ewx_exchange_owes(x, dst, unit) > 0;
            const int owner = owner_of(x, x->world->rank, dst, unit);
            atomic_store_explicit(&x->missing[remote * x->num_units + unit],
                                  (int32_t)crossing_of(x, owner, unit).tiles,
                                  memory_order_relaxed);
        }
    }
}

static void expect_arrivals(ewx_exchange *x)
{
    const int rank = x->world->rank;
    memset(x->cursors, 0, (size_t)(x->num_remotes * x->num_cargos) * sizeof *x->cursors);
    for (int remote = 0; remote < x->num_remotes; remote++) {
        const int src = x->remotes[remote];
        for (int64_t unit = 0; unit < x->num_units; unit++)
            x->awaited[remote * x->num_units + unit] =
                ewx_unit_is_from(x, src, unit) &&
                crossing_of(x, owner_of(x, src, rank, unit), unit).tiles > 0;
    }
}

/* Slots of the largest part in this call, and which of them is filled after `task` others:
 * rows from top to bottom, tiles in the order of the walk. */
static int64_t num_slots(const ewx_exchange *x)
{
    return x->spec->op->gemm_waits ? ewx_div_up(ewx_part_rows(&x->grid, 0), x->slot_rows)
                                   : ewx_part_tiles(&x->grid, 0);
}

static int64_t slot_in_order(const ewx_exchange *x, int64_t task)
{
    return x->spec->op->gemm_waits
               ? task
               : ewx_layout_slot(&x->spec->layout, 0, ewx_task_tile(&x->grid, 0, task));
}

/* The first part is the largest: others skip what they do not have. */
static void list_order(ewx_exchange *x)
{
    if (x->order_rows == x->grid.rows)
        return;
    x->order_rows = x->grid.rows;
    x->num_order = 0;
    memset(x->listed, 0, (size_t)x->part_units * sizeof *x->listed);
    const int64_t tasks = num_slots(x);
    for (int64_t task = 0; task < tasks; task++) {
        const int64_t unit = ewx_exchange_unit(x, slot_in_order(x, task));
        if (!x->listed[unit])
            x->order[x->num_order++] = (int32_t)unit;
        x->listed[unit] = true;
    }
}

void ewx_exchange_begin(ewx_exchange *x, const ewx_grid *grid, ewx_ownership ownership,
                        uint32_t epoch)
{
    if (!x->is_open)
        return;
    x->grid = *grid;
    x->epoch = epoch;
    for (int rank = 0; rank < x->spec->num_ranks; rank++)
        x->shares[rank] = ewx_share_of(grid, ownership, x->spec->num_ranks, rank);
    list_order(x);
    expect_puts(x);
    expect_arrivals(x);
}

/* In the order in which the places will be filled again: a fabric may look for them one
 * after the other. */
static void arm_again(ewx_exchange *x, int remote, int cargo)
{
    for (int64_t at = 0; at < x->num_order; at++)
        if (x->world->fabric->rearm(
                x->channel, ewx_unit_place(x, remote, cargo * x->part_units + x->order[at],
                                           x->epoch & 1)))
            ewx_remotes_fail(x->world);
}

void ewx_exchange_finish(ewx_exchange *x)
{
    for (int remote = 0; x->is_open && remote < x->num_remotes; remote++)
        for (int cargo = 0; cargo < x->num_cargos; cargo++)
            arm_again(x, remote, cargo);
}
