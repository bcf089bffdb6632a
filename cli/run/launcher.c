/* Joining a launcher's world.  MPI is never linked: its module is loaded only here. */
#include "run/launcher.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/paths.h"

enum { ABORT_LATER_US = 1000000 };

void cli_launch_detect(cli_launch *launch_out)
{
    *launch_out = (cli_launch){.found = false};
    ew_launcher launcher;
    if (ew_launcher_detect(&launcher) == EW_OK && launcher.num_ranks > 1) {
        launch_out->found = true;
        launch_out->launcher = launcher;
    }
}

bool cli_launch_is_mpi(const cli_launch *launch)
{
    return launch->found && (strncmp(launch->launcher.source, "OMPI_", 5) == 0 ||
                             strncmp(launch->launcher.source, "PMI", 3) == 0);
}

bool cli_launch_is_first_of_host(const cli_launch *launch)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "SLURM_LOCALID", "LOCAL_RANK"};
    for (size_t i = 0; launch->found && i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value)
            return strcmp(value, "0") == 0;
    }
    return false;
}

bool cli_launch_wants_join(const cli_launch *launch, const cli_settings *settings)
{
    if (!launch->found)
        return false;
    if (settings->ranks.count == 0)
        return true;
    /* `mpirun -np 2 entwine bench -W 2` means the world of mpirun; with any other -W, as
     * in an interactive SLURM shell, the user wants local ranks. */
    return cli_launch_is_mpi(launch) && settings->ranks.count == 1 &&
           settings->ranks.at[0] == launch->launcher.num_ranks;
}

cli_exit cli_launch_check(const cli_settings *settings)
{
    ew_launcher launcher;
    if (settings->ranks.count > 0 || ew_launcher_detect(&launcher) != EW_ERR_ARGUMENT)
        return CLI_EXIT_OK;
    return cli_fail_status(EW_ERR_ARGUMENT, ew_last_error());
}

cli_exit cli_launch_refuse(const char *command, const cli_settings *settings)
{
    cli_launch launch;
    const cli_exit failed = cli_launch_check(settings);
    if (failed)
        return failed;
    cli_launch_detect(&launch);
    if (!cli_launch_wants_join(&launch, settings))
        return CLI_EXIT_OK;
    return cli_fail_usage("start it without the launcher, with -W",
                          "'%s' starts its ranks itself, but %s says rank %d of %d",
                          command, launch.launcher.source, launch.launcher.rank,
                          launch.launcher.num_ranks);
}

bool cli_launch_prints(const cli_launch *launch)
{
    return !launch->joined || launch->launcher.rank == 0;
}

/* The library's texts name the rank to blame in these ways. */
static bool blames_rank_zero(const char *text)
{
    static const char *const ways[] = {"rank 0 died", "rank 0 left", " of rank 0 (",
                                       " s for rank 0 "};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (strstr(text, ways[i]))
            return true;
    return false;
}

cli_exit cli_launch_fail(const cli_launch *launch, ew_status status, const char *text)
{
    const bool stands_in = launch->joined && launch->launcher.rank == 1 &&
                           (status == EW_ERR_PEER_DIED || status == EW_ERR_TIMEOUT) &&
                           blames_rank_zero(text);
    if (stands_in)
        cli_unmute();
    return stands_in || cli_launch_prints(launch) ? cli_fail_status(status, text)
                                                  : cli_exit_of(status);
}

bool cli_launch_module_path(char *path, size_t bytes)
{
    const char *named = getenv("ENTWINE_MPI_MODULE");
    if (named && *named) {
        int length = snprintf(path, bytes, "%s", named);
        return length > 0 && (size_t)length < bytes && access(path, R_OK) == 0;
    }
    return cli_path_find("", EW_MODULES_FROM_BIN, "entwine_mpi.so", path, bytes);
}

