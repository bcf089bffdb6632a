/* Tuning entries as text and files, what plans make of them, and a tuning on real ranks. */
#include "harness.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/tune.h"
#include "backend/backend.h"
#include "plan/tuning.h"
#include "tune/race.h"
#include "tune/search.h"

static char folder[] = "/tmp/entwine-tuning-XXXXXX";

static void remove_entries(void)
{
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            unlink(path);
    }
    if (listing)
        closedir(listing);
}

static int set_up(void **state)
{
    (void)state;
    unsetenv("ENTWINE_TUNING"); /* off for all other tests: a developer may have entries */
    if (!mkdtemp(folder))
        return 1;
    return setenv("ENTWINE_CACHE_DIR", folder, 1);
}

static int tear_down(void **state)
{
    (void)state;
    remove_entries();
    return rmdir(folder);
}

static ew_tuning sample_entry(const char *key)
{
    ew_tuning tuning = {
        .config = EW_CONFIG_INIT, .time_us = 12.5, .default_us = 14.0, .when = 1700000000};
    snprintf(tuning.key, sizeof tuning.key, "%s", key);
    assert_int_equal(
        ew_config_parse("backend=cpu,block=128x512,group=2,x=1,b=2", &tuning.config),
        EW_OK);
    return tuning;
}

/* ---- Text ---- */

static void entries_survive_a_round_trip(void **state)
{
    (void)state;
    ew_tuning tuning = sample_entry("op=gemm-rs,m=64");
    char text[EW_TUNING_TEXT_BYTES];
    ew_tuning again;
    assert_int_equal(ew_tuning_print(&tuning, text, sizeof text), EW_OK);
    assert_int_equal(ew_tuning_parse(text, strlen(text), &again), EW_OK);
    assert_string_equal(again.profile, "");
    snprintf(tuning.profile, sizeof tuning.profile, "my \"own\".profile");
    assert_int_equal(ew_tuning_print(&tuning, text, sizeof text), EW_OK);
    assert_int_equal(ew_tuning_parse(text, strlen(text), &again), EW_OK);
    assert_string_equal(again.profile, "my__own_.profile"); /* what needs no escaping */
    assert_string_equal(again.key, tuning.key);
    assert_memory_equal(&again.config, &tuning.config, sizeof tuning.config);
    assert_true(again.time_us == 12.5 && again.default_us == 14.0);
    assert_int_equal(again.when, tuning.when);
}

static void every_truncation_is_refused(void **state)
{
    (void)state;
    const ew_tuning tuning = sample_entry("op=gemm-rs,m=64");
    char text[EW_TUNING_TEXT_BYTES];
    ew_tuning again;
    assert_int_equal(ew_tuning_print(&tuning, text, sizeof text), EW_OK);
    const size_t whole = strlen(text) - 1; /* the last newline may go */
    for (size_t bytes = 0; bytes < whole; bytes++)
        assert_int_equal(ew_tuning_parse(text, bytes, &again), EW_ERR_ARGUMENT);
}

/* A flipped bit makes another text; it is refused, or is an entry that parses whole. */
static void flipped_bits_crash_nobody(void **state)
{
    (void)state;
    const ew_tuning tuning = sample_entry("op=gemm-rs,m=64");
    char text[EW_TUNING_TEXT_BYTES];
    ew_tuning again;
    assert_int_equal(ew_tuning_print(&tuning, text, sizeof text), EW_OK);
    const size_t bytes = strlen(text);
    for (size_t i = 0; i < bytes * 8; i++) {
        text[i / 8] ^= (char)(1 << i % 8);
        (void)ew_tuning_parse(text, bytes, &again);
        text[i / 8] ^= (char)(1 << i % 8);
    }
}

