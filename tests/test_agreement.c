/* One thing that a single rank has otherwise than the rest: refused on every rank before
 * any work, in a message that names both ranks and both values.  The table at the end of
 * this file counts how many there are. */
#include "faultkit.h"
#include "harness.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/probe.h"
#include "stress.h"

enum { W = 3 };
static int odd_rank = 1;    /* plans try every rank in turn */
#define SOON_NS 10000000000 /* well below the timeout */

typedef struct story {
    ew_status statuses[W];
    char texts[W][512];
    /* What the ranks are to do; the odd one has the second. */
    ew_problem problems[2];
    const char *configs[2];
    int64_t rows[W]; /* of each rank's call */
    int call_case;
} story;

static int num_refused; /* disagreements seen so far */

static int keep(story *s, ew_world *world, ew_status status)
{
    const int rank = ew_world_rank(world);
    s->statuses[rank] = status;
    snprintf(s->texts[rank], sizeof s->texts[rank], "%s", ew_last_error());
    return status == EW_OK ? 0 : 3;
}

/* Every rank refuses; those that the odd one is compared with name it, itself another. */
static bool names_both(const char *text, const char *usual_value, const char *odd_value)
{
    char odd[128], usual[128];
    const char *verb = strncmp(odd_value, "plan ", 5) == 0 ? "called" : "has";
    bool named = false;
    snprintf(odd, sizeof odd, "rank %d %s %s", odd_rank, verb, odd_value);
    for (int rank = 0; rank < W; rank++) {
        snprintf(usual, sizeof usual, "rank %d %s %s", rank, verb, usual_value);
        named |= rank != odd_rank && strstr(text, usual);
    }
    return named && strstr(text, odd) && strstr(text, "fix:");
}

static void expect_refusal(const story *s, const char *usual_value, const char *odd_value)
{
    for (int rank = 0; rank < W; rank++)
        if (s->statuses[rank] != EW_ERR_MISMATCH ||
            !names_both(s->texts[rank], usual_value, odd_value))
            fail_msg("rank %d: %s \"%s\", wanted rank %d with %s and others with %s", rank,
                     ew_status_name(s->statuses[rank]), s->texts[rank], odd_rank, odd_value,
                     usual_value);
    num_refused++;
}

/* ---- Worlds: the hello that ranks exchange first ---- */

static int64_t bent_place;
static ewx_probe_point bent_point;

static int bend_one(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    return point == bent_point && rank == odd_rank && where == bent_place;
}

static int never_called(ew_world *world, void *argument)
{
    (void)world;
    (void)argument;
    return 9;
}

static const char *const card_facts[] = {
    "version",       "build",        "byte_order",  "hello_bytes",     "control_bytes",
    "mailbox_bytes", "record_bytes", "fault_bytes", "problem_bytes",   "config_bytes",
    "pointer_bytes", "page_bytes",   "max_ranks",   "num_ranks",       "uid",
    "fabric",        "timeout_ms",   "link_gbps",   "link_latency_us", "link_header_bytes"};
enum { NUM_CARD_FACTS = sizeof card_facts / sizeof *card_facts };

/* The launcher tells what the first rank that could not join said. */
static void worlds_compare_every_fact(void **state)
{
    (void)state;
    bent_point = EWX_PROBE_HELLO;
    for (bent_place = 0; bent_place < NUM_CARD_FACTS; bent_place++) {
        char odd[64], usual[64];
        int exits[W];
        ewx_probe_install(bend_one, NULL);
        const ew_status status =
            ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, never_called, NULL, exits);
        ewx_probe_install(NULL, NULL);
        snprintf(odd, sizeof odd, "rank 1 has %s=", card_facts[bent_place]);
        snprintf(usual, sizeof usual, "rank 0 has %s=", card_facts[bent_place]);
        if (status != EW_ERR_MISMATCH || !error_has(odd, usual, "fix:", NULL))
            fail_msg("%s: %s \"%s\"", card_facts[bent_place], ew_status_name(status),
                     ew_last_error());
        for (int rank = 0; rank < W; rank++)
            assert_int_not_equal(exits[rank], 9);
        num_refused++;
    }
    /* No further fact: nothing is bent and the ranks meet. */
    ewx_probe_install(bend_one, NULL);
    int exits[W];
    ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, never_called, NULL, exits);
    ewx_probe_install(NULL, NULL);
    for (int rank = 0; rank < W; rank++)
        assert_int_equal(exits[rank], 9);
}

