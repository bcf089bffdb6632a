/* Programs with a decimal comma: keys, files, profiles and messages do not follow.  The
 * locale is made here, since few machines have one installed. */
#include "faultkit.h"
#include "harness.h"

#include <limits.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "base/file.h"
#include "entwine/measure.h"
#include "entwine/sim.h"
#include "entwine/tune.h"

static char folder[] = "/tmp/entwine-locale-XXXXXX";

static const ew_tuning entry = {.key = "op=gemm-rs,m=1",
                                .config = EW_CONFIG_INIT,
                                .time_us = 14.732,
                                .default_us = 20.5,
                                .when = 1};

/* False where that cannot be. */
static bool choose_comma(void)
{
    char command[512], text[16];
    snprintf(command, sizeof command,
             "cd %s && printf '%s' >comma.src && localedef -c -i ./comma.src ./comma "
             ">localedef.log 2>&1",
             folder,
             "LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \".\"\\ngrouping 3;3\\n"
             "END LC_NUMERIC\\n");
    const int unclear = system(command); /* its status is 1 for a warning, too */
    (void)unclear;
    setenv("LOCPATH", folder, 1);
    if (!setlocale(LC_ALL, "comma"))
        return false;
    snprintf(text, sizeof text, "%.1f", 0.5);
    return strcmp(text, "0,5") == 0;
}

static void need_comma(void)
{
    if (!choose_comma())
        skip();
}

static int restore(void **state)
{
    (void)state;
    setlocale(LC_ALL, "C");
    return 0;
}

static void entries_are_the_same(void **state)
{
    (void)state;
    char plain[EW_TUNING_TEXT_BYTES], text[EW_TUNING_TEXT_BYTES], path[PATH_MAX];
    ew_tuning found;
    assert_int_equal(ew_tuning_print(&entry, plain, sizeof plain), EW_OK);
    need_comma();
    assert_int_equal(ew_tuning_print(&entry, text, sizeof text), EW_OK);
    assert_string_equal(text, plain);
    assert_int_equal(ew_tuning_store(&entry), EW_OK);
    assert_int_equal(ew_tuning_path(entry.key, path, sizeof path), EW_OK);
    assert_int_equal(ew_tuning_load(path, &found), EW_OK);
    assert_true(found.time_us == entry.time_us && found.default_us == entry.default_us);
    setlocale(LC_ALL, "C"); /* and programs without it read them */
    assert_int_equal(ew_tuning_load(path, &found), EW_OK);
    assert_true(found.time_us == entry.time_us);
}

static void profiles_are_the_same(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(512, 512, 256, EW_FP32);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report plain, report;
    options.profile = "cpu";
    assert_int_equal(ew_sim_call(&problem, 2, NULL, &options, &plain), EW_OK);
    need_comma();
    for (const char *const *name = ew_sim_profiles(); *name; name++) {
        ew_sim_hardware hardware;
        assert_int_equal(ew_sim_describe(*name, 2, &hardware), EW_OK);
    }
    assert_int_equal(ew_sim_call(&problem, 2, NULL, &options, &report), EW_OK);
    assert_true(report.time_us == plain.time_us);
}

/* An explanation quotes the times of an entry; a recording is read by other programs. */
static void explanations_and_recordings_are_the_same(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1024, 1024, 512, EW_FP32);
    char plain[4096], text[4096], path[PATH_MAX];
    ew_tuning tuned = entry;
    ew_world *world = NULL;
    size_t bytes;
    assert_int_equal(
        ew_tuning_key(&problem, 1, EW_BACKEND_CPU, tuned.key, sizeof tuned.key), EW_OK);
    assert_int_equal(ew_tuning_store(&tuned), EW_OK);
    assert_int_equal(ew_forecast_explain(&problem, 1, NULL, plain, sizeof plain), EW_OK);
    assert_non_null(strstr(plain, "14.7"));
    need_comma();
    assert_int_equal(ew_forecast_explain(&problem, 1, NULL, text, sizeof text), EW_OK);
    assert_string_equal(text, plain);
    snprintf(path, sizeof path, "%s/recording.json", folder);
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &world), EW_OK);
    assert_int_equal(ew_world_dump(world, path), EW_OK);
    ew_world_destroy(world);
    assert_null(ewx_file_read(path, text, sizeof text - 1, &bytes));
    text[bytes] = '\0';
    for (const char *at = strpbrk(text, ".,"); at; at = strpbrk(at + 1, ".,"))
        assert_false(*at == ',' && at[1] >= '0' && at[1] <= '9');
}

static void messages_are_the_same(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    ew_world *world = NULL;
    options.link_gbps = -0.5;
    need_comma();
    assert_int_not_equal(ew_world_create(0, 1, NULL, NULL, &options, &world), EW_OK);
    assert_true(error_has("-0.5", NULL));
}

/* What the program chose is what it has afterwards. */
static void the_program_keeps_its_locale(void **state)
{
    (void)state;
    char text[EW_TUNING_TEXT_BYTES];
    need_comma();
    assert_int_equal(ew_tuning_print(&entry, text, sizeof text), EW_OK);
    snprintf(text, sizeof text, "%.1f", 2.5);
    assert_string_equal(text, "2,5");
}

static int set_up(void **state)
{
    (void)state;
    unsetenv("ENTWINE_TUNING");
    return mkdtemp(folder) ? setenv("ENTWINE_CACHE_DIR", folder, 1) : 1;
}

static int tear_down(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(entries_are_the_same, restore),
        cmocka_unit_test_teardown(profiles_are_the_same, restore),
        cmocka_unit_test_teardown(explanations_and_recordings_are_the_same, restore),
        cmocka_unit_test_teardown(messages_are_the_same, restore),
        cmocka_unit_test_teardown(the_program_keeps_its_locale, restore),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
