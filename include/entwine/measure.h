/* Opt-in header: what a plan will cost before it runs, what a call did and when, inputs
 * whose results are known exactly, and the benchmark loop that the command-line tool uses.
 * Nothing here is needed to compute. */
#ifndef ENTWINE_MEASURE_H
#define ENTWINE_MEASURE_H

#include <stdbool.h>

#include "entwine/entwine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Forecast ----------------------------------------------------------------------- */

/* The paper's bandwidth analysis, for one rank.  Element sizes in bytes, rates in flop/s
 * and byte/s, times in seconds. */
EW_API double ew_remote_bytes(int64_t m, int64_t n, int num_ranks,
                              size_t elem_bytes);                             /* Eq. 2 */
EW_API double ew_gemm_seconds(int64_t m, int64_t n, int64_t k, double flops); /* Eq. 3 */
EW_API double ew_required_bandwidth(int64_t k, int num_ranks, size_t elem_bytes,
                                    double flops); /* Eq. 4 */
/* Eq. 2 for the problem's own operation in a call of m rows: those above are for
 * EW_OP_GEMM_RS, EW_OP_GEMM_AR in two shots moves twice as much, and EW_OP_AG_GEMM moves
 * rows of K instead of N elements.  What a config adds, one shot or `invariant`, is in
 * ew_forecast. */
EW_API double ew_problem_remote_bytes(const ew_problem *problem, int64_t m, int num_ranks);

typedef struct ew_forecast {
    ew_config config;        /* every field chosen */
    int64_t num_blocks;      /* P: producer blocks of one rank */
    int64_t num_tiles;       /* tiles of the whole output */
    int64_t max_owned_tiles; /* Q of the rank that sums most */
    size_t heap_bytes;       /* contributions (two slices) and flags, shared with peers */
    size_t weight_bytes;     /* a packed weight: the plan's own (ew_plan_set_weight), that
                                of calls with a B, or one that it shares with others */
    size_t workspace_bytes;  /* packed activations, scratch, staging */
    size_t total_bytes;      /* one rank's plan with a weight, all of the above */
    double flops;            /* of one rank's GEMM */
    double remote_bytes;     /* Eq. 2: what one rank reads from its peers */
    int32_t uses_nccl; /* producer=blas on a GPU per rank: NCCL reduces when W divides m */
    char profile[64];  /* of the simulator: the one that the tuning of the config used, or
                          that the config is for; empty: none */
} ew_forecast;

/* The dry run behind ew_plan_create: same checks, same choices, no world, no memory.
 * `num_ranks` ranks are taken to share this host. */
EW_API ew_status ew_forecast_build(const ew_problem *problem, int num_ranks,
                                   const ew_config *config, ew_forecast *forecast_out);

/* Why the config is what it is; EW_EXPLAIN_BYTES is always enough. */
EW_API ew_status ew_forecast_explain(const ew_problem *problem, int num_ranks,
                                     const ew_config *config, char *text, size_t bytes);

/* ---- Timing and trace of the last call --------------------------------------------- */

/* CLOCK_MONOTONIC nanoseconds, comparable between the ranks of a host.  gemm_end is
 * when this rank's last block was done; the tail is end - gemm_end.  With EW_OP_AG_GEMM,
 * where communication comes first, gemm_end is as if the first block had begun at once, so
 * gemm_end - start is still the GEMM, and the tail is what came before it. */
typedef struct ew_timing {
    int64_t start_ns;
    int64_t gemm_end_ns;
    int64_t end_ns;
} ew_timing;
EW_API ew_status ew_plan_timing(const ew_plan *plan, ew_timing *timing_out);

/* From now on the calls of all ranks start at one time: what a benchmark wants.  On a GPU a
 * gate opens when every rank has enqueued all of its call, and the time counts from there.
 * On all ranks or on none. */
EW_API ew_status ew_plan_start_together(ew_plan *plan);

typedef enum ew_trace_kind {
    EW_TRACE_BLOCK = 1,  /* a producer block was computed; position is p */
    EW_TRACE_REDUCE = 2, /* an owned tile was reduced; position is the task number */
    EW_TRACE_COLLECT = 3 /* EW_OP_GEMM_AR: a result of rank dst was copied; position counts
                            those of dst */
} ew_trace_kind;

