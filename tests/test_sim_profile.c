/* The reader of hardware profiles: what it refuses, with which words, and that no file can
 * make it do anything but read or refuse. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/sim/simulate.h"
#include "entwine/sim.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

enum { MAX_TEXT = 1 << 15 };

/* A built-in profile as text. */
static void text_of(const char *name, char *text)
{
    const ewx_sim_builtin *at = ewx_sim_builtins;
    while (at->name && strcmp(at->name, name) != 0)
        at++;
    assert_non_null(at->name);
    text[0] = '\0';
    for (const char *const *line = at->lines; *line; line++)
        sprintf(text + strlen(text), "%s\n", *line);
}

/* The h200-8 profile with the line of `key` replaced by `line` (NULL: left out). */
static void changed(const char *key, const char *line, char *text)
{
    char whole[MAX_TEXT];
    size_t length = strlen(key);
    text_of("h200-8", whole);
    text[0] = '\0';
    for (char *at = strtok(whole, "\n"); at; at = strtok(NULL, "\n")) {
        const bool found = strncmp(at, key, length) == 0 && at[length] == ' ';
        if (!found || line)
            sprintf(text + strlen(text), "%s\n", found ? line : at);
    }
}

static void built_in_profiles_are_whole(void **state)
{
    (void)state;
    static const char *const wanted[] = {"a800-8", "cpu-2-hosts",  "cpu",        "h100-8",
                                         "h200-8", "h200-vnode-8", "multi-node", "nvl72"};
    for (size_t i = 0; i < COUNT(wanted); i++) {
        ewx_sim_profile profile;
        if (ewx_sim_profile_load(wanted[i], &profile) != EW_OK)
            fail_msg("%s", ew_last_error());
        assert_string_equal(profile.name, wanted[i]);
        assert_string_equal(ew_sim_profiles()[i], wanted[i]);
    }
    assert_null(ew_sim_profiles()[COUNT(wanted)]);
}

static void wrong_lines_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key, *line, *text;
    } wrong[] = {
        {"sms", NULL, "sms is missing"},
        {"sms", "sms = -4  # x", "sms has -4"},
        {"sms", "sms = 1e9  # x", "sms has 1e+09"},
        {"sms", "sms = nan  # x", "sms = 'nan'"},
        {"sms", "sms = inf  # x", "sms = 'inf'"},
        {"sms", "sms = 12x  # x", "sms = '12x'"},
        {"sms", "sms =  # x", "sms = ''"},
        {"sms", "sms = 132", "sms has no source"},
        {"sms", "sms = 132 #   ", "sms has no source"},
        {"sms", "sms 132  # x", "sms 132 is not a \"key = value\" line"},
        {"sms", "smz = 132  # x", "smz is not a key"},
        {"device", "device =  # x", "device = '' is not a name"},
        {"device", "device = A  # x\ndevice = B  # x", "device is given twice"},
        {"sms", "cores = 4  # x", "cores is not a key of a gpu"},
        {"clock", "sms = 4  # x", "sms is given twice"},
        {"kind", "kind = tpu  # x", "kind = 'tpu'"},
        {"kind", NULL, "comes before the kind"},
        {"block_us_256", "block_us_256 = 512:7 512:8  # x",
         "block_us_256 has 512 after 512"},
        {"block_us_256", "block_us_256 = 512:7 1024  # x", "block_us_256 = ''"},
        {"block_us_256", "block_us_256 = 512:-7  # x", "block_us_256 has -7"},
        {"block_us_256", "block_us_256 =  # x", "block_us_256 = ''"},
        {"reducer_gbs", "reducer_gbs = 0:7  # x", "reducer_gbs has 0"},
        {"jitter", "jitter = 0.9  # x", "jitter has 0.9"},
    };
    char text[MAX_TEXT];
    ewx_sim_profile profile;
    for (size_t i = 0; i < COUNT(wrong); i++) {
        changed(wrong[i].key, wrong[i].line, text);
        harness_expect_error(ewx_sim_profile_parse("my.profile", text, &profile),
                             EW_ERR_ARGUMENT, wrong[i].text, wrong[i].text);
        assert_non_null(strstr(ew_last_error(), "my.profile:"));
    }
    changed("sms", "sms = -4  # x", text);
    (void)ewx_sim_profile_parse("my.profile", text, &profile);
    assert_non_null(strstr(ew_last_error(), "my.profile:6:")); /* line 1 is a comment */
    changed("nodes", "nodes = 2  # x", text);
    harness_expect_error(ewx_sim_profile_parse("my.profile", text, &profile),
                         EW_ERR_ARGUMENT, "nic_gbs", "nodes without a NIC");
    harness_expect_error(ewx_sim_profile_parse("my.profile", "", &profile), EW_ERR_ARGUMENT,
                         "kind is missing", "an empty file");
}

static void names_and_paths_are_told_apart(void **state)
{
    (void)state;
    char path[] = "/tmp/entwine-test-XXXXXX.profile", text[MAX_TEXT];
    ewx_sim_profile profile;
    const int fd = mkstemps(path, 8);
    text_of("nvl72", text);
    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    assert_int_equal(ewx_sim_profile_load(path, &profile), EW_OK);
    assert_int_equal(profile.gpus, 72);
    assert_null(strstr(profile.name, ".profile"));
    assert_true(write(fd, "\0", 1) == 1);
    harness_expect_error(ewx_sim_profile_load(path, &profile), EW_ERR_ARGUMENT, "zero byte",
                         "a zero byte");
    close(fd);
    unlink(path);
    harness_expect_error(ewx_sim_profile_load(path, &profile), EW_ERR_ARGUMENT, path,
                         "no such file");
    harness_expect_error(ewx_sim_profile_load("h300", &profile), EW_ERR_ARGUMENT, "h200-8",
                         "unknown name");
    setenv("ENTWINE_PROFILE", "cpu", 1);
    assert_int_equal(ewx_sim_profile_load(NULL, &profile), EW_OK);
    assert_true(profile.is_cpu);
    unsetenv("ENTWINE_PROFILE");
}