/* Linked with --wrap=poll. */
int __real_poll(struct pollfd *entries, nfds_t count, int timeout_ms);
int __wrap_poll(struct pollfd *entries, nfds_t count, int timeout_ms);
static pid_t launcher_of_the_deaf;

int __wrap_poll(struct pollfd *entries, nfds_t count, int timeout_ms)
{
    if (!launcher_of_the_deaf || getpid() == launcher_of_the_deaf)
        return __real_poll(entries, count, timeout_ms);
    usleep(200000); /* the launcher answers meanwhile */
    errno = EPERM;
    return -1;
}

/* What a rank says is heard even if it ends with the launcher's answer unread, which resets
 * the connection. */
static void a_rank_that_read_no_answer_is_heard(void **state)
{
    (void)state;
    int exits[W];
    launcher_of_the_deaf = getpid();
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, never_called, NULL, exits);
    launcher_of_the_deaf = 0;
    for (int rank = 0; rank < W; rank++)
        assert_int_not_equal(exits[rank], 9);
    if (status != EW_ERR_SYSTEM || !error_has("poll failed", NULL))
        fail_msg("%s \"%s\"", ew_status_name(status), ew_last_error());
}

/* ---- Plans: what is asked for ---- */

static int create(ew_world *world, void *argument)
{
    story *s = argument;
    const bool odd = ew_world_rank(world) == odd_rank;
    duty d;
    keep(s, world, duty_open(&d, world, s->problems[odd], s->configs[odd]));
    RANK_CHECK(!d.plan, "a plan that ranks disagree on was made");
    duty_close(&d);
    /* The world is as good as before. */
    RANK_OK(duty_open(&d, world, (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32), ""));
    RANK_OK(duty_call(&d, 64, 1));
    RANK_CHECK(duty_wrong(&d, 64, 1) == 0, "after a refused plan");
    duty_close(&d);
    return 0;
}

static void expect_refused(ew_problem odd_problem, const char *config,
                           const char *odd_config, const char *usual_value,
                           const char *odd_value)
{
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        story *s = harness_share(sizeof *s);
        s->problems[0] = (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32);
        s->problems[1] = odd_problem;
        s->configs[0] = config;
        s->configs[1] = odd_config;
        odd_rank = (odd_rank + 1) % W;
        harness_context("%s, %s, rank %d", odd_config, odd_value, odd_rank);
        harness_run(both_kinds[kind], W, create, s);
        expect_refusal(s, usual_value, odd_value);
        num_refused -= kind != FIRST_KIND; /* counted once */
        harness_unshare(s, sizeof *s);
    }
}

static void plans_compare_the_problem(void **state)
{
    (void)state;
    const ew_problem base = EW_PROBLEM(64, 200, 16, EW_FP32);
    ew_problem odd = base;
    odd.max_m = 65;
    expect_refused(odd, "", "", "M=64", "M=65");
    odd = base;
    odd.n = 201;
    expect_refused(odd, "", "", "N=200", "N=201");
    odd = base;
    odd.k = 15;
    expect_refused(odd, "", "", "K=16", "K=15");
    odd = base;
    odd.dtype = EW_BF16;
    expect_refused(odd, "", "", "type=fp32", "type=bf16");
    odd = base;
    odd.weight_layout = EW_WEIGHT_KN;
    expect_refused(odd, "", "", "weight=nk", "weight=kn");
}

/* Keys that this machine runs with either value; a rank that left one open is asked about
 * the same key. */
