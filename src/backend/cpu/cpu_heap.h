/* The symmetric heap: one segment per rank, all of the same layout.  A rank writes only
 * its own segment and reads the others', so every word has one writer.  Of a rank on
 * another host the segment here is a replica, which wire.c fills. */
#ifndef EWX_CPU_HEAP_H
#define EWX_CPU_HEAP_H

#include <stdatomic.h>

#include "backend/cpu/route.h"
#include "base/checked.h"
#include "base/epoch.h"
#include "plan/spec.h"
#include "world/world.h"

/* The call a rank is in; two, by epoch parity, because a peer may be one call behind. */
typedef struct ewx_call_record {
    _Alignas(64) _Atomic uint32_t epoch;
    int64_t rows; /* m; written before epoch, as the next */
    int32_t form; /* plan_reports.h */
} ewx_call_record;

/* The first page of a segment. */
typedef struct ewx_segment_header {
    _Alignas(64) _Atomic uint32_t done; /* last call whose inputs this rank has all read */
    _Alignas(64) _Atomic uint32_t progress; /* moves with every block and every tile */
    _Atomic uint64_t waiting; /* 0, or ewx_waiting_for(): whom this rank waits for */
    ewx_call_record calls[2];
    _Alignas(64) _Atomic int32_t users; /* ranks as threads: unmapped by the last */
} ewx_segment_header;

/* Who is waited for, and in which call. */
static inline uint64_t ewx_waiting_for(int rank, uint32_t epoch)
{
    return (uint64_t)epoch << 32 | (uint32_t)(rank + 1);
}

typedef struct ewx_flag {
    _Alignas(EWX_FLAG_BYTES) _Atomic uint32_t epoch; /* last call whose tile is complete */
    _Atomic uint32_t
        result; /* last call whose sum lies in the tile's place (collect_stage.h) */
    int64_t visible_ns[2]; /* emulated link: when the tile arrives, by epoch parity */
    int64_t result_ns[2];  /* ... and the sum */
} ewx_flag;
_Static_assert(sizeof(ewx_flag) == EWX_FLAG_BYTES, "a flag is one cache line");

/* The store that hands a tile over and the load that takes it.  Release: the tile's bytes
 * and its arrival time come before the epoch.  Acquire: they are read after it. */
#if EW_MUTANT == 1 || EW_MUTANT == 9 /* planted bug: nothing orders the tile before */
#define EWX_FLAG_STORE_ORDER memory_order_relaxed
#else
#define EWX_FLAG_STORE_ORDER memory_order_release
#endif
#if EW_MUTANT == 8 || EW_MUTANT == 9 /* planted bug: nothing orders the tile after */
#define EWX_FLAG_LOAD_ORDER memory_order_relaxed
#else
#define EWX_FLAG_LOAD_ORDER memory_order_acquire
#endif

static inline void ewx_word_publish(_Atomic uint32_t *word, uint32_t epoch)
{
    atomic_store_explicit(word, epoch, EWX_FLAG_STORE_ORDER);
}

static inline bool ewx_word_reached(const _Atomic uint32_t *word, uint32_t epoch)
{
    return ewx_epoch_reached(atomic_load_explicit(word, EWX_FLAG_LOAD_ORDER), epoch);
}

static inline void ewx_flag_publish(ewx_flag *flag, uint32_t epoch)
{
    ewx_word_publish(&flag->epoch, epoch);
}

static inline bool ewx_flag_reached(const ewx_flag *flag, uint32_t epoch)
{
    return ewx_word_reached(&flag->epoch, epoch);
}

typedef struct ewx_heap {
    ew_world *world;
    size_t segment_bytes;
    size_t replica_bytes; /* of a segment, and of results that have come from its rank */
    size_t flags_offset;
    bool is_abandoned;
    unsigned char *segments[EWX_MAX_RANKS];
} ewx_heap;

/* Collective.  The memory has been claimed. */
ew_status ewx_heap_open(ewx_heap *heap, ew_world *world, const ewx_layout *layout);
void ewx_heap_close(ewx_heap *heap); /* half-open is fine */
/* Bytes of memory that a rank's heap takes, with the tables of its pages. */
ewx_size ewx_heap_bytes(const ew_world *world, const ewx_spec *spec);
/* Closing leaves the memory mapped: someone may still use it. */
void ewx_heap_abandon(ewx_heap *heap);

/* Whether src's flag for that slot has reached this call. */
bool ewx_heap_ready(const ewx_cpu_engine *engine, int src, int64_t slot);
/* Stores it. */
void ewx_heap_post(ewx_cpu_engine *engine, int part, ewx_tile tile);
/* Routes that need no help. */
void ewx_route_nothing(ewx_cpu_engine *engine);

static inline ewx_segment_header *ewx_heap_header(const ewx_heap *heap, int rank)
{
    return (ewx_segment_header *)(void *)heap->segments[rank];
}

/* Where a result of a rank on another host arrives: behind the replica of its segment. */
static inline unsigned char *ewx_heap_result(const ewx_heap *heap, const ewx_layout *layout,
                                             int rank, int64_t slot, int parity)
{
    return heap->segments[rank] + heap->segment_bytes +
           (layout->slice_offset[parity] - layout->slice_offset[0]) +
           (size_t)slot * layout->slot_bytes;
}

static inline ewx_flag *ewx_heap_flag(const ewx_heap *heap, int rank, int64_t slot)
{
    return (ewx_flag *)(void *)(heap->segments[rank] + heap->flags_offset) + slot;
}

#endif
