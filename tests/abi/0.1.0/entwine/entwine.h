/* Entwine: GEMM + ReduceScatter whose communication hides behind the computation,
 * tile by tile.  This header is the manual; read it from top to bottom.
 *
 *     ew_plan *plan;
 *     ew_problem problem = EW_PROBLEM(max_m, N, K, EW_FP32);
 *     ew_plan_create(world, &problem, NULL, &plan);        // collective
 *     ew_plan_set_weight(plan, B);                         // packs B once
 *     ew_gemm_rs(plan, m, A, NULL, C, NULL);               // as often as you like
 *     ew_plan_destroy(plan);
 *
 * Plain C11, usable from C++, no CUDA type.  Unless a comment says otherwise every
 * function is safe to call from any thread, but one world and its plans belong to one
 * thread at a time.  Structs start with struct_size: initialise them with the macro
 * given beside them and older programs keep working with newer libraries. */
#ifndef ENTWINE_ENTWINE_H
#define ENTWINE_ENTWINE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define EW_API __attribute__((visibility("default")))
#else
#define EW_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------- */

#define EW_VERSION_MAJOR 0
#define EW_VERSION_MINOR 1
#define EW_VERSION_PATCH 0

/* The library's version, for example "0.1.0": compare with the macros above. */
EW_API const char *ew_version(void);

/* ---- Status -------------------------------------------------------------------- */

/* Every fallible function returns one of these.  Values never change meaning. */
#define EW_STATUS_LIST(X)                                      \
    X(OK, 0, "success")                                        \
    X(ERR_ARGUMENT, -1, "invalid argument")                    \
    X(ERR_SHAPE, -2, "shape not supported")                    \
    X(ERR_CONFIG, -3, "configuration not valid")               \
    X(ERR_UNSUPPORTED, -4, "not supported here")               \
    X(ERR_MISMATCH, -5, "ranks disagree")                      \
    X(ERR_MEMORY, -6, "out of memory")                         \
    X(ERR_SYSTEM, -7, "refused by the operating system")       \
    X(ERR_TIMEOUT, -8, "a peer did not make progress in time") \
    X(ERR_PEER_DIED, -9, "a peer died")                        \
    X(ERR_ABORTED, -10, "aborted")

typedef enum ew_status {
#define EW_STATUS_ENUM(name, value, text) EW_##name = value,
    EW_STATUS_LIST(EW_STATUS_ENUM)
#undef EW_STATUS_ENUM
} ew_status;

/* "EW_ERR_SHAPE" and "shape not supported".  Any value is fine. */
EW_API const char *ew_status_name(ew_status status);
EW_API const char *ew_status_text(ew_status status);

/* What went wrong in the calling thread's last failed call, with the offending value,
 * and in most cases a second line "  fix: ...".  Never NULL; valid until that thread's
 * next failure. */
EW_API const char *ew_last_error(void);

/* ---- World: the ranks that work together ------------------------------------------ */

typedef struct ew_world ew_world;

typedef struct ew_world_options {
    uint32_t struct_size;
    /* How long a rank may go without any progress before its peers give up on it.
     * 0: the variable ENTWINE_TIMEOUT_MS, else 30000. */
    uint32_t timeout_ms;
    /* Emulated link: remote tiles become visible as if each rank had a full-duplex link
     * of this rate and latency.  0 Gb/s: off.  For demonstrations and tests; every
     * output of the tools that used it says so. */
    double link_gbps;
    double link_latency_us;
} ew_world_options;
#define EW_WORLD_OPTIONS_INIT                           \
    {                                                   \
        (uint32_t)sizeof(ew_world_options), 0, 0.0, 0.0 \
    }

/* Gathers `bytes` bytes from every rank into `all`, in rank order, on every rank.
 * Returns 0 on success.  MPI_Allgather and torch.distributed both fit. */
typedef int (*ew_allgather)(void *context, const void *mine, void *all, size_t bytes);

/* Joins a world of num_ranks ranks on one host (several: fabric.h).  Collective.
 * `allgather` is called a few times, only inside this function; num_ranks == 1 needs none.
 * Afterwards ranks talk through UNIX sockets and shared memory of their own.  Fails with
 * EW_ERR_MISMATCH when ranks run different library versions or options. */
EW_API ew_status ew_world_create(int rank, int num_ranks, ew_allgather allgather,
                                 void *context, const ew_world_options *options,
                                 ew_world **world_out);

EW_API int ew_world_rank(const ew_world *world);
EW_API int ew_world_size(const ew_world *world); /* W */