static const struct {
    const char *usual, *odd;             /* configs */
    const char *usual_value, *odd_value; /* as the message shows them */
} config_pairs[] = {
    {"block=128x256", "block=256x256", "block=128x256", "block=256x256"},
    {"block=128x256", "block=128x128", "block=128x256", "block=128x128"},
    {"order=interleaved", "order=contiguous", "order=interleaved", "order=contiguous"},
    {"order=default", "order=interleaved", "order=default", "order=interleaved"},
    {"group=1", "group=2", "group=1", "group=2"},
    {"release=tile", "release=partition", "release=tile", "release=partition"},
    {"release=2", "release=output", "release=2", "release=output"},
    {"x=1", "x=2", "x=1", "x=2"},
    {"b=1", "b=3", "b=1", "b=3"},
    {"workers=1", "workers=2", "workers=1", "workers=2"},
    {"x=1,workers=2,pool=shared", "x=1,workers=2,pool=static", "pool=shared",
     "pool=static"},
    {"", "order=contiguous", "order=", "order=contiguous"},
    {"", "x=1", "x=", "x=1"},
    {"", "b=3", "b=", "b=3"},
    {"", "producer=own", "producer=", "producer=own"},
    {"", "transport=pull", "transport=", "transport=pull"},
    {"b=3", "x=2,b=3", "x=", "x=2"},
    {"order=default,b=3", "order=default,x=2,b=3", "x=", "x=2"},
};

static void plans_compare_the_config(void **state)
{
    (void)state;
    const ew_problem base = EW_PROBLEM(64, 200, 16, EW_FP32);
    for (size_t i = 0; i < sizeof config_pairs / sizeof *config_pairs; i++)
        expect_refused(base, config_pairs[i].usual, config_pairs[i].odd,
                       config_pairs[i].usual_value, config_pairs[i].odd_value);
}

/* ---- Plans: every fact that ranks tell ---- */

