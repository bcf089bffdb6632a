/* The MPI module, entwine_mpi.so: what a program that does not link MPI needs in order to
 * run under mpirun and to compare with MPI's own collectives.  Load it with dlopen, look
 * up ew_mpi_module_get and call through the table:
 *
 *     void *handle = dlopen("entwine_mpi.so", RTLD_NOW | RTLD_GLOBAL);
 *     ew_mpi_module_getter get = (ew_mpi_module_getter)dlsym(handle, "ew_mpi_module_get");
 *     const ew_mpi_module *mpi = get();
 *     mpi->open(&rank, &num_ranks);           // MPI_Init
 *     mpi->fabric_open(NULL, &fabric);        // on MPI_COMM_WORLD
 *     ew_world_join(fabric, NULL, &world);    // on one host or several
 *
 * Everything is collective over all ranks and belongs to the thread that called open. */
#ifndef ENTWINE_MPI_MODULE_H
#define ENTWINE_MPI_MODULE_H

#include "entwine/fabric.h"
#include "entwine/measure.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ew_mpi_module {
    uint32_t struct_size;

    /* Starts MPI unless the program already did.  0 on success; MPI that has ended does not
     * start again. */
    int (*open)(int *rank_out, int *num_ranks_out);

    /* An ew_allgather; `context` is not used. */
    int (*allgather)(void *context, const void *mine, void *all, size_t bytes);

    /* A fabric over a duplicate of a communicator, for ew_world_join: `comm` points to an
     * MPI_Comm, NULL means MPI_COMM_WORLD.  0 on success.  Close it after its world and
     * before MPI ends: this waits for the other ranks to do so too, for a second at most.
     * broken (not 0): the world had failed, so nothing is done that could wait for a peer.
     * Once MPI has ended, calls among several hosts fail with EW_ERR_SYSTEM, and the world
     * and the fabric can still be destroyed. */
    int (*fabric_open)(const void *comm, const ew_fabric **fabric_out);
    void (*fabric_close)(const ew_fabric *fabric, int broken);

    /* Methods for ew_bench_run, ending with NULL.  Each is one cblas_sgemm into private
     * memory and the operation's collective, by MPI:
     *   "blas+mpi"       with the algorithm that the MPI library picks
     *   "blas+mpi-best"  with the fastest for this problem that Open MPI has
     * EW_OP_GEMM_RS: MPI_Reduce_scatter_block, or MPI_Reduce_scatter when W does not divide
     * m; "blas+mpi-best" tries the algorithms of both.  EW_OP_GEMM_AR: MPI_Allreduce, and
     * "blas+mpi-best" also MPI_Reduce_scatter_block followed by MPI_Allgather.
     * EW_OP_AG_GEMM: MPI_Allgather or MPI_Allgatherv, before the product. */
    const char *const *(*method_list)(void);

    /* Fills custom_out for a bench entry.  `error` receives the reason of a failure; on
     * success a remark (which algorithm won) or an empty text.  0 on success.
     *
     * MPI's temporaries come from malloc, whose state the two methods would share: measure
     * them in separate runs. */
    int (*method_create)(const char *method, const ew_problem *problem, int rank,
                         int num_ranks, ew_bench_custom *custom_out, char *error,
                         size_t error_bytes);
    void (*method_destroy)(ew_bench_custom *custom); /* NULL and zeroes are allowed */

    /* Ends MPI if open started it. */
    void (*close)(void);

    /* Ends every process of the job.  Does not return. */
    void (*abort)(int code);
} ew_mpi_module;

EW_API const ew_mpi_module *ew_mpi_module_get(void);
typedef const ew_mpi_module *(*ew_mpi_module_getter)(void);

#ifdef __cplusplus
}
#endif
#endif
