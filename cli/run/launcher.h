/* Where ranks come from when the tool does not start them itself: a launcher's
 * variables, and the MPI module that serves them with an all-gather. */
#ifndef ENTWINE_CLI_LAUNCHER_H
#define ENTWINE_CLI_LAUNCHER_H

#include <stdbool.h>

#include "entwine/mpi_module.h"
#include "options/options.h"

typedef struct cli_launch {
    bool found;           /* a launcher with more than one rank started this process */
    ew_launcher launcher; /* valid when found */
    bool joined;          /* this process is one rank of the launcher's world */
    const ew_mpi_module *mpi;
    const ew_fabric *fabric;
    ew_world *world;
} cli_launch;

/* Finds the launcher, if any; touches nothing. */
void cli_launch_detect(cli_launch *launch_out);

/* Refuses a launcher's variables that cannot be true, such as more ranks than a world has:
 * without this every process would start ranks of its own.  With -W they do not matter. */
cli_exit cli_launch_check(const cli_settings *settings);

/* For a command that starts its ranks itself: refuses a launcher whose world it would be
 * asked to join. */
cli_exit cli_launch_refuse(const char *command, const cli_settings *settings);

/* Whether that was mpirun, or another mpiexec. */
bool cli_launch_is_mpi(const cli_launch *launch);

/* Whether the launcher says that no lower rank is on this one's host. */
bool cli_launch_is_first_of_host(const cli_launch *launch);

/* Whether the settings ask this process to be a rank of the launcher's world, instead of
 * forking ranks of its own. */
bool cli_launch_wants_join(const cli_launch *launch, const cli_settings *settings);

/* Joins the launcher's world through the MPI module.  On failure one rank of a host
 * prints. */
cli_exit cli_launch_join(cli_launch *launch, const ew_world_options *options);

/* Leaves it; with a failure status the whole MPI job is ended, since peers may wait in
 * MPI for a rank that will not come. */
void cli_launch_close(cli_launch *launch, cli_exit status);

/* Whether this process may print: true without a launcher, else on rank 0 only. */
bool cli_launch_prints(const cli_launch *launch);

/* Ends this rank's part with a library's failure.  The lowest rank that is left prints it:
 * rank 0, or rank 1 when the text says that rank 0 is gone. */
cli_exit cli_launch_fail(const cli_launch *launch, ew_status status, const char *text);

/* The path of entwine_mpi.so; false when it is not installed. */
bool cli_launch_module_path(char *path, size_t bytes);

#endif
