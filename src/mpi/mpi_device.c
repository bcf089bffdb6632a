/* Device memory.  MPI has no question for it, each library its own. */
#include "mpi_fabric.h"

#include <mpi.h>
#ifdef OPEN_MPI
#include <mpi-ext.h>
#endif

#ifdef OMPI_HAVE_MPI_EXT_CUDA
/* Open MPI 4 tells how it was built, also where a parameter of it has turned that off, as
 * some packages do. */
static bool is_turned_off(void)
{
    int provided, index, count, value = 1;
    MPI_T_cvar_handle handle;
    if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return false;
    if (MPI_T_cvar_get_index("opal_cuda_support", &index) == MPI_SUCCESS &&
        MPI_T_cvar_handle_alloc(index, NULL, &handle, &count) == MPI_SUCCESS) {
        if (MPI_T_cvar_read(handle, &value) != MPI_SUCCESS)
            value = 1;
        MPI_T_cvar_handle_free(&handle);
    }
    MPI_T_finalize();
    return value == 0;
}
#endif

bool ewx_mpi_takes_device_memory(void)
{
#if defined OMPI_HAVE_MPI_EXT_CUDA
    return MPIX_Query_cuda_support() == 1 && !is_turned_off();
#elif defined MPIX_GPU_SUPPORT_CUDA /* MPICH, since 4.0 */
    int is_supported = 0;
    return MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &is_supported) == MPI_SUCCESS &&
           is_supported;
#else
    return false;
#endif
}