typedef struct ew_trace_event {
    ew_trace_kind kind;
    int32_t worker;   /* one at a time per worker; on a GPU a row to draw it in */
    int32_t dst;      /* the rank that owns the tile; of blocks of EW_OP_GEMM_AR 0, of those
                         of EW_OP_AG_GEMM the rank whose rows they are; where tiles span
                         owners 0 of all blocks */
    int32_t row, col; /* of the block's first tile, or of the tile, inside dst's part; of
                         EW_OP_GEMM_AR, and where tiles span owners, inside the output */
    int64_t position;
    int64_t begin_ns, end_ns;
    int64_t published_ns; /* a block's last tile became visible to its owner; else 0 */
} ew_trace_event;

/* With few rows on GPUs tiles span owners: one may hold rows of several ranks, and in
 * EW_OP_GEMM_RS each of them reduces its own, in an event of its own.
 *
 * Tracing is off until asked for.  ew_plan_trace copies the last call's events, at most
 * `capacity`, in the order in which they ended, and says how many there are.  On a GPU a
 * call with several weights leaves none. */
EW_API ew_status ew_plan_trace_enable(ew_plan *plan);
EW_API ew_status ew_plan_trace(const ew_plan *plan, ew_trace_event *events, size_t capacity,
                               size_t *count_out);

/* ---- Flight recorder ----------------------------------------------------------------- */

/* Every world keeps its ranks' last 1024 operations (plans and calls: sequence, shape,
 * config, state, times, progress) in memory that outlives a rank.  When a world stops with
 * a fault, the first rank that notices it writes them as JSON into the folder that
 * ENTWINE_DUMP_DIR names, if it is set.  docs/CLI.md describes the file. */

/* Writes the recording of all ranks to `path`, replacing the file whole and making folders
 * that are missing; a pipe or a device is refused.  Safe beside calls in other threads; not
 * in a signal handler. */
EW_API ew_status ew_world_dump(const ew_world *world, const char *path);

/* Calls `read` once for every world of this user's processes on this host, with its
 * recording; the text is gone when `read` returns.  The ranks notice nothing. */
typedef void (*ew_recording_reader)(void *context, const char *json, size_t bytes);
EW_API ew_status ew_jobs_read(ew_recording_reader read, void *context);

/* ---- Memory of a backend ------------------------------------------------------------ */

/* Matrices for plans of a backend: host memory for the cpu, memory of the rank's GPU for
 * cuda.  For the simulator, which computes nothing, it is an address to pass on; a program
 * that reads or writes there ends with a segmentation fault, and a copy changes nothing.
 * Programs with memory of their own need none of this.  Copies take host memory on either
 * side and return when they are done.  The first call of a world is collective.  While the
 * rank's calls are captured (ew_stream), ew_memory_free frees nothing. */
EW_API ew_status ew_memory_alloc(ew_world *world, ew_backend backend, size_t bytes,
                                 void **memory_out);
EW_API void ew_memory_free(ew_world *world, ew_backend backend, void *memory);
EW_API ew_status ew_memory_copy(ew_world *world, ew_backend backend, void *to,
                                const void *from, size_t bytes);
EW_API ew_status ew_memory_fill(ew_world *world, ew_backend backend, void *to, int byte,
                                size_t bytes);

/* ---- Exact inputs ------------------------------------------------------------------- */

/* Small integers, reproducible from (seed, rank), chosen so that every partial result
 * and every sum is exact in all element types: a right result has the right bits. */
EW_API ew_status ew_exact_fill_a(ew_dtype dtype, uint32_t seed, int rank, int num_ranks,
                                 int64_t m, int64_t k, void *A);
EW_API ew_status ew_exact_fill_b(ew_dtype dtype, uint32_t seed, int rank,
                                 ew_weight_layout layout, int64_t n, int64_t k, void *B);

/* Uniform in (-0.25, 0.25), reproducible from the seed: what timed calls run on, since a
 * GPU's clock depends on the data. */
EW_API ew_status ew_random_fill(ew_dtype dtype, uint32_t seed, int64_t count, void *values);

