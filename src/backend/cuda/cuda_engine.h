/* The CUDA engine's state.  cuda_engine.c builds it, cuda.c answers the backend interface
 * with it, cuda_launch.c and ops/ enqueue a call, fault.c reports what went wrong.  Kernels
 * do the rest. */
#ifndef EWX_CUDA_ENGINE_H
#define EWX_CUDA_ENGINE_H

#include "backend/backend.h"
#include "backend/cuda/carrier.h"
#include "backend/cuda/cuda_blas.h"
#include "backend/cuda/cuda_heap.h"
#include "backend/cuda/cuda_occupancy.h"
#include "backend/cuda/nccl.h"

typedef struct ewx_cuda_op ewx_cuda_op; /* ops/cuda_op.h */

#define EWX_CUDA_DECODE_KERNELS 7 /* see decode.c */

/* A weight and its product, or what an activation gives, as they were last mapped. */
typedef struct ewx_mapped_product {
    const void *b, *c;
    int64_t n, m;
} ewx_mapped_product;

typedef struct ewx_cuda_engine {
    ew_world *world;
    const ewx_spec *spec;
    const ewx_cuda_op *op;
    uint32_t number;    /* of the plan, if it is created */
    int64_t timeout_ns; /* of the last call */
    bool counts;        /* its calls are among those that ranks compare the order of */
    bool is_apart;      /* among num_apart of the device */
    const ewx_device *device;
    ewx_cuda_heap heap;
    ewx_carrier carrier; /* between hosts */
    ewx_cuda_counters *counters;
    ewx_cuda_report *report; /* host memory, at the same address for kernels */
    void *passing_weight;    /* N x K, of a call with a B that is K x N */
    ewx_cuda_entry gemm, exchange, transpose;
    ewx_cuda_entry decode[EWX_CUDA_DECODE_KERNELS]; /* in the GEMM's place, see decode.c */
    /* Where the GEMM waits: with several weights, and with an activation behind them. */
    ewx_cuda_entry weights_gemm, activating_gemm;
    ewx_cuda_entry hold_call; /* in front of a call that is held */
    ewx_cuda_entry open_call, mark_gemm_end, close_call; /* around the vendor's kernels */
    ewx_cuda_entry await_readers, book_copy, publish_copied; /* transport=copy */
    ewx_cuda_entry hand_out, await_rows;                     /* where the GEMM waits */
    ewx_cuda_entry fused_exchange, epilogue_rest, epilogue_whole;
    ewx_cuda_entry rows_exchange; /* of an AllReduce's layer */
    int rows_ctas;                /* of it; 0: none would find room */
    bool fuses;                   /* x CTAs of fused_exchange leave the GEMM its room */
    bool fits_beside;             /* epilogue_rest, on an SM full of the GEMM's CTAs */
    bool exchange_fits_beside;    /* likewise, with an epilogue too */
    void *spare_sum; /* unless it fuses: the place of the sum in a call without C */
    float *squares;  /* of a call's epilogue, as the next */
    ewx_cuda_epilogue_counters *epilogue_counters;
    int gemm_ctas;      /* the most that a persistent GEMM has */
    ewx_cuda_blas blas; /* producer=blas, as the next */
    ewx_nccl nccl;
    int64_t blas_rows; /* m of the last call, which starts with one of 0 */
    cudaEvent_t forked, produced, reduced;
    cudaEvent_t started;          /* pool=static: all producing CTAs have */
    cudaEvent_t computed, copied; /* transport=copy, as the next */
    unsigned char *outbox;        /* all contributions, by destination */
    /* The maps of the last call, and what they were made for. */
    ewx_cuda_maps maps;
    CUtensorMap *out_maps; /* in the GPU's memory */
    const void *mapped_a, *mapped_b, *mapped_c;
    int64_t mapped_rows, mapped_m;
    int32_t mapped_box_a, mapped_box_b;
    ewx_cuda_product_maps products; /* likewise, of calls with several weights */
    ewx_mapped_product mapped_products[EWX_CUDA_RESULTS];
    ewx_start start;
    uint32_t num_held;       /* calls so far that started together */
    ewx_cuda_trace trace;    /* NULLs: off */
    int64_t last_rows;       /* m of the last call, if it was traced */
    int64_t clock_offset_ns; /* CLOCK_MONOTONIC - the GPU's timer */
} ewx_cuda_engine;

