/* Ranks that are started here, and ranks started by a launcher whose variables we read. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/inject.h"
#include "base/status.h"
#include "world/world.h"

/* ---- Started here ---- */

/* Names the rank that the world blames: what others return follows from its failure.  If
 * that one is unknown or ended well, the lowest that failed. */
static ew_status judge_exits(int num_ranks, const int *exits, int culprit)
{
    const bool known = culprit >= 0 && culprit < num_ranks && exits[culprit] != 0;
    int failed = known ? culprit : 0;
    while (failed < num_ranks && exits[failed] == 0)
        failed++;
    return failed == num_ranks
               ? EW_OK
               : ewx_fail(EW_ERR_ABORTED, "rank %d returned %d", failed, exits[failed]);
}

ew_status ew_run_ranks(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                       ew_rank_main rank_main, void *argument, int *exits_out)
{
    if (!rank_main)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_run_ranks needs a function to run");
    if (num_ranks < 1 || num_ranks > EWX_MAX_RANKS)
        return ewx_fail(EW_ERR_ARGUMENT, "W=%d is out of range\n  fix: use 1 to %d ranks",
                        num_ranks, EWX_MAX_RANKS);
    if (kind != EW_RANKS_AS_PROCESSES && kind != EW_RANKS_AS_THREADS)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "unknown kind of ranks: %d\n  fix: use EW_RANKS_AS_PROCESSES or _THREADS",
            (int)kind);
    EW_TRY(EWX_INJECT_LOAD(-1));
    int exits[EWX_MAX_RANKS], culprit = -1;
    for (int rank = 0; rank < num_ranks; rank++)
        exits[rank] = EWX_EXIT_NO_WORLD;
    const ew_status status =
        kind == EW_RANKS_AS_THREADS
            ? ewx_run_threads(num_ranks, options, rank_main, argument, exits, &culprit)
            : ewx_run_processes(num_ranks, options, rank_main, argument, exits, &culprit);
    if (exits_out)
        memcpy(exits_out, exits, (size_t)num_ranks * sizeof *exits);
    return status != EW_OK ? status : judge_exits(num_ranks, exits, culprit);
}

/* ---- Started by a launcher ---- */

static const struct launcher_variables {
    const char *rank, *size;
} launchers[] = {
    {"ENTWINE_RANK", "ENTWINE_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, /* mpirun of Open MPI */
    {"PMI_RANK", "PMI_SIZE"},                         /* mpirun of MPICH */
    {"RANK", "WORLD_SIZE"},                           /* torchrun */
    {"SLURM_PROCID", "SLURM_NTASKS"},
};

static ew_status read_number(const char *name, int least, int *value_out)
{
    char *end;
    errno = 0;
    const long value = strtol(secure_getenv(name), &end, 10);
    if (errno || *end || end == secure_getenv(name) || value < least ||
        value > EWX_MAX_RANKS)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%s=%s is not a rank or a number of ranks\n"
                        "  fix: start at most %d ranks, with a launcher that sets it",
                        name, secure_getenv(name), EWX_MAX_RANKS);
    *value_out = (int)value;
    return EW_OK;
}

ew_status ew_launcher_detect(ew_launcher *launcher_out)
{
    if (!launcher_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_launcher_detect needs a place for its answer");
    const char *given = NULL, *missing = NULL; /* of the first pair that is set by half */
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const bool has_rank = secure_getenv(launchers[i].rank) != NULL;
        const bool has_size = secure_getenv(launchers[i].size) != NULL;
        if (!has_rank || !has_size) {
            if (!given && has_rank != has_size) {
                given = has_rank ? launchers[i].rank : launchers[i].size;
                missing = has_rank ? launchers[i].size : launchers[i].rank;
            }
            continue;
        }
        ew_launcher found = {.source = launchers[i].rank};
        EW_TRY(read_number(launchers[i].rank, 0, &found.rank));
        EW_TRY(read_number(launchers[i].size, 1, &found.num_ranks));
        if (found.rank >= found.num_ranks)
            return ewx_fail(EW_ERR_ARGUMENT,
                            "%s=%d is not below %s=%d\n"
                            "  fix: start with a launcher that sets both, or use 0 to %d",
                            launchers[i].rank, found.rank, launchers[i].size,
                            found.num_ranks, found.num_ranks - 1);
        *launcher_out = found;
        return EW_OK;
    }
    if (given)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%s is set, but %s is not\n"
                        "  fix: start with a launcher that sets both, or set it too",
                        given, missing);
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "no launcher's variables are set\n"
                    "  fix: start with mpirun, torchrun or srun, or use "
                    "ew_run_ranks");
}
