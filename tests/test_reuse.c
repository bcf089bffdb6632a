/* Heap slices are overwritten only when every reader is done with them: a rank that owns
 * no rows waits for nobody's contributions and would run ahead for ever. */
#include "faultkit.h"
#include "harness.h"

#include <stdatomic.h>
#include <stdio.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/probe.h"

enum { CALLS = 50 };

typedef struct scene {
    int num_ranks;
    int64_t rows;
    ewx_probe_point slow_point;
    const char *config;
} scene;

/* The owner has seen that all contributions are there, and now dawdles; the others are
 * quick enough to be several calls ahead by then, and slow enough to be caught at it. */
static int dawdle(void *context, ewx_probe_point point, int rank, int64_t where)
{
    const scene *s = context;
    (void)where;
    if (point == s->slow_point && rank == 0)
        sleep_ms(6);
    if (point == EWX_PROBE_BLOCK && rank != 0)
        sleep_ms(1);
    return 0;
}

static int call_back_to_back(ew_world *world, void *argument)
{
    const scene *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(64, 128, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, s->config));
    for (uint32_t seed = 0; seed < CALLS; seed++) {
        RANK_OK(duty_call(&d, s->rows, seed));
        const int64_t wrong = duty_wrong(&d, s->rows, seed);
        RANK_CHECK(wrong == 0, "%lld wrong in call %u", (long long)wrong, seed);
    }
    duty_close(&d);
    return 0;
}

static void slices_wait_for_their_readers(void **state)
{
    static const scene scenes[] = {
        {2, 1, EWX_PROBE_REDUCE, "block=128x512"}, /* one block a call */
        {3, 1, EWX_PROBE_REDUCE, "workers=2"},
        {4, 2, EWX_PROBE_BLOCK, "release=output"},
        {3, 64, EWX_PROBE_REDUCE, "order=contiguous"},
    };
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
            scene s = scenes[i];
            harness_context("kind %d, scene %zu", (int)both_kinds[kind], i);
            ewx_probe_install(dawdle, &s);
            harness_run(both_kinds[kind], s.num_ranks, call_back_to_back, &s);
            ewx_probe_install(NULL, NULL);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(slices_wait_for_their_readers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
