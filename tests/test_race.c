/* The tuner's race on times that are known, and the knobs of each method on a GPU that is
 * not here. */
#include "harness.h"

#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "tune/candidates.h"
#include "tune/race.h"

/* ---- Races ---- */

typedef struct course {
    double us[EWX_RACE_MOST];
    double noise;   /* 0.01: up to one per cent longer */
    int spoilt;     /* this call of the first, counted from 1, takes twice as long */
    int order[256]; /* of the first calls */
    int calls[EWX_RACE_MOST], num_calls;
    double total_us;
    harness_random random;
} course;

static ew_status fake_time(void *context, int racer, double *us_out)
{
    course *c = context;
    const double part = (double)harness_between(&c->random, 0, 1000) / 1000;
    *us_out = c->us[racer] * (1 + c->noise * part);
    c->calls[racer]++;
    if (racer == 0 && c->calls[0] == c->spoilt)
        *us_out *= 2;
    if (c->num_calls < 256)
        c->order[c->num_calls++] = racer;
    c->total_us += *us_out;
    return EW_OK;
}

static ewx_race race;

static void run_race(course *c, int count, double idle, bool whole)
{
    memset(&race, 0, sizeof race);
    race.count = count;
    race.idle = idle;
    race.lap_us = 100e3;
    race.whole = whole;
    c->random = harness_seed(7);
    assert_int_equal(ewx_race_run(&race, fake_time, c), EW_OK);
}

static void the_slow_leave_after_a_lap(void **state)
{
    (void)state;
    course c = {.us = {100, 102, 94, 103}};
    run_race(&c, 4, 0, false);
    assert_int_equal(ewx_race_winner(&race), 2);
    assert_int_equal(race.lap, 10);
    assert_true(race.racers[0].out && race.racers[1].out && race.racers[3].out);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.calls[i], 11); /* a warm-up and a lap */
    for (int i = 0; i < c.num_calls; i++)
        assert_int_equal(c.order[i], i % 4); /* in turns */
    assert_true(race.racers[2].time_us == 94);
}

/* Only two per cent behind, but in every one of ten calls. */
static void who_always_loses_leaves(void **state)
{
    (void)state;
    course c = {.us = {100, 102}};
    run_race(&c, 2, 0, false);
    assert_true(race.racers[1].out);
    assert_int_equal(c.calls[1], 11);
}

static void what_is_close_needs_more_laps(void **state)
{
    (void)state;
    course c = {.us = {100, 98.5, 120}, .noise = 0.06};
    run_race(&c, 3, 0, false);
    assert_int_equal(ewx_race_winner(&race), 1);
    assert_int_equal(c.calls[2], 3);
    assert_true(c.calls[0] > 11 && c.calls[1] >= c.calls[0]);
}

static void equals_change_nothing(void **state)
{
    (void)state;
    course c = {.us = {100, 99.7, 100.2}, .noise = 0.001};
    run_race(&c, 3, 0, false);
    assert_int_equal(ewx_race_winner(&race), 0);
    c = (course){.us = {100, 100, 100}, .noise = 0.01};
    run_race(&c, 3, 0, false);
    assert_int_equal(ewx_race_winner(&race), 0);
    assert_int_equal(race.num_samples, 2 * race.lap);
}

static void one_slow_call_sends_nobody_out(void **state)
{
    (void)state;
    course c = {.us = {80e3, 82e3}, .spoilt = 2};
    run_race(&c, 2, 1, false);
    assert_int_equal(race.lap, 3); /* calls too long for a lap of 0.1 s */
    assert_true(race.racers[0].samples_us[0] == 160e3);
    assert_false(race.racers[0].out);
    assert_int_equal(ewx_race_winner(&race), 0);
}

/* Three lost calls, and a median that is behind by more than what is called equal. */
static void who_loses_every_long_call_leaves(void **state)
{
    (void)state;
    course c = {.us = {50e3, 51e3, 50e3}};
    run_race(&c, 3, 1, false);
    assert_int_equal(c.calls[1], 4); /* a warm-up and a lap */
    assert_true(race.racers[1].out && !race.racers[2].out);
    assert_int_equal(race.num_samples, 2 * race.lap);
}