/* Small collectives for set-up and measurement.  Bounded by the world's timeout. */
EW_API ew_status ew_world_allgather(ew_world *world, const void *mine, void *all,
                                    size_t bytes);
EW_API ew_status ew_world_barrier(ew_world *world);

/* Tells every rank to stop: calls in flight and later ones return EW_ERR_ABORTED, on
 * all ranks, naming this rank.  May be called from any thread and from a signal
 * handler; the first reason given in a world wins. */
EW_API void ew_world_abort(ew_world *world);

/* NULL is fine.  Destroy the world's plans first. */
EW_API void ew_world_destroy(ew_world *world);

/* Starts num_ranks local ranks, runs `rank_main` on each with its world and waits for
 * all of them.  Ranks are forked processes, or threads of this process.  When a rank
 * dies or returns non-zero the others are told and unwind; nothing is left behind.
 *
 * exits_out may be NULL, or hold num_ranks entries: what rank_main returned (processes
 * keep 0 to 255), or 128 + the signal that killed the rank.  With processes, call it
 * before the program starts threads. */
typedef enum ew_ranks_as { EW_RANKS_AS_PROCESSES = 1, EW_RANKS_AS_THREADS = 2 } ew_ranks_as;
typedef int (*ew_rank_main)(ew_world *world, void *argument);
EW_API ew_status ew_run_ranks(ew_ranks_as kind, int num_ranks,
                              const ew_world_options *options, ew_rank_main rank_main,
                              void *argument, int *exits_out);

/* The place a launcher gave this process, read from the variables of mpirun, torchrun
 * or SLURM, or from ENTWINE_RANK and ENTWINE_WORLD_SIZE.  `source` names the variable
 * used.  EW_ERR_UNSUPPORTED: no launcher. */
typedef struct ew_launcher {
    int rank;
    int num_ranks;
    const char *source;
} ew_launcher;
EW_API ew_status ew_launcher_detect(ew_launcher *launcher_out);

/* ---- Problem ---------------------------------------------------------------------- */

/* Element type of A, B, the exchanged contributions and C.  Every product is
 * accumulated in fp32; a rank's contribution is rounded once to the element type; the
 * sum over ranks is fp32 and rounded once (all round-to-nearest-even). */
typedef enum ew_dtype { EW_FP32 = 1, EW_BF16 = 2, EW_FP16 = 3 } ew_dtype;

EW_API const char *ew_dtype_name(ew_dtype dtype); /* "fp32", "bf16", "fp16" */
EW_API size_t ew_dtype_bytes(ew_dtype dtype);

/* How a rank's weight lies in memory, both row-major: N rows of K (as torch keeps it),
 * or K rows of N. */
typedef enum ew_weight_layout { EW_WEIGHT_NK = 1, EW_WEIGHT_KN = 2 } ew_weight_layout;

/* Rank r holds A_r [m x k] and B_r [n x k] and receives its rows of the sum over r of
 * A_r * B_r^T.  k is the rank's own depth.  Equal on all ranks. */
typedef struct ew_problem {
    uint32_t struct_size;
    ew_dtype dtype;
    ew_weight_layout weight_layout;
    int64_t max_m; /* M: the most rows any call will have */
    int64_t n;     /* N */
    int64_t k;     /* K per rank */
} ew_problem;
#define EW_PROBLEM(max_m, n, k, dtype)                                 \
    {                                                                  \
        (uint32_t)sizeof(ew_problem), dtype, EW_WEIGHT_NK, max_m, n, k \
    }

/* Rows of the output that a rank owns: contiguous, the first m mod W ranks own one row
 * more.  C of a call holds `count` rows of n elements. */
EW_API ew_status ew_owned_rows(int64_t m, int num_ranks, int rank, int64_t *first_out,
                               int64_t *count_out);

/* ---- Config: how the work is scheduled --------------------------------------------- */

/* Zero in any field means "choose for me".  No field changes a single bit of the
 * result, except producer and kernel (another GEMM, another rounding). */
