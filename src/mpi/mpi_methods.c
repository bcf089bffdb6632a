/* blas+mpi and blas+mpi-best: one BLAS call into private memory, then MPI's own
 * ReduceScatter or, for gemm-ar, AllReduce; for ag-gemm its AllGather, then the BLAS call.
 * What a user without Entwine would write, so nothing here is shared with the engine but
 * the BLAS and the rule of who owns which rows.
 *
 * Open MPI has several collectives that do this, each with several algorithms, and fixes a
 * communicator's algorithms when the communicator is made, from control variables.  So the
 * best is found by making a communicator per algorithm and timing it at the real size.
 *
 * malloc is left as the system sets it.  Open MPI takes its temporaries from it at every
 * call; where glibc gives them back to the kernel each time, fresh pages are two thirds of
 * the cost, and whether it does depends on the algorithm and on what else is allocated.
 * MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=-1 in the environment makes it keep them. */
#include "mpi_methods.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

enum { TRIAL_ROUNDS = 5, TRIAL_CALLS = 3, TRIALS = TRIAL_ROUNDS * TRIAL_CALLS };
enum { TRIAL_SIDE = 64 };

/* What MPI can do behind the GEMM, or before it.  Three take equal counts only. */
typedef enum mpi_call {
    SCATTER_BLOCK,  /* MPI_Reduce_scatter_block */
    SCATTER,        /* MPI_Reduce_scatter */
    ALLREDUCE,      /* MPI_Allreduce */
    SCATTER_GATHER, /* MPI_Reduce_scatter_block, then MPI_Allgather */
    GATHER,         /* MPI_Allgather */
    GATHER_V        /* MPI_Allgatherv */
} mpi_call;

/* The operation that each belongs to, whether it takes equal counts only, and where Open
 * MPI's choice of its algorithm can be set. */
static const struct call_facts {
    ew_op op;
    bool needs_even;
    const char *variable;
} facts[] = {
    [SCATTER_BLOCK] = {EW_OP_GEMM_RS, true, "coll_tuned_reduce_scatter_block_algorithm"},
    [SCATTER] = {EW_OP_GEMM_RS, false, "coll_tuned_reduce_scatter_algorithm"},
    [ALLREDUCE] = {EW_OP_GEMM_AR, false, "coll_tuned_allreduce_algorithm"},
    [SCATTER_GATHER] = {EW_OP_GEMM_AR, true, "coll_tuned_reduce_scatter_block_algorithm"},
    [GATHER] = {EW_OP_AG_GEMM, true, "coll_tuned_allgather_algorithm"},
    [GATHER_V] = {EW_OP_AG_GEMM, false, "coll_tuned_allgatherv_algorithm"},
};

/* One way in which Open MPI does it. */
typedef struct algorithm {
    const char *name;
    mpi_call call;
    int number; /* as the control variable counts; 0 leaves the choice to Open MPI */
} algorithm;

