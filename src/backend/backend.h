/* What a backend is: functions over a spec that has been decided above, none of them NULL
 * unless it says so.
 * Backends choose nothing; they run what the spec says or refuse it. */
#ifndef EWX_BACKEND_BACKEND_H
#define EWX_BACKEND_BACKEND_H

#include "entwine/entwine.h"
#include "entwine/measure.h"
#include "exchange/plan_reports.h"
#include "plan/backend_traits.h"
#include "plan/exact.h"
#include "plan/spec.h"
#include "world/world.h"

/* One of several weights of a call, and where its product goes. */
typedef struct ewx_product {
    int64_t n;
    const void *B;      /* of this call alone; NULL: `packed` is it */
    const void *packed; /* for this n */
    void *C;            /* NULL: not wanted, where an activation follows */
} ewx_product;

/* One call, made and checked once in api/calls.c.  m is within the spec and pointers are
 * not NULL where they matter. */
typedef struct ewx_call {
    int64_t m;
    const void *A;
    const void *B;               /* the weight of this call alone; NULL: `packed` is it */
    const void *packed;          /* the bound weight; the simulator has none */
    void *C;                     /* may be NULL with an epilogue */
    const ewx_product *products; /* in place of B, packed and C, if there are any */
    int num_products;
    bool activates; /* the products end in C, behind an activation */
    ew_activation activation;
    void *gathered;              /* NULL, or where EW_OP_AG_GEMM puts all rows of A */
    const ew_epilogue *epilogue; /* or NULL */
    ew_stream stream;
    int64_t timeout_ns; /* how long it waits for a rank that makes no progress */
    uint32_t plan;      /* its number */
} ewx_call;

typedef struct ewx_footprint {
    size_t weight_bytes;
    size_t workspace_bytes;
} ewx_footprint;

/* Memory in which a backend's matrices lie.  The first call of a world may be collective;
 * copies take host memory on either side. */
typedef struct ewx_memory {
    ew_status (*allocate)(ew_world *world, size_t bytes, void **memory_out);
    void (*release)(ew_world *world, void *memory);
    ew_status (*copy)(ew_world *world, void *to, const void *from, size_t bytes);
    ew_status (*fill)(ew_world *world, void *to, int byte, size_t bytes);
    /* Inputs and the check of an output, where the matrix lies. */
    ew_status (*generate)(ew_world *world, const ewx_input *input, void *matrix);
    ew_status (*verify)(ew_world *world, const ew_problem *problem, uint32_t seed,
                        int64_t m, const void *C, ew_check *check_out);
} ewx_memory;

/* Memory that every rank has a part of, at an address that all know.  Collective; the world
 * is entered, and the ranks agree on the size. */
typedef struct ewx_symmetric_memory {
    ew_status (*allocate)(ew_world *world, size_t bytes, void **memory_out);
    ew_status (*import)(ew_world *world, void *const *pointers, size_t bytes);
    ew_status (*release)(ew_world *world, void *memory);
} ewx_symmetric_memory;

/* Weights as calls read them.  Of the spec only N, K, the element type, the layout and the
 * producer matter, so plans that have them in common can share one. */
typedef struct ewx_weights {
    ew_status (*open)(ew_world *world, const ewx_spec *spec, void **packed_out);
    /* Behind the calls that were enqueued before; returns when B has been read. */
    ew_status (*pack)(ew_world *world, const ewx_spec *spec, void *packed, const void *B);
    /* When the calls that were enqueued have ended.  NULL is fine. */
    void (*close)(ew_world *world, void *packed);
} ewx_weights;

/* Calls that are captured once and replayed, for benchmarks.  A backend whose open refuses
 * has neither of the others. */
typedef ew_status ewx_enqueuer(void *context, ew_stream stream);
typedef struct ewx_graphs {
    /* Of what `enqueue` enqueues, with a plan's state.  EW_ERR_UNSUPPORTED: there are none
     * here. */
    ew_status (*open)(void *state, ewx_enqueuer *enqueue, void *context, void **graph_out);
    /* So many times in a row, and how long that took by the GPU's own events. */
    ew_status (*replay)(void *graph, int times, double *us_out);
    void (*close)(void *graph); /* NULL is fine */
} ewx_graphs;

/* The open of backends without. */
ew_status ewx_graphs_refuse(void *state, ewx_enqueuer *enqueue, void *context,
                            void **graph_out);

/* How ranks start a call: for benchmarks.  Where the backend has a clock of its own, all of
 * the call is enqueued before. */
typedef struct ewx_start {
    bool together;    /* at one time ... */
    int64_t delay_ns; /* ... but this rank so much later ... */
    int64_t hold_ns;  /* ... and none sooner than so long after it was enqueued */
} ewx_start;

typedef struct ewx_backend {
    const ewx_traits *traits;
    /* What this rank may use.  Collective; without a world, what a rank would get if
     * num_ranks of them were started here. */
    ew_status (*survey)(ew_world *world, int num_ranks, ewx_machine *machine_out);
    /* EW_ERR_UNSUPPORTED when this machine or this backend cannot run the spec. */
    ew_status (*check)(const ewx_spec *spec);
    ewx_footprint (*footprint)(const ewx_spec *spec);
    /* Collective.  The spec outlives the state. */
    ew_status (*create)(ew_world *world, const ewx_spec *spec, void **state_out);
    /* Refuses a call before any rank can see that it was made. */
    ew_status (*admit)(const void *state, const ewx_call *call);
    ew_status (*run)(void *state, const ewx_call *call);
    ew_status (*wait)(void *state);
    /* The timing of the last call. */
    ew_status (*timing)(const void *state, ew_timing *timing_out);
    /* What a document should say of the plan beside its config; empty: nothing. */
    void (*describe)(const void *state, char *text, size_t bytes);
    /* From now on calls are traced; then the last call's events, as many as `capacity`. */
    ew_status (*trace_enable)(void *state);
    ew_status (*trace_read)(void *state, ew_trace_event *events, size_t capacity,
                            size_t *count_out);
    void (*set_start)(void *state, ewx_start start); /* from the next call on */
    /* The GPU on which the world's plans run; -1: none is chosen yet.  Local; the world is
     * entered.  NULL: they run on none. */
    int (*gpu_of)(const ew_world *world);
    void (*destroy)(void *state); /* NULL and half-built are fine */
    ewx_memory memory;
    const ewx_symmetric_memory *symmetric; /* NULL: any memory does as well */
    ewx_weights weights;
    ewx_graphs graphs;
} ewx_backend;

extern const ewx_backend ewx_backend_cpu;
extern const ewx_backend ewx_backend_sim;
#ifdef EW_HAVE_CUDA
extern const ewx_backend ewx_backend_cuda;
#endif

/* The backend of that name; open is the cpu.  EW_ERR_UNSUPPORTED: not in this build. */
ew_status ewx_backend_find(ew_backend name, const ewx_backend **backend_out);

#endif