typedef struct ew_check {
    int64_t wrong; /* elements whose bits differ from the exact result */
    double max_abs_err;
} ew_check;

/* Compares C, the rows that `rank` owns of an m-row call, with the exact result. */
EW_API ew_status ew_exact_verify(const ew_problem *problem, uint32_t seed, int rank,
                                 int num_ranks, int64_t m, const void *C,
                                 ew_check *check_out);

/* ---- Methods and the benchmark loop ------------------------------------------------ */

/* The methods that are configs of the engine, ending with NULL:
 *   "entwine"     the config given, interleaved one-tile release unless it says otherwise
 *   "sequential"  the same kernels, GEMM, then wait for all ranks, then reduce
 *   "blas"        one BLAS call (cblas_sgemm, or cuBLAS on a GPU) into the heap, then wait
 *                 for all ranks, then reduce
 * and the ideas of others on the same kernels:
 *   "static"      reducers have workers, or SMs, of their own until the call ends
 *   "wavegroup"   tiles are released in groups of whole waves, on a GPU each group reduced
 *                 by a launch of its own; the first and the last may have other sizes
 *                 (FlashOverlap)
 *   "chunked"     one destination's part after the other, each moved whole, on a GPU
 *                 by copy engines, and summed at the end (PyTorch's Async-TP)
 *   "blas-chunked"  AllGather-GEMM: one rank's rows after the other, each moved whole by
 *                 copy engines and multiplied by cuBLAS (Async-TP); refused elsewhere
 *   "chunk-signals"  AllGather-GEMM: the same in smaller chunks, each with a signal of its
 *                 own that the blocks of one GEMM wait for (FLUX); refused elsewhere
 *   "fused-push"  the epilogue writes tiles into the owner's memory, and the owner sums
 *                 when all are there (FLUX); refused on the cpu, whose ranks share memory
 *   "fused-add"   the epilogue adds tiles to sums in the owner's memory, by atomic
 *                 additions (FLUX's fused reduction); refused as fused-push
 *   "fused-tma-add"  the same by TMA (ParallelKittens); Hopper alone
 * The last two are not deterministic: contributions are added in any order, with a rounding
 * after each.  On a GPU the reduction of sequential, blas, chunked and fused-push has the
 * rank's SMs to itself.
 */
EW_API const char *const *ew_method_list(void);

/* The config that `method` stands for, with the open fields taken from `base` (or
 * NULL). */
EW_API ew_status ew_method_config(const char *method, const ew_config *base,
                                  ew_config *config_out);

/* A method that is not a config of the engine: the caller computes.  run() returns 0 on
 * success and writes when its GEMM ended (ew_now_ns).  Any other code aborts the world. */
typedef struct ew_bench_custom {
    void *context;
    int (*run)(void *context, int64_t m, const void *A, const void *B, void *C,
               int64_t *gemm_end_ns_out);
} ew_bench_custom;

/* What is timed: the bare call, or ew_gemm_rs_layer or ew_gemm_ar_layer with a residual and
 * an RMSNorm, with the config's epilogue as said here.  An AllReduce that fuses has the
 * rank's own rows of the residual, in the other forms all of them. */
typedef enum ew_bench_layer {
    EW_BENCH_BARE = 0,
    EW_BENCH_FUSED = 1,     /* EW_EPILOGUE_FUSED; on a GPU as the config has it */
    EW_BENCH_FOLLOWING = 2, /* EW_EPILOGUE_AFTER */
    EW_BENCH_SEPARATE = 3   /* EW_EPILOGUE_SEPARATE */
} ew_bench_layer;

typedef struct ew_bench_entry {
    const char *label;
    ew_config config;              /* used when custom is NULL */
    const ew_bench_custom *custom; /* or NULL; always bare */
    ew_bench_layer layer;
} ew_bench_entry;

#define EW_BENCH_MAX_SAMPLES 1024
#define EW_BENCH_MAX_RANKS 256

