/* Many calls on one plan with nothing between them, several plans in one world, new
 * weights, and plans that come and go and leave nothing behind. */
#include "harness.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

/* ---- A plan with exact inputs and the whole expected output ---- */

/* Row i of the product does not depend on m, so one expected matrix serves every call. */
typedef struct station {
    ew_problem problem;
    ew_plan *plan;
    uint32_t seed;
    unsigned char *A, *B, *C, *expected;
} station;

static size_t row_bytes(const station *s)
{
    return (size_t)s->problem.n * ew_dtype_bytes(s->problem.dtype);
}

/* Binds the weight of `seed` and computes what calls will give: one rank at a time, by a
 * world-less product of the filled inputs. */
static int station_load(ew_world *world, station *s, uint32_t seed)
{
    const ew_problem *p = &s->problem;
    const int W = ew_world_size(world), rank = ew_world_rank(world);
    float *A = malloc((size_t)(p->max_m * p->k) * sizeof *A);
    float *B = malloc((size_t)(p->n * p->k) * sizeof *B);
    float *sum = calloc((size_t)(p->max_m * p->n), sizeof *sum);
    RANK_CHECK(A && B && sum, "no memory");
    for (int r = 0; r < W; r++) {
        RANK_OK(ew_exact_fill_a(EW_FP32, seed, r, W, p->max_m, p->k, A));
        RANK_OK(ew_exact_fill_b(EW_FP32, seed, r, EW_WEIGHT_NK, p->n, p->k, B));
        for (int64_t i = 0; i < p->max_m * p->n; i++)
            for (int64_t k = 0; k < p->k; k++)
                sum[i] += A[i / p->n * p->k + k] * B[i % p->n * p->k + k];
    }
    /* Small integers: bf16 is the upper half of fp32. */
    for (int64_t i = 0; i < p->max_m * p->n; i++) {
        uint32_t bits;
        memcpy(&bits, &sum[i], sizeof bits);
        if (p->dtype == EW_FP32)
            memcpy(s->expected + i * 4, &bits, 4);
        else
            memcpy(s->expected + i * 2, &(uint16_t){(uint16_t)(bits >> 16)}, 2);
    }
    free(A);
    free(B);
    free(sum);
    s->seed = seed;
    RANK_OK(ew_exact_fill_a(p->dtype, seed, rank, W, p->max_m, p->k, s->A));
    RANK_OK(ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, p->n, p->k, s->B));
    RANK_OK(ew_plan_set_weight(s->plan, s->B));
    return 0;
}

static int station_open(ew_world *world, station *s, const ew_problem *problem,
                        const ew_config *config)
{
    *s = (station){.problem = *problem};
    s->A = malloc((size_t)(problem->max_m * problem->k) * 4);
    s->B = malloc((size_t)(problem->n * problem->k) * 4);
    s->C = malloc((size_t)(problem->max_m * problem->n) * 4);
    s->expected = malloc((size_t)(problem->max_m * problem->n) * 4);
    RANK_CHECK(s->A && s->B && s->C && s->expected, "no memory");
    RANK_OK(ew_plan_create(world, problem, config, &s->plan));
    return station_load(world, s, 1);
}

static int station_call(ew_world *world, station *s, int64_t m, int number)
{
    int64_t first, count;
    RANK_OK(ew_owned_rows(m, ew_world_size(world), ew_world_rank(world), &first, &count));
    const size_t bytes = (size_t)count * row_bytes(s);
    memset(s->C, 0xff, bytes + (size_t)(count < s->problem.max_m) * row_bytes(s));
    RANK_OK(ew_gemm_rs(s->plan, m, s->A, NULL, s->C, NULL));
    RANK_CHECK(memcmp(s->C, s->expected + (size_t)first * row_bytes(s), bytes) == 0,
               "call %d, m=%lld: wrong bits", number, (long long)m);
    RANK_CHECK(count == s->problem.max_m || s->C[bytes] == 0xff,
               "call %d: written beyond C", number);
    return 0;
}

static void station_close(station *s)
{
    ew_plan_destroy(s->plan);
    free(s->A);
    free(s->B);
    free(s->C);
    free(s->expected);
}

/* ---- Back to back ---- */

