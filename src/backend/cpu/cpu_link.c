/* Store-and-forward is not modelled: a transfer occupies both ends for the same time,
 * each direction serves its transfers in the order booked, and latency adds to the end. */
#include "backend/cpu/cpu_link.h"

#include "backend/cpu/cpu_engine.h"
#include "base/clock.h"
#include "plan/link.h"

/* Occupies a direction for `duration_ns` from `earliest_ns` on; returns its end. */
static int64_t occupy(_Atomic int64_t *free_ns, int64_t earliest_ns, int64_t duration_ns)
{
    int64_t before = atomic_load_explicit(free_ns, memory_order_relaxed), end;
    do
        end = (before > earliest_ns ? before : earliest_ns) + duration_ns;
    while (!atomic_compare_exchange_weak_explicit(
        free_ns, &before, end, memory_order_relaxed, memory_order_relaxed));
    return end;
}

int64_t ewx_link_book(ew_world *world, int dst, size_t bytes)
{
    ewx_mailbox *mailboxes = world->control->mailboxes;
    const double sent_bytes =
        (double)bytes * ewx_link_sent_per_byte(world->link_header_bytes);
    const int64_t duration_ns = (int64_t)(sent_bytes * 8.0 / world->link_gbps);
    const int64_t sent =
        occupy(&mailboxes[world->rank].egress_free_ns, ewx_now_ns(), duration_ns);
    const int64_t received =
        occupy(&mailboxes[dst].ingress_free_ns, sent - duration_ns, duration_ns);
    return (sent > received ? sent : received) + world->link_latency_ns;
}

int64_t ewx_link_book_to(ew_world *world, int dst, size_t bytes)
{
    if (dst != EWX_EVERYONE)
        return ewx_link_book(world, dst, bytes);
    int64_t last = 0;
    for (int rank = 0; rank < world->num_ranks; rank++) {
        const bool is_linked = rank != world->rank && ewx_world_is_local(world, rank);
        const int64_t there = is_linked ? ewx_link_book(world, rank, bytes) : 0;
        last = there > last ? there : last;
    }
    return last;
}

static void post(ewx_cpu_engine *engine, int part, ewx_tile tile)
{
    const ewx_cpu_call *call = &engine->call;
    const int64_t slot = ewx_layout_slot(&engine->spec->layout, part, tile);
    const int owner = ewx_engine_owner(engine, part, tile);
    ewx_heap_flag(&engine->heap, engine->world->rank, slot)->visible_ns[call->epoch & 1] =
        ewx_link_book_to(engine->world, owner,
                         (size_t)ewx_tile_bytes(&call->grid, part, tile,
                                                (int64_t)engine->spec->elem_bytes) *
                             (size_t)engine->spec->layout.num_pieces);
    ewx_heap_post(engine, part, tile);
}

static bool ready(const ewx_cpu_engine *engine, int src, int64_t slot)
{
    return ewx_heap_ready(engine, src, slot) &&
           ewx_now_ns() >=
               ewx_heap_flag(&engine->heap, src, slot)->visible_ns[engine->call.epoch & 1];
}

const ewx_route ewx_route_link = {.post = post,
                                  .ready = ready,
                                  .progress = ewx_route_nothing,
                                  .close = ewx_route_nothing};
