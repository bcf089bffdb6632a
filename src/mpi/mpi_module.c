/* Bootstrap through MPI: starting it, an all-gather, ending it.  What carries tiles is in
 * mpi_fabric.c, the methods measured against are in mpi_methods.c.  Only this folder may
 * know MPI. */
#include "mpi_fabric.h"
#include "mpi_methods.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

/* The one piece of state: MPI itself is one per process. */
static bool started_here;

/* Open MPI ends a process that SLURM started without PMIx, in the middle of MPI_Init. */
static bool would_not_survive(void)
{
#ifdef OPEN_MPI
    return secure_getenv("SLURM_PROCID") && !secure_getenv("PMIX_RANK") &&
           !secure_getenv("OMPI_COMM_WORLD_RANK");
#else
    return false;
#endif
}

/* A tile's receive is posted before it is sent, so it need not ask whether it may come.
 * Over TCP the question costs as much as a third of sending the tile. */
static void send_tiles_unasked(void)
{
    enum { HEADER_BYTES = 32768 }; /* more than MPI writes before a message */
    char limit[16], most[16];
    snprintf(limit, sizeof limit, "%d", EW_MESSAGE_BYTES + HEADER_BYTES);
    snprintf(most, sizeof most, "%d", 2 * EW_MESSAGE_BYTES);
    setenv("OMPI_MCA_btl_tcp_eager_limit", limit, 0);
    setenv("OMPI_MCA_btl_tcp_rndv_eager_limit", limit, 0);
    setenv("OMPI_MCA_btl_tcp_max_send_size", most, 0);
}

static int module_open(int *rank_out, int *num_ranks_out)
{
    int initialised = 0, ended = 0, provided = 0;
    if (MPI_Initialized(&initialised) != MPI_SUCCESS ||
        MPI_Finalized(&ended) != MPI_SUCCESS || ended)
        return 1;
    if (!initialised && would_not_survive())
        return 1;
    if (!initialised) {
        /* Lets mpi_methods.c choose an algorithm per communicator.  Open MPI reads it only
         * once, here; with no algorithm forced it decides as it does without. */
        setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 0);
        send_tiles_unasked();
        /* Funneled: our workers never call MPI, the caller's thread does. */
        if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS)
            return 1;
        started_here = true;
    }
    return MPI_Comm_rank(MPI_COMM_WORLD, rank_out) != MPI_SUCCESS ||
           MPI_Comm_size(MPI_COMM_WORLD, num_ranks_out) != MPI_SUCCESS;
}

static int module_allgather(void *context, const void *mine, void *all, size_t bytes)
{
    (void)context;
    if (bytes > INT_MAX)
        return 1;
    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE,
                         MPI_COMM_WORLD) != MPI_SUCCESS;
}

static void module_close(void)
{
    if (started_here)
        MPI_Finalize();
    started_here = false;
}

static void module_abort(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
}

const ew_mpi_module *ew_mpi_module_get(void)
{
    static const ew_mpi_module module = {
        .struct_size = (uint32_t)sizeof(ew_mpi_module),
        .open = module_open,
        .allgather = module_allgather,
        .fabric_open = ewx_mpi_fabric_open,
        .fabric_close = ewx_mpi_fabric_close,
        .method_list = ewx_mpi_method_list,
        .method_create = ewx_mpi_method_create,
        .method_destroy = ewx_mpi_method_destroy,
        .close = module_close,
        .abort = module_abort,
    };
    return &module;
}
