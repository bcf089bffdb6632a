/* MPI as an ew_fabric.  Private to this folder. */
#ifndef EWX_MPI_FABRIC_H
#define EWX_MPI_FABRIC_H

#include <stdbool.h>

#include "entwine/fabric.h"

/* `comm` points to an MPI_Comm, or is NULL for MPI_COMM_WORLD.  Collective over it. */
int ewx_mpi_fabric_open(const void *comm, const ew_fabric **fabric_out);
void ewx_mpi_fabric_close(const ew_fabric *fabric, int broken);

/* Whether the MPI library says that it reads and writes the memory of CUDA GPUs.  After
 * MPI_Init. */
bool ewx_mpi_takes_device_memory(void);

#endif
