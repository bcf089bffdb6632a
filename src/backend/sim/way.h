/* One direction of a link or of a NIC.  A transfer that waits for its turn at one end comes
 * to the other end later, and until then the way there is free for others: a way remembers
 * the gaps that such transfers leave, and later bookings fill them. */
#ifndef EWX_SIM_WAY_H
#define EWX_SIM_WAY_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sim/sim_time.h"

typedef struct ewx_sim_span {
    int64_t begin_ps, end_ps;
} ewx_sim_span;

typedef struct ewx_sim_way {
    int64_t busy_until_ps;
    ewx_sim_span *gaps; /* before that, in their order */
    int num_gaps, capacity;
    bool failed; /* memory ran out */
} ewx_sim_way;

static inline void ewx_sim_way_insert(ewx_sim_way *way, int at, ewx_sim_span gap)
{
    if (gap.begin_ps >= gap.end_ps)
        return;
    if (way->num_gaps == way->capacity) {
        const int capacity = way->capacity ? 2 * way->capacity : 16;
        ewx_sim_span *grown = realloc(way->gaps, (size_t)capacity * sizeof *grown);
        if (!grown) {
            way->failed = true;
            return;
        }
        way->gaps = grown;
        way->capacity = capacity;
    }
    memmove(way->gaps + at + 1, way->gaps + at, (size_t)(way->num_gaps - at) * sizeof gap);
    way->gaps[at] = gap;
    way->num_gaps++;
}

static inline void ewx_sim_way_remove(ewx_sim_way *way, int at, int count)
{
    if (count == 0)
        return;
    way->num_gaps -= count;
    memmove(way->gaps + at, way->gaps + at + count,
            (size_t)(way->num_gaps - at) * sizeof way->gaps[0]);
}

/* Nothing is booked before now. */
static inline void ewx_sim_way_forget(ewx_sim_way *way, int64_t now_ps)
{
    int past = 0;
    while (past < way->num_gaps && way->gaps[past].end_ps <= now_ps)
        past++;
    ewx_sim_way_remove(way, 0, past);
}

/* Takes `duration_ps` of the way from `from_ps` on, as soon and in as few pieces as its
 * gaps allow; returns from when to when. */
static inline ewx_sim_span ewx_sim_way_take(ewx_sim_way *way, int64_t now_ps,
                                            int64_t from_ps, int64_t duration_ps)
{
    ewx_sim_span taken = {-1, from_ps};
    ewx_sim_way_forget(way, now_ps);
    for (int at = 0; at < way->num_gaps && duration_ps > 0; at++) {
        const ewx_sim_span gap = way->gaps[at];
        const int64_t begin_ps = ewx_sim_later(gap.begin_ps, from_ps);
        const int64_t room_ps = gap.end_ps - begin_ps;
        const int64_t piece_ps = room_ps < duration_ps ? room_ps : duration_ps;
        if (piece_ps <= 0)
            continue;
        duration_ps -= piece_ps;
        taken.begin_ps = taken.begin_ps < 0 ? begin_ps : taken.begin_ps;
        taken.end_ps = begin_ps + piece_ps;
        ewx_sim_way_remove(way, at--, 1);
        ewx_sim_way_insert(way, at + 1, (ewx_sim_span){taken.end_ps, gap.end_ps});
        ewx_sim_way_insert(way, at + 1, (ewx_sim_span){gap.begin_ps, begin_ps});
        at += gap.begin_ps < begin_ps;
    }
    if (duration_ps > 0) {
        const int64_t begin_ps = ewx_sim_later(way->busy_until_ps, from_ps);
        if (begin_ps > now_ps)
            ewx_sim_way_insert(way, way->num_gaps,
                               (ewx_sim_span){way->busy_until_ps, begin_ps});
        taken.begin_ps = taken.begin_ps < 0 ? begin_ps : taken.begin_ps;
        taken.end_ps = way->busy_until_ps = ewx_sim_after(begin_ps, (double)duration_ps);
    }
    taken.begin_ps = taken.begin_ps < 0 ? from_ps : taken.begin_ps;
    return taken;
}

#endif