static int create_bent(ew_world *world, void *argument)
{
    story *s = argument;
    duty d;
    keep(s, world, duty_open(&d, world, s->problems[0], ""));
    duty_close(&d);
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* In the order in which ranks tell them: what is asked for, then what follows from it. */
static const char *const plan_facts[] = {"W",
                                         "M",
                                         "N",
                                         "K",
                                         "type",
                                         "weight",
                                         "op",
                                         "backend",
                                         "producer",
                                         "block",
                                         "order",
                                         "group",
                                         "release",
                                         "first",
                                         "last",
                                         "x",
                                         "b",
                                         "pool",
                                         "transport",
                                         "workers",
                                         "kernel",
                                         "ctas",
                                         "cluster",
                                         "launches",
                                         "levels",
                                         "epilogue",
                                         "shots",
                                         "invariant",
                                         "elem_bytes",
                                         "row_major",
                                         "max_tile_rows",
                                         "tile_cols",
                                         "slots_per_part",
                                         "num_slots",
                                         "tile_stride",
                                         "slot_bytes",
                                         "flags_offset",
                                         "first_slice",
                                         "second_slice",
                                         "segment_bytes"};

static void plans_compare_every_fact(void **state)
{
    (void)state;
    bent_point = EWX_PROBE_FACT;
    for (size_t i = 0; i < sizeof plan_facts / sizeof *plan_facts; i++) {
        story *s = harness_share(sizeof *s);
        char odd[64];
        s->problems[0] = (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32);
        bent_place = (int64_t)i;
        odd_rank = (int)(i % W);
        snprintf(odd, sizeof odd, "%s=", plan_facts[i]);
        harness_context("%s", odd);
        ewx_probe_install(bend_one, NULL);
        harness_run(EW_RANKS_AS_PROCESSES, W, create_bent, s);
        ewx_probe_install(NULL, NULL);
        expect_refusal(s, odd, odd);
        harness_unshare(s, sizeof *s);
    }
}

/* ---- Calls ---- */

enum {
    OTHER_ROWS,
    OTHER_N,
    OTHER_K,
    OTHER_CONFIG,
    THE_SAME_AGAIN, /* as the first plan, problem and config */
    A_PLAN_INSTEAD,
    NUM_CALL_CASES
};

static const char *const call_words[NUM_CALL_CASES] = {[OTHER_ROWS] = "m=63",
                                                       [OTHER_N] = "plan 2",
                                                       [OTHER_K] = "plan 3",
                                                       [OTHER_CONFIG] = "plan 4",
                                                       [THE_SAME_AGAIN] = "plan 5"};

static ew_status call_otherwise(ew_world *world, story *s, duty *plans)
{
    const bool odd = ew_world_rank(world) == odd_rank;
    if (s->call_case == OTHER_ROWS)
        return duty_call(&plans[0], odd ? 63 : 64, 1);
    if (s->call_case != A_PLAN_INSTEAD || !odd)
        return duty_call(&plans[odd ? s->call_case : 0], 64, 1);
    duty d;
    const ew_status status = duty_open(&d, world, s->problems[0], "");
    duty_close(&d);
    return status;
}

static int call_once_alike_and_once_not(ew_world *world, void *argument)
{
    story *s = argument;
    enum { PLANS = 5 };
    duty plans[PLANS];
    static const char *const configs[PLANS] = {"", "", "", "order=contiguous", ""};
    for (int i = 0; i < PLANS; i++) {
        ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
        problem.n += i == OTHER_N;
        problem.k += i == OTHER_K;
        RANK_OK(duty_open(&plans[i], world, problem, configs[i]));
    }
    RANK_OK(duty_call(&plans[0], 64, 1));
    RANK_OK(ew_world_barrier(world)); /* all are through with it */
    const int64_t start_ns = ewx_now_ns();
    ew_status status = call_otherwise(world, s, plans);
    RANK_CHECK(ewx_now_ns() - start_ns < SOON_NS, "that took long");
    for (int tries = 0; status == EW_OK && tries < 5000; tries++) {
        sleep_ms(1);
        status = ew_plan_wait(plans[0].plan);
    }
    const int code = keep(s, world, status);
    for (int i = 0; i < PLANS; i++)
        duty_close(&plans[i]);
    return code;
}

static void calls_are_compared(void **state)
{
    (void)state;
    odd_rank = 1;
    for (int which = 0; which < NUM_CALL_CASES; which++)
        for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
            story *s = harness_share(sizeof *s);
            s->call_case = which;
            s->problems[0] = (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32);
            harness_context("call case %d, kind %d", which, kind);
            harness_run_failing(both_kinds[kind], W, NULL, call_once_alike_and_once_not, s,
                                NULL);
            for (int rank = 0; rank < W; rank++) {
                assert_string_equal(s->texts[rank], s->texts[0]);
                assert_true(strstr(s->texts[rank], "rank 1 ") &&
                            strstr(s->texts[rank], "(operation 7)"));
            }
            if (which == A_PLAN_INSTEAD) {
                assert_int_equal(s->statuses[0], EW_ERR_MISMATCH);
                assert_non_null(strstr(s->texts[0], "rank 1 created a plan"));
                assert_non_null(strstr(s->texts[0], "called ew_gemm_rs"));
                num_refused += kind == FIRST_KIND;
            } else {
                expect_refusal(s, which == OTHER_ROWS ? "m=64" : "plan 1",
                               call_words[which]);
                num_refused -= kind != FIRST_KIND;
            }
            harness_unshare(s, sizeof *s);
        }
}

/* ---- Rows, call after call ---- */

static int call_with_own_rows(ew_world *world, void *argument)
{
    story *s = argument;
    duty d;
    ew_status status =
        duty_open(&d, world, (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32), "");
    for (int call = 0; status == EW_OK && call < 5; call++)
        status = duty_call(&d, s->rows[ew_world_rank(world)], 1);
    const int code = keep(s, world, status);
    duty_close(&d);
    return code;
}

