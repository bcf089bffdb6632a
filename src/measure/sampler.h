/* The sampler holds the matrices of a problem, and runs, checks and times plans (or a
 * caller's own method) on them.  The benchmark and the tuner share it; nothing else in the
 * project holds a stopwatch.  Every call is collective. */
#ifndef EWX_SAMPLER_H
#define EWX_SAMPLER_H

#include <stdbool.h>

#include "backend/backend.h"
#include "entwine/measure.h"

typedef struct ewx_sampler {
    ew_world *world;
    const ew_problem *problem;
    const ewx_backend *backend;
    int64_t rows; /* m of the calls */
    uint32_t seed;
    size_t c_bytes;
    void *A, *B, *C; /* in the backend's memory */
    /* For layers; NULL unless one was asked for: */
    void *residual, *norm_weight, *normed;
    /* C and normed are those of the runner at work: */
    void *plain_C, *plain_normed;
    void *symmetric_C, *symmetric_normed;                       /* NULL unless asked for */
    void *host_sum, *host_residual, *host_weight, *host_normed; /* for their check */
} ewx_sampler;

/* What is run: a plan, or a custom method with its label. */
typedef struct ewx_runner {
    ew_plan *plan;
    const ew_bench_custom *custom;
    const char *label;
    ew_bench_layer layer;
    bool symmetric; /* its outputs lie in symmetric memory */
} ewx_runner;

typedef struct ewx_sample {
    int64_t start_ns, gemm_end_ns, end_ns;
    int64_t enqueue_ns; /* host time before the call could start; 0: none */
} ewx_sample;

/* Close either way. */
ew_status ewx_sampler_open(ewx_sampler *sampler, ew_world *world, const ew_problem *problem,
                           const ewx_backend *backend, int64_t rows, uint32_t seed);
void ewx_sampler_close(ewx_sampler *sampler);
/* Outputs in symmetric memory too, for runners that want them; behind layers. */
ew_status ewx_sampler_open_symmetric(ewx_sampler *sampler);
/* From now on C and normed are this runner's: before ewx_sampler_enqueue. */
void ewx_sampler_use(ewx_sampler *sampler, const ewx_runner *runner);

/* Exact inputs for a check, random ones for timing; plans then need ewx_sampler_bind. */
ew_status ewx_sampler_load(ewx_sampler *sampler, bool exact);
ew_status ewx_sampler_bind(ewx_sampler *sampler, const ewx_runner *runner);

/* Starts one call of a plan, with what follows it, on a stream of the caller's (NULL: the
 * plan's own). */
ew_status ewx_sampler_enqueue(const ewx_sampler *sampler, const ewx_runner *runner,
                              ew_stream stream);

/* Whether a plan could not be opened for a reason of its own, on all ranks alike: others
 * may still run. */
bool ewx_sampler_refuses(ew_status status);

/* A call on exact inputs into poisoned memory; adds what is wrong, over all ranks. */
ew_status ewx_sampler_check(ewx_sampler *sampler, const ewx_runner *runner,
                            ew_check *total);

/* How a sample is taken. */
typedef struct ewx_sampling {
    double gate_ms;   /* every rank spins that long before and after; 0: off */
    int64_t delay_ns; /* this rank starts so much later than the first may */
    int64_t hold_ns;  /* and all wait so long once the call is enqueued */
} ewx_sampling;

/* One call of all ranks, started together but for their delays.  *kept is false when some
 * rank lost its core at the gate. */
ew_status ewx_sampler_sample(ewx_sampler *sampler, const ewx_runner *runner,
                             ewx_sampling how, ewx_sample *sample_out, bool *kept);

/* ---- sampler_layer.c: residual and norm ---- */
ew_status ewx_sampler_open_layer(ewx_sampler *sampler);
void ewx_sampler_close_layer(ewx_sampler *sampler);
ew_status ewx_sampler_load_layer(ewx_sampler *sampler);
ew_status ewx_sampler_call_layer(const ewx_sampler *sampler, const ewx_runner *runner,
                                 ew_stream stream);
/* C holds the sum; the outputs are written and checked by these two, around a call. */
ew_status ewx_sampler_poison_layer(ewx_sampler *sampler);
ew_status ewx_sampler_verify_layer(ewx_sampler *sampler, const ewx_runner *runner,
                                   ew_check *check_out);

/* Lets the chip cool for `idle` times as long as the sample took. */
void ewx_sampler_rest(const ewx_sample *sample, double idle);

/* For a sample of number `which`.  While the host enqueues, the chip cools: a call of
 * hundreds of launches would start at a higher clock than one of two.  So all `count` are
 * held until the slowest to enqueue could have started. */
int64_t ewx_sampler_hold_ns(const int64_t *enqueue_ns, int count, int which);

#endif
