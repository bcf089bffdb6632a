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

/* The owner has seen that all contributions are there, and now dawdles. */
static int dawdle(void *context, ewx_probe_point point, int rank, int64_t where)
{
    const scene *s = context;
    (void)where;
    if (point == s->slow_point && rank == 0)
        sleep_ms(3);
    return 0;
}

static int call_back_to_back(ew_world *world, void *argument)
{
    const scene *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(64, 300, 32, EW_FP32);
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
    static const ew_ranks_as kinds[] = {EW_RANKS_AS_PROCESSES, EW_RANKS_AS_THREADS};
    static const scene scenes[] = {
        {2, 1, EWX_PROBE_REDUCE, ""},
        {3, 1, EWX_PROBE_REDUCE, "workers=2"},
        {4, 2, EWX_PROBE_BLOCK, "release=output"},
        {3, 64, EWX_PROBE_REDUCE, "order=contiguous"},
    };
    (void)state;
    for (size_t kind = 0; kind < 2; kind++)
        for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++) {
            scene s = scenes[i];
            harness_context("kind %d, scene %zu", (int)kinds[kind], i);
            ewx_probe_install(dawdle, &s);
            harness_run(kinds[kind], s.num_ranks, call_back_to_back, &s);
            ewx_probe_install(NULL, NULL);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(slices_wait_for_their_readers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