static cli_exit fail_join(const cli_launch *launch, const char *what)
{
    const ew_launcher *launcher = &launch->launcher;
    char fix[160];
    snprintf(fix, sizeof fix,
             "start with mpirun or srun --mpi=pmix, and build with MPI (entwine doctor), "
             "or give -W %d to fork local ranks",
             launcher->num_ranks);
    cli_fail(EW_ERR_UNSUPPORTED, fix, "%s says rank %d of %d, but %s", launcher->source,
             launcher->rank, launcher->num_ranks, what);
    return CLI_EXIT_ENVIRONMENT;
}

static const ew_mpi_module *load_module(char *why, size_t bytes)
{
    char path[PATH_MAX];
    if (!cli_launch_module_path(path, sizeof path)) {
        snprintf(why, bytes, "the MPI module entwine_mpi.so is not installed");
        return NULL;
    }
    /* Global: Open MPI's own plug-ins look for its symbols there.  Never closed: MPI
     * leaves threads and exit handlers behind. */
    void *handle = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ew_mpi_module_getter getter = NULL;
    if (handle) /* through a pointer, as POSIX has it: ISO C knows no such cast */
        *(void **)&getter = dlsym(handle, "ew_mpi_module_get");
    const ew_mpi_module *module = getter ? getter() : NULL;
    if (!module || module->struct_size < sizeof(ew_mpi_module)) {
        const char *text = dlerror();
        snprintf(why, bytes, "the MPI module cannot be used: %.200s",
                 text ? text : "it is of another version");
        return NULL;
    }
    return module;
}

cli_exit cli_launch_join(cli_launch *launch, const ew_world_options *options)
{
    ew_launcher *launcher = &launch->launcher;
    char why[320];
    int rank = -1, num_ranks = 0;
    const ew_mpi_module *mpi = load_module(why, sizeof why);
    if (!mpi)
        return fail_join(launch, why);
    if (mpi->open(&rank, &num_ranks))
        return fail_join(launch, "MPI does not start");
    launch->mpi = mpi;
    if (num_ranks != launcher->num_ranks || rank != launcher->rank) {
        snprintf(why, sizeof why, "MPI sees rank %d of %d", rank, num_ranks);
        return fail_join(launch, why);
    }
    if (mpi->fabric_open(NULL, &launch->fabric))
        return fail_join(launch, "MPI cannot carry messages");
    launch->joined = true;
    ew_status status = ew_world_join(launch->fabric, options, &launch->world);
    if (status == EW_OK)
        return CLI_EXIT_OK;
    return cli_launch_fail(launch, status, ew_last_error());
}

/* What went between hosts, for the record: with two levels one sum of a host per tile. */
static void report_traffic(const cli_launch *launch)
{
    ew_traffic traffic;
    if (!launch->world || launch->launcher.rank != 0 ||
        ew_world_traffic(launch->world, &traffic) != EW_OK || traffic.tile_messages == 0)
        return;
    fprintf(stderr,
            "# Hosts : %d over %s; rank 0 has sent %lld bytes of tiles to others, in %lld "
            "messages%s\n",
            traffic.num_hosts, launch->fabric->name, (long long)traffic.tile_bytes,
            (long long)traffic.tile_messages,
            traffic.device_bytes > 0   ? ", from device memory"
            : traffic.staged_bytes > 0 ? ", staged through pinned memory"
                                       : "");
}

void cli_launch_close(cli_launch *launch, cli_exit status)
{
    /* Then peers may be gone, and MPI would wait for them. */
    const bool broken = status == CLI_EXIT_PEER || status == CLI_EXIT_INTERRUPTED ||
                        (status == CLI_EXIT_ENVIRONMENT && launch->world);
    report_traffic(launch);
    ew_world_destroy(launch->world);
    launch->world = NULL;
    if (!launch->mpi)
        return;
    /* mpirun reports an abort at length; orderly ends, wrong values included, are quiet. */
    if (broken) {
        fflush(NULL);
        if (launch->launcher.rank != 0) /* it speaks for all, and is about to */
            usleep(ABORT_LATER_US);
        launch->mpi->abort(status);
    }
    launch->mpi->fabric_close(launch->fabric, 0);
    launch->fabric = NULL;
    launch->mpi->close();
    launch->mpi = NULL;
}
