/* The cases of mpi_check: each is what one rank of a world does, 0 when all went well. */
#ifndef MPI_CASES_H
#define MPI_CASES_H

#include "entwine/mpi_module.h"
#include "faultkit.h"
#include "harness.h"

/* ---- mpi_check.c ---- */

__attribute__((format(printf, 1, 2))) void say(const char *format, ...);

/* ---- mpi_cases.c: worlds in which all goes well ---- */

/* The argument is a config.  With shots it is of GEMM-AllReduce; "ag-gemm" may come before
 * it. */
ew_status open_duty(duty *d, ew_world *world, ew_problem problem, const char *argument);

int run_conformance(ew_world *world, const char *seeds);
int run_wrap(ew_world *world, const char *config);
int run_late(ew_world *world, const char *config);
int run_device_memory(ew_world *world, const char *expected);
int run_plain(ew_world *world, const char *argument);
int run_ended(ew_world *world, const char *config);
int run_crawl(ew_world *world, const char *config);
int run_layer(ew_world *world, const char *config);
int run_cramped(ew_world *world, const char *config);
int run_rows(ew_world *world, const char *config);
int run_bits(ew_world *world, const char *config);
int run_traffic(ew_world *world, const char *config);
int run_frozen(ew_world *world, const char *config);

/* Behind run_ended: MPI ends before the world does. */
int end_mpi(const ew_mpi_module *mpi, ew_world *world);

/* ---- mpi_misfortunes.c: the last rank's, and what the others say ---- */

int run_misfortune(ew_world *world, const char *kind);
int run_swap(ew_world *world, const char *first_rank);
int run_meet(ew_world *world, const char *kind);
int run_tardy(ew_world *world, const char *argument);

#endif