typedef struct rush {
    ew_problem problem;
    ew_config config;
    int calls;
} rush;

static int rush_body(ew_world *world, void *argument)
{
    const rush *r = argument;
    station s;
    harness_random random = harness_seed(5); /* the same m on all ranks */
    RANK_TRY(station_open(world, &s, &r->problem, &r->config));
    for (int call = 0; call < r->calls; call++)
        RANK_TRY(
            station_call(world, &s, harness_between(&random, 0, r->problem.max_m), call));
    station_close(&s);
    return 0;
}

static void run_rush(ew_ranks_as kind, int W, const char *config, int64_t max_m, int64_t n,
                     ew_dtype dtype, int calls)
{
    rush r = {.problem = EW_PROBLEM(max_m, n, 7, dtype), .calls = calls};
    assert_int_equal(ew_config_parse(config, &r.config), EW_OK);
    harness_context("W=%d max_m=%lld N=%lld %s", W, (long long)max_m, (long long)n, config);
    harness_run(kind, W, rush_body, &r);
}

static void ten_thousand_calls_of_two_processes(void **state)
{
    (void)state;
    run_rush(EW_RANKS_AS_PROCESSES, 2, "workers=1", 20, 24, EW_FP32, 10000);
}

static void ten_thousand_calls_of_three_processes(void **state)
{
    (void)state;
    run_rush(EW_RANKS_AS_PROCESSES, 3, "workers=1", 11, 17, EW_BF16, 10000);
}

static void ten_thousand_calls_of_two_threads(void **state)
{
    (void)state;
    run_rush(EW_RANKS_AS_THREADS, 2, "workers=1", 9, 5, EW_FP32, 10000);
}

/* More tiles than one, every release unit, workers that take turns. */
static void a_thousand_calls_of_several_tiles(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "workers=2,release=tile",
        "workers=1,release=3,order=contiguous",
        "workers=2,release=partition,block=128x128,x=2",
        "workers=2,release=output,order=default",
        "workers=2,pool=static,x=1",
    };
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++)
        run_rush(i % 2 ? EW_RANKS_AS_THREADS : EW_RANKS_AS_PROCESSES, 2 + (int)i % 2,
                 configs[i], 600, 270, EW_FP32, 250);
}

/* ---- Several plans, several weights ---- */

static int alternating_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem small = EW_PROBLEM(40, 30, 9, EW_FP32);
    const ew_problem large = EW_PROBLEM(300, 200, 5, EW_BF16);
    const ew_config config = EW_CONFIG_INIT;
    station a, b;
    harness_random random = harness_seed(6);
    RANK_TRY(station_open(world, &a, &small, &config));
    RANK_TRY(station_open(world, &b, &large, &config));
    for (int call = 0; call < 500; call++) {
        RANK_TRY(station_call(world, &a, harness_between(&random, 0, 40), call));
        if (call % 3 != 2)
            RANK_TRY(station_call(world, &b, harness_between(&random, 0, 300), call));
    }
    station_close(&a); /* the other one goes on working */
    RANK_TRY(station_call(world, &b, 300, 500));
    station_close(&b);
    return 0;
}

static void two_plans_in_one_world(void **state)
{
    (void)state;
    for (int kind = EW_RANKS_AS_PROCESSES; kind <= EW_RANKS_AS_THREADS; kind++)
        for (int W = 2; W <= 3; W++)
            harness_run((ew_ranks_as)kind, W, alternating_body, NULL);
}

static int new_weights_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(50, 140, 9, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    config.workers = 2;
    station s;
    harness_random random = harness_seed(8);
    RANK_TRY(station_open(world, &s, &problem, &config));
    for (int call = 0; call < 300; call++) {
        if (call % 3 == 2) /* while peers may still be in the call before */
            RANK_TRY(station_load(world, &s, (uint32_t)call));
        RANK_TRY(station_call(world, &s, harness_between(&random, 0, 50), call));
    }
    station_close(&s);
    return 0;
}

static void a_new_weight_between_calls(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 3, new_weights_body, NULL);
    harness_run(EW_RANKS_AS_THREADS, 2, new_weights_body, NULL);
}

