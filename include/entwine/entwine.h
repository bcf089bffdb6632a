/* Entwine: GEMM with ReduceScatter, AllReduce or AllGather, whose communication hides
 * behind the computation, tile by tile.  This header is the manual; read it from top to
 * bottom.
 *
 *     ew_plan *plan;
 *     ew_problem problem = EW_PROBLEM(max_m, N, K, EW_FP32);
 *     ew_plan_create(world, &problem, NULL, &plan);        // collective
 *     ew_plan_set_weight(plan, B);                         // packs B once
 *     ew_gemm_rs(plan, m, A, NULL, C, NULL);               // as often as you like
 *     ew_plan_destroy(plan);
 *
 * Plain C11, usable from C++, no CUDA type.  Unless a comment says otherwise every
 * function is safe to call from any thread, but one world with its plans and weights
 * serves one user at a time.  A second user, which is another thread or a signal handler
 * inside a call, is refused with EW_ERR_ARGUMENT, and the first goes on; so is a process
 * that was forked from the one that created the world (Linux 4.14).  Numbers in texts have
 * a decimal point in every locale.
 *
 * A function that a program passes to the library must return to it: no exception of C++
 * and no longjmp may leave it.
 *
 * A world, plan or weight that has been destroyed, or one in place of another, is refused
 * with EW_ERR_ARGUMENT wherever it can be recognised; functions that return nothing only
 * set ew_last_error().  It cannot be recognised where malloc has reused the memory or given
 * it back to the system, nor while another thread is destroying it: then anything may
 * happen, as with memory of your own that you have freed.
 *
 * Structs that may grow start with struct_size.  Initialise them with the macro given
 * beside them, including those that a function writes.  A program then goes on working with
 * later libraries, without the fields that it does not know, and with earlier ones as long
 * as it leaves the newer fields 0.  (Structs without struct_size, among them the results in
 * the opt-in headers, may change with a minor version.) */
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
#define EW_ZERO_(type) static_cast<type>(0) /* for the macros below */
#else
#define EW_ZERO_(type) ((type)0)
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