static void nonsense_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "not a JSON object"},
        {"[]", "not a JSON object"},
        {"{}", "no name"},
        {"{\"schema\": \"other/1\"}", "another schema"},
        {"{\"schema\": \"entwine-tuning/1\"}", "missing"},
        {"{\"schema\": \"entwine-tuning/1\", \"key\": \"a\"}", "key is malformed"},
        {"{\"schema\": \"entwine-tuning/1\", \"key\": \"op=a\", \"config\": \"x=1\", "
         "\"time_us\": 0, \"default_us\": 1}",
         "missing"},
        {"{\"schema\": \"entwine-tuning/1\", \"key\": \"op=a\", \"config\": \"x=many\", "
         "\"time_us\": 1}",
         "config is not valid"},
        {"{\"schema\": \"entwine-tuning/1\", \"key\": \"op=a\", \"config\": \"x=1\", "
         "\"time_us\": -1}",
         "neither"},
        {"{\"key\": \"a\\n\"}", "neither"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ew_tuning tuning;
        harness_expect_error(ew_tuning_parse(cases[i].text, strlen(cases[i].text), &tuning),
                             EW_ERR_ARGUMENT, cases[i].reason, cases[i].text);
    }
}

/* ---- Keys and buckets ---- */

static void buckets_are_powers_of_two(void **state)
{
    (void)state;
    assert_int_equal(ewx_tuning_bucket(0), 1);
    assert_int_equal(ewx_tuning_bucket(1), 1);
    assert_int_equal(ewx_tuning_bucket(4096), 4096);
    assert_int_equal(ewx_tuning_bucket(4097), 8192);
}

static void keys_tell_problems_apart(void **state)
{
    (void)state;
    const ew_problem problems[] = {
        EW_PROBLEM(64, 128, 32, EW_FP32), EW_PROBLEM(64, 129, 32, EW_FP32),
        EW_PROBLEM(64, 128, 33, EW_FP32), EW_PROBLEM(64, 128, 32, EW_BF16)};
    char keys[6][EW_TUNING_KEY_BYTES];
    for (int i = 0; i < 6; i++) {
        ewx_text text = ewx_text_in(keys[i], sizeof keys[i]);
        ewx_tuning_key(&problems[i < 4 ? i : 0], i == 4 ? 3 : 2, EW_BACKEND_CPU,
                       i == 5 ? "a \"b\"" : "a", 64, &text);
        assert_false(text.truncated);
        assert_null(strchr(keys[i], '"')); /* needs no escape, whatever a driver says */
        for (int j = 0; j < i; j++)
            assert_string_not_equal(keys[i], keys[j]);
    }
}

/* An entry that was found with other kernels of the same version is not the plan's. */
static void entries_of_other_kernels_are_not_used(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 2048, 64, EW_FP32);
    ew_forecast forecast;
    ewx_machine machine = {0};
    ew_tuning tuning = {.time_us = 1, .default_us = 2};
    assert_int_equal(ew_forecast_build(&problem, 2, NULL, &forecast), EW_OK);
    assert_int_equal(ewx_backend_cpu.survey(NULL, 2, &machine), EW_OK);
    tuning.config = forecast.config;
    tuning.config.block_n = 512;
    ewx_text key = ewx_text_in(tuning.key, sizeof tuning.key);
    ewx_tuning_key(&problem, 2, EW_BACKEND_CPU, machine.device, 1024, &key);
    char *digit = strstr(tuning.key, ",kernels=");
    assert_non_null(digit);
    digit += strlen(",kernels=");
    assert_int_equal(strlen(digit), 8);
    *digit = *digit == '0' ? '1' : '0';
    assert_int_equal(ew_tuning_store(&tuning), EW_OK);
    assert_int_equal(ew_forecast_build(&problem, 2, NULL, &forecast), EW_OK);
    assert_int_equal(forecast.config.block_n, 256);
    remove_entries();
}

/* ---- Plans ---- */

