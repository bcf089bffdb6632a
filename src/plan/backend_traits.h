/* What sets the backends apart, as data.  Code above the backends asks for the difference
 * that matters and never for the name, so a new backend is a new row in backend_traits.c.
 */
#ifndef EWX_PLAN_BACKEND_TRAITS_H
#define EWX_PLAN_BACKEND_TRAITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "entwine/entwine.h"

/* The sizes from which the one formula in layout.c makes a heap. */
typedef struct ewx_heap_rules {
    size_t header_bytes;
    size_t flag_bytes;
    bool flags_at_owner; /* one per contribution to a tile, where they are awaited; else one
                            per slot, where they are made */
    size_t unit_bytes;   /* where slices start and end: a whole tile lets them lie back to
                            back */
    bool whole_tiles;    /* slots have room for one even where the matrix is smaller */
    bool gathers_all;    /* gathered rows lie with every rank that multiplies them, not with
                            the rank that has them */
} ewx_heap_rules;

typedef struct ewx_traits {
    ew_backend id;
    const char *name;
    bool is_gpu;       /* ranks are GPUs; for simulated ranks the profile decides */
    bool enqueues;     /* a call may end after it has returned, and a graph may replay it */
    bool simulated;    /* computes nothing and touches no matrix; the machine is a file */
    bool has_products; /* several weights share one gather, and activations are fused */
    bool has_own_clock; /* the plan's timing, and not the caller's clock, times a call */
    const uint32_t *kernels_id; /* a hash of what runs; NULL: nothing does */
    ewx_heap_rules heap;
} ewx_traits;

extern const ewx_traits ewx_traits_cpu, ewx_traits_cuda, ewx_traits_sim;

/* Those of the backend that a config with this field gets: 0, and names that the config's
 * check refuses, are the cpu. */
const ewx_traits *ewx_traits_of(ew_backend backend);

#endif
