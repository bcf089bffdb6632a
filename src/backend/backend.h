/* What a backend is: eight functions over a spec that has been decided above.  Backends
 * choose nothing; they run what the spec says or refuse it. */
#ifndef EWX_BACKEND_BACKEND_H
#define EWX_BACKEND_BACKEND_H

#include "entwine/entwine.h"
#include "entwine/measure.h"
#include "plan/spec.h"
#include "world/world.h"

typedef struct ewx_footprint {
    size_t weight_bytes;
    size_t workspace_bytes;
} ewx_footprint;

typedef struct ewx_backend {
    const char *name;
    /* EW_ERR_UNSUPPORTED when this machine or this backend cannot run the spec. */
    ew_status (*check)(const ewx_spec *spec);
    ewx_footprint (*footprint)(const ewx_spec *spec);
    /* Collective.  The spec outlives the state. */
    ew_status (*create)(ew_world *world, const ewx_spec *spec, void **state_out);
    ew_status (*set_weight)(void *state, const void *B);
    /* m is within the spec and pointers are not NULL where they matter. */
    ew_status (*run)(void *state, int64_t m, const void *A, const void *B, void *C,
                     ew_stream stream);
    ew_status (*wait)(void *state);
    /* The last call's timing; its trace when events is not NULL (enable: start tracing). */
    ew_status (*observe)(void *state, bool enable_trace, ew_timing *timing_out,
                         ew_trace_event *events, size_t capacity, size_t *count_out);
    void (*destroy)(void *state); /* NULL and half-built are fine */
} ewx_backend;

extern const ewx_backend ewx_backend_cpu;

#endif