static const algorithm algorithms[] = {
    {"block default", SCATTER_BLOCK, 0},
    {"block basic_linear", SCATTER_BLOCK, 1},
    {"block recursive_doubling", SCATTER_BLOCK, 2},
    {"block recursive_halving", SCATTER_BLOCK, 3},
    {"block butterfly", SCATTER_BLOCK, 4},
    {"default", SCATTER, 0},
    {"non-overlapping", SCATTER, 1},
    {"recursive_halving", SCATTER, 2},
    {"ring", SCATTER, 3},
    {"butterfly", SCATTER, 4},
    {"allreduce default", ALLREDUCE, 0},
    {"basic_linear", ALLREDUCE, 1},
    {"nonoverlapping", ALLREDUCE, 2},
    {"recursive_doubling", ALLREDUCE, 3},
    {"ring", ALLREDUCE, 4},
    {"segmented_ring", ALLREDUCE, 5},
    {"rabenseifner", ALLREDUCE, 6},
    {"scatter+gather default", SCATTER_GATHER, 0},
    {"scatter+gather recursive_halving", SCATTER_GATHER, 3},
    {"scatter+gather butterfly", SCATTER_GATHER, 4},
    {"gather default", GATHER, 0},
    {"gather linear", GATHER, 1},
    {"gather bruck", GATHER, 2},
    {"gather recursive_doubling", GATHER, 3},
    {"gather ring", GATHER, 4},
    {"gather neighbor", GATHER, 5},
    {"gather two_proc", GATHER, 6},
    {"gatherv default", GATHER_V, 0},
    {"gatherv linear", GATHER_V, 1},
    {"gatherv bruck", GATHER_V, 2},
    {"gatherv ring", GATHER_V, 3},
    {"gatherv neighbor", GATHER_V, 4},
    {"gatherv two_proc", GATHER_V, 5},
};
enum { NUM_ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

typedef struct mpi_method {
    ew_problem problem;
    int num_ranks;
    MPI_Comm comm;
    mpi_call call; /* where counts must be equal and are not, its next kin */
    float *whole;  /* max_m x n: this rank's contribution; or max_m x k: gathered rows */
    float *trial;  /* the other end, for choose_best */
    int *counts;   /* elements per rank, and then those before them */
} mpi_method;

static bool gathers(const ew_problem *problem)
{
    return problem->op == EW_OP_AG_GEMM;
}

/* The columns of the matrix that crosses. */
static int64_t crossing_cols(const ew_problem *problem)
{
    return gathers(problem) ? problem->k : problem->n;
}

const char *const *ewx_mpi_method_list(void)
{
    static const char *const list[] = {"blas+mpi", "blas+mpi-best", NULL};
    return list;
}

/* The second half takes the first one's result where it lies. */
static int scatter_and_gather(const mpi_method *method, MPI_Comm comm, int count, float *C)
{
    int rank;
    MPI_Comm_rank(comm, &rank);
    const int rc = MPI_Reduce_scatter_block(method->whole, C + (size_t)rank * (size_t)count,
                                            count, MPI_FLOAT, MPI_SUM, comm);
    return rc != MPI_SUCCESS ? rc
                             : MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, C, count,
                                             MPI_FLOAT, comm);
}

/* Elements of every rank, and before it. */
static bool count_elements(const mpi_method *method, int64_t m)
{
    const int64_t cols = crossing_cols(&method->problem);
    for (int rank = 0; rank < method->num_ranks; rank++) {
        int64_t first, rows;
        if (ew_owned_rows(m, method->num_ranks, rank, &first, &rows) != EW_OK)
            return false;
        method->counts[rank] = (int)(rows * cols);
        method->counts[method->num_ranks + rank] = (int)(first * cols);
    }
    return true;
}

/* From this rank's rows to all, in `whole`. */
static int gather(const mpi_method *method, MPI_Comm comm, mpi_call call, int64_t m,
                  const float *A)
{
    const int num_ranks = method->num_ranks;
    const int count = (int)(m / num_ranks * method->problem.k);
    int rank;
    if (m % num_ranks == 0 && call == GATHER)
        return MPI_Allgather(A, count, MPI_FLOAT, method->whole, count, MPI_FLOAT, comm);
    MPI_Comm_rank(comm, &rank);
    return count_elements(method, m)
               ? MPI_Allgatherv(A, method->counts[rank], MPI_FLOAT, method->whole,
                                method->counts, method->counts + num_ranks, MPI_FLOAT, comm)
               : MPI_ERR_COUNT;
}

/* From `whole`, this rank's contribution, to the output. */
static int add_up(const mpi_method *method, MPI_Comm comm, mpi_call call, int64_t m,
                  float *C)
{
    const int num_ranks = method->num_ranks;
    const int64_t n = method->problem.n;
    const bool even = m % num_ranks == 0;
    if (even && call == SCATTER_GATHER)
        return scatter_and_gather(method, comm, (int)(m / num_ranks * n), C);
    if (call == ALLREDUCE || call == SCATTER_GATHER)
        return MPI_Allreduce(method->whole, C, (int)(m * n), MPI_FLOAT, MPI_SUM, comm);
    if (even && call == SCATTER_BLOCK)
        return MPI_Reduce_scatter_block(method->whole, C, (int)(m / num_ranks * n),
                                        MPI_FLOAT, MPI_SUM, comm);
    return count_elements(method, m) ? MPI_Reduce_scatter(method->whole, C, method->counts,
                                                          MPI_FLOAT, MPI_SUM, comm)
                                     : MPI_ERR_COUNT;
}

