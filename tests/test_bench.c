/* The benchmark loop: who takes turns with whom, who starts late, and what is kept of it.
 */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

enum { RANKS = 3, ENTRIES = 4, ITERS = 12 };

typedef struct outcome {
    ew_bench_result results[ENTRIES];
    ew_bench_detail details[ENTRIES];
} outcome;

static ew_status bench(ew_world *world, ew_backend backend, uint32_t seed, double skew_us,
                       outcome *out)
{
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    static const char *const methods[ENTRIES] = {"entwine", "sequential", "wavegroup",
                                                 "chunked"};
    ew_bench_options options = EW_BENCH_OPTIONS_INIT;
    ew_bench_entry entries[ENTRIES];
    ew_config base = EW_CONFIG_INIT;
    base.backend = backend;
    for (int at = 0; at < ENTRIES; at++) {
        entries[at] = (ew_bench_entry){methods[at], EW_CONFIG_INIT, NULL, EW_BENCH_BARE};
        (void)ew_method_config(methods[at], &base, &entries[at].config);
    }
    options.warmup = 1;
    options.iters = ITERS;
    options.seed = seed;
    options.skew_us = skew_us;
    options.details = out->details;
    return ew_bench_run(world, &problem, &options, entries, ENTRIES, out->results);
}

/* In each round every turn is somebody's, and rounds differ. */
static int check_turns(ew_world *world, const outcome *o)
{
    int differing = 0;
    for (int i = 0; i < ITERS; i++) {
        unsigned seen = 0;
        for (int at = 0; at < ENTRIES; at++)
            seen |= 1u << o->details[at].turns[i];
        RANK_CHECK(seen == (1u << ENTRIES) - 1, "round %d has the turns %#x", i, seen);
        differing += o->details[0].turns[i] != o->details[0].turns[0];
    }
    RANK_CHECK(differing > 0, "the order is always the same");
    return 0;
}

static int check_times(ew_world *world, const ew_bench_result *r, const ew_bench_detail *d)
{
    double slowest_us = 0;
    RANK_CHECK(r->status == EW_OK && r->num_samples == ITERS, "%s", r->error);
    for (int rank = 0; rank < RANKS; rank++) {
        RANK_CHECK(d->ranks_us[rank] > 0, "rank %d took %g us", rank, d->ranks_us[rank]);
        if (d->ranks_us[rank] > slowest_us)
            slowest_us = d->ranks_us[rank];
    }
    RANK_CHECK(slowest_us == r->time_us, "%g, not %g", slowest_us, r->time_us);
    for (int i = 0; i < ITERS; i++)
        RANK_CHECK(d->calls_us[i] >= r->samples_us[i], "call %d: %g below %g", i,
                   d->calls_us[i], r->samples_us[i]);
    return 0;
}

static int measure_twice(ew_world *world, void *argument)
{
    outcome *first = calloc(1, sizeof *first), *second = calloc(1, sizeof *second);
    (void)argument;
    RANK_CHECK(first && second, "no memory");
    RANK_OK(bench(world, EW_BACKEND_CPU, 7, 0, first));
    RANK_OK(bench(world, EW_BACKEND_CPU, 7, 50, second));
    for (int at = 0; at < ENTRIES; at++)
        RANK_TRY(check_times(world, &first->results[at], &first->details[at]));
    RANK_TRY(check_turns(world, first));
    for (int at = 0; at < ENTRIES; at++)
        RANK_CHECK(memcmp(first->details[at].turns, second->details[at].turns,
                          sizeof first->details[at].turns) == 0,
                   "one seed, two orders");
    RANK_OK(bench(world, EW_BACKEND_CPU, 8, 0, second));
    RANK_TRY(check_turns(world, second));
    RANK_CHECK(memcmp(first->details[0].turns, second->details[0].turns,
                      sizeof first->details[0].turns) != 0,
               "two seeds, one order");
    free(first);
    free(second);
    return 0;
}

static void test_turns_and_times(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, RANKS, measure_twice, NULL);
}

/* A late rank holds up the others, whose time counts from their own start: of two calls
 * that differ by the skew alone, the later ends later, however busy the machine. */
static int start_late(ew_world *world, void *argument)
{
    outcome *o = calloc(1, sizeof *o);
    double most_us = 0;
    (void)argument;
    RANK_CHECK(o, "no memory");
    RANK_OK(bench(world, EW_BACKEND_CPU, 1, 20000, o));
    for (int i = 0; i < ITERS; i++)
        if (o->details[0].calls_us[i] > most_us)
            most_us = o->details[0].calls_us[i];
    /* Of 12 rounds with three delays of up to 20 ms each, some lie apart by 5 ms. */
    RANK_CHECK(most_us > 5000, "nobody waited for a rank that started late: %g us",
               most_us);
    free(o);
    return 0;
}

static void test_skew(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, RANKS, start_late, NULL);
}

static int simulate_late(ew_world *world, void *argument)
{
    outcome *o = calloc(1, sizeof *o);
    (void)argument;
    RANK_CHECK(o, "no memory");
    RANK_CHECK(bench(world, EW_BACKEND_SIM, 1, 30, o) == EW_ERR_UNSUPPORTED, "%s",
               "the simulator took a skew");
    free(o);
    return 0;
}

static void test_no_skew_in_the_simulator(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 2, simulate_late, NULL);
}

/* A method of the caller's that fails at its call number `fails_at` on one rank. */
typedef struct failing {
    int calls, fails_at;
} failing;

static int call_until(void *context, int64_t m, const void *A, const void *B, void *C,
                      int64_t *gemm_end_ns_out)
{
    failing *f = context;
    (void)m, (void)A, (void)B, (void)C;
    *gemm_end_ns_out = ew_now_ns();
    return f->calls++ == f->fails_at ? 77 : 0;
}

static int bench_failing(ew_world *world, void *argument)
{
    const int culprit = 1;
    const bool fails = ew_world_rank(world) == culprit;
    failing f = {0, fails ? *(const int *)argument : -1};
    const ew_bench_custom custom = {&f, call_until};
    const ew_bench_entry entry = {"mine", EW_CONFIG_INIT, &custom, EW_BENCH_BARE};
    const ew_problem problem = EW_PROBLEM(64, 64, 64, EW_FP32);
    ew_bench_options options = EW_BENCH_OPTIONS_INIT;
    ew_bench_result *result = calloc(1, sizeof *result);
    RANK_CHECK(result, "no memory");
    const ew_status status = ew_bench_run(world, &problem, &options, &entry, 1, result);
    free(result);
    RANK_CHECK(status == EW_ERR_ABORTED, "%s: %s", ew_status_name(status), ew_last_error());
    RANK_CHECK(strcmp(ew_last_error(), fails ? "method mine failed with code 77"
                                             : "rank 1 aborted the world") == 0,
               "%s", ew_last_error());
    return 0;
}

static void test_a_method_that_fails_on_one_rank(void **state)
{
    (void)state;
    for (int fails_at = 0; fails_at < 6; fails_at += 5) /* in the check, and when timed */
        harness_run(EW_RANKS_AS_THREADS, RANKS, bench_failing, &fails_at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_and_times),
        cmocka_unit_test(test_skew),
        cmocka_unit_test(test_no_skew_in_the_simulator),
        cmocka_unit_test(test_a_method_that_fails_on_one_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