/* Two calls say nothing about chance, but ten per cent are enough, however short a call. */
static void the_hopeless_leave_after_two_calls(void **state)
{
    (void)state;
    course c = {.us = {80e3, 89e3, 82e3}};
    run_race(&c, 3, 1, false);
    assert_int_equal(c.calls[1], 3);
    assert_true(race.racers[1].out && c.calls[2] > 3);
    c = (course){.us = {100, 111, 109}};
    run_race(&c, 3, 1, false);
    assert_int_equal(c.calls[1], 3);
    assert_int_equal(c.calls[2], 11);
    assert_true(race.racers[1].out && race.racers[2].out);
    c = (course){.us = {100, 101, 102}, .spoilt = 2}; /* the first one's bad moment */
    run_race(&c, 3, 1, false);
    assert_true(c.calls[0] > 3);
}

static void a_last_comparison_is_whole(void **state)
{
    (void)state;
    course c = {.us = {100, 50}};
    run_race(&c, 2, 0, true);
    assert_int_equal(c.calls[0], 31);
    assert_int_equal(c.calls[1], 31);
    assert_false(race.racers[0].out);
}

static void long_calls_make_a_short_race(void **state)
{
    (void)state;
    course c = {.us = {80e3, 81e3, 82e3, 81e3, 82e3, 81.5e3}, .noise = 0.005};
    run_race(&c, 6, 1, false);
    assert_true(race.num_samples <= 4);
    assert_true(2 * c.total_us < 6e6); /* of the paper's largest workload, with rests */
    c = (course){.us = {100, 101, 102, 101, 102, 101.5}, .noise = 0.005};
    run_race(&c, 6, 1, false);
    assert_true(2 * c.total_us < 1e6);
}

static void a_lap_may_be_given(void **state)
{
    (void)state;
    course c = {.us = {100, 100}, .noise = 0.05};
    memset(&race, 0, sizeof race);
    race.count = 2;
    race.lap = EWX_RACE_SAMPLES;
    assert_int_equal(ewx_race_run(&race, fake_time, &c), EW_OK);
    assert_int_equal(race.num_samples, EWX_RACE_SAMPLES);
}

/* ---- Knobs ---- */

enum { TRANSPORT, BLOCK, GROUP, RELEASE, ENDS, BUDGET };

static const ew_problem large = EW_PROBLEM(49152, 8192, 8192, EW_BF16);
static const ew_problem small = EW_PROBLEM(1024, 4096, 1024, EW_BF16);

static ewx_candidate_space space_of(const char *method, const ew_problem *problem,
                                    int num_ranks)
{
    ewx_candidate_space space = {.problem = problem, .num_ranks = num_ranks};
    space.machine = (ewx_machine){.cores = 16, .gpu_sms = 16, .gpu_arch = 90};
    ew_config base = EW_CONFIG_INIT;
    base.backend = EW_BACKEND_CUDA;
    if (strcmp(method, "wavegroup") == 0)
        base.release = 64;
    assert_int_equal(ew_method_config(method, &base, &space.fixed), EW_OK);
    assert_int_equal(ewx_config_choose(problem, num_ranks, &space.fixed, &space.machine,
                                       &space.built_in),
                     EW_OK);
    if (space.fixed.release > 0)
        space.fixed.release = 0; /* its size is to be found */
    return space;
}

