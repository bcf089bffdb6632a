/* The event queue: a binary heap.  Events of one time come out in the order in which they
 * went in, so that a simulation is the same on every machine. */
#ifndef EWX_SIM_QUEUE_H
#define EWX_SIM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct ewx_sim_event {
    int64_t time_ps;
    uint64_t serial;
    int32_t rank;
    int16_t kind;
    int32_t who;
} ewx_sim_event;

typedef struct ewx_sim_queue {
    ewx_sim_event *events;
    size_t count, capacity;
    uint64_t serial; /* events so far */
    bool failed;     /* memory ran out */
} ewx_sim_queue;

static inline bool ewx_sim_before(const ewx_sim_event *a, const ewx_sim_event *b)
{
    return a->time_ps != b->time_ps ? a->time_ps < b->time_ps : a->serial < b->serial;
}

static inline void ewx_sim_push(ewx_sim_queue *queue, int64_t time_ps, int kind, int rank,
                                int who)
{
    if (queue->count == queue->capacity) {
        const size_t capacity = queue->capacity ? 2 * queue->capacity : 1024;
        ewx_sim_event *grown = realloc(queue->events, capacity * sizeof *grown);
        if (!grown) {
            queue->failed = true;
            return;
        }
        queue->events = grown;
        queue->capacity = capacity;
    }
    const ewx_sim_event event = {time_ps, queue->serial++, rank, (int16_t)kind, who};
    size_t at = queue->count++;
    while (at > 0 && ewx_sim_before(&event, &queue->events[(at - 1) / 2])) {
        queue->events[at] = queue->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    queue->events[at] = event;
}

static inline bool ewx_sim_pop(ewx_sim_queue *queue, ewx_sim_event *event_out)
{
    if (queue->count == 0)
        return false;
    *event_out = queue->events[0];
    const ewx_sim_event last = queue->events[--queue->count];
    size_t at = 0;
    for (size_t child = 1; child < queue->count; child = 2 * at + 1) {
        if (child + 1 < queue->count &&
            ewx_sim_before(&queue->events[child + 1], &queue->events[child]))
            child++;
        if (!ewx_sim_before(&queue->events[child], &last))
            break;
        queue->events[at] = queue->events[child];
        at = child;
    }
    queue->events[at] = last;
    return true;
}

#endif
