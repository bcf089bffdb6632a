/* A call's units: when they leave, arrive and are complete. */
#include "exchange/exchange.h"

#include <string.h>

#define WINDOW 16         /* places asked about at once */
#define LOOK_AHEAD 64     /* units looked at to find them */
#define REMOTES_AT_ONCE 8 /* sources asked about at once */

/* ---- Geometry ---- */

/* Tiles of a unit that exist in this call. */
static int64_t unit_tiles(const ewx_exchange *x, int dst, int64_t unit)
{
    const int64_t rest = ewx_part_tiles(&x->grid, dst) - unit * x->unit_slots;
    return rest < 0 ? 0 : ewx_min64(x->unit_slots, rest);
}

size_t ewx_exchange_unit_bytes(const ewx_exchange *x, int dst, int64_t unit)
{
    const ewx_layout *layout = &x->spec->layout;
    const int64_t tiles = unit_tiles(x, dst, unit);
    const int64_t last = unit * x->unit_slots + tiles - 1;
    const ewx_tile tile = {last / layout->tile_cols, last % layout->tile_cols};
    const int64_t rows = ewx_tile_height(&x->grid, dst, tile);
    return (size_t)tiles * layout->slot_bytes - layout->piece_bytes +
           (size_t)(rows * layout->tile_stride) * x->spec->elem_bytes;
}

bool ewx_exchange_sends(const ewx_exchange *x, int src, int64_t slot)
{
    return ewx_world_is_local(x->world, src) ||
           ewx_unit_is_from(x, src, ewx_exchange_unit(x, slot));
}

int64_t ewx_exchange_owes(const ewx_exchange *x, int dst, int64_t unit)
{
    return ewx_unit_is_from(x, x->world->rank, unit) ? unit_tiles(x, dst, unit) : 0;
}

/* ---- Sending ---- */