static void each_method_has_its_knobs(void **state)
{
    (void)state;
    static const struct {
        const char *method;
        bool applies[EWX_KNOBS];
    } cases[] = {
        {"entwine", {true, true, true, false, false, true}},
        {"sequential", {false, true, true, false, false, true}},
        {"static", {false, true, true, false, false, true}},
        {"wavegroup", {false, true, true, true, true, true}},
        {"chunked", {false, true, true, false, false, true}},
        {"fused-push", {false, true, true, false, false, true}},
        {"fused-add", {false, true, true, false, false, true}},
        {"fused-tma-add", {false, true, true, false, false, true}},
        {"blas", {false, false, false, false, false, true}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ewx_candidate_space space = space_of(cases[i].method, &large, 8);
        for (int knob = 0; knob < EWX_KNOBS; knob++)
            if (ewx_candidate_applies(&space, knob) != cases[i].applies[knob])
                fail_msg("%s, knob %d", cases[i].method, knob);
    }
    static const struct {
        const char *method;
        bool applies[EWX_KNOBS];
    } gathering[] = {{"blas-chunked", {false}},
                     {"chunk-signals", {false, true, true, true}}};
    ew_problem gathered = large;
    gathered.op = EW_OP_AG_GEMM;
    for (size_t i = 0; i < sizeof gathering / sizeof gathering[0]; i++) {
        const ewx_candidate_space space = space_of(gathering[i].method, &gathered, 8);
        for (int knob = 0; knob < EWX_KNOBS; knob++)
            if (ewx_candidate_applies(&space, knob) != gathering[i].applies[knob])
                fail_msg("%s, knob %d", gathering[i].method, knob);
    }
    ewx_candidate_space nccl = space_of("blas", &large, 8);
    nccl.machine.has_nccl = true;
    assert_false(ewx_candidate_applies(&nccl, BUDGET));
    const ewx_candidate_space alone = space_of("entwine", &large, 1);
    assert_false(ewx_candidate_applies(&alone, TRANSPORT) ||
                 ewx_candidate_applies(&alone, BUDGET));
}

static void few_waves_may_do_without_overlap(void **state)
{
    enum { POOL = EWX_KNOBS - 2 };
    (void)state;
    static const ew_op ops[] = {EW_OP_GEMM_RS, EW_OP_GEMM_AR, EW_OP_AG_GEMM};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        ew_problem problem = small;
        problem.op = ops[i];
        ewx_candidate_space space = space_of("entwine", &problem, 8);
        ew_config requests[EWX_KNOB_VALUES];
        assert_true(ewx_candidate_applies(&space, POOL));
        const int count =
            ewx_candidate_vary(&space, POOL, &space.fixed, &space.built_in, requests);
        int after = 0;
        for (int at = 0; at < count; at++) {
            ew_config chosen;
            after += requests[at].pool == EW_POOL_AFTER &&
                     requests[at].release == EW_RELEASE_OUTPUT &&
                     ewx_config_choose(&problem, 8, &requests[at], &space.machine,
                                       &chosen) == EW_OK;
        }
        assert_true(after > 0);
        space.fixed.release = 1; /* as the caller wants it */
        const int fewer =
            ewx_candidate_vary(&space, POOL, &space.fixed, &space.built_in, requests);
        for (int at = 0; at < fewer; at++)
            assert_int_not_equal(requests[at].pool, EW_POOL_AFTER);
    }
    const ewx_candidate_space many = space_of("entwine", &large, 8);
    assert_false(ewx_candidate_applies(&many, POOL));
}

static void only_allreduce_has_shots(void **state)
{
    enum { SHOTS = EWX_KNOBS - 1 };
    (void)state;
    ew_problem problem = EW_PROBLEM(4096, 4096, 1024, EW_FP32);
    ewx_candidate_space space = {.problem = &problem, .num_ranks = 4};
    ew_config requests[EWX_KNOB_VALUES];
    assert_false(ewx_candidate_applies(&space, SHOTS));
    problem.op = EW_OP_GEMM_AR;
    assert_true(ewx_candidate_applies(&space, SHOTS));
    assert_int_equal(
        ewx_candidate_vary(&space, SHOTS, &space.fixed, &space.built_in, requests), 1);
    assert_int_equal(requests[0].shots, 1); /* so many rows get two shots */
    space.fixed.shots = 2;
    assert_false(ewx_candidate_applies(&space, SHOTS));
    space.fixed.shots = 0;
    space.num_ranks = 2; /* the forms move the same bytes */
    assert_false(ewx_candidate_applies(&space, SHOTS));
}

static int vary(const ewx_candidate_space *space, int knob, ew_config *requests)
{
    return ewx_candidate_vary(space, knob, &space->fixed, &space->built_in, requests);
}

/* From 1 to all of the most workers there can be, with each batch. */
static void many_workers_leave_no_budget_out(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(16384, 16384, 64, EW_FP32);
    ewx_candidate_space space = {.problem = &problem, .num_ranks = 2};
    ew_config requests[EWX_KNOB_VALUES];
    space.fixed.workers = 1024;
    assert_int_equal(
        ewx_config_choose(&problem, 2, &space.fixed, &space.machine, &space.built_in),
        EW_OK);
    const int count = vary(&space, BUDGET, requests);
    assert_int_equal(count, 3 * 11);
    assert_int_equal(requests[count - 1].budget, 1024);
    assert_int_equal(requests[count - 1].batch, EWX_TUNED_MOST_BATCH);
}