static void store_for(const ew_problem *problem, const char *config)
{
    ew_forecast forecast;
    ewx_machine machine = {0};
    assert_int_equal(ew_forecast_build(problem, 2, NULL, &forecast), EW_OK);
    assert_int_equal(ewx_backend_cpu.survey(NULL, 2, &machine), EW_OK);
    ew_tuning tuning = {.config = forecast.config, .time_us = 1, .default_us = 2};
    ew_config change = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse(config, &change), EW_OK);
    tuning.config.block_n = change.block_n;
    ewx_text key = ewx_text_in(tuning.key, sizeof tuning.key);
    ewx_tuning_key(problem, 2, EW_BACKEND_CPU, machine.device,
                   ewx_tuning_bucket(problem->max_m), &key);
    assert_int_equal(ew_tuning_store(&tuning), EW_OK);
}

static int32_t forecast_block(int64_t m, char *explanation)
{
    const ew_problem problem = EW_PROBLEM(m, 2048, 64, EW_FP32);
    ew_forecast forecast;
    assert_int_equal(ew_forecast_build(&problem, 2, NULL, &forecast), EW_OK);
    assert_int_equal(ew_forecast_explain(&problem, 2, NULL, explanation, EW_EXPLAIN_BYTES),
                     EW_OK);
    return forecast.config.block_n;
}

static void plans_use_the_entry_of_their_bucket_or_the_nearest(void **state)
{
    (void)state;
    char text[EW_EXPLAIN_BYTES];
    const ew_problem near = EW_PROBLEM(1000, 2048, 64, EW_FP32);
    const ew_problem far = EW_PROBLEM(60, 2048, 64, EW_FP32);
    assert_int_equal(forecast_block(1000, text), 256);
    assert_null(strstr(text, "tuned:"));
    store_for(&near, "block=128x512");
    store_for(&far, "block=128x128");
    assert_int_equal(forecast_block(1024, text), 512);
    assert_non_null(strstr(text, "tuned: from the entry for M up to 1024"));
    assert_int_equal(forecast_block(2048, text), 512); /* one doubling away */
    assert_int_equal(forecast_block(512, text), 512);
    assert_int_equal(forecast_block(40, text), 128);
    assert_int_equal(forecast_block(128, text), 128);
    assert_int_equal(forecast_block(4096, text), 256); /* two are too far */
    assert_null(strstr(text, "tuned:"));
    ew_problem all = near; /* another operation of the same shape */
    ew_forecast forecast;
    all.op = EW_OP_GEMM_AR;
    assert_int_equal(ew_forecast_build(&all, 2, NULL, &forecast), EW_OK);
    assert_int_equal(forecast.config.block_n, 256);
    store_for(&all, "block=128x1024");
    assert_int_equal(ew_forecast_build(&all, 2, NULL, &forecast), EW_OK);
    assert_int_equal(forecast.config.block_n, 1024);
    assert_int_equal(forecast_block(1024, text), 512);
    setenv("ENTWINE_TUNING", "off", 1);
    assert_int_equal(forecast_block(1024, text), 256);
    unsetenv("ENTWINE_TUNING");
    remove_entries();
    assert_int_equal(forecast_block(1024, text), 256);
}