/* What an entry's result leaves out.  Samples are in the order of samples_us. */
typedef struct ew_bench_detail {
    double calls_us[EW_BENCH_MAX_SAMPLES]; /* each call's time: that of its slowest rank */
    double ranks_us[EW_BENCH_MAX_RANKS];   /* each rank's median */
    int32_t turns[EW_BENCH_MAX_SAMPLES];   /* the entry's place in its round, from 0 */
    /* With graph_calls: a call's part of each row of replays, of the slowest rank. */
    int32_t num_graphs; /* 0: it cannot be captured */
    double graph_us;    /* median */
    double graphs_us[EW_BENCH_MAX_SAMPLES];
    char note[128]; /* the backend's remark on the plan, such as an algorithm; or empty */
} ew_bench_detail;

typedef struct ew_bench_options {
    uint32_t struct_size;
    int32_t warmup;
    int32_t iters;
    int64_t m; /* rows of the calls; 0 means max_m */
    uint32_t seed;
    /* Quiet gate: before and after each sample every rank spins this long, and a sample
     * around which any rank lost its core is retaken (at most 10 times as many tries as
     * iters).  0: off. */
    double gate_ms;
    /* Rest after each sample, in units of its time: a hot GPU lowers its clock, and then
     * methods are not comparable. */
    double idle;
    /* Called on rank 0 after each round, warm-ups included, counted from 1: in a round
     * every entry is run once.  May be NULL. */
    void (*progress)(void *context, int round, int num_rounds);
    void *context;
    /* Ranks do not start together: in each round every rank is late by a random time of up
     * to this, the same for all entries, and its own time counts from its own start.  0:
     * off; EW_ERR_UNSUPPORTED with the simulator. */
    double skew_us;
    /* One for each entry, filled on every rank; NULL: not wanted. */
    ew_bench_detail *details;
    /* A call is captured into a CUDA graph, which is then replayed this many times in a
     * row, in `iters` rounds timed by events: the time of a call among others, where ranks
     * do not start together.  For `details`; 0: off. */
    int32_t graph_calls;
    /* Bit i: C, and normed, of entry i lie in symmetric memory (ew_alloc). */
    uint64_t symmetric;
} ew_bench_options;
#define EW_BENCH_OPTIONS_INIT                                                        \
    {                                                                                \
        sizeof(ew_bench_options), 3, 15, 0, 1, 0.0, 0.0, NULL, NULL, 0.0, NULL, 0, 0 \
    }

typedef struct ew_bench_result {
    ew_status status;  /* EW_ERR_UNSUPPORTED, EW_ERR_SHAPE, EW_ERR_CONFIG: skipped */
    char error[512];   /* ew_last_error() then */
    ew_config config;  /* as used; zero for custom methods */
    double time_us;    /* maximum over ranks of the rank's median */
    double gemm_us;    /* maximum over ranks of the rank's median GEMM window */
    double tail_us;    /* of the slowest rank: median of end - gemm_end */
    double enqueue_us; /* maximum over ranks: host time of a call among 16; cpu: 0 */
    double cv;         /* of that rank's samples: standard deviation / mean */
    int32_t discarded; /* samples retaken because of the quiet gate */
    int32_t num_samples;
    double samples_us[EW_BENCH_MAX_SAMPLES]; /* of that rank, in the order taken */
    /* Over all ranks: first and last iteration, output poisoned.  Of a layer: the bare sum
     * against the exact one, then the rest against the sequence in ew_epilogue. */
    ew_check check;
} ew_bench_result;

/* Collective.  Runs the entries interleaved on random inputs, in rounds: each entry once,
 * in an order that is random for each round and follows from the seed.  Checks them on
 * exact inputs before and after, and fills `results` equally on every rank.  The entries
 * must be of one backend.  Fails only when the world does; what concerns one entry is in
 * its result. */
EW_API ew_status ew_bench_run(ew_world *world, const ew_problem *problem,
                              const ew_bench_options *options,
                              const ew_bench_entry *entries, int count,
                              ew_bench_result *results);

/* The clock behind every time above. */
EW_API int64_t ew_now_ns(void);

/* ---- What this machine offers ------------------------------------------------------- */

/* What sets the backends apart, so that a tool can ask for the difference that matters and
 * not for the name.  0 is the default backend, the cpu. */
