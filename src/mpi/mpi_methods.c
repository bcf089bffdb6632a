/* blas+mpi and blas+mpi-best: one BLAS call into private memory, then MPI's own
 * ReduceScatter.  What a user without Entwine would write, so nothing here is shared with
 * the engine but the BLAS and the rule of who owns which rows.
 *
 * Open MPI fixes a communicator's algorithm when the communicator is made, from two
 * control variables.  So the best algorithm is found by making one communicator per
 * algorithm and timing each on the real problem size. */
#include "mpi_methods.h"

#include <limits.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>

enum { LAST_ALGORITHM = 4, TRIAL_ROUNDS = 5 };

static const char *const block_names[] = {"default", "basic_linear", "recursive_doubling",
                                          "recursive_halving", "butterfly"};
static const char *const ragged_names[] = {"default", "non-overlapping",
                                           "recursive_halving", "ring", "butterfly"};

typedef struct mpi_method {
    ew_problem problem;
    int num_ranks;
    MPI_Comm comm;
    float *partial; /* max_m x n: this rank's contribution */
    float *trial;   /* an output for choose_best */
    int *counts;    /* elements per rank, for ragged partitions */
} mpi_method;

const char *const *ewx_mpi_method_list(void)
{
    static const char *const list[] = {"blas+mpi", "blas+mpi-best", NULL};
    return list;
}

static int reduce_scatter(const mpi_method *method, MPI_Comm comm, int64_t m, float *C)
{
    const int num_ranks = method->num_ranks;
    const int64_t n = method->problem.n;
    if (m % num_ranks == 0)
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
    return reduce_scatter(method, method->comm, m, C) != MPI_SUCCESS;
}

/* Forces an algorithm on communicators made from now on; 0 forces none. */
static bool force_algorithm(const char *variable, int algorithm)
{
    int index, count;
    MPI_T_cvar_handle handle;
    if (MPI_T_cvar_get_index(variable, &index) != MPI_SUCCESS ||
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) != MPI_SUCCESS)
        return false;
    const bool written = MPI_T_cvar_write(handle, &algorithm) == MPI_SUCCESS;
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

static MPI_Comm comm_with_algorithm(int algorithm)
{
    MPI_Comm comm = MPI_COMM_NULL;
    if (force_algorithm("coll_tuned_reduce_scatter_block_algorithm", algorithm) &&
        force_algorithm("coll_tuned_reduce_scatter_algorithm", algorithm) &&
        MPI_Comm_dup(MPI_COMM_WORLD, &comm) == MPI_SUCCESS)
        MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    force_algorithm("coll_tuned_reduce_scatter_block_algorithm", 0);
    force_algorithm("coll_tuned_reduce_scatter_algorithm", 0);
    return comm;
}

/* Seconds of one reduction at max_m, the slowest rank's, so equal on all ranks.  Negative
 * when this communicator cannot do it. */
static double time_once(const mpi_method *method, MPI_Comm comm)
{
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    const int rc = reduce_scatter(method, comm, method->problem.max_m, method->trial);
    double mine[2] = {MPI_Wtime() - start, rc != MPI_SUCCESS}, slowest[2] = {0, 1};
    MPI_Allreduce(mine, slowest, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest[1] != 0 ? -1 : slowest[0];
}

/* Keeps the communicator whose best time is the least.  Rounds go through all candidates
 * in turn, so that a moment of noise does not decide; every rank sees the same times and
 * decides alike. */
static bool choose_best(mpi_method *method, char *remark, size_t remark_bytes)
{
    const int64_t m = method->problem.max_m;
    MPI_Comm comms[LAST_ALGORITHM + 1];
    double best_time[LAST_ALGORITHM + 1];
    int best = -1;
    for (int algorithm = 0; algorithm <= LAST_ALGORITHM; algorithm++) {
        comms[algorithm] = comm_with_algorithm(algorithm);
        best_time[algorithm] = -1;
    }
    for (int round = 0; round < TRIAL_ROUNDS; round++) {
        for (int algorithm = 0; algorithm <= LAST_ALGORITHM; algorithm++) {
            if (comms[algorithm] == MPI_COMM_NULL)
                continue;
            const double t = time_once(method, comms[algorithm]);
            if (t >= 0 && (best_time[algorithm] < 0 || t < best_time[algorithm]))
                best_time[algorithm] = t;
        }
    }
    for (int algorithm = 0; algorithm <= LAST_ALGORITHM; algorithm++)
        if (best_time[algorithm] >= 0 &&
            (best < 0 || best_time[algorithm] < best_time[best]))
            best = algorithm;

    int used = snprintf(remark, remark_bytes, "Open MPI algorithms:");
    const char *const *names = m % method->num_ranks == 0 ? block_names : ragged_names;
    for (int algorithm = 0; algorithm <= LAST_ALGORITHM; algorithm++) {
        if (best_time[algorithm] >= 0 && used >= 0 && (size_t)used < remark_bytes)
            used += snprintf(remark + used, remark_bytes - (size_t)used, " %d %s %.2f ms%s",
                             algorithm, names[algorithm], best_time[algorithm] * 1e3,
                             algorithm == best ? " (taken);" : ";");
        if (algorithm != best && comms[algorithm] != MPI_COMM_NULL)
            MPI_Comm_free(&comms[algorithm]);
    }
    if (best < 0)
        return false;
    method->comm = comms[best];
    return true;
}

/* Open MPI takes its temporaries from malloc at every call, and glibc by default gives
 * large blocks back to the kernel, so that every call pays for fresh pages: two thirds of
 * the time at 16 MiB.  Whether it does depends on what else the process freed before.
 * The best that Open MPI can do is with pages kept, whoever ran before. */
static void keep_pages(void)
{
    mallopt(M_MMAP_MAX, 0);
    mallopt(M_TRIM_THRESHOLD, -1);
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
        keep_pages();
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
    *method =
        (mpi_method){.problem = *problem, .num_ranks = num_ranks, .comm = MPI_COMM_NULL};
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
