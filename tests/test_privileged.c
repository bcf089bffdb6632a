/* A program that runs with another user's rights does not do what the environment of its
 * caller says: it would load the caller's BLAS, or write into the caller's folder. */
#include "fake_system.h"
#include "harness.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "entwine/tune.h"

enum { NOBODY = 65534, NOT_SECURE = 77 };

static const char *const variables[][2] = {{"ENTWINE_RANK", "0"},
                                           {"ENTWINE_WORLD_SIZE", "1"},
                                           {"ENTWINE_TIMEOUT_MS", "nonsense"},
                                           {"ENTWINE_CACHE_DIR", "/tmp/of-the-caller"},
                                           {"XDG_CACHE_HOME", "/tmp/of-the-caller"},
                                           {"HOME", "/tmp/of-the-caller"},
                                           {"ENTWINE_BLAS", "/tmp/of-the-caller.so"}};

/* On a machine of two domains: hwloc would load plugins from a folder that the environment
 * names. */
static bool loads_no_hwloc(void)
{
    ew_numa numa;
    const fake_system fake = fake_system_open();
    fake_system_write(&fake, "/sys/devices/system/node/online", "0-1\n");
    const bool is_right = ew_numa_describe(2, &numa) == EW_OK && numa.unknown &&
                          strstr(numa.unknown, "another user's rights");
    fake_system_close(&fake);
    return is_right;
}

/* 0, or the number of the first answer that follows the environment. */
static int look_around(void)
{
    char path[PATH_MAX];
    ew_launcher launcher;
    ew_world *world;
    if (!getauxval(AT_SECURE))
        return NOT_SECURE;
    if (ew_launcher_detect(&launcher) != EW_ERR_UNSUPPORTED)
        return 1;
    if (ew_tuning_folder(path, sizeof path) != EW_ERR_SYSTEM)
        return 2;
    if (ew_world_create(0, 1, NULL, NULL, NULL, &world) != EW_OK)
        return 3;
    ew_world_destroy(world);
    return loads_no_hwloc() ? 0 : 4;
}

/* Effective rights that are not the caller's own: what a set-uid program starts with. */
static void start_with_other_rights(void)
{
    for (size_t at = 0; at < sizeof variables / sizeof variables[0]; at++)
        setenv(variables[at][0], variables[at][1], 1);
    if (setresuid(NOBODY, 0, 0) == 0)
        execl("/proc/self/exe", "test_privileged", "look", (char *)NULL);
    _exit(NOT_SECURE);
}

static void the_environment_is_the_callers(void **state)
{
    (void)state;
    int status;
    if (geteuid() != 0)
        skip(); /* nobody else can start such a program */
    const pid_t child = fork();
    if (child == 0)
        start_with_other_rights();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == NOT_SECURE)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_is_the_callers),
    };
    if (argc > 1 && strcmp(argv[1], "look") == 0)
        return look_around();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
