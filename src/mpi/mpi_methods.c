/* blas+mpi and blas+mpi-best: one BLAS call into private memory, then MPI's own
 * ReduceScatter.  What a user without Entwine would write, so nothing here is shared with
 * the engine but the BLAS and the rule of who owns which rows.
 *
 * Open MPI has two collectives that do this, each with several algorithms, and fixes a
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

/* One way in which Open MPI reduces and scatters; `block` takes equal counts only. */
typedef struct algorithm {
    const char *name;
    bool block;
    int number; /* as the control variable counts; 0 leaves the choice to Open MPI */
} algorithm;

static const algorithm algorithms[] = {
    {"block default", true, 0},
    {"block basic_linear", true, 1},
    {"block recursive_doubling", true, 2},
    {"block recursive_halving", true, 3},
    {"block butterfly", true, 4},
    {"default", false, 0},
    {"non-overlapping", false, 1},
    {"recursive_halving", false, 2},
    {"ring", false, 3},
    {"butterfly", false, 4},
};
enum { NUM_ALGORITHMS = sizeof algorithms / sizeof algorithms[0] };

typedef struct mpi_method {
    ew_problem problem;
    int num_ranks;
    MPI_Comm comm;
    bool block;     /* MPI_Reduce_scatter_block where counts are equal */
    float *partial; /* max_m x n: this rank's contribution */
    float *trial;   /* an output for choose_best */
    int *counts;    /* elements per rank */
} mpi_method;

const char *const *ewx_mpi_method_list(void)
{
    static const char *const list[] = {"blas+mpi", "blas+mpi-best", NULL};
    return list;
}

static int reduce_scatter(const mpi_method *method, MPI_Comm comm, bool block, int64_t m,
                          float *C)
{
    const int num_ranks = method->num_ranks;
    const int64_t n = method->problem.n;
    if (block && m % num_ranks == 0)
        return MPI_Reduce_scatter_block(method->partial, C, (int)(m / num_ranks * n),
                                        MPI_FLOAT, MPI_SUM, comm);
    for (int dst = 0; dst < num_ranks; dst++) {
        int64_t first, rows;
        if (ew_owned_rows(m, num_ranks, dst, &first, &rows) != EW_OK)
            return MPI_ERR_COUNT;
        method->counts[dst] = (int)(rows * n);
    }
    return MPI_Reduce_scatter(method->partial, C, method->counts, MPI_FLOAT, MPI_SUM, comm);
}

static int method_run(void *context, int64_t m, const void *A, const void *B, void *C,
                      int64_t *gemm_end_ns_out)
{
    mpi_method *method = context;
    const ew_problem *p = &method->problem;
    if (m < 0 || m > p->max_m)
        return 1;
    if (m > 0 &&
        ew_blas_gemm(p->weight_layout, m, p->n, p->k, A, B, method->partial, p->n) != EW_OK)
        return 1;
    *gemm_end_ns_out = ew_now_ns();
    return reduce_scatter(method, method->comm, method->block, m, C) != MPI_SUCCESS;
}

/* Forces an algorithm on communicators made from now on; 0 forces none. */
static bool force_algorithm(bool block, int number)
{
    int index, count;
    MPI_T_cvar_handle handle;
    const char *variable = block ? "coll_tuned_reduce_scatter_block_algorithm"
                                 : "coll_tuned_reduce_scatter_algorithm";
    if (MPI_T_cvar_get_index(variable, &index) != MPI_SUCCESS ||
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
    if (force_algorithm(a->block, a->number) &&
        MPI_Comm_dup(MPI_COMM_WORLD, &comm) == MPI_SUCCESS)
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    force_algorithm(a->block, 0);
    return comm;
}

/* A BLAS call as small as it may be: BLAS, too, allocates. */
static void call_blas(const mpi_method *method)
{
    const ew_problem *p = &method->problem;
    const int64_t rows = p->max_m / method->num_ranks;
    const int64_t shorter = rows < p->n ? rows : p->n;
    const int64_t side = shorter < TRIAL_SIDE ? shorter : TRIAL_SIDE;
    if (side > 0)
        ew_blas_gemm(p->weight_layout, side, side, side, method->partial, method->partial,
                     method->trial, side);
}

/* Seconds of one reduction at max_m, the slowest rank's, so equal on all ranks.  Negative
 * when this communicator cannot do it. */
static double time_once(const mpi_method *method, MPI_Comm comm, bool block)
{
    call_blas(method);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    const int rc =
        reduce_scatter(method, comm, block, method->problem.max_m, method->trial);
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
    bool works = time_once(method, comm, a->block) >= 0; /* connects the ranks */
    for (int call = 0; call < TRIAL_CALLS && works; call++) {
        times[call] = time_once(method, comm, a->block);
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

/* A typical time of each algorithm, negative where it does not work.  Rounds go through
 * all of them in turn and the lower quartile counts, so that moments of noise do not
 * decide. */
static void time_all(const mpi_method *method, double *typical)
{
    double times[NUM_ALGORITHMS][TRIALS];
    const bool even = method->problem.max_m % method->num_ranks == 0;
    bool works[NUM_ALGORITHMS];
    for (int at = 0; at < NUM_ALGORITHMS; at++)
        works[at] = even || !algorithms[at].block;
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
    method->block = algorithms[best].block;
    method->comm = comm_with_algorithm(&algorithms[best]);
    return method->comm != MPI_COMM_NULL;
}

static const char *refusal(const ew_problem *problem, int num_ranks)
{
    if (problem->dtype != EW_FP32)
        return "the MPI baselines are fp32 only: MPI has no sum of bf16 or fp16";
    if (problem->max_m < 0 || problem->n < 1 || problem->k < 1)
        return "rows, columns and depth must be positive";
    if ((problem->max_m / num_ranks + 1) > INT_MAX / problem->n)
        return "MPI counts elements in an int and a rank's rows have more of them";
    if (!ew_blas_name())
        return "no BLAS is installed\n  fix: install libblis4 or libopenblas0";
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
    const size_t n = (size_t)problem->n, elems = (size_t)problem->max_m * n;
    mpi_method *method = malloc(sizeof *method);
    if (!method)
        return NULL;
    *method = (mpi_method){
        .problem = *problem, .num_ranks = num_ranks, .comm = MPI_COMM_NULL, .block = true};
    method->partial = malloc((elems + 1) * sizeof(float));
    method->trial = malloc(((size_t)(problem->max_m / num_ranks) + 1) * n * sizeof(float));
    method->counts = malloc((size_t)num_ranks * sizeof(int));
    if (method->partial && method->trial && method->counts) {
        /* Touched now: page faults belong to no timed call. */
        memset(method->partial, 0, elems * sizeof(float));
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
    free(method->partial);
    free(method->trial);
    free(method->counts);
    free(method);
    custom->context = NULL;
}
