/* The flight recorder: what every rank did last, in the world's shared memory, so that it
 * can be read from outside and after a rank has died.  Always on: a record is one cache
 * line, written by the rank alone and without a lock. */
#ifndef EWX_WORLD_RECORDER_H
#define EWX_WORLD_RECORDER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "entwine/entwine.h"

#define EWX_RECORDS 1024 /* of each rank */

typedef enum ewx_record_kind { EWX_RECORD_PLAN = 1, EWX_RECORD_CALL = 2 } ewx_record_kind;

typedef enum ewx_record_state {
    EWX_RECORD_RUNNING = 1,
    EWX_RECORD_ENQUEUED = 2, /* given to a GPU; what came of it is not known yet */
    EWX_RECORD_DONE = 3,
    EWX_RECORD_FAILED = 4
} ewx_record_state;

/* What a rank is about to do, as all ranks must. */
typedef struct ewx_deed {
    ewx_record_kind kind;
    int64_t m, n, k;
    uint64_t plan; /* ewx_deed_plan() */
    bool replays;  /* a captured call replays unrecorded: sequences may differ */
} ewx_deed;

/* A plan's number in its world, which ranks compare, and a hash of its problem and config
 * for those who read a recording. */
static inline uint64_t ewx_deed_plan(uint32_t number, uint32_t hash)
{
    return (uint64_t)number << 32 | hash;
}

/* What two ranks' deeds can differ in. */
typedef enum ewx_deed_field {
    EWX_DEED_KIND,
    EWX_DEED_PLAN,
    EWX_DEED_M,
    EWX_DEED_ORDER /* of calls; the plan's number is in the place of the sequence */
} ewx_deed_field;

typedef struct ewx_record {
    _Alignas(64) _Atomic uint64_t sequence; /* stored last: then the deed is whole */
    _Atomic int64_t m, n, k;
    _Atomic uint64_t plan;
    _Atomic int64_t begin;    /* ewx_ticks() */
    _Atomic int64_t end;      /* 0: still running */
    _Atomic uint64_t outcome; /* ewx_outcome() */
} ewx_record;
_Static_assert(sizeof(ewx_record) == 64, "a record is one cache line");

/* Blocks and tiles done in it, status, state and kind in one word. */
static inline uint64_t ewx_outcome(ewx_record_kind kind, ewx_record_state state,
                                   ew_status status, uint32_t steps)
{
    return (uint64_t)steps << 32 | (uint64_t)(uint16_t)status << 16 | (uint64_t)state << 8 |
           (uint64_t)kind;
}

typedef enum ewx_step { EWX_STEP_BLOCK = 1, EWX_STEP_TILE = 2 } ewx_step;

/* One rank's recorder. */
typedef struct ewx_lane {
    _Alignas(64) _Atomic uint64_t sequence; /* of its newest record */
    _Atomic int32_t pid;
    _Atomic uint32_t steps;        /* blocks computed and tiles reduced, ever */
    _Atomic uint32_t steps_before; /* the newest record */
    _Atomic uint64_t last;         /* step << 56 | position or task */
    _Atomic uint64_t waiting;      /* 0, or 1 + the rank it has waited for a while */
    ewx_record records[EWX_RECORDS];
} ewx_lane;

/* Begins a record.  EW_ERR_MISMATCH, as all ranks will say, when another rank has done
 * something else at this place of its sequence: whoever comes second notices. */
ew_status ewx_recorder_begin(ew_world *world, const ewx_deed *deed);
/* What a rank of another host has begun; raises the same when it differs from ours. */
void ewx_recorder_hear(ew_world *world, int peer, uint64_t sequence, const ewx_deed *deed);
/* Ends it. */
void ewx_recorder_end(ew_world *world, ew_status status, bool enqueued);
/* All that was enqueued has ended. */
void ewx_recorder_drain(ew_world *world, ew_status status);

/* For backends that can tell: a step is done; whom this rank waits for (-1: nobody). */
void ewx_recorder_step(ew_world *world, ewx_step step, int64_t where);
void ewx_recorder_wait(ew_world *world, int rank);

/* Writes the recording of all ranks into ENTWINE_DUMP_DIR, if there is one: the first rank
 * to hear of a fault does. */
void ewx_recorder_dump_once(ew_world *world);

#endif
