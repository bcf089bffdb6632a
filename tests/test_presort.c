/* The tuner's planner: whose profile it takes, how it sorts, and that a tuning with it is
 * the same on every rank and every time. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/tune.h"
#include "tune/presort.h"

static char folder[] = "/tmp/entwine-planner-XXXXXX";

static void path_of(const char *name, char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", folder, name);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return 1;
    return setenv("ENTWINE_CACHE_DIR", folder, 1);
}

static int tear_down(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void check_order(const double *times_us, int count, double best_us, const char *want)
{
    int order[8];
    char got[16] = "";
    const int kept = ewx_presort_rank(times_us, count, best_us, order);
    for (int i = 0; i < kept; i++)
        got[i] = (char)('0' + order[i]);
    if (strcmp(got, want) != 0)
        fail_msg("%s instead of %s", got, want);
}

static void candidates_are_ranked(void **state)
{
    (void)state;
    check_order((double[]){3, 1, 1.1}, 3, 2.7, "12");    /* 3 is hopeless beside 1 */
    check_order((double[]){1.1, 1, 1.1}, 3, 1, "102");   /* ties as they were */
    check_order((double[]){0, 1.1, 0, 1}, 4, 1, "3102"); /* what nobody knows comes last */
    check_order((double[]){5, 6}, 2, 4, "");   /* the best so far is out of reach */
    check_order((double[]){0, 0}, 2, 0, "01"); /* no profile: all, as they were */
    check_order(NULL, 0, 1, "");
}

static ewx_presort open_for(const char *device, int num_ranks, ew_backend backend,
                            int cores, int sms, int sharers)
{
    const ew_problem problem = EW_PROBLEM(8192, 8192, 1024, EW_BF16);
    ewx_machine machine = {
        .cores = cores, .gpu_sms = sms, .gpu_arch = 90, .gpu_sharers = sharers};
    ewx_presort planner;
    snprintf(machine.device, sizeof machine.device, "%s", device);
    ewx_presort_open(&planner, &problem, num_ranks, backend, &machine);
    return planner;
}

static void profiles_belong_to_machines(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        int num_ranks;
        ew_backend backend;
        int cores, sms, sharers;
        const char *want; /* NULL: none */
    } machines[] = {
        {"NVIDIA H200/16sms/driver13000", 8, EW_BACKEND_CUDA, 16, 16, 8, "h200-vnode-8"},
        {"NVIDIA H200/132sms/driver13000", 8, EW_BACKEND_CUDA, 16, 132, 1, "h200-8"},
        {"NVIDIA H200/24sms/driver13000", 8, EW_BACKEND_CUDA, 16, 24, 8, NULL},
        {"NVIDIA H200 NVL/132sms/driver1", 8, EW_BACKEND_CUDA, 16, 132, 1, NULL},
        {"NVIDIA B300/148sms/driver13000", 8, EW_BACKEND_CUDA, 16, 148, 1, NULL},
        {"arm-0x41-0xd40/2cores", 2, EW_BACKEND_CPU, 2, 0, 0, "cpu"},
        {"arm-0x41-0xd40/4cores", 2, EW_BACKEND_CPU, 4, 0, 0, NULL},
        {"", 2, EW_BACKEND_CPU, 2, 0, 0, NULL},
    };
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        const ewx_presort planner =
            open_for(machines[i].device, machines[i].num_ranks, machines[i].backend,
                     machines[i].cores, machines[i].sms, machines[i].sharers);
        if (planner.ready != (machines[i].want != NULL))
            fail_msg("%s: %s", machines[i].device,
                     planner.ready ? planner.profile.name : "none");
        if (machines[i].want)
            assert_string_equal(planner.profile.name, machines[i].want);
    }
    /* The same two cores as two hosts are another machine: the profile has no network. */
    ewx_machine machine = {
        .cores = 2, .hosts = 2, .device = "arm-0x41-0xd40/2cores/2hosts"};
    const ew_problem problem = EW_PROBLEM(1024, 1024, 512, EW_FP32);
    ewx_presort planner;
    ewx_presort_open(&planner, &problem, 2, EW_BACKEND_CPU, &machine);
    assert_false(planner.ready);
    machine.hosts = 1;
    ewx_presort_open(&planner, &problem, 2, EW_BACKEND_CPU, &machine);
    assert_true(planner.ready);
}