typedef enum ew_backend {
    EW_BACKEND_CPU = 1,
    EW_BACKEND_CUDA = 2,
    EW_BACKEND_SIM = 3
} ew_backend;
typedef enum ew_order {
    EW_ORDER_INTERLEAVED = 1, /* visit the destinations in turn: d = p mod W (the paper) */
    EW_ORDER_DEFAULT = 2,     /* M-major over the whole output, as a plain GEMM walks it */
    EW_ORDER_CONTIGUOUS = 3   /* one destination's partition after the other */
} ew_order;
typedef enum ew_pool {
    EW_POOL_SHARED = 1, /* GEMM blocks and reductions share the workers, or the SMs */
    EW_POOL_STATIC = 2, /* x workers, or the SMs that x CTAs fill, only reduce */
    EW_POOL_AFTER = 3   /* the reduction starts when the GEMM has ended (cuda) */
} ew_pool;
typedef enum ew_transport {
    EW_TRANSPORT_PULL = 1, /* the owner of a tile reads its contributions from the peers */
    EW_TRANSPORT_PUSH = 2, /* producers write them into the owner's memory (cuda) */
    EW_TRANSPORT_COPY = 3  /* copy engines move whole partitions there (cuda) */
} ew_transport;
typedef enum ew_producer {
    EW_PRODUCER_OWN = 1, /* Entwine's kernels, tile-packed contributions */
    EW_PRODUCER_BLAS = 2 /* cblas or cuBLAS found at run time, row-major contributions */
} ew_producer;
typedef enum ew_kernel {
    EW_KERNEL_SM80 = 1, /* mma.sync, from Ampere on */
    EW_KERNEL_SM90 = 2  /* wgmma and TMA, Hopper */
} ew_kernel;
typedef enum ew_ctas {
    EW_CTAS_PERSISTENT = 1, /* as many as fit, each takes blocks until none is left */
    EW_CTAS_BLOCK = 2       /* one CTA per block, as in the paper */
} ew_ctas;

typedef enum ew_launches {
    EW_LAUNCHES_ONCE = 1, /* one reducing kernel per call */
    EW_LAUNCHES_UNIT = 2  /* one per release unit, each after the one before */
} ew_launches;

#define EW_RELEASE_PARTITION (-1) /* release a destination's tiles when all are done */
#define EW_RELEASE_OUTPUT (-2)    /* release nothing before the whole GEMM is done */

typedef struct ew_config {
    uint32_t struct_size;
    ew_backend backend;
    ew_producer producer;
    int32_t block_m, block_n; /* producer block, multiples of the 128 x 128 tile */
    ew_order order;
    int32_t group;   /* block rows walked together inside a partition */
    int32_t release; /* tiles released together, or EW_RELEASE_... */
    int32_t budget;  /* x: how many workers, or CTAs, may reduce at once */
    int32_t batch;   /* b: tiles a worker reduces before it looks for GEMM work; on a GPU
                        the threads of a reducing CTA: 128, 256 or 512 */
    ew_pool pool;
    ew_transport transport;
    int32_t workers;  /* cpu: threads per rank, the caller's included */
    ew_kernel kernel; /* cuda only, as the next three */
    ew_ctas ctas;
    int32_t cluster; /* producer CTAs that share their columns of B: 1 or 2 */
    ew_launches launches;
    int32_t levels; /* cpu on several hosts: 1, all ranks are summed in their order; 2, a
                       host's ranks first, and the hosts' rounded sums then */
} ew_config;
#define EW_CONFIG_INIT                                                                    \
    {                                                                                     \
        (uint32_t)sizeof(ew_config), (ew_backend)0, (ew_producer)0, 0, 0, (ew_order)0, 0, \
            0, 0, 0, (ew_pool)0, (ew_transport)0, 0, (ew_kernel)0, (ew_ctas)0, 0,         \
            (ew_launches)0, 0                                                             \
    }

/* A config as text and back: "block=128x256,order=interleaved,release=tile,x=1,...".
 * Keys may be left out (chosen for you) and come in any order.  What is printed can be
 * parsed, so any result can be run again from its text.  ew_config_print needs at most
 * EW_CONFIG_TEXT_BYTES. */
#define EW_CONFIG_TEXT_BYTES 256
EW_API ew_status ew_config_parse(const char *text, ew_config *config_out);
EW_API ew_status ew_config_print(const ew_config *config, char *text, size_t bytes);

/* ---- Plan -------------------------------------------------------------------------- */

/* A plan owns everything a call needs, so calls allocate nothing.  It never changes
 * after creation apart from its weight.  Create plans in the same order on all ranks. */
typedef struct ew_plan ew_plan;

/* Collective.  config may be NULL or partly zero; rank 0's choice for the open fields
 * is used by all.  Ranks that disagree on anything get EW_ERR_MISMATCH naming both. */
EW_API ew_status ew_plan_create(ew_world *world, const ew_problem *problem,
                                const ew_config *config, ew_plan **plan_out);