static void a_wish_of_the_callers_outweighs_the_entry(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(1000, 2048, 64, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    ew_forecast forecast;
    store_for(&problem, "block=128x512");
    config.group = 1;
    assert_int_equal(ew_forecast_build(&problem, 2, &config, &forecast), EW_OK);
    assert_int_equal(forecast.config.block_n, 256);
    remove_entries();
}

/* Stores an entry for 1000 rows and returns its path. */
static void own_entry(char *path)
{
    char key[EW_TUNING_KEY_BYTES];
    const ew_problem problem = EW_PROBLEM(1000, 2048, 64, EW_FP32);
    ewx_machine machine = {0};
    ewx_text out = ewx_text_in(key, sizeof key);
    store_for(&problem, "block=128x512");
    assert_int_equal(ewx_backend_cpu.survey(NULL, 2, &machine), EW_OK);
    ewx_tuning_key(&problem, 2, EW_BACKEND_CPU, machine.device, 1024, &out);
    assert_int_equal(ew_tuning_path(key, path, PATH_MAX), EW_OK);
}

static void a_damaged_file_is_no_entry(void **state)
{
    (void)state;
    char text[EW_EXPLAIN_BYTES], path[PATH_MAX];
    own_entry(path);
    assert_int_equal(truncate(path, 40), 0);
    assert_int_equal(forecast_block(1000, text), 256);
    assert_non_null(strstr(text, "tuning: an entry is ignored: its file cannot be used: "
                                 "the checksum does not match"));
    assert_int_equal(truncate(path, 1 << 20), 0);
    assert_int_equal(forecast_block(1000, text), 256);
    assert_non_null(strstr(text, "its file cannot be used: it has more than 4096 bytes"));
    /* Another key under this name, as if two hashes met. */
    const ew_tuning other = sample_entry("op=gemm-rs,m=1");
    char wrong[EW_TUNING_TEXT_BYTES];
    assert_int_equal(ew_tuning_print(&other, wrong, sizeof wrong), EW_OK);
    FILE *file = fopen(path, "w");
    fputs(wrong, file);
    fclose(file);
    assert_int_equal(forecast_block(1000, text), 256);
    remove_entries();
}

/* The hash of an entry is no signature: anyone can write one that is whole. */
static void store_hostile(const char *changes)
{
    ew_tuning tuning;
    char path[PATH_MAX];
    ew_config change = EW_CONFIG_INIT;
    own_entry(path);
    assert_int_equal(ew_tuning_load(path, &tuning), EW_OK);
    assert_int_equal(ew_config_parse(changes, &change), EW_OK);
    tuning.config.workers = change.workers ? change.workers : tuning.config.workers;
    tuning.config.budget = change.budget ? change.budget : tuning.config.budget;
    tuning.config.batch = change.batch ? change.batch : tuning.config.batch;
    tuning.config.block_m = change.block_m ? change.block_m : tuning.config.block_m;
    assert_int_equal(ew_tuning_store(&tuning), EW_OK);
}

static void values_that_no_tuning_finds_here(void **state)
{
    (void)state;
    static const char *const changes[][2] = {
        {"workers=1024", "workers=1024 is more than"},
        {"x=65536", "x=65536 is more than"},
        {"b=2147483647", "b=2147483647 is more than"},
        {"block=1048576x128", "block=1048576x512 is larger than"},
        {"workers=1024,x=65536,b=2147483647", "workers=1024 is more than"}};
    char text[EW_EXPLAIN_BYTES];
    for (size_t at = 0; at < sizeof changes / sizeof changes[0]; at++) {
        store_hostile(changes[at][0]);
        assert_int_equal(forecast_block(1000, text), 256); /* the built-in choice */
        assert_null(strstr(text, "tuned:"));
        assert_non_null(strstr(text, "tuning: an entry is ignored: "));
        assert_non_null(strstr(text, changes[at][1]));
        remove_entries();
    }
    store_hostile("x=1,b=4");
    assert_int_equal(forecast_block(1000, text), 512);
    assert_null(strstr(text, "ignored"));
    remove_entries();
}

static void entries_of_another_user(void **state)
{
    (void)state;
    enum { STRANGER = 54321 };
    char text[EW_EXPLAIN_BYTES], path[PATH_MAX];
    if (geteuid() != 0)
        skip(); /* only root can give files away */
    own_entry(path);
    assert_int_equal(forecast_block(1000, text), 512);
    assert_int_equal(chown(path, STRANGER, STRANGER), 0);
    assert_int_equal(forecast_block(1000, text), 256);
    assert_non_null(strstr(text, "tuning: an entry is ignored: its file belongs to another "
                                 "user (uid 54321)"));
    assert_int_equal(chown(path, 0, 0), 0);
    assert_int_equal(chown(folder, STRANGER, STRANGER), 0);
    assert_int_equal(forecast_block(1000, text), 256);
    assert_non_null(strstr(text, "its folder belongs to another user (uid 54321)"));
    /* For that user, root's entries and its own are as good as each other. */
    assert_int_equal(seteuid(STRANGER), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(seteuid(STRANGER), 0);
    const int32_t block = forecast_block(1000, text);
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(chown(folder, 0, 0), 0);
    assert_int_equal(block, 512);
    remove_entries();
}

static void no_folder_is_no_error(void **state)
{
    (void)state;
    char text[EW_EXPLAIN_BYTES];
    const ew_tuning tuning = sample_entry("op=gemm-rs,m=64");
    setenv("ENTWINE_CACHE_DIR", "/proc/nowhere", 1);
    assert_int_equal(forecast_block(1000, text), 256);
    harness_expect_error(ew_tuning_store(&tuning), EW_ERR_SYSTEM, "/proc/nowhere", "store");
    setenv("ENTWINE_CACHE_DIR", folder, 1);
}

/* ---- Tuning ---- */

typedef struct tuning_job {
    const char *fixed, *method; /* fixed: a config's text */
    double budget_s;
    int64_t budget_calls;
    ew_tune_effort effort; /* rank 0's */
    ew_tune_result results[2];
    int rounds, num_rounds;
} tuning_job;

static int count_round(void *context, int round, int num_rounds, const char *best_config,
                       double best_us, double default_us)
{
    tuning_job *job = context;
    job->rounds = round;
    job->num_rounds = num_rounds;
    return !(num_rounds >= round && *best_config && best_us > 0 && default_us > 0);
}

static const ew_problem tuned_problem = EW_PROBLEM(520, 600, 64, EW_FP32);

enum { TUNE_SAMPLES = 2 };

static int tune_body(ew_world *world, void *argument)
{
    tuning_job *job = argument;
    ew_tune_options options = EW_TUNE_OPTIONS_INIT;
    ew_config fixed = EW_CONFIG_INIT;
    options.samples = TUNE_SAMPLES;
    options.progress = count_round;
    options.context = job;
    options.method = job->method;
    options.budget_s = job->budget_s;
    options.budget_calls = job->budget_calls;
    options.effort = ew_world_rank(world) == 0 ? &job->effort : NULL;
    if (job->fixed)
        RANK_OK(ew_config_parse(job->fixed, &fixed));
    RANK_OK(ew_tune(world, &tuned_problem, job->fixed ? &fixed : NULL, &options,
                    &job->results[ew_world_rank(world)]));
    return 0;
}

static tuning_job *tune_on_two(ew_ranks_as kind, const char *fixed, const char *method,
                               const ew_world_options *world_options)
{
    tuning_job *job = harness_share(sizeof *job);
    *job = (tuning_job){.fixed = fixed, .method = method};
    harness_run_with(kind, 2, world_options, tune_body, job);
    return job;
}

static int num_entries(void)
{
    int count = 0;
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));)
        count += entry->d_name[0] != '.';
    if (listing)
        closedir(listing);
    return count;
}