/* The bound weight, one for a single call, and the bound one again, which stayed bound. */
static int one_call_weight_body(ew_world *world, void *argument)
{
    const ew_problem problem = EW_PROBLEM(8, 6, 4, EW_FP32);
    const ew_config *config = argument;
    float A[32], B[24], other[24], C[48];
    ew_plan *plan;
    for (int i = 0; i < 32; i++)
        A[i] = 1;
    for (int i = 0; i < 24; i++) {
        B[i] = 1;
        other[i] = 2;
    }
    RANK_OK(ew_plan_create(world, &problem, config, &plan));
    RANK_CHECK(ew_gemm_rs(plan, 8, A, NULL, C, NULL) == EW_ERR_ARGUMENT,
               "a call without a weight was not refused");
    RANK_OK(ew_plan_set_weight(plan, B));
    for (int call = 0; call < 3; call++) {
        const float want = (call == 1 ? 8.0f : 4.0f) * (float)ew_world_size(world);
        memset(C, 0xff, sizeof C);
        RANK_OK(ew_gemm_rs(plan, 8, A, call == 1 ? other : NULL, C, NULL));
        RANK_CHECK(C[0] == want, "call %d: got %g, want %g", call, C[0], want);
    }
    ew_plan_destroy(plan);
    return 0;
}

static void a_weight_for_one_call_is_not_kept(void **state)
{
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    for (int producer = EW_PRODUCER_OWN; producer <= EW_PRODUCER_BLAS; producer++) {
        if (producer == EW_PRODUCER_BLAS && !ew_blas_name())
            continue;
        config.producer = (ew_producer)producer;
        harness_context("producer %d", producer);
        harness_run(EW_RANKS_AS_PROCESSES, 2, one_call_weight_body, &config);
    }
}

/* Without set_weight every call needs its B. */
static int unbound_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(2, 2, 2, EW_FP32);
    const float ones[4] = {1, 1, 1, 1};
    float C[4];
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    RANK_OK(ew_gemm_rs(plan, 2, ones, ones, C, NULL));
    RANK_CHECK(ew_gemm_rs(plan, 2, ones, NULL, C, NULL) == EW_ERR_ARGUMENT,
               "no weight was ever bound, yet a call without B was accepted");
    ew_plan_destroy(plan);
    return 0;
}

static void a_weight_for_one_call_binds_nothing(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, unbound_body, NULL);
}

/* Wrong arguments are refused before anything starts and leave the plan usable. */
static int refused_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(10, 6, 4, EW_FP32);
    const ew_config config = EW_CONFIG_INIT;
    station s;
    RANK_TRY(station_open(world, &s, &problem, &config));
    RANK_CHECK(ew_gemm_rs(s.plan, 11, s.A, NULL, s.C, NULL) == EW_ERR_SHAPE, "m > max_m");
    RANK_CHECK(ew_gemm_rs(s.plan, -1, s.A, NULL, s.C, NULL) == EW_ERR_SHAPE &&
                   strstr(ew_last_error(), "m=-1 is negative"),
               "m < 0: %s", ew_last_error());
    RANK_CHECK(ew_gemm_rs(s.plan, 5, NULL, NULL, s.C, NULL) == EW_ERR_ARGUMENT, "no A");
    RANK_CHECK(ew_gemm_rs(s.plan, 5, s.A, NULL, NULL, NULL) == EW_ERR_ARGUMENT, "no C");
    RANK_CHECK(ew_gemm_rs(NULL, 5, s.A, NULL, s.C, NULL) == EW_ERR_ARGUMENT, "no plan");
    RANK_CHECK(ew_gemm_rs(s.plan, 5, s.A, NULL, s.C, &s) == EW_ERR_ARGUMENT, "a stream");
    RANK_OK(ew_gemm_rs(s.plan, 0, NULL, NULL, NULL, NULL)); /* m = 0 needs neither */
    RANK_TRY(station_call(world, &s, 10, 0));
    station_close(&s);
    return 0;
}

static void refused_calls_leave_the_plan_usable(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, refused_body, NULL);
}

/* ---- What a call says it did ---- */

enum { TRACED_M = 700, TRACED_N = 270, MAX_EVENTS = 256 };

