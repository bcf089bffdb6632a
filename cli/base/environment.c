/* The variables by name, and warnings about those that nothing reads. */
#include "base/environment.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/json_file.h"
#include "entwine/tune.h"

#ifndef EW_COMMIT
#define EW_COMMIT "unknown"
#endif

extern char **environ;

enum { PREFIX = sizeof "ENTWINE_" - 1 };

static const cli_variable variable_table[] = {
    {"ENTWINE_HOSTS", "under mpirun, number of emulated hosts, for tests"},
    {"ENTWINE_DEVICE_MPI",
     "under mpirun, whether an MPI that takes device memory is given it"},
    {"ENTWINE_GPU_SHARES", "shares that a GPU is cut into, if more than its ranks"},
    {"ENTWINE_TIMEOUT_MS", "how long a rank may make no progress (default 30000)"},
    {"ENTWINE_BLAS", "shared library that the blas method loads"},
    {"ENTWINE_RANK", "this process's rank, where no launcher sets it"},
    {"ENTWINE_WORLD_SIZE", "number of ranks, where no launcher sets it"},
    {"ENTWINE_MPI_MODULE", "path of entwine_mpi.so"},
    {"ENTWINE_CACHE_DIR", "folder of the tuning entries"},
    {"ENTWINE_TUNING", "whether plans use tuning entries (on) or not (off)"},
    {"ENTWINE_LIBRARY", "path of libentwine.so.0 that the Python package loads"},
    {"ENTWINE_JOB", "names the job of ranks whose launcher does not, for Python"},
    {"ENTWINE_DUMP_DIR", "folder for the flight recording of a job that fails"},
    {"ENTWINE_PROFILE", "hardware that the sim backend simulates (default h200-8)"},
    {NULL, NULL}};

const char *cli_commit(void)
{
    return EW_COMMIT;
}

const cli_variable *cli_variables(void)
{
    return variable_table;
}

json_t *cli_environment_json(void)
{
    json_t *object = json_object();
    for (char **at = environ; *at; at++) {
        char name[64];
        size_t length = strcspn(*at, "=");
        if (strncmp(*at, "ENTWINE_", PREFIX) != 0 || length >= sizeof name ||
            !(*at)[length])
            continue;
        snprintf(name, sizeof name, "%.*s", (int)length, *at);
        json_object_set_new(object, name, cli_text_json(*at + length + 1));
    }
    return object;
}

void cli_environment_check(void (*report)(void *argument, const char *name,
                                          const char *near),
                           void *argument)
{
    const char *known[sizeof variable_table / sizeof variable_table[0]];
    int count = 0;
    for (const cli_variable *at = variable_table; at->name; at++)
        known[count++] = at->name + PREFIX; /* the common part would make all alike */
    known[count] = NULL;
    for (char **at = environ; *at; at++) {
        char name[64];
        if (strncmp(*at, "ENTWINE_", PREFIX) != 0)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*at, "="), *at);
        const char *near = cli_closest(name + PREFIX, known); /* itself, if it is known */
        if (!near || strcmp(near, name + PREFIX) != 0)
            report(argument, name, near ? near - PREFIX : NULL);
    }
}

static void warn_variable(void *argument, const char *name, const char *near)
{
    (void)argument;
    if (near)
        cli_warn("%s is not known (maybe: %s?)", name, near);
    else
        cli_warn("%s is not known; entwine doctor lists the variables", name);
}

/* A user may wonder why plans ignore the tuning entries. */
static bool lacks_cache(char *why, size_t bytes)
{
    char folder[PATH_MAX];
    if (ew_tuning_folder(folder, sizeof folder))
        snprintf(why, bytes, "no tuning entries are used: %.*s",
                 (int)strcspn(ew_last_error(), "\n"), ew_last_error());
    else if (access(folder, R_OK | X_OK) && errno != ENOENT)
        snprintf(why, bytes, "no tuning entries are used: %s cannot be read: %s", folder,
                 strerror(errno));
    else
        return false;
    return true;
}

/* Otherwise its absence would be noticed only when a job has failed, and cannot be
 * repeated. */
static bool lacks_dump(char *why, size_t bytes)
{
    const char *folder = getenv("ENTWINE_DUMP_DIR");
    char inside[PATH_MAX];
    if (!folder || !*folder)
        return false;
    snprintf(inside, sizeof inside, "%s/.", folder);
    if (access(inside, W_OK | X_OK) == 0 || errno == ENOENT) /* it would be made */
        return false;
    snprintf(why, bytes, "a failed job will leave no recording: ENTWINE_DUMP_DIR=%s: %s",
             folder, strerror(errno));
    return true;
}

bool cli_folder_is_lacking(const char *name, char *why, size_t bytes)
{
    if (strcmp(name, "ENTWINE_CACHE_DIR") == 0)
        return lacks_cache(why, bytes);
    return strcmp(name, "ENTWINE_DUMP_DIR") == 0 && lacks_dump(why, bytes);
}

void cli_environment_warn(void)
{
    char why[PATH_MAX + 128];
    for (const cli_variable *at = variable_table; at->name; at++)
        if (cli_folder_is_lacking(at->name, why, sizeof why))
            cli_warn("%s", why);
    cli_environment_check(warn_variable, NULL);
}
