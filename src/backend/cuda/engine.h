/* The CUDA engine's state.  engine.c builds it, cuda.c answers the backend interface with
 * it, launch.c enqueues a call, fault.c tells what went wrong.  Kernels do the rest. */
#ifndef EWX_CUDA_ENGINE_H
#define EWX_CUDA_ENGINE_H

#include "backend/backend.h"
#include "backend/cuda/blas.h"
#include "backend/cuda/budget.h"
#include "backend/cuda/carrier.h"
#include "backend/cuda/heap.h"
#include "backend/cuda/nccl.h"

typedef struct ewx_cuda_engine {
    ew_world *world;
    const ewx_spec *spec;
    uint32_t number; /* of the plan, if it is created */
    bool counts;     /* its calls are among those that ranks compare the order of */
    const ewx_device *device;
    ewx_cuda_heap heap;
    ewx_carrier carrier; /* between hosts */
    ewx_cuda_counters *counters;
    ewx_cuda_report *report; /* host memory, at the same address for kernels */
    void *passing_weight;    /* N x K, of a call with a B that is K x N */
    ewx_cuda_entry producer, reducer, starter, marker, finisher, transpose;
    ewx_cuda_entry courier, deliverer;
    ewx_cuda_entry layer_reducer, layer_rest, layer_whole;
    bool fuses;       /* the layer_reducer keeps to the budget */
    bool fits_beside; /* the kernel that follows, beside a producer */
    void *spare_sum;  /* where it does not: a sum's place in a call without C */
    float *squares;   /* of a call's epilogue, as the next */
    ewx_cuda_layer_counters *layer_counters;
    ewx_budget budget;
    ewx_cuda_blas blas; /* producer=blas, as the next */
    ewx_nccl nccl;
    int64_t blas_rows; /* m of the last call, which starts with one of 0 */
    cudaEvent_t forked, produced, reduced;
    cudaEvent_t started;         /* pool=static: all producing CTAs have */
    cudaEvent_t chunked, copied; /* transport=copy, as the next */
    unsigned char *outbox;       /* all contributions, by destination */
    /* The maps of the last call, and what they were made for. */
    ewx_cuda_maps maps;
    CUtensorMap *out_maps; /* in the GPU's memory */
    const void *mapped_a, *mapped_b;
    int64_t mapped_rows;
    bool gate;
    ewx_cuda_trace trace;    /* NULLs: off */
    int64_t last_rows;       /* m of the last call */
    int64_t clock_offset_ns; /* CLOCK_MONOTONIC - the GPU's timer */
} ewx_cuda_engine;

/* ---- engine.c ---- */

ewx_footprint ewx_cuda_footprint(const ewx_spec *spec);
/* Collective, as plans are. */
ew_status ewx_cuda_create(ew_world *world, const ewx_spec *spec, void **state_out);
void ewx_cuda_destroy(void *state);

/* ---- launch.c ---- */

/* A call on a stream of the caller's begins with fork and ends with join, both in the
 * caller's context: handles such as cudaStreamLegacy mean another stream in another one.
 * Without, calls follow each other on the rank's two streams by themselves, and the end of
 * one overlaps the beginning of the next: the protocol guards what must not be overwritten
 * yet. */
ew_status ewx_cuda_fork(const ewx_cuda_engine *engine, cudaStream_t caller);
ew_status ewx_cuda_join(const ewx_cuda_engine *engine, cudaStream_t caller);

/* Enqueues one call; arguments have been checked.  The device is entered. */
ew_status ewx_cuda_enqueue(ewx_cuda_engine *engine, int64_t m, const void *A, const void *B,
                           void *C, const ew_epilogue *epilogue, bool forked);
ew_status ewx_cuda_create_out_maps(ewx_cuda_engine *engine);

typedef struct ewx_launch_how {
    int cluster;
    cudaEvent_t started; /* recorded when the last CTA has started */
    bool early; /* when the kernel before allows it; the new one waits for its end itself */
} ewx_launch_how;

/* ---- layer.c ---- */

/* What epilogues need of the GPU's memory. */
size_t ewx_cuda_layer_bytes(const ewx_spec *spec);
/* Their kernels and memory, after the budget is known. */
ew_status ewx_cuda_layer_open(ewx_cuda_engine *engine);
void ewx_cuda_layer_close(ewx_cuda_engine *engine);
/* Launches every kernel of it once, over no rows. */
ew_status ewx_cuda_layer_warm(ewx_cuda_engine *engine);
/* The sum lies in `sum`, or, when that is NULL, is about to be made by the fused reducer.
 */
ewx_cuda_layer ewx_cuda_layer_describe(const ewx_cuda_engine *engine, void *sum, void *C,
                                       const ew_epilogue *epilogue);
/* What is left after the fused reducer, or all of it after another sum. */
ew_status ewx_cuda_layer_launch(const ewx_cuda_engine *engine, ewx_cuda_call *call,
                                ewx_cuda_layer *layer, ewx_launch_how how,
                                cudaStream_t stream);

/* ---- For launch.c, layer.c and chunks.c ---- */

ewx_cuda_call ewx_cuda_describe_call(const ewx_cuda_engine *engine, int64_t m);
/* The stream of the plan's reducers. */
cudaStream_t ewx_cuda_reducing(const ewx_cuda_engine *engine);

ew_status ewx_cuda_launch(const ewx_device *device, const ewx_cuda_entry *entry, dim3 grid,
                          dim3 block, ewx_launch_how how, cudaStream_t stream,
                          void **arguments);

/* As many CTAs in a line. */
ew_status ewx_cuda_launch_line(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                               int64_t ctas, ewx_launch_how how, cudaStream_t stream,
                               void **arguments);
ew_status ewx_cuda_launch_ctas(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                               int64_t ctas, cudaStream_t stream, void **arguments);
/* The positions, and the part of the call, that `part` says; the rest of it is filled in.
 */
ew_status ewx_cuda_launch_producer(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                   ewx_cuda_operands part, const void *A, const void *B);
ew_status ewx_cuda_follow(cudaStream_t stream, cudaEvent_t event);
ew_status ewx_cuda_record(cudaEvent_t event, cudaStream_t stream);

/* transport=copy: one GEMM per destination, each followed by a copy to it beside the next.
 */
ew_status ewx_cuda_launch_chunks(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const void *A, const void *B);
/* Every copy once: the driver prepares for the first of a kind, and may wait for the whole
 * GPU meanwhile. */
ew_status ewx_cuda_warm_chunks(const ewx_cuda_engine *engine);

/* ---- Trace ---- */

ew_status ewx_cuda_trace_enable(ewx_cuda_engine *engine);
/* The events of the last call, at most `capacity`, in the order in which they ended. */
ew_status ewx_cuda_trace_read(const ewx_cuda_engine *engine, ew_trace_event *events,
                              size_t capacity, size_t *count_out);

#ifdef EW_TESTING
/* The tests' way to reach the wrap of the epoch; all ranks, before the first call. */
ew_status ewx_cuda_engine_set_epoch(ewx_cuda_engine *engine, uint32_t epoch);
#endif

/* What the kernels of finished calls reported, as the world's fault. */
ew_status ewx_cuda_collect_fault(const ewx_cuda_engine *engine);

#endif