void ewx_exchange_post(ewx_exchange *x, int dst, int64_t slot)
{
    const int64_t at = x->index_of[dst] * x->num_units + ewx_exchange_unit(x, slot);
    /* acq_rel: the worker that completes the unit has seen what the others wrote; through
     * the release of the note, so has the caller's thread. */
    if (atomic_fetch_sub_explicit(&x->missing[at], 1, memory_order_acq_rel) > 1)
        return;
    const int64_t place = atomic_fetch_add_explicit(&x->num_notes, 1, memory_order_relaxed);
    atomic_store_explicit(&x->notes[place], (int32_t)(at + 1), memory_order_release);
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
    const size_t bytes = ewx_exchange_unit_bytes(x, dst, unit);
    /* The last one to each rank says when all have arrived. */
    const bool confirmed = --x->unput[x->index_of[dst]] == 0;
    world->traffic.tile_bytes += (int64_t)bytes;
    world->traffic.tile_messages++;
    x->moves++;
#if EW_MUTANT == 11 /* planted bug: a message is lost */
    if (unit == 1)
        return bytes;
#endif
    if (world->fabric->put(
            x->channel, dst, ewx_unit_number(unit, parity),
            x->backend->outgoing(x->engine, dst, unit * x->unit_slots, parity), bytes,
            confirmed))
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

static bool is_awaited(const ewx_exchange *x, int remote, int64_t unit)
{
    return ewx_unit_is_from(x, x->remotes[remote], unit) &&
           unit_tiles(x, x->world->rank, unit) > 0 &&
           !x->has_arrived[remote * x->num_units + unit];
}

/* The next units to come from a rank, as places. */
static size_t list_awaited(ewx_exchange *x, int remote, size_t *asked)
{
    int64_t *cursor = &x->cursors[remote];
    size_t count = 0;
    while (*cursor < x->num_order && !is_awaited(x, remote, x->order[*cursor]))
        ++*cursor;
    const int64_t end = ewx_min64(x->num_order, *cursor + LOOK_AHEAD);
    for (int64_t at = *cursor; at < end && count < WINDOW; at++)
        if (is_awaited(x, remote, x->order[at]))
            asked[count++] = ewx_unit_place(x, remote, x->order[at], x->epoch & 1);
    return count;
}

/* A message has come; it cannot be of another call: its sender has waited for our `done`.
 */
static void accept(ewx_exchange *x, int remote, int64_t unit, size_t bytes)
{
    const int rank = x->world->rank, src = x->remotes[remote];
    if (bytes != ewx_exchange_unit_bytes(x, rank, unit)) {
        if (x->backend->agrees(x->engine, src))
            ewx_remotes_refuse(x->world, src);
        return;
    }
    x->has_arrived[remote * x->num_units + unit] = true;
    x->moves++;
    x->backend->arrived(x->engine, src, unit * x->unit_slots, unit_tiles(x, rank, unit));
}

/* The unit of a place that is reported as filled; false when it was not asked about. */
static bool find_unit(const ewx_exchange *x, int remote, size_t place, int64_t *unit_out)
{
    const int64_t unit = (int64_t)(place / 2) - remote * x->num_units;
    *unit_out = unit;
    return place % 2 == (x->epoch & 1) && unit >= 0 && unit < x->num_units &&
           is_awaited(x, remote, unit);
}

static void receive_from(ewx_exchange *x, int remote)
{
    size_t asked[WINDOW], filled[WINDOW], bytes[WINDOW], num_filled = 0;
    const size_t num_asked = list_awaited(x, remote, asked);
    if (num_asked == 0)
        return;
    if (x->world->fabric->arrivals(x->channel, asked, num_asked, filled, bytes,
                                   &num_filled))
        ewx_remotes_fail(x->world);
#if EW_MUTANT == 10 /* planted bug: what is expected counts as arrived */
    for (num_filled = 0; num_filled < num_asked; num_filled++) {
        filled[num_filled] = asked[num_filled];
        bytes[num_filled] = ewx_exchange_unit_bytes(
            x, x->world->rank, (int64_t)(asked[num_filled] / 2) - remote * x->num_units);
    }
#endif
    for (size_t i = 0; i < num_filled && i < num_asked; i++) {
        int64_t unit;
        if (find_unit(x, remote, filled[i], &unit))
            accept(x, remote, unit, bytes[i]);
        else
            ewx_remotes_fail(x->world);
    }
}

void ewx_exchange_receive(ewx_exchange *x)
{
    const int turns = (int)ewx_min64(REMOTES_AT_ONCE, x->num_remotes);
    for (int turn = 0; turn < turns && ewx_remotes_reachable(x->world); turn++) {
        receive_from(x, x->next_remote);
        x->next_remote = (x->next_remote + 1) % x->num_remotes;
    }
}

/* ---- A call ---- */

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
            atomic_store_explicit(&x->missing[remote * x->num_units + unit],
                                  (int32_t)unit_tiles(x, dst, unit), memory_order_relaxed);
        }
    }
}

/* The first part is the largest: others skip what they do not have. */
static void list_order(ewx_exchange *x)
{
    if (x->order_rows == x->grid.rows)
        return;
    x->order_rows = x->grid.rows;
    x->num_order = 0;
    memset(x->listed, 0, (size_t)x->num_units * sizeof *x->listed);
    const int64_t tasks = ewx_part_tiles(&x->grid, 0);
    for (int64_t task = 0; task < tasks; task++) {
        const ewx_tile tile = ewx_task_tile(&x->grid, 0, task);
        const int64_t unit =
            ewx_exchange_unit(x, ewx_layout_slot(&x->spec->layout, 0, tile));
        if (!x->listed[unit])
            x->order[x->num_order++] = (int32_t)unit;
        x->listed[unit] = true;
    }
}

void ewx_exchange_begin(ewx_exchange *x, const ewx_grid *grid, uint32_t epoch)
{
    if (!x->is_open)
        return;
    x->grid = *grid;
    x->epoch = epoch;
    list_order(x);
    expect_puts(x);
    memset(x->cursors, 0, (size_t)x->num_remotes * sizeof *x->cursors);
    memset(x->has_arrived, 0,
           (size_t)(x->num_remotes * x->num_units) * sizeof *x->has_arrived);
}

void ewx_exchange_finish(ewx_exchange *x)
{
    for (int remote = 0; x->is_open && remote < x->num_remotes; remote++)
        for (int64_t at = 0; at < x->num_order; at++)
            if (x->world->fabric->rearm(
                    x->channel, ewx_unit_place(x, remote, x->order[at], x->epoch & 1)))
                ewx_remotes_fail(x->world);
}