static void different_rows_are_refused(void **state)
{
    static const struct {
        int num_ranks;
        int64_t rows[W];
        const char *one, *other;
    } cases[] = {{2, {5, 7}, "m=5", "m=7"},     {3, {6, 6, 64}, "m=6", "m=64"},
                 {3, {8, 0, 8}, "m=8", "m=0"},  {2, {1, 0}, "m=1", "m=0"},
                 {2, {0, 64}, "m=0", "m=64"},   {3, {64, 63, 64}, "m=63", "m=64"},
                 {3, {0, 0, 64}, "m=0", "m=64"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
            story *s = harness_share(sizeof *s);
            memcpy(s->rows, cases[i].rows, sizeof cases[i].rows);
            harness_context("case %zu, kind %d", i, (int)both_kinds[kind]);
            const int64_t start_ns = ewx_now_ns();
            harness_run_failing(both_kinds[kind], cases[i].num_ranks, NULL,
                                call_with_own_rows, s, NULL);
            assert_true(ewx_now_ns() - start_ns < SOON_NS);
            for (int rank = 0; rank < cases[i].num_ranks; rank++) {
                assert_int_equal(s->statuses[rank], EW_ERR_MISMATCH);
                assert_string_equal(s->texts[rank], s->texts[0]);
            }
            assert_true(strstr(s->texts[0], cases[i].one) &&
                        strstr(s->texts[0], cases[i].other));
            harness_unshare(s, sizeof *s);
        }
}

/* ---- What one rank cannot do stops all, and nobody waits ---- */

static int create_as_told(ew_world *world, void *argument)
{
    story *s = argument;
    const bool odd = ew_world_rank(world) == odd_rank;
    duty d;
    keep(s, world, duty_open(&d, world, s->problems[0], s->configs[odd]));
    RANK_CHECK(!d.plan, "a plan that one rank cannot have was made");
    duty_close(&d);
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static void one_rank_that_cannot_stops_all(void **state)
{
    static const struct {
        const char *config;
        ew_status status;
    } odd[] = {{"backend=cuda", EW_ERR_UNSUPPORTED},
               {"transport=push", EW_ERR_UNSUPPORTED},
               {"pool=static,x=2,workers=2", EW_ERR_CONFIG}};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        story *s = harness_share(sizeof *s);
        s->problems[0] = (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32);
        s->configs[0] = "";
        s->configs[1] = odd[i].config;
        const int64_t start_ns = ewx_now_ns();
        harness_context("%s", odd[i].config);
        harness_run(EW_RANKS_AS_PROCESSES, W, create_as_told, s);
        assert_true(ewx_now_ns() - start_ns < SOON_NS);
        for (int rank = 0; rank < W; rank++)
            assert_int_equal(s->statuses[rank],
                             rank == odd_rank ? odd[i].status : EW_ERR_MISMATCH);
        assert_non_null(strstr(s->texts[odd_rank], "fix:"));
        harness_unshare(s, sizeof *s);
    }
}

static int create_without_problem(ew_world *world, void *argument)
{
    story *s = argument;
    const ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
    ew_plan *plan = NULL;
    keep(s, world,
         ew_plan_create(world, ew_world_rank(world) == odd_rank ? NULL : &problem, NULL,
                        &plan));
    RANK_CHECK(!plan, "a plan without a problem");
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static void one_without_arguments_stops_all(void **state)
{
    (void)state;
    story *s = harness_share(sizeof *s);
    harness_run(EW_RANKS_AS_PROCESSES, W, create_without_problem, s);
    for (int rank = 0; rank < W; rank++)
        assert_int_equal(s->statuses[rank], EW_ERR_ARGUMENT);
    assert_non_null(strstr(s->texts[0], "rank 1 cannot create the plan"));
    harness_unshare(s, sizeof *s);
}

static void there_are_at_least_forty(void **state)
{
    (void)state;
    stress_tell("refused", "%d", num_refused);
    stress_figure("disagreements");
    assert_true(num_refused >= 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(worlds_compare_every_fact),       TIDY(a_rank_that_read_no_answer_is_heard),
        TIDY(plans_compare_the_problem),       TIDY(plans_compare_the_config),
        TIDY(plans_compare_every_fact),        TIDY(calls_are_compared),
        TIDY(different_rows_are_refused),      TIDY(one_rank_that_cannot_stops_all),
        TIDY(one_without_arguments_stops_all), cmocka_unit_test(there_are_at_least_forty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