static void mutate(char *text, harness_random *random)
{
    const int64_t length = (int64_t)strlen(text);
    const int64_t at = harness_between(random, 0, length - 1);
    static const char signs[] = "0123456789.:-+e=# \n\tnaif_%";
    switch (harness_between(random, 0, 4)) {
    case 0: /* another sign */
        text[at] = signs[harness_between(random, 0, (int64_t)sizeof signs - 2)];
        break;
    case 1: /* any byte but zero */
        text[at] = (char)harness_between(random, 1, 255);
        break;
    case 2: /* a piece is lost */
        memmove(text + at, text + at + (length - at) / 2, (size_t)(length - at) / 2 + 1);
        break;
    case 3: /* cut off */
        text[at] = '\0';
        break;
    case 4: /* a piece comes twice */
        if (length < MAX_TEXT / 2 - 1)
            memmove(text + length, text + at, (size_t)(length - at) + 1);
        break;
    }
}

static void any_text_is_read_or_refused(void **state)
{
    (void)state;
    harness_random random = harness_seed(5);
    char text[MAX_TEXT];
    int num_read = 0;
    for (int i = 0; i < 20000; i++) {
        const char *name = ew_sim_profiles()[i % 7];
        ewx_sim_profile profile;
        text_of(name, text);
        const int64_t times = harness_between(&random, 1, 4);
        for (int64_t j = 0; j < times && *text; j++)
            mutate(text, &random);
        const ew_status status = ewx_sim_profile_parse("x.profile", text, &profile);
        if (status != EW_OK) {
            assert_int_equal(status, EW_ERR_ARGUMENT);
            assert_non_null(strstr(ew_last_error(), "x.profile:"));
            assert_non_null(strstr(ew_last_error(), "\n  fix: "));
            continue;
        }
        num_read++;
        assert_true(isfinite(profile.clock) && profile.clock > 0);
        assert_true(profile.is_cpu ? profile.cores >= 1 : profile.sms >= 1);
    }
    assert_true(num_read > 100); /* comments and digits may change */
}

/* What was read can be simulated, however odd: the times stay finite and the call ends. */
static void odd_profiles_can_be_simulated(void **state)
{
    (void)state;
    harness_random random = harness_seed(9);
    char text[MAX_TEXT];
    for (int i = 0; i < 3000; i++) {
        ewx_sim_profile profile;
        ewx_machine machine;
        ewx_spec spec;
        text_of(ew_sim_profiles()[i % 7], text);
        for (int j = 0; j < 3; j++) { /* another digit keeps most files readable */
            char *at = text + harness_between(&random, 0, (int64_t)strlen(text) - 1);
            at += strcspn(at, "0123456789");
            if (*at)
                *at = (char)('0' + harness_between(&random, 0, 9));
        }
        ew_config config = EW_CONFIG_INIT;
        config.backend = EW_BACKEND_SIM;
        if (ewx_sim_profile_parse("x.profile", text, &profile) != EW_OK ||
            ewx_sim_machine(&profile, 2, &machine) != EW_OK)
            continue;
        const ew_problem problem =
            EW_PROBLEM(300, 512, 128, profile.is_cpu ? EW_FP32 : EW_BF16);
        ewx_sim_rank_result ranks[2];
        ewx_sim_result result = {.ranks = ranks};
        const ewx_sim_request request = {
            .profile = &profile, .spec = &spec, .rows = 300, .traced_rank = -1};
        if (ewx_spec_build(&problem, 2, &config, &machine, &spec) == EW_OK &&
            ewx_sim_run(&request, &result) == EW_OK)
            assert_true(ranks[0].timing.end_ns >= ranks[0].timing.start_ns);
    }
}

/* Without one the profile describes nobody's machine, and is whole. */
static void devices_may_be_missing(void **state)
{
    (void)state;
    char text[MAX_TEXT];
    ewx_sim_profile profile;
    changed("device", NULL, text);
    assert_int_equal(ewx_sim_profile_parse("x.profile", text, &profile), EW_OK);
    assert_string_equal(profile.device, "");
    changed("device", "device = Some GPU, 2 GHz  # x", text);
    assert_int_equal(ewx_sim_profile_parse("x.profile", text, &profile), EW_OK);
    assert_string_equal(profile.device, "Some GPU, 2 GHz");
}

static void texts_serve_as_profiles(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(2048, 2048, 512, EW_FP16);
    ew_sim_options options = EW_SIM_OPTIONS_INIT;
    ew_sim_report by_name, by_text;
    char text[MAX_TEXT];
    text_of("h200-8", text);
    options.profile = "h200-8";
    assert_int_equal(ew_sim_call(&problem, 8, NULL, &options, &by_name), EW_OK);
    options.profile_text = text;
    assert_int_equal(ew_sim_call(&problem, 8, NULL, &options, &by_text), EW_OK);
    assert_true(by_text.time_us == by_name.time_us);
    options.profile_text = "kind = gpu";
    assert_int_equal(ew_sim_call(&problem, 8, NULL, &options, &by_text), EW_ERR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in_profiles_are_whole),
        cmocka_unit_test(wrong_lines_are_named),
        cmocka_unit_test(devices_may_be_missing),
        cmocka_unit_test(texts_serve_as_profiles),
        cmocka_unit_test(names_and_paths_are_told_apart),
        cmocka_unit_test(any_text_is_read_or_refused),
        cmocka_unit_test(odd_profiles_can_be_simulated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