static int plan_body(ew_world *world, void *argument)
{
    const ew_tuning *tuning = argument;
    ew_plan *plan;
    ew_config config = EW_CONFIG_INIT;
    RANK_OK(ew_plan_create(world, &tuned_problem, NULL, &plan));
    RANK_OK(ew_plan_config(plan, &config));
    RANK_CHECK(memcmp(&config, &tuning->config, sizeof config) == 0,
               "the plan does not use the entry");
    ew_plan_destroy(plan);
    return 0;
}

static void ranks_tune_and_agree(void **state)
{
    (void)state;
    for (int kind = EW_RANKS_AS_PROCESSES; kind <= EW_RANKS_AS_THREADS; kind++) {
        tuning_job *job = tune_on_two((ew_ranks_as)kind, NULL, NULL, NULL);
        const ew_tune_result *result = &job->results[0];
        char key[EW_TUNING_KEY_BYTES];
        assert_int_equal(job->rounds, 4); /* block, group, budget, and the last */
        assert_int_equal(job->num_rounds, 4);
        assert_true(result->complete && result->stored && result->num_candidates > 5);
        assert_memory_equal(&result->tuning.config, &job->results[1].tuning.config,
                            sizeof(ew_config));
        assert_true(result->tuning.time_us <= result->tuning.default_us);
        assert_int_equal(ew_tuning_key(&tuned_problem, 2, EW_BACKEND_CPU, key, sizeof key),
                         EW_OK);
        assert_string_equal(result->tuning.key, key);
        assert_int_equal(num_entries(), 1);
        harness_run((ew_ranks_as)kind, 2, plan_body, &job->results[0].tuning);
        remove_entries();
        harness_unshare(job, sizeof *job);
    }
}