static bool multiply(const ew_problem *p, int64_t m, const void *A, const void *B, void *C)
{
    return m == 0 || ew_blas_gemm(p->weight_layout, m, p->n, p->k, A, B, C, p->n) == EW_OK;
}

/* The GEMM's end is then as if it had begun at once (ew_timing). */
static int gather_and_multiply(mpi_method *method, int64_t m, const void *A, const void *B,
                               void *C, int64_t *gemm_end_ns_out)
{
    const int64_t start_ns = ew_now_ns();
    if (gather(method, method->comm, method->call, m, A) != MPI_SUCCESS)
        return 1;
    const int64_t gather_ns = ew_now_ns() - start_ns;
    if (!multiply(&method->problem, m, method->whole, B, C))
        return 1;
    *gemm_end_ns_out = ew_now_ns() - gather_ns;
    return 0;
}

static int method_run(void *context, int64_t m, const void *A, const void *B, void *C,
                      int64_t *gemm_end_ns_out)
{
    mpi_method *method = context;
    const ew_problem *p = &method->problem;
    if (m < 0 || m > p->max_m)
        return 1;
    if (gathers(p))
        return gather_and_multiply(method, m, A, B, C, gemm_end_ns_out);
    if (!multiply(p, m, A, B, method->whole))
        return 1;
    *gemm_end_ns_out = ew_now_ns();
    return add_up(method, method->comm, method->call, m, C) != MPI_SUCCESS;
}

