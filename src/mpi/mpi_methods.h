/* The baselines that end in MPI's ReduceScatter or AllReduce, as custom methods of the
 * benchmark loop.  Private to this folder. */
#ifndef EWX_MPI_METHODS_H
#define EWX_MPI_METHODS_H

#include "entwine/mpi_module.h"

const char *const *ewx_mpi_method_list(void);
int ewx_mpi_method_create(const char *method, const ew_problem *problem, int rank,
                          int num_ranks, ew_bench_custom *custom_out, char *error,
                          size_t error_bytes);
void ewx_mpi_method_destroy(ew_bench_custom *custom);

#endif