static int trace_body(ew_world *world, void *argument)
{
    const ew_problem problem = EW_PROBLEM(TRACED_M, TRACED_N, 5, EW_FP32);
    const ew_config *config = argument;
    const int producers = config->workers - config->budget;
    ew_trace_event events[MAX_EVENTS];
    ew_timing timing;
    ew_forecast forecast;
    size_t count;
    station s;
    RANK_OK(ew_forecast_build(&problem, ew_world_size(world), config, &forecast));
    RANK_TRY(station_open(world, &s, &problem, config));
    RANK_OK(ew_plan_trace_enable(s.plan));
    RANK_TRY(station_call(world, &s, TRACED_M, 0));
    RANK_OK(ew_plan_trace(s.plan, events, MAX_EVENTS, &count));
    RANK_OK(ew_plan_timing(s.plan, &timing));
    RANK_CHECK(timing.start_ns <= timing.gemm_end_ns && timing.gemm_end_ns <= timing.end_ns,
               "times run backwards");
    int64_t blocks = 0, reductions = 0;
    bool block_seen[MAX_EVENTS] = {0}, task_seen[MAX_EVENTS] = {0};
    RANK_CHECK(count <= MAX_EVENTS, "%zu events", count);
    for (size_t i = 0; i < count; i++) {
        const ew_trace_event *event = &events[i];
        const bool is_block = event->kind == EW_TRACE_BLOCK;
        bool *seen = is_block ? block_seen : task_seen;
        RANK_CHECK(event->position >= 0 && event->position < MAX_EVENTS &&
                       !seen[event->position],
                   "event %zu, position %lld", i, (long long)event->position);
        seen[event->position] = true;
        blocks += is_block;
        reductions += !is_block;
        RANK_CHECK(timing.start_ns <= event->begin_ns && event->begin_ns <= event->end_ns &&
                       event->end_ns <= timing.end_ns,
                   "event %zu lies outside its call", i);
        RANK_CHECK(event->worker >= 0 && event->worker < config->workers, "worker %d",
                   event->worker);
        RANK_CHECK(config->pool != EW_POOL_STATIC ||
                       is_block == (event->worker < producers),
                   "worker %d of %d did a %s, x=%d", event->worker, config->workers,
                   is_block ? "block" : "reduction", config->budget);
        RANK_CHECK(is_block || event->dst == ew_world_rank(world), "dst %d", event->dst);
    }
    RANK_CHECK(blocks == forecast.num_blocks, "%lld blocks", (long long)blocks);
    RANK_CHECK(reductions == forecast.num_tiles / ew_world_size(world), "%lld reductions",
               (long long)reductions);
    station_close(&s);
    return 0;
}

static void traces_name_every_block_and_tile_once(void **state)
{
    (void)state;
    static const char *const texts[] = {"workers=1,x=1", "workers=3,x=2",
                                        "workers=3,x=2,pool=static",
                                        "workers=2,x=1,pool=static,order=contiguous"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ew_config config = EW_CONFIG_INIT;
        assert_int_equal(ew_config_parse(texts[i], &config), EW_OK);
        harness_context("%s", texts[i]);
        harness_run(EW_RANKS_AS_PROCESSES, 2, trace_body, &config);
    }
}

/* ---- Coming and going ---- */

typedef struct holdings {
    int fds, threads, mappings;
} holdings;