/* Packs this rank's weight into the plan; B may be freed afterwards.  Local. */
EW_API ew_status ew_plan_set_weight(ew_plan *plan, const void *B);

/* A CUDA stream of the rank's GPU; calls can be captured into a graph and replayed.  NULL
 * is a stream of the rank's own: A must be ready before the call, and C is there after
 * ew_plan_wait.  For CUDA's default stream pass cudaStreamLegacy or cudaStreamPerThread.
 * The CPU backend takes NULL only. */
typedef void *ew_stream;

/* Computes this rank's row slab of sum over r of A_r * B_r^T.  Collective.
 * A is m x K, C is ew_owned_rows() x N, both row-major.  m may change from call to call,
 * 0..max_m, and must be equal on all ranks.
 *
 * B is NULL for the weight bound by ew_plan_set_weight, or this rank's weight for this
 * call alone.  It is packed into the bound one's place (a plan holds one weight), so
 * bind again before the next call with NULL; that call is refused otherwise.
 *
 * Determinism: on one machine type the bits of C depend on the inputs alone, not on the
 * config, the number of workers, the owner of a row or the run: each rank's products are
 * summed in one fixed order over K and the ranks in the order 0..W-1.
 *
 * Enqueues on `stream` and returns; A, B and C must live until the stream has passed the
 * call.  The CPU backend computes before it returns.  After an error the world is
 * aborted on all ranks, C is undefined and the plan can only be destroyed; wrong
 * arguments (EW_ERR_ARGUMENT, EW_ERR_SHAPE) are refused before anything starts and
 * leave the plan usable. */
EW_API ew_status ew_gemm_rs(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                            ew_stream stream);

/* What follows the sum in a transformer layer, for the rows this rank owns:
 *
 *     c      = sum over ranks                      (what ew_gemm_rs computes)
 *     c      = round(c + bias)                     if there is a bias
 *     h      = round(c + residual)                 if there is a residual, else c
 *     normed = round(round(h * r) * norm_weight)   if wanted: RMSNorm as Llama has it,
 *              r = 1 / sqrt(mean of h * h + eps)
 *
 * Every round() is to the element type, as if each line were an operator of its own;
 * everything inside one is fp32.  All parts are in the element type, and like A and C in
 * the backend's memory.  Parts left NULL are left out. */
typedef struct ew_epilogue {
    uint32_t struct_size;
    float eps;               /* of the norm, 0 or more */
    const void *bias;        /* N */
    void *residual;          /* owned rows x N; holds h afterwards */
    const void *norm_weight; /* N; together with normed */
    void *normed;            /* owned rows x N */
} ew_epilogue;
#define EW_EPILOGUE_INIT                                             \
    {                                                                \
        (uint32_t)sizeof(ew_epilogue), 1e-5f, NULL, NULL, NULL, NULL \
    }

/* ew_gemm_rs and an epilogue in one, while the GEMM is still running where it can be.  C
 * gets c, with the bias; it may be NULL when the epilogue has a residual or a norm, and c
 * alone is not wanted.  C, residual and normed are three different matrices.  The epilogue
 * is this rank's own business: others may have another.  NULL: ew_gemm_rs.
 *
 * Determinism: as for ew_gemm_rs, and the squares are summed in one fixed order
 * (docs/DESIGN.md), so all bits are those of ew_gemm_rs with the lines above behind it.
 * Cpu and cuda agree in every bit where their sums over k do.  After an error residual and
 * normed are undefined, as C is. */
EW_API ew_status ew_gemm_rs_layer(ew_plan *plan, int64_t m, const void *A, const void *B,
                                  void *C, const ew_epilogue *epilogue, ew_stream stream);

/* Waits for all that was enqueued (not for replays of a graph: wait for their stream, then
 * call this) and reports its fault, if any: EW_ERR_TIMEOUT,
 * EW_ERR_PEER_DIED or EW_ERR_ABORTED, with the culprit named in ew_last_error(). */
EW_API ew_status ew_plan_wait(ew_plan *plan);

/* The config in use, every field chosen. */
EW_API ew_status ew_plan_config(const ew_plan *plan, ew_config *config_out);

/* What was chosen and why, in a few lines of text.  Writes at most `bytes` bytes with
 * the closing zero; EW_EXPLAIN_BYTES is always enough. */
#define EW_EXPLAIN_BYTES 4096
EW_API ew_status ew_plan_explain(const ew_plan *plan, char *text, size_t bytes);

/* NULL is fine.  Collective only in the sense that peers must not call into the plan
 * afterwards. */
EW_API void ew_plan_destroy(ew_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