/* "EW_ERR_SHAPE" and "shape not supported".  Any value may be passed. */
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
    /* How long a rank may make no progress before its peers give up on it.  Time in which
     * they did not run themselves does not count: a job that is frozen goes on when it
     * thaws.  0: the variable ENTWINE_TIMEOUT_MS, else 30000. */
    uint32_t timeout_ms;
    /* Emulated link: remote tiles become visible as if each rank had a full-duplex link
     * of this rate and latency.  0 Gb/s: off.  For demonstrations and tests; every
     * output of the tools that used it says so. */
    double link_gbps;
    double link_latency_us;
    /* ew_run_ranks with processes: how long the other ranks may go on after one has failed,
     * for example to save their work, before they are killed.  Counted from the last rank
     * that ended.  0: 2000. */
    uint32_t grace_ms;
    /* NULL, or a word of the caller's that cancels the creation of the world: soon after
     * another thread (with an atomic store) or a signal handler makes it non-zero,
     * ew_world_create and ew_world_join return EW_ERR_ABORTED; until then it must stay so.
     * Ranks that are connected by then get an error that names this rank; ranks still in
     * the all-gather learn nothing and go on waiting.  A caller's all-gather function and
     * MPI's own calls are not interrupted: an all-gather that may block should watch the
     * word itself and return non-zero.  The word is not read once the world exists (use
     * ew_world_abort), nor with ranks as threads; ranks that ew_run_ranks forked have
     * copies of it, unless it lies in shared memory. */
    const volatile int *cancel;
    /* Emulated link: a header of this many bytes precedes every 128 bytes of data, and a
     * read also sends a request of that size in the other direction.  0: the rate is that
     * of the data, and requests cost nothing. */
    double link_header_bytes;
} ew_world_options;
#define EW_WORLD_OPTIONS_INIT                               \
    {                                                       \
        sizeof(ew_world_options), 0, 0.0, 0.0, 0, NULL, 0.0 \
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

/* The GPU on which this rank's plans run, and in whose memory their matrices lie: its
 * number in this process, as CUDA counts.  The first plan, weight or allocation of the
 * world on the cuda backend chooses it, as the calling thread's current device where that
 * thread has a CUDA context, else as number i mod count for the i-th rank of its host.  -1:
 * none is chosen yet, as in a world that is used with other backends alone. */
EW_API int ew_world_gpu(const ew_world *world);

/* Small collectives for set-up and measurement, bounded by the world's timeout.  Ranks that
 * call different ones, or pass different sizes, get EW_ERR_MISMATCH naming both. */
EW_API ew_status ew_world_allgather(ew_world *world, const void *mine, void *all,
                                    size_t bytes);
EW_API ew_status ew_world_barrier(ew_world *world);

/* Stops every rank: calls in flight and later ones return EW_ERR_ABORTED on all ranks,
 * naming this rank.  May be called from any thread and from a signal handler, also while
 * the world is in use.  The first fault of a world is the one that is reported.  In a
 * forked child it does nothing. */
EW_API void ew_world_abort(ew_world *world);

/* Makes a new world of the ranks that are left after a fault, numbered in the order of
 * their old ranks; one may be left alone.  Collective among those that live: each calls it
 * after its error.  Ranks that have died or left are not waited for, the one that the fault
 * names for half a second, any other that does not come for the timeout.  A rank that comes
 * later gets EW_ERR_TIMEOUT.  When all come at once it takes some milliseconds.
 *
 * All members get EW_OK, or all get the same error: one of them died meanwhile, is named,
 * and the call can be made again.  A member that dies later is a fault of the new world.
 * The options are those of the old world, which stays unusable: destroy it, with
 * its plans and weights, when you like, and make new plans.  EW_ERR_ARGUMENT: the world has
 * no fault; call ew_world_abort first.  EW_ERR_UNSUPPORTED: its ranks are on several
 * hosts. */
EW_API ew_status ew_world_shrink(ew_world *world, ew_world **world_out);

/* NULL is allowed.  Destroy the world's plans and weights first.  While another thread uses
 * the world nothing is destroyed, and ew_last_error() says so.  A forked child frees only
 * its own copy: the world goes on where it was created. */
EW_API void ew_world_destroy(ew_world *world);

/* Starts num_ranks local ranks, runs `rank_main` on each with its world and waits for
 * all of them.  Ranks are forked processes, or threads of this process.  When a rank
 * dies or returns non-zero, the calls of the others return an error; processes that still
 * run after grace_ms of the options are killed.  Nothing is left behind.  An exception that
 * left rank_main would go on where ew_run_ranks was called, in the process of the rank.
 *
 * exits_out may be NULL, or hold num_ranks entries: what rank_main returned (processes
 * keep 0 to 255), 128 + the signal that killed the rank, or 125 if rank_main was never
 * called, since the rank could not start or could not join.  Nothing is written when the
 * kind, num_ranks or rank_main is refused.  With processes, call it before the program
 * starts threads. */
typedef enum ew_ranks_as { EW_RANKS_AS_PROCESSES = 1, EW_RANKS_AS_THREADS = 2 } ew_ranks_as;
typedef int (*ew_rank_main)(ew_world *world, void *argument);
EW_API ew_status ew_run_ranks(ew_ranks_as kind, int num_ranks,
                              const ew_world_options *options, ew_rank_main rank_main,
                              void *argument, int *exits_out);

/* This process's rank as its launcher gave it, read from the variables of mpirun, torchrun
 * or SLURM, or from ENTWINE_RANK and ENTWINE_WORLD_SIZE.  `source` names the variable that
 * was read.  EW_ERR_UNSUPPORTED: there is no launcher. */
typedef struct ew_launcher {
    int rank;
    int num_ranks;
    const char *source;
} ew_launcher;
EW_API ew_status ew_launcher_detect(ew_launcher *launcher_out);

/* ---- Problem ---------------------------------------------------------------------- */

/* Element type of A, B, the exchanged contributions and C.  Every product is
 * accumulated in fp32; a rank's contribution is rounded once to the element type; the
 * sum over ranks is fp32 and rounded once, both to nearest even.
 *
 * How the accumulation over K rounds is the kernel's own: to nearest even where it is done
 * in fp32 instructions, one k after the other.  Instructions that add several bf16 products
 * at once count subnormal numbers (below 2^-126) as zero, in A, in B and in a rank's
 * contribution.  BFMMLA and AVX512_BF16 also lose up to twice as much per addition; AMX
 * rounds to nearest even, and of every 32 k's adds the even and the odd ones apart.  The
 * names of these kernels end in "bf16" (ew_cpu_kernel_name, measure.h).  All other CPU
 * kernels, those of AMX for fp16 included, keep subnormal numbers of every type, unless the
 * calling thread has set its processor to flush them, or to round otherwise: all workers of
 * the rank then do as it does.  On one machine a row's bits depend neither on m
 * nor on its place.  A GPU's tensor cores have rules of their own. */
typedef enum ew_dtype { EW_FP32 = 1, EW_BF16 = 2, EW_FP16 = 3 } ew_dtype;

EW_API const char *ew_dtype_name(ew_dtype dtype); /* "fp32", "bf16", "fp16" */
EW_API size_t ew_dtype_bytes(ew_dtype dtype);

/* How a rank's weight lies in memory, both row-major: N rows of K (as torch keeps it),
 * or K rows of N. */
typedef enum ew_weight_layout { EW_WEIGHT_NK = 1, EW_WEIGHT_KN = 2 } ew_weight_layout;

/* What is computed, and what crosses between the ranks. */
typedef enum ew_op {
    EW_OP_GEMM_RS = 0, /* GEMM, then ReduceScatter: ew_gemm_rs */
    EW_OP_GEMM_AR = 1, /* GEMM, then AllReduce: ew_gemm_ar */
    EW_OP_AG_GEMM = 2  /* AllGather, then GEMM: ew_ag_gemm */
} ew_op;

EW_API const char *ew_op_name(ew_op op); /* "gemm-rs", "gemm-ar", "ag-gemm" */

/* Rank r holds A_r [m x k] and B_r [n x k] and receives its rows, or with EW_OP_GEMM_AR all
 * rows, of the sum over r of A_r * B_r^T.  k is the rank's own depth.  With EW_OP_AG_GEMM
 * rank r holds its rows of A [m x k] and B_r [n x k] and receives A * B_r^T.  Equal on all
 * ranks. */
typedef struct ew_problem {
    uint32_t struct_size;
    ew_dtype dtype;
    ew_weight_layout weight_layout;
    int64_t max_m; /* M: the most rows any call will have */
    int64_t n;     /* N */
    int64_t k;     /* K per rank */
    ew_op op;
} ew_problem;
#define EW_PROBLEM(max_m, n, k, dtype)                                      \
    {                                                                       \
        sizeof(ew_problem), dtype, EW_WEIGHT_NK, max_m, n, k, EW_OP_GEMM_RS \
    }

/* Rows that a rank owns, of the output or, with EW_OP_AG_GEMM, of A: contiguous, the first
 * m mod W ranks own one row more.  C of ew_gemm_rs holds `count` rows of n elements, A of
 * ew_ag_gemm as many of k. */
EW_API ew_status ew_owned_rows(int64_t m, int num_ranks, int rank, int64_t *first_out,
                               int64_t *count_out);

/* ---- Config: how the work is scheduled --------------------------------------------- */

/* Zero in any field means "choose for me".  No field changes a single bit of the
 * result, except producer and kernel (another GEMM, another rounding), on several
 * hosts levels (another order of the sum over ranks), and the transports that add. */
typedef enum ew_backend {
    EW_BACKEND_CPU = 1,
    EW_BACKEND_CUDA = 2,
    EW_BACKEND_SIM = 3
} ew_backend;
typedef enum ew_order {
    EW_ORDER_INTERLEAVED = 1, /* visit the destinations in turn: d = p mod W (the paper) */
    EW_ORDER_DEFAULT = 2,     /* M-major over the whole output, as a plain GEMM walks it */
    EW_ORDER_CONTIGUOUS = 3   /* one destination's part after the other */
} ew_order;
typedef enum ew_pool {
    EW_POOL_SHARED = 1, /* GEMM blocks and reductions share the workers, or the SMs */
    EW_POOL_STATIC = 2, /* x workers, or the SMs that x CTAs fill, only reduce */
    EW_POOL_AFTER = 3   /* the reduction starts when the GEMM has ended (cuda) */
} ew_pool;
typedef enum ew_transport {
    EW_TRANSPORT_PULL = 1, /* the owner of a tile reads its contributions from the peers */
    EW_TRANSPORT_PUSH = 2, /* producers write them into the owner's memory (cuda) */
    EW_TRANSPORT_COPY = 3, /* copy engines move whole parts there, or rows (cuda) */
    /* Producers add them to sums in the owner's memory, in any order and with a rounding
     * after each: results are not deterministic (cuda, gemm-rs; for comparisons only). */
    EW_TRANSPORT_ADD = 4,    /* by atomic additions; kernel=sm80 has them for fp16 only */
    EW_TRANSPORT_TMA_ADD = 5 /* by TMA (kernel=sm90) */
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

/* How the epilogue of ew_gemm_rs_layer is done.  A preference: on the cpu it is fused where
 * the sum has no place to wait (neither C nor normed), on a GPU it follows where reducers
 * have no room for it. */
typedef enum ew_epilogue_form {
    EW_EPILOGUE_FUSED = 1,   /* tile by tile, while others are still on their way */
    EW_EPILOGUE_AFTER = 2,   /* in one step after the last tile */
    EW_EPILOGUE_SEPARATE = 3 /* addition and norm in a step each: for comparisons */
} ew_epilogue_form;

#define EW_RELEASE_PARTITION (-1) /* release a destination's tiles when all are done */
#define EW_RELEASE_OUTPUT (-2)    /* release nothing before the whole GEMM is done */

typedef struct ew_config {
    uint32_t struct_size;
    ew_backend backend;
    ew_producer producer;
    int32_t block_m, block_n; /* producer block, multiples of the 128 x 128 tile */
    ew_order order;
    int32_t group;   /* block rows walked together inside a part; on a GPU, where rows are
                        gathered, also panels of 128 rows that arrive side by side */
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
                       host's ranks first, and the hosts' rounded sums then (gemm-rs) */
    ew_epilogue_form epilogue; /* open: the faster one, call by call */
    int32_t shots; /* gemm-ar: 1, every rank sums all contributions itself; 2, each sums its
                      share of the tiles and the others copy it; open: the faster one, call
                      by call */
    int32_t invariant; /* S pieces in which K is summed, whatever W is, so that bits are the
                          same at every W that divides S (see ew_gemm_rs); 0: off */
    int32_t release_first; /* tiles of a part's first release unit, and of its last, */
    int32_t release_last;  /* where release counts more than one; 0: like all others */
} ew_config;
#define EW_CONFIG_INIT                                                                    \
    {                                                                                     \
        sizeof(ew_config), EW_ZERO_(ew_backend), EW_ZERO_(ew_producer), 0, 0,             \
            EW_ZERO_(ew_order), 0, 0, 0, 0, EW_ZERO_(ew_pool), EW_ZERO_(ew_transport), 0, \
            EW_ZERO_(ew_kernel), EW_ZERO_(ew_ctas), 0, EW_ZERO_(ew_launches), 0,          \
            EW_ZERO_(ew_epilogue_form), 0, 0, 0, 0                                        \
    }

/* A config as text and back: "block=128x256,order=interleaved,release=tile,x=1,...".
 * Keys may come in any order, each once; those left out are chosen for you.  What is
 * printed can be parsed, so any result can be run again from its text.  ew_config_print
 * needs at most EW_CONFIG_TEXT_BYTES.  config_out is written as far as its struct_size
 * says, by all functions that have one. */
#define EW_CONFIG_TEXT_BYTES 384
EW_API ew_status ew_config_parse(const char *text, ew_config *config_out);
EW_API ew_status ew_config_print(const ew_config *config, char *text, size_t bytes);

/* ---- Plan -------------------------------------------------------------------------- */

/* A plan owns everything a call needs except the weight, so calls allocate nothing; only a
 * plan's first call with a B makes room for it (ew_gemm_rs).  It never changes after
 * creation apart from its weight.  Create plans in the same order on all ranks: they are
 * numbered 1, 2, ... in their world, and messages use these numbers. */
typedef struct ew_plan ew_plan;

/* Collective.  config may be NULL or partly zero; rank 0's choice for the open fields
 * is used by all.  Ranks that disagree on anything get EW_ERR_MISMATCH naming both.
 *
 * EW_ERR_MEMORY, with the numbers, when the plans of all ranks of a host do not fit into
 * what the machine has available, or what the control groups of a rank (cgroup v1 and v2,
 * with those above its own) leave it; cached files that the kernel would drop count as
 * free.  No memory has been touched then, where the kernel might have killed a process.
 * A weight is checked when it is packed for the first time. */
EW_API ew_status ew_plan_create(ew_world *world, const ew_problem *problem,
                                const ew_config *config, ew_plan **plan_out);

/* Packs this rank's weight into memory of the plan, and binds it: calls without a B use
 * it.  The memory is allocated the first time.  B may be freed afterwards.  On a GPU, B is
 * read after the work that CUDA's default stream has been given (unless ranks share the
 * GPU as threads); where another stream is still to store B, wait for it first.  Local. */
EW_API ew_status ew_plan_set_weight(ew_plan *plan, const void *B);

/* A packed weight that any number of plans can use: those of its world that have its N, K,
 * element type, layout, backend, producer and invariant, whatever their max_m and schedule.
 * So layers of one shape can share a plan, bound to the weight of each in turn, and plans
 * for different m can share a weight. */
typedef struct ew_weight ew_weight;

/* Packs this rank's B, read as by ew_plan_set_weight.  The problem's max_m is ignored; of
 * the config, which may be NULL, only backend, producer, invariant and workers (which pack)
 * matter.
 * EW_ERR_MEMORY as in ew_plan_create; what other ranks are packing at the time counts.
 * Local; on a GPU collective if it is the first of the world's plans and weights. */
EW_API ew_status ew_weight_create(ew_world *world, const ew_problem *problem,
                                  const ew_config *config, const void *B,
                                  ew_weight **weight_out);

/* Packs new values into the same place; the plans stay bound and use them from their next
 * call on.  On a GPU it waits for the calls enqueued so far, which use the old ones; for
 * replays of a graph wait yourself.  After an error the weight holds no values: calls with
 * it are refused until an update succeeds.  Local. */
EW_API ew_status ew_weight_update(ew_weight *weight, const void *B);

/* From now on the plan's calls without a B use this weight and no other; NULL: none.
 * Copies nothing and takes almost no time, so it can be called before every call.
 * Enqueued and captured calls keep the weight that was bound when they were made.  Weight
 * and plan may be destroyed in either order.  Local. */
EW_API ew_status ew_plan_bind_weight(ew_plan *plan, ew_weight *weight);

/* How much of the backend's memory the weight holds. */
EW_API size_t ew_weight_bytes(const ew_weight *weight);

/* Frees the memory and unbinds the plans that are still bound to it.  On a GPU it waits for
 * the calls enqueued so far; a graph that captured one must not be replayed any more.
 * Where ranks are threads that share a GPU, CUDA frees memory when the whole GPU is idle:
 * no other rank may be in a call that this one has yet to make.  NULL is allowed.  Local.
 */
EW_API void ew_weight_destroy(ew_weight *weight);

/* How long this plan's calls wait for a rank that makes no progress, in seconds from 0.001
 * to 4e6; 0: as long as the world's other waits, which is also the case before the first
 * use.  Anything else, including NaN and infinity, is EW_ERR_ARGUMENT.  Takes effect with
 * the next call; calls captured into a graph keep what they were captured with.  Local:
 * ranks may differ, and then the first one whose time is over ends the call, and the world,
 * for all; the error has its rank, plan and timeout. */
EW_API ew_status ew_plan_set_timeout(ew_plan *plan, double seconds);

/* A CUDA stream of the rank's GPU; calls can be captured into a graph and replayed.  NULL
 * is a stream of the rank's own: A must be ready before the call, and C is there after
 * ew_plan_wait.  For CUDA's default stream pass cudaStreamLegacy or cudaStreamPerThread;
 * ranks that are threads on one GPU cannot share the former.  No two ranks may share a
 * stream.  The CPU backend takes NULL only.
 *
 * A rank's calls run one after the other, whatever their streams.  A replay waits for its
 * own stream alone: order it, by streams or events, with the rank's other replays and
 * calls, for two at once give wrong values.  From a rank's first call in a capture until
 * that ends, its calls outside of that capture, ew_plan_wait, and functions that pack a
 * weight, or allocate, copy or free memory, get EW_ERR_ARGUMENT.  Destroy none of its
 * plans and weights until then. */
typedef void *ew_stream;

/* Computes this rank's row slab of sum over r of A_r * B_r^T.  Collective.
 * A is m x K, C is ew_owned_rows() x N, both row-major; C overlaps neither A nor B.  m may
 * change from call to call, 0..max_m, and must be equal on all ranks.
 *
 * All ranks call the same plans in the same order.  Where they do not, even for plans that
 * are equal in everything but their weights, all get EW_ERR_MISMATCH naming two ranks and
 * their plans, and none gets a wrong value.  A rank that owns no row may get the error only
 * from its next call, on a GPU from ew_plan_wait.
 *
 * B is NULL for the weight bound by ew_plan_set_weight or ew_plan_bind_weight, or this
 * rank's weight for this call alone; the bound weight then stays bound.  Where such a B has
 * to be packed, the plan allocates memory for it in the first call with a B (on a GPU,
 * where only EW_WEIGHT_KN needs it, in ew_plan_create).
 *
 * Determinism: on one machine type the bits of C depend on the inputs alone, not on the
 * schedule, the number of workers, the owner of a row or the run: each rank's products are
 * summed in one fixed order over K and the ranks in the order 0..W-1.  Three fields of the
 * config are part of the arithmetic: producer and kernel choose the GEMM; and levels=2, the
 * default for CPU ranks on several hosts where a host has more than one, sums and rounds
 * the ranks of each host first, so that bits depend on which ranks share a host.  levels=1
 * gives the bits of one host.
 *
 * The bits of a row of C that CPU ranks compute depend neither on m nor on the row's place
 * among the others, except with producer=blas and, with the portable kernel
 * (ew_cpu_kernel_name, measure.h), for the bits of NaNs.
 *
 * The same bits at every W: with invariant=S the K of all ranks together, W times K, is cut
 * into S equal pieces.  Each is a contribution of its own, rounded and added as if it came
 * from one of S ranks, so that bits are those of W=S, where this changes nothing.  S is a
 * multiple of W, at most 256, and S/W divides K; a piece may have any length.  On GPUs S is
 * at most 72, and a piece a multiple of 8 long; bits are those of the kernel.  A rank has
 * S/W contributions to every tile: they take S/W times the memory of the heap and of the
 * link's bytes, which ew_forecast_build counts.  Not with producer=blas or levels=2, which
 * are refused.
 *
 * Enqueues on `stream` and returns; A, B and C must live until the stream has passed the
 * call.  The CPU backend computes before it returns.  After an error the world is
 * aborted on all ranks, C is undefined and the plan can only be destroyed; wrong
 * arguments (EW_ERR_ARGUMENT, EW_ERR_SHAPE) are refused before anything starts and
 * leave the plan usable. */
EW_API ew_status ew_gemm_rs(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                            ew_stream stream);

/* What follows the sum in a transformer layer, for the rows that this rank has:
 *
 *     c      = sum over ranks                      (what ew_gemm_rs computes)
 *     c      = round(c + bias)                     if there is a bias
 *     h      = round(c + residual)                 if there is a residual, else c
 *     normed = round(round(h * r) * norm_weight)   if wanted: RMSNorm as Llama has it,
 *              r = 1 / sqrt(mean of h * h + eps)
 *
 * Every round() is to the element type, as if each line were an operator of its own;
 * everything inside one is fp32.  All pointers are to the element type and, like A and C,
 * to the backend's memory.  Steps whose pointer is NULL are left out. */
typedef enum ew_residual_rows {
    EW_RESIDUAL_OWNED = 0, /* the rank's own: ew_owned_rows */
    EW_RESIDUAL_ALL = 1    /* every rank has all m rows, equal on all */
} ew_residual_rows;

typedef struct ew_epilogue {
    uint32_t struct_size;
    float eps;                      /* of the norm: finite, 0 or more */
    const void *bias;               /* N */
    void *residual;                 /* its rows x N; holds h afterwards */
    const void *norm_weight;        /* N; together with normed */
    void *normed;                   /* as many rows x N as C has */
    ew_residual_rows residual_rows; /* of ew_gemm_ar_layer */
} ew_epilogue;
#define EW_EPILOGUE_INIT                                                      \
    {                                                                         \
        sizeof(ew_epilogue), 1e-5f, NULL, NULL, NULL, NULL, EW_RESIDUAL_OWNED \
    }

/* ew_gemm_rs and an epilogue in one call; where it pays, the epilogue runs while the GEMM
 * is still running.  C receives c, with the bias; it may be NULL when the epilogue has a
 * residual or a norm, and c itself is not wanted.  C, residual and normed overlap neither
 * each other nor anything that is read.  Ranks may pass different epilogues.  NULL:
 * ew_gemm_rs.
 *
 * Determinism: as for ew_gemm_rs, and the squares are summed in one fixed order
 * (docs/DESIGN.md), so all bits are those of ew_gemm_rs followed by the lines above.
 * Cpu and cuda agree in every bit where their sums over k do.  After an error residual and
 * normed are undefined, as C is. */
EW_API ew_status ew_gemm_rs_layer(ew_plan *plan, int64_t m, const void *A, const void *B,
                                  void *C, const ew_epilogue *epilogue, ew_stream stream);

/* GEMM, then AllReduce, of a plan whose problem has EW_OP_GEMM_AR: C [m x n] is the whole
 * sum on every rank.  Its bits are those of the rows of ew_gemm_rs with levels=1, the same
 * on all ranks, in one shot or two, on one host or several.  Everything else is as for
 * ew_gemm_rs. */
EW_API ew_status ew_gemm_ar(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                            ew_stream stream);

/* ew_gemm_ar and an epilogue in one call: C and normed have all m rows on every rank.  With
 * EW_RESIDUAL_OWNED, the default, the residual has the rows that ew_owned_rows gives to the
 * rank; each rank adds and normalises only these and sends the others their norm, so a
 * residual needs one, and with a norm C must be NULL.  With EW_RESIDUAL_ALL every rank has
 * the whole residual, and h in it afterwards.  All ranks pass the same steps.  Bits are
 * those of ew_gemm_ar followed by the lines above. */
EW_API ew_status ew_gemm_ar_layer(ew_plan *plan, int64_t m, const void *A, const void *B,
                                  void *C, const ew_epilogue *epilogue, ew_stream stream);

/* AllGather, then GEMM, of a plan whose problem has EW_OP_AG_GEMM: A holds the rows that
 * ew_owned_rows gives to this rank, x k, and C [m x n] receives the rows of all ranks,
 * multiplied by this rank's weight.  Blocks are computed as their rows arrive, this
 * rank's own meanwhile.  With ew_gemm_rs it makes both halves of a tensor-parallel layer,
 * and each is the other's gradient.
 *
 * gathered is NULL, or [m x k] and receives the rows of A of all ranks, as a gradient of
 * the weight needs them.  C and gathered overlap neither each other nor A nor B.  Ranks may
 * differ in whether they pass it.  m is the number of all rows; a rank that owns none of
 * them may pass NULL as A.
 *
 * In the config, order says whose rows come next: other ranks' in turn as they arrive and
 * own ones in between (interleaved), or one rank's after the other's from the own ones on
 * (contiguous).  release says how many panels of 128 rows must have arrived before any of
 * them is used: with partition a rank's, with output all of them.
 *
 * Determinism: every bit of C is that of a GEMM of the gathered A on one rank, whatever W,
 * the schedule and the order in which rows arrive.  CPU ranks may be on several hosts, and
 * a rank then keeps two copies of the rows of every rank of another; GPUs on several hosts
 * refuse the plan with EW_ERR_UNSUPPORTED.  On a GPU a plan keeps two copies of all rows; x
 * is the number of CTAs that push a rank's own.  Everything else is as for ew_gemm_rs. */
EW_API ew_status ew_ag_gemm(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                            void *gathered, ew_stream stream);

/* One of several weights that are multiplied with the same rows, and its product.  The
 * weight is either B, which lies as the plan's weight_layout says and is for this call
 * alone, or one that was packed by ew_weight_create for a problem of this n and the plan's
 * k; the other of the two is NULL. */
#define EW_MAX_PRODUCTS 8
typedef struct ew_product {
    int64_t n;
    const void *B;     /* n x k */
    ew_weight *weight; /* stays the caller's */
    void *C;           /* m x n */
} ew_product;

/* ew_ag_gemm with several weights, such as those of q, k and v, in one call that gathers
 * the rows once.  Their n may differ and add up to the plan's.  The plan's own weight is
 * neither used nor changed.  Ranks may divide the plan's n among the products differently.
 *
 * Every bit of each C is that of ew_ag_gemm with this weight alone.  Everything else is as
 * for ew_ag_gemm.  With producer=own, on a GPU with every n a multiple of 8; refused with
 * EW_ERR_UNSUPPORTED elsewhere. */
EW_API ew_status ew_ag_gemm_multi(ew_plan *plan, int64_t m, const void *A,
                                  const ew_product *products, int num_products,
                                  void *gathered, ew_stream stream);

/* What an MLP applies to its gate.  The formula of GELU_TANH is
 * x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))). */
typedef enum ew_activation {
    EW_ACTIVATION_NONE = 0, /* x */
    EW_ACTIVATION_SILU = 1, /* x / (1 + exp(-x)): with an up, SwiGLU */
    EW_ACTIVATION_GELU_TANH = 2
} ew_activation;

EW_API const char *ew_activation_name(ew_activation activation); /* "silu" */

/* The first half of an MLP in one call: ew_ag_gemm_multi of one product or two, which have
 * the same n, and the activation of each tile as soon as it has been computed.
 *
 *     gate = A * B0^T, up = A * B1^T      (what ew_ag_gemm computes, rounded)
 *     C    = round(act(gate) * up)        with two products, else round(act(gate))
 *
 * act and the product with up are fp32 and rounded once to the element type.  C is
 * m x the n of a product, so half of the plan's n where there are two.  The C of a product
 * is NULL, or receives gate or up besides, as a gradient needs them; without it they do not
 * leave the cache, or the SM of a GPU, on their way to C.  No output overlaps another or
 * anything that is read.
 *
 * Determinism: gate and up have the bits of ew_ag_gemm_multi, and the others follow from
 * the lines above, on every CPU and GPU, except for the bits of NaNs.  SILU is accurate to
 * 4 units in the last place of fp32, and to 64 below x = -87.3, where exp(x) is subnormal;
 * GELU_TANH to 2^-16 of its value; both where the result is a normal number. */
EW_API ew_status ew_ag_gemm_act(ew_plan *plan, int64_t m, const void *A,
                                const ew_product *products, int num_products,
                                ew_activation activation, void *C, void *gathered,
                                ew_stream stream);

/* Waits for all calls that were enqueued and reports their fault, if any: EW_ERR_TIMEOUT,
 * EW_ERR_PEER_DIED or EW_ERR_ABORTED, with the culprit named in ew_last_error().  It does
 * not wait for replays of a graph: wait for their stream first. */
EW_API ew_status ew_plan_wait(ew_plan *plan);

/* The config in use, every field chosen. */
EW_API ew_status ew_plan_config(const ew_plan *plan, ew_config *config_out);

/* What was chosen and why, in a few lines of text.  Writes at most `bytes` bytes with
 * the closing zero; EW_EXPLAIN_BYTES is always enough. */
#define EW_EXPLAIN_BYTES 4096
EW_API ew_status ew_plan_explain(const ew_plan *plan, char *text, size_t bytes);

/* NULL is allowed.  Collective only in the sense that peers must not call into the plan
 * afterwards, nor, on a GPU that ranks share as threads, be in a call of another plan that
 * this rank has yet to make.  While the world is in use, or in a forked child, it behaves
 * as ew_world_destroy does. */
EW_API void ew_plan_destroy(ew_plan *plan);

/* ---- Symmetric memory ---------------------------------------------------------------- */

/* Memory of which every rank has a part that the GPUs of all ranks can write.  It is never
 * needed, since every output may lie anywhere, but it saves time: where C of ew_gemm_ar (or
 * normed of ew_gemm_ar_layer, in which each rank has its own rows of the residual) lies in
 * it, ranks store what they have summed straight into the outputs of all, and a call in two
 * shots is spared a copy of the whole output.  For that the output begins at the same place
 * of the same allocation on all ranks; if any rank's lies elsewhere, the call runs as with
 * other memory.  Bits are the same either way.
 *
 * Other ranks write the output only from the call's place in its stream on: whatever reads
 * an earlier result must come before the call in the stream, as always.
 *
 * On the CPU, which gains nothing from it, and between hosts it is plain memory; for the
 * simulator it is an address to pass on, as in ew_memory_alloc (measure.h). */

/* Allocates `bytes` bytes on every rank.  Collective: ranks that ask for different sizes
 * get EW_ERR_MISMATCH naming both. */
EW_API ew_status ew_alloc(ew_world *world, ew_backend backend, size_t bytes,
                          void **memory_out);

/* The same for memory that others have made symmetric, such as PyTorch's SymmetricMemory or
 * a window of NCCL: pointers[r] is where this process, and its GPU, reach the `bytes` bytes
 * of rank r; pointers of ranks on other hosts are not read.  Collective.  The memory stays
 * the caller's, who calls ew_free before it goes; nothing may use it meanwhile, as the
 * first bytes of it are overwritten and restored.  EW_ERR_ARGUMENT: a pointer is not GPU
 * memory, not the memory that the rank itself passes, or shorter than `bytes`.
 * EW_ERR_UNSUPPORTED: the backend has no use for it. */
EW_API ew_status ew_import(ew_world *world, ew_backend backend, void *const *pointers,
                           size_t bytes);

/* Frees what ew_alloc gave, or forgets what ew_import was given (this rank's own pointer).
 * Collective; waits for the calls that were enqueued.  A graph that captured a call with
 * the memory must not be replayed any more.  After a fault of the world the memory stays
 * until the process ends, because another rank may still have it mapped.  NULL is allowed,
 * on all ranks alike. */
EW_API ew_status ew_free(ew_world *world, ew_backend backend, void *memory);

#ifdef __cplusplus
}
#endif
#endif
