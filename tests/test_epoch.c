/* Epochs wrap: calls from 2^32 - 5 on, with ranks that lag a call behind each other, give
 * the same bits as any others. */
#include "faultkit.h"
#include "harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "api/testing.h"
#include "backend/cpu/cpu_engine.h"
#include "base/epoch.h"
#include "base/probe.h"

enum { CALLS = 14, START_BEFORE_WRAP = 5 };

typedef struct scene {
    int slow_rank;
    ewx_probe_point slow_point;
    int64_t rows;
    const char *config;
    atomic_int *lagged; /* calls after which the next one's flags were there already */
} scene;

static int be_slow(void *context, ewx_probe_point point, int rank, int64_t where)
{
    const scene *s = context;
    (void)where;
    if (point == s->slow_point && rank == s->slow_rank)
        sleep_ms(4);
    return 0;
}

/* Whether a rank has entered the call after this one's. */
static bool is_behind(const ewx_cpu_engine *engine)
{
    for (int rank = 0; rank < engine->spec->num_ranks; rank++) {
        const ewx_segment_header *header = ewx_heap_header(&engine->heap, rank);
        const uint32_t epoch = atomic_load(&header->calls[(engine->epoch + 1) & 1].epoch);
        if (epoch == engine->epoch + 1)
            return true;
    }
    return false;
}

static int wrap(ew_world *world, void *argument)
{
    const scene *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(64, 300, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, s->config));
    ewx_cpu_engine *engine = ewx_plan_state(d.plan);
    ewx_engine_set_epoch(engine, UINT32_MAX - START_BEFORE_WRAP + 1);
    RANK_OK(ew_world_barrier(world));
    for (uint32_t call = 0; call < CALLS; call++) {
        const uint32_t seed = 1000 + call;
        RANK_OK(duty_call(&d, s->rows, seed));
        RANK_CHECK(engine->epoch == UINT32_MAX - START_BEFORE_WRAP + 2 + call, "epoch %u",
                   engine->epoch);
        RANK_CHECK(duty_wrong(&d, s->rows, seed) == 0, "call %u", call);
        atomic_fetch_add(s->lagged, is_behind(engine));
    }
    RANK_CHECK(engine->epoch < CALLS, "epoch %u did not wrap", engine->epoch);
    duty_close(&d);
    return 0;
}

static void expect_wrap(ew_ranks_as kind, int num_ranks, scene base, bool must_lag)
{
    base.lagged = harness_share(sizeof *base.lagged);
    const scene *s = &base;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 5000;
    harness_context("kind %d, W=%d, rank %d slow at %d, m=%d, %s", (int)kind, num_ranks,
                    s->slow_rank, (int)s->slow_point, (int)s->rows, s->config);
    ewx_probe_install(be_slow, &base);
    harness_run_with(kind, num_ranks, &options, wrap, &base);
    ewx_probe_install(NULL, NULL);
    if (must_lag) /* else the test has not tried what it is for */
        assert_true(atomic_load(s->lagged) > CALLS / 2);
    harness_unshare(base.lagged, sizeof *base.lagged);
}

static void epochs_wrap(void **state)
{
    static const ewx_probe_point points[] = {EWX_PROBE_BLOCK, EWX_PROBE_PUBLISH,
                                             EWX_PROBE_REDUCE};
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        /* Rank 1 owns no row: it runs a call ahead of rank 0, which finds its flags moved
         * on already. */
        expect_wrap(both_kinds[kind], 2, (scene){0, EWX_PROBE_BLOCK, 1, "", NULL}, true);
        for (size_t point = 0; point < 3; point++)
            for (int slow = 0; slow < 3; slow += 2) {
                expect_wrap(both_kinds[kind], 3, (scene){slow, points[point], 64, "", NULL},
                            false);
                expect_wrap(both_kinds[kind], 3,
                            (scene){slow, points[point], 7,
                                    "order=contiguous,release=partition,workers=2", NULL},
                            false);
            }
    }
}

static void comparison_wraps(void **state)
{
    (void)state;
    assert_true(ewx_epoch_reached(5, 5));
    assert_true(ewx_epoch_reached(6, 5));
    assert_false(ewx_epoch_reached(4, 5));
    assert_true(ewx_epoch_reached(0, UINT32_MAX));
    assert_false(ewx_epoch_reached(UINT32_MAX, 0));
    assert_true(ewx_epoch_reached(UINT32_MAX / 2, 0));
    assert_true(ewx_epoch_reached(3, UINT32_MAX - 3));
    assert_false(ewx_epoch_reached(UINT32_MAX - 3, 3));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparison_wraps),
        cmocka_unit_test(epochs_wrap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