static int count_entries(const char *path)
{
    DIR *directory = opendir(path);
    int count = 0;
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

static int count_lines(const char *path)
{
    FILE *file = fopen(path, "re");
    int count = 0, c;
    while (file && (c = fgetc(file)) != EOF)
        count += c == '\n';
    if (file)
        fclose(file);
    return count;
}

static holdings held_now(void)
{
    return (holdings){count_entries("/proc/self/fd"), count_entries("/proc/self/task"),
                      count_lines("/proc/self/maps")};
}

/* A joined thread stays visible in /proc for a moment. */
static holdings held_after(const holdings *before)
{
    holdings now = held_now();
    for (int i = 0; i < 1000 && now.threads > before->threads; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        now = held_now();
    }
    return now;
}

/* malloc may keep a mapping or two; a leak of one per plan would be hundreds.  Sanitizers
 * keep what was freed. */
#if defined(__SANITIZE_ADDRESS__)
enum { PLANS = 200, SETTLE = 20, SLACK = 1 << 20 };
#else
enum { PLANS = 200, SETTLE = 20, SLACK = 8 };
#endif

static int plans_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(300, 150, 6, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    config.workers = 3;
    holdings before = {0};
    for (int i = 0; i < SETTLE + PLANS; i++) {
        station s;
        if (i == SETTLE)
            before = held_now();
        RANK_TRY(station_open(world, &s, &problem, &config));
        RANK_TRY(station_call(world, &s, i % 301, i));
        station_close(&s);
    }
    /* Ranks as threads share what is counted: count when all are through. */
    RANK_OK(ew_world_barrier(world));
    const holdings after = held_after(&before);
    RANK_CHECK(after.fds <= before.fds, "fds: %d, then %d", before.fds, after.fds);
    RANK_CHECK(after.threads <= before.threads, "threads: %d, then %d", before.threads,
               after.threads);
    RANK_CHECK(after.mappings <= before.mappings + SLACK, "mappings: %d, then %d",
               before.mappings, after.mappings);
    return 0;
}

static void plans_leave_nothing_behind(void **state)
{
    (void)state;
    harness_context("ranks as processes");
    harness_run(EW_RANKS_AS_PROCESSES, 2, plans_body, NULL);
}

/* Plans with 1 to 4 workers, called in turns: three threads for all of them. */
static int sharing_body(ew_world *world, void *argument)
{
    (void)argument;
    enum { SHARERS = 8, ROUNDS = 20 };
    const ew_problem problem = EW_PROBLEM(300, 150, 6, EW_FP32);
    station s[SHARERS];
    const int before = held_now().threads;
    for (int i = 0; i < SHARERS; i++) {
        ew_config config = EW_CONFIG_INIT;
        config.workers = 1 + i % 4;
        RANK_TRY(station_open(world, &s[i], &problem, &config));
        RANK_TRY(station_call(world, &s[i], 300, i)); /* before there are more workers */
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < SHARERS; i++)
            RANK_TRY(station_call(world, &s[i], 300, round));
    const int threads = held_now().threads - before;
    for (int i = 0; i < SHARERS; i++)
        station_close(&s[i]);
    RANK_CHECK(threads == 3, "%d threads", threads);
    return 0;
}

static void plans_share_their_workers(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, sharing_body, NULL);
}

static int brief_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(30, 15, 6, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    config.workers = 2;
    station s;
    RANK_TRY(station_open(world, &s, &problem, &config));
    RANK_TRY(station_call(world, &s, 30, 0));
    station_close(&s);
    return 0;
}

static void worlds_leave_nothing_behind(void **state)
{
    (void)state;
    for (int kind = EW_RANKS_AS_PROCESSES; kind <= EW_RANKS_AS_THREADS; kind++) {
        holdings before = {0};
        harness_context("worlds, kind %d", kind);
        for (int i = 0; i < SETTLE + 60; i++) {
            if (i == SETTLE)
                before = held_after(&(holdings){.threads = 3}); /* ".", ".." and us */
            harness_run((ew_ranks_as)kind, 2, brief_body, NULL);
        }
        const holdings after = held_after(&before);
        assert_int_equal(after.fds, before.fds);
        assert_int_equal(after.threads, before.threads);
        assert_true(after.mappings <= before.mappings + SLACK);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worlds_leave_nothing_behind), /* first: it counts our threads */
        cmocka_unit_test(plans_leave_nothing_behind),
        cmocka_unit_test(plans_share_their_workers),
        cmocka_unit_test(ten_thousand_calls_of_two_processes),
        cmocka_unit_test(ten_thousand_calls_of_three_processes),
        cmocka_unit_test(ten_thousand_calls_of_two_threads),
        cmocka_unit_test(a_thousand_calls_of_several_tiles),
        cmocka_unit_test(two_plans_in_one_world),
        cmocka_unit_test(a_new_weight_between_calls),
        cmocka_unit_test(a_weight_for_one_call_is_not_kept),
        cmocka_unit_test(a_weight_for_one_call_binds_nothing),
        cmocka_unit_test(refused_calls_leave_the_plan_usable),
        cmocka_unit_test(traces_name_every_block_and_tile_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