/* Forces an algorithm on communicators made from now on; 0 forces none. */
static bool force_algorithm(mpi_call call, int number)
{
    int index, count;
    MPI_T_cvar_handle handle;
    if (MPI_T_cvar_get_index(facts[call].variable, &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
        return false;
    const bool written = MPI_T_cvar_write(handle, &number) == MPI_SUCCESS;
    MPI_T_cvar_handle_free(&handle);
    return written;
}

/* Is the switch on, without which Open MPI ignores a forced algorithm? */
static bool rules_are_dynamic(void)
{
    int index, count;
    bool on = false;
    MPI_T_cvar_handle handle;
    if (MPI_T_cvar_get_index("coll_tuned_use_dynamic_rules", &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
        return false;
    const int rc = MPI_T_cvar_read(handle, &on);
    MPI_T_cvar_handle_free(&handle);
    return rc == MPI_SUCCESS && on;
}

static MPI_Comm comm_with_algorithm(const algorithm *a)
{
    MPI_Comm comm = MPI_COMM_NULL;
    /* Open MPI 4.1 takes no algorithm for MPI_Allgatherv, and has its own choice there. */
    const bool is_forced = a->number == 0 || force_algorithm(a->call, a->number);
    if (is_forced && MPI_Comm_dup(MPI_COMM_WORLD, &comm) == MPI_SUCCESS)
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    (void)force_algorithm(a->call, 0);
    return comm;
}

/* A BLAS call as small as it may be: BLAS, too, allocates. */
static void call_blas(const mpi_method *method)
{
    const ew_problem *p = &method->problem;
    const int64_t rows = p->max_m / method->num_ranks;
    const int64_t cols = crossing_cols(p), shorter = rows < cols ? rows : cols;
    const int64_t side = shorter < TRIAL_SIDE ? shorter : TRIAL_SIDE;
    if (side > 0)
        ew_blas_gemm(p->weight_layout, side, side, side, method->whole, method->whole,
                     method->trial, side);
}

/* Seconds of one collective at max_m, the slowest rank's, so equal on all ranks.  Negative
 * when this communicator cannot do it. */
static double time_once(const mpi_method *method, MPI_Comm comm, mpi_call call)
{
    call_blas(method);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    const int64_t max_m = method->problem.max_m;
    const int rc = gathers(&method->problem)
                       ? gather(method, comm, call, max_m, method->trial)
                       : add_up(method, comm, call, max_m, method->trial);
    double mine[2] = {MPI_Wtime() - start, rc != MPI_SUCCESS}, slowest[2] = {0, 1};
    MPI_Allreduce(mine, slowest, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest[1] != 0 ? -1 : slowest[0];
}

/* Times a few calls in a row, on a communicator that is alone and after a BLAS call each:
 * malloc is then in the state in which the timed calls will find it.  False when the
 * algorithm does not work here. */
static bool time_algorithm(const mpi_method *method, const algorithm *a, double *times)
{
    MPI_Comm comm = comm_with_algorithm(a);
    if (comm == MPI_COMM_NULL)
        return false;
    bool works = time_once(method, comm, a->call) >= 0; /* connects the ranks */
    for (int call = 0; call < TRIAL_CALLS && works; call++) {
        times[call] = time_once(method, comm, a->call);
        works = times[call] >= 0;
    }
    MPI_Comm_free(&comm);
    return works;
}

static int compare_times(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

/* Whether an algorithm does what the problem asks for. */
static bool is_candidate(const mpi_method *method, const algorithm *a)
{
    const struct call_facts *call = &facts[a->call];
    const bool even = method->problem.max_m % method->num_ranks == 0;
    return call->op == method->problem.op && (even || !call->needs_even);
}

/* A typical time of each algorithm, negative where it does not work.  Rounds go through
 * all of them in turn and the lower quartile counts, so that moments of noise do not
 * decide. */
static void time_all(const mpi_method *method, double *typical)
{
    double times[NUM_ALGORITHMS][TRIALS];
    bool works[NUM_ALGORITHMS];
    for (int at = 0; at < NUM_ALGORITHMS; at++)
        works[at] = is_candidate(method, &algorithms[at]);
    for (int round = 0; round < TRIAL_ROUNDS; round++)
        for (int at = 0; at < NUM_ALGORITHMS; at++)
            works[at] = works[at] && time_algorithm(method, &algorithms[at],
                                                    &times[at][round * TRIAL_CALLS]);
    for (int at = 0; at < NUM_ALGORITHMS; at++) {
        if (works[at])
            qsort(times[at], TRIALS, sizeof(double), compare_times);
        typical[at] = works[at] ? times[at][TRIALS / 4] : -1;
    }
}

/* Every rank sees the same times and decides alike. */
static bool choose_best(mpi_method *method, char *remark, size_t remark_bytes)
{
    double typical[NUM_ALGORITHMS];
    int best = -1;
    time_all(method, typical);
    for (int at = 0; at < NUM_ALGORITHMS; at++)
        if (typical[at] >= 0 && (best < 0 || typical[at] < typical[best]))
            best = at;
    if (best < 0)
        return false;

    int used = snprintf(remark, remark_bytes, "%s taken; ms:", algorithms[best].name);
    for (int at = 0; at < NUM_ALGORITHMS; at++)
        if (typical[at] >= 0 && used >= 0 && (size_t)used < remark_bytes)
            used += snprintf(remark + used, remark_bytes - (size_t)used, " %s %.2f",
                             algorithms[at].name, typical[at] * 1e3);
    method->call = algorithms[best].call;
    method->comm = comm_with_algorithm(&algorithms[best]);
    return method->comm != MPI_COMM_NULL;
}

/* Rows of the matrix at the collective's other end (see `trial`), on the rank that has
 * most. */
static int64_t rows_of(const ew_problem *problem, int num_ranks)
{
    return problem->op == EW_OP_GEMM_AR ? problem->max_m : problem->max_m / num_ranks + 1;
}

/* The most rows that one count or one displacement must hold. */
static int64_t rows_counted(const ew_problem *problem, int num_ranks)
{
    return gathers(problem) ? problem->max_m : rows_of(problem, num_ranks);
}

static const char *refusal(const ew_problem *problem, int num_ranks)
{
    if (problem->dtype != EW_FP32)
        return "the MPI baselines are fp32 only: BLAS has no bf16 or fp16, nor has MPI a "
               "sum of them";
    if (problem->max_m < 0 || problem->n < 1 || problem->k < 1)
        return "rows, columns and depth must be positive";
    if (rows_counted(problem, num_ranks) > INT_MAX / crossing_cols(problem))
        return "MPI counts elements in an int and a rank's rows have more of them";
    if (!ew_blas_name())
        return secure_getenv("ENTWINE_BLAS")
                   ? "ENTWINE_BLAS names no library that can be loaded and has cblas_sgemm"
                     "\n  fix: name one that is, such as libblis.so.4, or unset it"
                   : "no BLAS is installed\n  fix: install libblis4 or libopenblas0";
    return NULL;
}

/* The communicator, and with it the algorithm. */
static bool open_comm(mpi_method *method, bool best, char *text, size_t text_bytes)
{
    if (!best) {
        if (MPI_Comm_dup(MPI_COMM_WORLD, &method->comm) != MPI_SUCCESS) {
            snprintf(text, text_bytes, "MPI_Comm_dup failed");
            return false;
        }
        MPI_Comm_set_errhandler(method->comm, MPI_ERRORS_RETURN);
        return true;
    }
    int provided;
    MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
    bool chosen = false;
    if (!rules_are_dynamic())
        snprintf(text, text_bytes,
                 "this MPI does not let a program choose its algorithms\n"
                 "  fix: use Open MPI, and leave the variable "
                 "OMPI_MCA_coll_tuned_use_dynamic_rules unset");
    else {
        chosen = choose_best(method, text, text_bytes);
        if (!chosen)
            snprintf(text, text_bytes, "none of Open MPI's algorithms worked");
    }
    MPI_T_finalize();
    return chosen;
}

/* A rank that gave up must not leave its peers waiting in a collective. */
static bool all_ranks_say(bool yes)
{
    int mine = yes, all = 0;
    return MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD) ==
               MPI_SUCCESS &&
           all;
}

static mpi_method *method_alloc(const ew_problem *problem, int num_ranks)
{
    static const mpi_call defaults[] = {[EW_OP_GEMM_RS] = SCATTER_BLOCK,
                                        [EW_OP_GEMM_AR] = ALLREDUCE,
                                        [EW_OP_AG_GEMM] = GATHER};
    const size_t cols = (size_t)crossing_cols(problem);
    const size_t elems = (size_t)problem->max_m * cols;
    const size_t other = (size_t)rows_of(problem, num_ranks) * cols;
    mpi_method *method = malloc(sizeof *method);
    if (!method)
        return NULL;
    *method = (mpi_method){.problem = *problem,
                           .num_ranks = num_ranks,
                           .comm = MPI_COMM_NULL,
                           .call = defaults[problem->op]};
    method->whole = malloc((elems + 1) * sizeof(float));
    method->trial = calloc(other + 1, sizeof(float));
    method->counts = malloc(2 * (size_t)num_ranks * sizeof(int));
    if (method->whole && method->trial && method->counts) {
        /* Touched now: page faults belong to no timed call. */
        memset(method->whole, 0, elems * sizeof(float));
        return method;
    }
    ewx_mpi_method_destroy(&(ew_bench_custom){method, method_run});
    return NULL;
}

int ewx_mpi_method_create(const char *name, const ew_problem *problem, int rank,
                          int num_ranks, ew_bench_custom *custom_out, char *error,
                          size_t error_bytes)
{
    (void)rank;
    const bool best = strcmp(name, "blas+mpi-best") == 0;
    if (!best && strcmp(name, "blas+mpi") != 0) {
        snprintf(error, error_bytes, "no MPI method is called \"%s\"", name);
        return 1;
    }

    mpi_method *method = NULL;
    const char *reason = refusal(problem, num_ranks);
    if (!reason && !(method = method_alloc(problem, num_ranks)))
        reason = "out of memory";
    snprintf(error, error_bytes, "%s", reason ? reason : "");
    ew_bench_custom custom = {method, method_run};
    if (!all_ranks_say(!reason)) {
        if (!reason)
            snprintf(error, error_bytes, "another rank could not set up %s", name);
        ewx_mpi_method_destroy(&custom);
        return 1;
    }
    if (!open_comm(method, best, error, error_bytes)) {
        ewx_mpi_method_destroy(&custom);
        return 1;
    }
    *custom_out = custom;
    return 0;
}

void ewx_mpi_method_destroy(ew_bench_custom *custom)
{
    if (!custom || !custom->context)
        return;
    mpi_method *method = custom->context;
    if (method->comm != MPI_COMM_NULL)
        MPI_Comm_free(&method->comm);
    free(method->whole);
    free(method->trial);
    free(method->counts);
    free(method);
    custom->context = NULL;
}