/* A field that is set is in every request as it was; an open one is tried. */
static void knobs_leave_set_fields_alone(void **state)
{
    (void)state;
    ew_config requests[EWX_KNOB_VALUES];
    ewx_candidate_space space = space_of("entwine", &small, 8);
    space.fixed.budget = 4;
    space.fixed.block_m = space.fixed.block_n = 128;
    bool batches = false, clusters = false;
    for (int i = vary(&space, BUDGET, requests); i-- > 0;) {
        assert_int_equal(requests[i].budget, 4);
        batches |= requests[i].batch != requests[0].batch;
    }
    for (int i = vary(&space, BLOCK, requests); i-- > 0;) {
        assert_int_equal(requests[i].block_n, 128);
        clusters |= requests[i].ctas != requests[0].ctas;
    }
    assert_true(batches && clusters);
    space.fixed.group = space.fixed.batch = 1;
    space.fixed.transport = EW_TRANSPORT_PULL;
    assert_false(ewx_candidate_applies(&space, GROUP) ||
                 ewx_candidate_applies(&space, BUDGET) ||
                 ewx_candidate_applies(&space, TRANSPORT));
}

static void what_cannot_differ_is_not_tried(void **state)
{
    (void)state;
    ew_config requests[EWX_KNOB_VALUES];
    ewx_candidate_space space = space_of("entwine", &large, 8);
    for (int i = vary(&space, BLOCK, requests); i-- > 0;)
        assert_int_equal(requests[i].block_n, 256); /* 768 waves of them */
    space = space_of("entwine", &small, 8);
    bool narrow = false;
    for (int i = vary(&space, BLOCK, requests); i-- > 0;)
        narrow |= requests[i].block_n == 128;
    assert_true(narrow);
    for (int i = vary(&space, GROUP, requests); i-- > 0;)
        assert_int_equal(requests[i].group, 1); /* a partition is one tile high */
    for (int i = vary(&space, BUDGET, requests); i-- > 0;)
        assert_true(requests[i].budget <= 32); /* tiles of a partition */
    space = space_of("wavegroup", &small, 8);
    assert_true(vary(&space, RELEASE, requests) > 0);
    for (int i = vary(&space, RELEASE, requests); i-- > 0;)
        assert_true(requests[i].release > 1 && requests[i].release <= 32);
    ew_problem gathered = small; /* of 4 panels each, one of them a chunk */
    gathered.op = EW_OP_AG_GEMM;
    space = space_of("chunk-signals", &gathered, 2);
    assert_int_equal(vary(&space, RELEASE, requests), 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(requests[i].release, 1 << i);
    space = space_of("wavegroup", &large, 8);
    bool both = false;
    for (int i = vary(&space, ENDS, requests); i-- > 0;) {
        assert_int_equal(requests[i].release, space.fixed.release);
        assert_true(requests[i].release_first < 64 && requests[i].release_last < 64);
        both |= requests[i].release_first > 0 && requests[i].release_last > 0;
    }
    assert_true(both);
    space.fixed.release_last = 8;
    assert_false(ewx_candidate_applies(&space, ENDS));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slow_leave_after_a_lap),
        cmocka_unit_test(who_always_loses_leaves),
        cmocka_unit_test(what_is_close_needs_more_laps),
        cmocka_unit_test(equals_change_nothing),
        cmocka_unit_test(one_slow_call_sends_nobody_out),
        cmocka_unit_test(who_loses_every_long_call_leaves),
        cmocka_unit_test(the_hopeless_leave_after_two_calls),
        cmocka_unit_test(a_last_comparison_is_whole),
        cmocka_unit_test(long_calls_make_a_short_race),
        cmocka_unit_test(a_lap_may_be_given),
        cmocka_unit_test(each_method_has_its_knobs),
        cmocka_unit_test(few_waves_may_do_without_overlap),
        cmocka_unit_test(only_allreduce_has_shots),
        cmocka_unit_test(many_workers_leave_no_budget_out),
        cmocka_unit_test(knobs_leave_set_fields_alone),
        cmocka_unit_test(what_cannot_differ_is_not_tried),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