/* ---- cuda_engine.c ---- */

ewx_footprint ewx_cuda_footprint(const ewx_spec *spec);
/* Collective, as plans are. */
ew_status ewx_cuda_create(ew_world *world, const ewx_spec *spec, void **state_out);
void ewx_cuda_destroy(void *state);
/* The GEMM, and this kernel of the other stage beside it. */
ewx_kernel_pair ewx_cuda_pair(ewx_cuda_engine *engine, ewx_cuda_entry *exchange);

/* ---- cuda_launch.c ---- */

/* A call on a stream of the caller's begins with fork and ends with join, both in the
 * caller's context: handles such as cudaStreamLegacy mean another stream in another one.
 * Without, calls follow each other on the rank's two streams by themselves, and the end of
 * one overlaps the beginning of the next: the protocol guards what must not be overwritten
 * yet. */
ew_status ewx_cuda_fork(const ewx_cuda_engine *engine, cudaStream_t caller);
ew_status ewx_cuda_join(const ewx_cuda_engine *engine, cudaStream_t caller);

/* Enqueues one call, with the weight in `packed`.  The device is entered. */
ew_status ewx_cuda_enqueue(ewx_cuda_engine *engine, const ewx_call *request);

typedef struct ewx_launch_how {
    int cluster;
    cudaEvent_t started; /* recorded when the last CTA has started */
    bool early; /* when the kernel before allows it; the new one waits for its end itself */
} ewx_launch_how;

/* ---- describe_call.c ---- */

ewx_cuda_call ewx_cuda_describe_call(const ewx_cuda_engine *engine, int64_t m);
/* Of a call with several weights: the grid of all their columns, and what the GEMM is told
 * of them. */
ewx_grid ewx_cuda_products_grid(const ewx_spec *spec, const ewx_call *request);
ewx_cuda_products ewx_cuda_describe_products(const ewx_call *request);

/* ---- tensor_maps.c ---- */

/* Those of a plan. */
ew_status ewx_cuda_create_out_maps(ewx_cuda_engine *engine);
/* Those of a call, for this GEMM. */
ew_status ewx_cuda_update_maps(ewx_cuda_engine *engine, const ewx_cuda_entry *gemm,
                               const ewx_grid *grid, const ewx_call *request);

/* ---- start_together.c ---- */

/* In front of the call's kernels: what holds them until all ranks may start. */
ew_status ewx_cuda_hold_start(ewx_cuda_engine *engine, ewx_cuda_call *call);
/* All of the call is enqueued. */
void ewx_cuda_release_start(const ewx_cuda_engine *engine);
/* Launches once what holds a call. */
ew_status ewx_cuda_warm_hold(ewx_cuda_engine *engine);

/* ---- gemm_launch.c ---- */

/* Our GEMM, over the positions and for the part of the call that `part` says; the rest of
 * it is filled in. */
ew_status ewx_cuda_launch_gemm(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               ewx_cuda_operands part, const ewx_call *request);
/* cuBLAS's, into `out`. */
ew_status ewx_cuda_launch_blas(ewx_cuda_engine *engine, ewx_cuda_call *call,
                               const ewx_call *request, void *out);
/* The same in steps: what opens the call, and then one product or several, on all of which
 * cuBLAS may have to load a kernel. */
ew_status ewx_cuda_open_blas(ewx_cuda_engine *engine, ewx_cuda_call *call);
ew_status ewx_cuda_multiply(ewx_cuda_engine *engine, int64_t rows, const void *A,
                            const void *packed, void *out);
/* How many rows cuBLAS multiplies at a time, at most. */
int64_t ewx_cuda_blas_rows(const ewx_spec *spec);
/* Whether cuBLAS may load a kernel for this call. */
bool ewx_cuda_has_new_rows(const ewx_cuda_engine *engine, const ewx_cuda_call *call);

