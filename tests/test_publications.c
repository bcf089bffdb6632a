/* Publications that are lost are named, each of them; late and reordered ones change no
 * bit. */
#include "stage.h"

#include <stdio.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "stress.h"

enum { DROP_W = 3, DROP_TILES = 4 };

static int one_call(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(48, 128 * DROP_TILES, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    RANK_OK(
        ew_plan_set_timeout(d.plan, 0.4)); /* of the call alone: a plan may take longer */
    return stage_listen(s, world, &d, duty_call(&d, 48, 1));
}

static void every_lost_publication_is_named(void **state)
{
    (void)state;
    for (int src = 0; src < DROP_W; src++)
        for (int slot = 0; slot < DROP_W * DROP_TILES; slot++) {
            stage *s = stage_open();
            char text[128];
            const int owner = slot / DROP_TILES;
            s->act = ACT_DROP;
            s->point = EWX_PROBE_PUBLISH;
            s->rank = src;
            s->where = slot;
            s->nth = 0;
            harness_context("slot %d of rank %d", slot, src);
            assert_int_not_equal(
                stage_run(s, both_kinds[slot % 2], DROP_W, LONG_TIMEOUT_MS, one_call, NULL),
                EW_OK);
            snprintf(
                text, sizeof text,
                "rank %d waited 0.4 s for tile (0,%d) of rank %d (plan 1, saw epoch 0, "
                "wanted 1)",
                owner, slot % DROP_TILES, src);
            expect_same_story(s, DROP_W, -1, EW_ERR_TIMEOUT, text);
            stage_close(s);
        }
    stress_tell("dropped", "%d", DROP_W * DROP_W * DROP_TILES);
    stress_tell("named", "%d", DROP_W * DROP_W * DROP_TILES); /* or this had failed */
    stress_figure("drops");
}

static int ten_calls(ew_world *world, void *argument)
{
    static const char *const configs[] = {
        "workers=2,x=2,block=128x128", "workers=2,x=1,order=contiguous",
        "workers=2,x=1,pool=static", "release=partition", "release=output,x=3"};
    stage *s = argument;
    return work_on(world, s, 100, configs[s->seed % 5], 10);
}

static void late_and_reordered_publications_are_exact(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 15; seed++)
        for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
            stage *s = stage_open();
            s->act = ACT_JITTER;
            s->point = seed % 3 == 0   ? EWX_PROBE_BLOCK
                       : seed % 3 == 1 ? EWX_PROBE_PUBLISH
                                       : EWX_PROBE_REDUCE;
            s->sleep_ms = 4;
            s->seed = seed;
            harness_context("seed %u, kind %d", seed, (int)both_kinds[kind]);
            assert_int_equal(
                stage_run(s, both_kinds[kind], 3, LONG_TIMEOUT_MS, ten_calls, NULL), EW_OK);
            stage_close(s);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(every_lost_publication_is_named),
        TIDY(late_and_reordered_publications_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
