/* The flight recorder: what every rank did last, in the world's shared memory, so that it
 * can be read from outside and after a rank has died.  Always on: a record is one cache
 * line, written by the rank alone and without a lock. */
#ifndef EWX_WORLD_RECORDER_H
#define EWX_WORLD_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "entwine/entwine.h"

#define EWX_RECORDS 1024 /* per rank */

typedef enum ewx_record_kind { EWX_RECORD_PLAN = 1, EWX_RECORD_CALL = 2 } ewx_record_kind;

typedef enum ewx_record_state {
    EWX_RECORD_RUNNING = 1,
    EWX_RECORD_ENQUEUED = 2, /* given to a GPU; what came of it is not known yet */
    EWX_RECORD_DONE = 3,
    EWX_RECORD_FAILED = 4
} ewx_record_state;

/* The operation a rank starts, which must match on all ranks. */
typedef struct ewx_operation {
    int32_t op; /* ew_op; its meaning does not matter here */
    ewx_record_kind kind;
    int64_t shape[3];
    uint64_t plan;      /* ewx_plan_word() */
    int64_t timeout_ns; /* how long it waits for a peer; 0: the world's */
    bool replays;       /* a captured call replays unrecorded: sequences may differ */
} ewx_operation;

/* A plan's number in its world, which ranks compare, and a hash of its problem and config
 * for those who read a recording. */
static inline uint64_t ewx_plan_word(uint32_t number, uint32_t hash)
{
    return (uint64_t)number << 32 | hash;
}

/* Operation and kind in 8 bits. */
static inline uint32_t ewx_what(int32_t op, ewx_record_kind kind)
{
    return ((uint32_t)op & 63) << 2 | (uint32_t)kind;
}
static inline int32_t ewx_what_op(uint32_t what)
{
    return (int32_t)(what >> 2 & 63);
}
static inline ewx_record_kind ewx_what_kind(uint32_t what)
{
    return (ewx_record_kind)(what & 3);
}

/* What two ranks' operations can differ in. */
typedef enum ewx_operation_field {
    EWX_OPERATION_WHAT, /* values: ewx_what() */
    EWX_OPERATION_PLAN, /* values: the plans' numbers */
    EWX_OPERATION_SHAPE /* values: shape[0], the one that the calls of a plan choose */
} ewx_operation_field;

typedef struct ewx_record {
    _Alignas(64) _Atomic uint64_t sequence; /* stored last: then the rest is whole */
    _Atomic int64_t shape[3];
    _Atomic uint64_t plan;
    _Atomic int64_t begin;    /* ewx_ticks() */
    _Atomic int64_t end;      /* 0: still running */
    _Atomic uint64_t outcome; /* ewx_outcome() */
} ewx_record;
_Static_assert(sizeof(ewx_record) == 64, "a record is one cache line");

/* Steps done in it, status, state and ewx_what() in one word. */
static inline uint64_t ewx_outcome(uint32_t what, ewx_record_state state, ew_status status,
                                   uint32_t steps)
{
    return (uint64_t)steps << 32 | (uint64_t)(uint16_t)status << 16 | (uint64_t)state << 8 |
           (uint64_t)what;
}
static inline uint32_t ewx_outcome_what(uint64_t outcome)
{
    return (uint32_t)outcome & 0xff;
}

/* One rank's recorder. */
typedef struct ewx_lane {
    _Alignas(64) _Atomic uint64_t sequence; /* of its newest record */
    _Atomic int32_t pid;
    _Atomic uint32_t steps;        /* done in all of its calls so far */
    _Atomic uint32_t steps_before; /* of them, before the newest record */
    _Atomic uint32_t looks;        /* at the clock, in waits of its calls */
    _Atomic uint64_t last;         /* step << 56 | where */
    _Atomic uint64_t waiting;      /* 0, or 1 + the rank it has waited for a while */
    ewx_record records[EWX_RECORDS];
} ewx_lane;

/* Begins a record.  EW_ERR_MISMATCH, on all ranks, when another rank has started a
 * different operation at this place of its sequence: the rank that comes second notices. */
ew_status ewx_recorder_begin(ew_world *world, const ewx_operation *operation);
/* Stores what a rank of another host has begun; raises the same when it differs from ours.
 */
void ewx_recorder_receive(ew_world *world, int peer, uint64_t sequence,
                          const ewx_operation *operation);
/* Ends it. */
void ewx_recorder_end(ew_world *world, ew_status status, bool enqueued);
/* All that was enqueued has ended. */
void ewx_recorder_drain(ew_world *world, ew_status status);

/* Optional reports of a backend: step number `step` (1 to 255) is done; this rank waits for
 * `rank` (-1: for none). */
void ewx_recorder_step(ew_world *world, int step, int64_t where);
void ewx_recorder_wait(ew_world *world, int rank);

/* For whom that rank waits in an operation before our newest one; -1: for none, or it is
 * not behind.  An old answer does no harm: it is asked for again. */
int ewx_recorder_awaited_behind(const ew_world *world, int rank);

/* Writes the recording of all ranks into ENTWINE_DUMP_DIR, if it is set; only the first
 * rank to learn of a fault does. */
void ewx_recorder_dump_once(ew_world *world);

#endif
