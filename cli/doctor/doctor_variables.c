/* The variables that are set, and whether what they are set to can be used. */
#include "doctor/doctor.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/sim.h"

/* ---- Values that the library refuses: each is judged by the library itself, by the least
 * that makes it read the variable ---- */

static int do_nothing(ew_world *world, void *argument)
{
    (void)world, (void)argument;
    return 0;
}

static ew_status read_timeout(void)
{
    return ew_run_ranks(EW_RANKS_AS_THREADS, 1, NULL, do_nothing, NULL, NULL);
}

static ew_status read_tuning(void)
{
    const ew_problem problem = EW_PROBLEM(1, 1, 1, EW_FP32);
    const ew_config config = EW_CONFIG_INIT;
    ew_forecast forecast;
    return ew_forecast_build(&problem, 1, &config, &forecast);
}

static ew_status read_profile(void)
{
    ew_sim_hardware hardware;
    return ew_sim_describe(NULL, 1, &hardware);
}

static const struct probe {
    const char *name;
    ew_status (*read)(void);
    cli_verdict refused; /* FAIL: nothing runs with such a value */
} probes[] = {{"ENTWINE_TIMEOUT_MS", read_timeout, VERDICT_FAIL},
              {"ENTWINE_TUNING", read_tuning, VERDICT_FAIL},
              {"ENTWINE_PROFILE", read_profile, VERDICT_WARN}};

static bool is_refused(cli_doctor *d, const char *name)
{
    for (size_t at = 0; at < sizeof probes / sizeof probes[0]; at++) {
        const struct probe *probe = &probes[at];
        if (strcmp(probe->name, name) != 0 || probe->read() != EW_ERR_ARGUMENT)
            continue;
        const char *error = ew_last_error();
        const bool is_named = strstr(error, name);
        cli_doctor_say(d, probe->refused, "variable", cli_doctor_fix(error, "unset it"),
                       "%s%s%.*s", is_named ? "" : name, is_named ? "" : ": ",
                       (int)strcspn(error, "\n"), error);
        return true;
    }
    return false;
}

/* ---- The rest ---- */

/* Whether the check that made use of the value has already said what is wrong with it. */
static bool is_told(const cli_doctor *d, const char *name)
{
    char path[PATH_MAX];
    ew_launcher launcher;
    if (strcmp(name, "ENTWINE_BLAS") == 0)
        return !*d->context.blas;
    if (strcmp(name, "ENTWINE_MPI_MODULE") == 0)
        return !cli_launch_module_path(path, sizeof path);
    if (strcmp(name, "ENTWINE_RANK") == 0 || strcmp(name, "ENTWINE_WORLD_SIZE") == 0)
        return ew_launcher_detect(&launcher) == EW_ERR_ARGUMENT;
    return false;
}

static void unknown_variable(void *argument, const char *name, const char *near)
{
    cli_doctor *d = argument;
    char fix[160] = "unset it; docs/CLI.md lists those that are known";
    if (near)
        snprintf(fix, sizeof fix, "maybe %s?", near);
    cli_doctor_say(d, VERDICT_WARN, "variable", fix, "%s is set but nothing reads it",
                   name);
}

void cli_doctor_variables(cli_doctor *d)
{
    char why[PATH_MAX + 128];
    for (const cli_variable *at = cli_variables(); at->name; at++) {
        const char *value = getenv(at->name);
        if (!value || is_told(d, at->name) || is_refused(d, at->name))
            continue;
        if (cli_folder_is_lacking(at->name, why, sizeof why))
            cli_doctor_say(d, VERDICT_WARN, "variable",
                           "name a folder in which you can read and write", "%s: %s",
                           at->name, why);
        else
            cli_doctor_say(d, VERDICT_OK, "variable", "", "%s=%.100s: %s", at->name, value,
                           at->meaning);
    }
    cli_environment_check(unknown_variable, d);
}