/* The built-in cpu profile with another `cores` and device, or something else. */
static void write_calibrated(const char *text)
{
    char path[256];
    path_of("cpu.profile", path, sizeof path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (const ewx_sim_builtin *at = ewx_sim_builtins; !text && at->name; at++)
        for (const char *const *line = at->lines; *line && strcmp(at->name, "cpu") == 0;
             line++) {
            if (strncmp(*line, "cores", 5) == 0)
                fputs("cores = 7  # of a test\n", file);
            else if (strncmp(*line, "device", 6) == 0)
                fputs("device = Test_R__CPU  # as calibrate writes it\n", file);
            else
                fprintf(file, "%s\n", *line);
        }
    if (text)
        fputs(text, file);
    fclose(file);
}

static void calibrated_profiles_come_first(void **state)
{
    (void)state;
    char path[256];
    path_of("cpu.profile", path, sizeof path);
    write_calibrated(NULL);
    const ewx_presort here = open_for("Test(R) CPU/7cores", 2, EW_BACKEND_CPU, 7, 0, 0);
    const ewx_presort there = open_for("Test(R) CPU/8cores", 2, EW_BACKEND_CPU, 8, 0, 0);
    assert_true(here.ready && !there.ready);
    assert_string_equal(here.profile.name, "cpu.profile");
    write_calibrated("no profile\n");
    const ewx_presort damaged = open_for("Test(R) CPU/7cores", 2, EW_BACKEND_CPU, 7, 0, 0);
    const ewx_presort built_in =
        open_for("arm-0x41-0xd40/2cores", 2, EW_BACKEND_CPU, 2, 0, 0);
    assert_true(!damaged.ready && built_in.ready);
    assert_int_equal(unlink(path), 0);
}

static double time_of(const ewx_presort *planner, const char *config_text)
{
    ew_config config = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse(config_text, &config), EW_OK);
    return ewx_presort_time_us(planner, &config);
}

static void times_tell_configs_apart(void **state)
{
    (void)state;
    const ewx_presort planner =
        open_for("NVIDIA H200/132sms/driver13000", 8, EW_BACKEND_CUDA, 16, 132, 1);
    const ewx_presort none =
        open_for("NVIDIA B300/148sms/driver13000", 8, EW_BACKEND_CUDA, 16, 148, 1);
    const double ours = time_of(&planner, "backend=cuda");
    assert_true(ours > 0);
    assert_true(time_of(&planner, "backend=cuda") == ours);
    assert_true(time_of(&planner, "backend=cuda,release=output") > 1.1 * ours);
    assert_true(time_of(&planner, "backend=cuda,x=100000") == 0); /* it would stall */
    assert_true(time_of(&none, "backend=cuda") == 0);
}

/* ---- A tuning of simulated ranks ---- */

static const ew_problem tuned_problem = EW_PROBLEM(4096, 4096, 1024, EW_BF16);

static int tune_body(ew_world *world, void *argument)
{
    ew_tune_result *results = argument;
    ew_tune_options options = EW_TUNE_OPTIONS_INIT;
    ew_config fixed = EW_CONFIG_INIT;
    fixed.backend = EW_BACKEND_SIM;
    options.samples = 1;
    options.store = 0;
    RANK_OK(
        ew_tune(world, &tuned_problem, &fixed, &options, &results[ew_world_rank(world)]));
    return 0;
}

static void tunings_are_planned_and_repeat(void **state)
{
    (void)state;
    enum { RANKS = 4 };
    ew_tune_result *first = harness_share(RANKS * sizeof *first);
    ew_tune_result *second = harness_share(RANKS * sizeof *second);
    assert_int_equal(setenv("ENTWINE_PROFILE", "h200-8", 1), 0);
    harness_run(EW_RANKS_AS_PROCESSES, RANKS, tune_body, first);
    harness_run(EW_RANKS_AS_THREADS, RANKS, tune_body, second);
    assert_string_equal(first->profile, "h200-8");
    assert_true(first->num_left_out > 0 && first->num_candidates > 1);
    assert_true(first->tuning.time_us <= first->tuning.default_us);
    for (int rank = 0; rank < RANKS; rank++) {
        assert_memory_equal(&first[rank].tuning.config, &first->tuning.config,
                            sizeof(ew_config));
        assert_memory_equal(&second[rank].tuning.config, &first->tuning.config,
                            sizeof(ew_config));
        assert_string_equal(first[rank].profile, "h200-8");
        assert_int_equal(second[rank].num_candidates, first->num_candidates);
        assert_int_equal(second[rank].num_left_out, first->num_left_out);
    }
    unsetenv("ENTWINE_PROFILE");
    harness_unshare(first, RANKS * sizeof *first);
    harness_unshare(second, RANKS * sizeof *second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(candidates_are_ranked),
        cmocka_unit_test(profiles_belong_to_machines),
        cmocka_unit_test(calibrated_profiles_come_first),
        cmocka_unit_test(times_tell_configs_apart),
        cmocka_unit_test(tunings_are_planned_and_repeat),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