/* ---- decode.c ---- */

/* The kernels, where the plan has them. */
ew_status ewx_cuda_decode_open(ewx_cuda_engine *engine);
/* Launches each once, over nothing. */
ew_status ewx_cuda_decode_warm(ewx_cuda_engine *engine);
/* The one for this call, or NULL: the GEMM of all other calls. */
const ewx_cuda_entry *ewx_cuda_decode_kernel(const ewx_cuda_engine *engine,
                                             const ewx_cuda_call *call);

/* ---- epilogue_launch.c ---- */

/* What epilogues need of the GPU's memory. */
size_t ewx_cuda_epilogue_bytes(const ewx_spec *spec);
/* Their kernels and memory, after the plan's other kernels are known. */
ew_status ewx_cuda_epilogue_open(ewx_cuda_engine *engine);
void ewx_cuda_epilogue_close(ewx_cuda_engine *engine);
/* Launches every kernel of it once, over no rows. */
ew_status ewx_cuda_epilogue_warm(ewx_cuda_engine *engine);
/* The sum lies in `sum`, or, when that is NULL, is about to be made by the fused exchange.
 */
ewx_cuda_epilogue ewx_cuda_epilogue_describe(const ewx_cuda_engine *engine, void *sum,
                                             void *C, const ew_epilogue *epilogue);
/* What is left after the fused exchange, or all of it after another sum. */
ew_status ewx_cuda_epilogue_launch(const ewx_cuda_engine *engine, ewx_cuda_call *call,
                                   ewx_cuda_epilogue *parameters, ewx_launch_how how,
                                   cudaStream_t stream);
/* All of it, in one step or in several, after a sum that the kernel before leaves in `sum`.
 */
ew_status ewx_cuda_epilogue_follow(const ewx_cuda_engine *engine, ewx_cuda_call *call,
                                   void *sum, void *C, const ew_epilogue *epilogue);

/* ---- cuda_launch.c, for what launches kernels ---- */

/* The stream of the plan's exchange kernels: beside the GEMM, or the GEMM's own. */
cudaStream_t ewx_cuda_exchange_stream(const ewx_cuda_engine *engine);

ew_status ewx_cuda_launch(const ewx_device *device, const ewx_cuda_entry *entry, dim3 grid,
                          dim3 block, ewx_launch_how how, cudaStream_t stream,
                          void **arguments);

/* A grid of that many CTAs, in one dimension. */
ew_status ewx_cuda_launch_line(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                               int64_t ctas, ewx_launch_how how, cudaStream_t stream,
                               void **arguments);
ew_status ewx_cuda_launch_ctas(const ewx_cuda_engine *engine, const ewx_cuda_entry *entry,
                               int64_t ctas, cudaStream_t stream, void **arguments);
ew_status ewx_cuda_follow(cudaStream_t stream, cudaEvent_t event);
ew_status ewx_cuda_record(cudaEvent_t event, cudaStream_t stream);
/* The GEMMs of later calls begin behind what the exchange stream has by now. */
ew_status ewx_cuda_hold_producers(const ewx_cuda_engine *engine);
/* Ranks that are threads and share a GPU go on when all of them have come this far. */
ew_status ewx_cuda_meet_threads(const ewx_cuda_engine *engine);

/* ---- copy_transport.c ---- */

/* transport=copy: one GEMM per destination, each followed by a copy to it beside the next.
 */
ew_status ewx_cuda_launch_copied(ewx_cuda_engine *engine, ewx_cuda_call *call,
                                 const ewx_call *request);
/* See warm_copies of ewx_cuda_op. */
ew_status ewx_cuda_warm_copies(const ewx_cuda_engine *engine);

/* ---- graph.c ---- */

ew_status ewx_cuda_graph_open(void *state, ewx_enqueuer *enqueue, void *context,
                              void **graph_out);
ew_status ewx_cuda_graph_replay(void *graph, int times, double *us_out);
void ewx_cuda_graph_close(void *graph);

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