/* What is set stays, whoever set it; and only what all plans would use is stored. */
static void fixed_fields_stay(void **state)
{
    (void)state;
    static const struct {
        const char *fixed, *method;
        int num_rounds;
        ew_config want; /* fields of the result; 0: any */
    } cases[] = {
        {"group=2,x=1,b=3", NULL, 2, {.group = 2, .budget = 1, .batch = 3}},
        {"block=128x128,b=2", NULL, 3, {.block_n = 128, .batch = 2}},
        {"order=contiguous,release=partition",
         "entwine",
         4,
         {.order = EW_ORDER_CONTIGUOUS, .release = EW_RELEASE_PARTITION}},
        {NULL, "sequential", 3, {.order = EW_ORDER_DEFAULT, .release = EW_RELEASE_OUTPUT}},
        {NULL, "chunked", 4, {.order = EW_ORDER_CONTIGUOUS, .release = -1}},
        {NULL, "wavegroup", 5, {.order = EW_ORDER_INTERLEAVED}},
        {"release=3", "wavegroup", 4, {.release = 3}},
        {"workers=3", "static", 4, {.workers = 3, .pool = EW_POOL_STATIC}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tuning_job *job =
            tune_on_two(EW_RANKS_AS_THREADS, cases[i].fixed, cases[i].method, NULL);
        const ew_config *got = &job->results[0].tuning.config, *want = &cases[i].want;
        harness_context("case %zu", i);
        assert_int_equal(job->num_rounds, cases[i].num_rounds);
        assert_false(job->results[0].stored);
        assert_true(!want->block_n || want->block_n == got->block_n);
        assert_true(!want->group || want->group == got->group);
        assert_true(!want->budget || want->budget == got->budget);
        assert_true(!want->batch || want->batch == got->batch);
        assert_true(!want->order || want->order == got->order);
        assert_true(!want->release || want->release == got->release);
        assert_true(!want->workers || want->workers == got->workers);
        assert_true(!want->pool || want->pool == got->pool);
        harness_unshare(job, sizeof *job);
    }
    assert_int_equal(num_entries(), 0);
}

static void an_emulated_link_leaves_no_entry(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.link_gbps = 1000;
    tuning_job *job = tune_on_two(EW_RANKS_AS_THREADS, NULL, NULL, &options);
    assert_false(job->results[0].stored);
    assert_int_equal(num_entries(), 0);
    harness_unshare(job, sizeof *job);
}

/* One heat of the first knob, and no more. */
static void a_spent_budget_ends_the_search(void **state)
{
    (void)state;
    tuning_job *job = harness_share(sizeof *job);
    job->budget_s = 1e-9;
    harness_run(EW_RANKS_AS_PROCESSES, 2, tune_body, job);
    assert_false(job->results[0].complete);
    assert_true(job->results[0].num_candidates <= EW_TUNE_PLANS);
    assert_true(job->results[0].tuning.time_us > 0);
    remove_entries();
    harness_unshare(job, sizeof *job);
}

static void calls_are_a_budget_too(void **state)
{
    (void)state;
    tuning_job *job = harness_share(sizeof *job);
    harness_run(EW_RANKS_AS_THREADS, 2, tune_body, job);
    assert_true(job->results[0].complete);
    const int candidates = job->results[0].num_candidates;
    assert_true(job->effort.calls > TUNE_SAMPLES * candidates && job->effort.seconds > 0);
    job->budget_calls = 1; /* one heat, and the last comparison of two */
    harness_run(EW_RANKS_AS_THREADS, 2, tune_body, job);
    assert_false(job->results[0].complete);
    assert_true(job->results[0].num_candidates < candidates);
    assert_true(job->effort.calls <=
                (EW_TUNE_PLANS + 2) * (1 + TUNE_SAMPLES * EWX_RACE_LAPS));
    harness_unshare(job, sizeof *job);
    remove_entries();
}

/* ---- Wrong values ---- */

static _Atomic int num_checks;

/* The third candidate that is checked has a wrong value, on one rank. */
static ew_status verify_badly(ew_world *world, const ew_problem *problem, uint32_t seed,
                              int64_t m, const void *C, ew_check *check_out)
{
    const ew_status status =
        ewx_backend_cpu.memory.verify(world, problem, seed, m, C, check_out);
    if (ew_world_rank(world) == 1)
        check_out->wrong += ++num_checks == 3;
    return status;
}

static int wrong_body(ew_world *world, void *argument)
{
    ewx_backend spoilt = ewx_backend_cpu;
    ewx_search *s = calloc(1, sizeof *s);
    RANK_CHECK(s != NULL, "no memory");
    (void)argument;
    spoilt.memory.verify = verify_badly;
    s->options = (ew_tune_options)EW_TUNE_OPTIONS_INIT;
    s->space = (ewx_candidate_space){.problem = &tuned_problem, .num_ranks = 2};
    s->space.machine.cores = 2;
    s->space.fixed = s->built_in.request = (ew_config)EW_CONFIG_INIT;
    RANK_OK(ewx_sampler_open(&s->sampler, world, &tuned_problem, &spoilt,
                             tuned_problem.max_m, 1));
    RANK_OK(ewx_search_choose(s, &s->built_in.request, &s->built_in.config));
    s->space.built_in = s->built_in.config;
    RANK_CHECK(ewx_search_run(s) == EW_ERR_SYSTEM, "wrong values were accepted");
    RANK_CHECK(strstr(ew_last_error(), "1 wrong values") &&
                   strstr(ew_last_error(), "block=128x512"),
               "%s", ew_last_error());
    ewx_search_close(s);
    ewx_sampler_close(&s->sampler);
    free(s);
    return 0;
}

static void wrong_values_end_it(void **state)
{
    (void)state;
    num_checks = 0;
    harness_run(EW_RANKS_AS_THREADS, 2, wrong_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_survive_a_round_trip),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(flipped_bits_crash_nobody),
        cmocka_unit_test(nonsense_is_named),
        cmocka_unit_test(buckets_are_powers_of_two),
        cmocka_unit_test(keys_tell_problems_apart),
        cmocka_unit_test(entries_of_other_kernels_are_not_used),
        cmocka_unit_test(plans_use_the_entry_of_their_bucket_or_the_nearest),
        cmocka_unit_test(a_wish_of_the_callers_outweighs_the_entry),
        cmocka_unit_test(a_damaged_file_is_no_entry),
        cmocka_unit_test(values_that_no_tuning_finds_here),
        cmocka_unit_test(entries_of_another_user),
        cmocka_unit_test(no_folder_is_no_error),
        cmocka_unit_test(ranks_tune_and_agree),
        cmocka_unit_test(fixed_fields_stay),
        cmocka_unit_test(an_emulated_link_leaves_no_entry),
        cmocka_unit_test(a_spent_budget_ends_the_search),
        cmocka_unit_test(calls_are_a_budget_too),
        cmocka_unit_test(wrong_values_end_it),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