typedef struct ew_backend_traits {
    bool is_gpu;        /* ranks are GPUs; for simulated ranks the profile decides */
    bool enqueues;      /* calls may end after they have returned */
    bool simulated;     /* nothing is computed: all times are SIMULATED */
    bool has_own_clock; /* calls are timed by ew_plan_timing, not by the caller's clock */
} ew_backend_traits;
EW_API ew_backend_traits ew_backend_describe(ew_backend backend);

/* The micro-kernel that serves the type, e.g. "neon-8x8-fp32". */
EW_API const char *ew_cpu_kernel_name(ew_dtype dtype);

/* Why the type is served by that one although the CPU has instructions for a faster one,
 * such as AMX, which Linux grants or refuses to a process; NULL when it has none. */
EW_API const char *ew_cpu_kernel_refusal(ew_dtype dtype);

/* Cores this process may use: its affinity, and the CPU quotas of its control group and
 * those above it (cgroup v1 and v2; a part of a core counts as one).  Hardware threads of
 * one core are one core. */
EW_API int ew_usable_cores(void);

/* NUMA domains: cores, and the memory that is near to them.  hwloc, where it is installed,
 * says which there are.  Ranks that ew_run_ranks starts are each bound to one; of other
 * ranks, workers and memory of plans and weights are. */
typedef struct ew_numa {
    int32_t domains;          /* among this process's cores; 0: not known, or one */
    int32_t domains_per_rank; /* above 1: ranks started here would straddle domains */
    const char *unknown;      /* why the domains are not known, although there are several
                                 and ranks would be faster in their own; else NULL */
} ew_numa;
EW_API ew_status ew_numa_describe(int num_ranks, ew_numa *numa_out);

/* Bytes of memory that this process could still take before the kernel would have to kill:
 * what the machine has available, or less where its control group or one above it is
 * limited (cgroup v1 and v2).  Cached files that the kernel would drop count as free.  0:
 * unknown. */
EW_API size_t ew_available_memory(void);

/* The BLAS that the "blas" method uses, its file name, or NULL when none is installed:
 * ENTWINE_BLAS names another. */
EW_API const char *ew_blas_name(void);

/* C[m x n] = A[m x k] * B[n x k]^T (or k x n) through that BLAS, fp32, row-major with
 * the given row strides. */
EW_API ew_status ew_blas_gemm(ew_weight_layout layout, int64_t m, int64_t n, int64_t k,
                              const float *A, const float *B, float *C, int64_t c_stride);

/* GPUs, as the cuda backend sees them.  The two functions with an index fail with
 * EW_ERR_UNSUPPORTED, in one sentence that says why, where no GPU can be used; then the
 * count is 0.  All three start CUDA in this process: a program that forks ranks later
 * must ask in a child, because CUDA does not survive fork. */
typedef struct ew_gpu {
    char name[64];
    char uuid[48]; /* "GPU-..." as nvidia-smi prints it */
    int32_t sms;
    int32_t arch;                            /* 90: compute capability 9.0 */
    int32_t driver_version, runtime_version; /* of CUDA: 13000 is 13.0 */
    int32_t clock_mhz;                       /* the highest SM clock */
    int64_t memory_bytes;
    bool mig;       /* a MIG instance of a GPU */
    bool exclusive; /* the compute mode admits one process, or none */
} ew_gpu;
EW_API int ew_gpu_count(void);
EW_API ew_status ew_gpu_describe(int index, ew_gpu *gpu_out);

typedef struct ew_gpu_kernel {
    char name[64]; /* "gemm_sm90 128x256 cluster 2 bf16" */
    int32_t threads;
    int32_t registers;    /* of a thread */
    int32_t shared_bytes; /* of a CTA */
    int32_t spill_bytes;  /* of a thread; 0 is best */
    int32_t ctas_per_sm;
    /* Producers: reducing CTAs of 128, 256 and 512 threads, whatever W, that fit on an SM
     * beside as many producers as it holds.  Others: -1. */
    int32_t reducers_beside[3];
} ew_gpu_kernel;

/* The kernels that GPU `index` can run, at most `capacity`; count_out says how many there
 * are. */
EW_API ew_status ew_gpu_kernels(int index, ew_gpu_kernel *kernels, int capacity,
                                int *count_out);

#ifdef __cplusplus
}
#endif
#endif
