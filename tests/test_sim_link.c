/* Simulated links: what a transfer occupies, from when on, and what headers, requests and
 * copies cost.  Times are closed forms. */
#include "sim_trial.h"

#include <math.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/sim/way.h"
#include "entwine/entwine.h"

enum { TILE_BYTES = 128 * 128 * 2 };

/* ---- One direction ---- */

static void take(ewx_sim_way *way, int64_t now, int64_t from, int64_t duration,
                 int64_t begin, int64_t end)
{
    const ewx_sim_span span = ewx_sim_way_take(way, now, from, duration);
    assert_int_equal(span.begin_ps, begin);
    assert_int_equal(span.end_ps, end);
    assert_false(way->failed);
}

static void a_way_serves_one_after_the_other(void **state)
{
    (void)state;
    ewx_sim_way way = {0};
    take(&way, 0, 0, 10, 0, 10);
    take(&way, 0, 0, 5, 10, 15);
    take(&way, 0, 3, 5, 15, 20);
    take(&way, 100, 100, 7, 100, 107); /* what was idle is gone */
    assert_int_equal(way.num_gaps, 0);
    free(way.gaps);
}

/* A transfer that comes later leaves the way to others until then. */
static void gaps_are_filled(void **state)
{
    (void)state;
    ewx_sim_way way = {0};
    take(&way, 0, 50, 10, 50, 60);
    take(&way, 0, 0, 20, 0, 20);
    take(&way, 0, 30, 10, 30, 40);
    take(&way, 0, 0, 15, 20, 45); /* [20, 30) and [40, 45) */
    take(&way, 0, 0, 10, 45, 65); /* [45, 50) and [60, 65) */
    take(&way, 0, 70, 0, 70, 70); /* nothing takes no room */
    take(&way, 0, 62, 5, 65, 70);
    assert_int_equal(way.num_gaps, 0);
    free(way.gaps);
}

static void gaps_that_have_passed_are_forgotten(void **state)
{
    (void)state;
    ewx_sim_way way = {0};
    take(&way, 0, 50, 10, 50, 60);
    take(&way, 20, 20, 5, 20, 25);
    take(&way, 55, 55, 5, 60, 65);
    assert_int_equal(way.num_gaps, 0);
    free(way.gaps);
}

static void many_gaps_are_remembered(void **state)
{
    (void)state;
    enum { GAPS = 1000 };
    ewx_sim_way way = {0};
    for (int64_t i = 1; i <= GAPS; i++) /* the last first, so that gaps are cut in two */
        take(&way, 0, 20 * (GAPS - i) + 10, 10, 20 * (GAPS - i) + 10, 20 * (GAPS - i) + 20);
    assert_int_equal(way.num_gaps, GAPS);
    for (int64_t i = 0; i < GAPS; i++)
        take(&way, 0, 0, 10, 20 * i, 20 * i + 10);
    assert_int_equal(way.num_gaps, 0);
    free(way.gaps);
}

/* ---- Whole calls ---- */

/* Two ranks, each with `tiles` tiles of the other's to sum. */
static sim_outcome run(const ewx_sim_profile *profile, int tiles, const char *config,
                       sim_link link)
{
    const ew_problem problem = EW_PROBLEM(256, 128 * tiles, 1024, EW_FP16);
    sim_outcome o;
    if (sim_trial_over(profile, &problem, 2, config, link, -1, NULL, &o) != EW_OK)
        fail_msg("%s: %s", config, ew_last_error());
    return o;
}

/* A tile over the link, with the headers of its lines. */
static double tile_us(sim_link link)
{
    return TILE_BYTES * (1 + link.header_bytes / 128) / link.gbs * 1e-3;
}

static void headers_take_their_share(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    static const char *const configs[] = {"release=output,x=8", "transport=copy",
                                          "transport=push,release=output"};
    const sim_link plain = {.gbs = 1, .us = 3};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        const sim_outcome a = run(&profile, 1, configs[i], plain);
        const sim_outcome b =
            run(&profile, 1, configs[i], (sim_link){.gbs = 1, .us = 3, .header_bytes = 64});
        const sim_outcome half =
            run(&profile, 1, configs[i], (sim_link){.gbs = 0.5, .us = 3});
        /* Pulled, half as much again in one direction, and as much as that in the other. */
        if (i > 0)
            sim_trial_near(b.time_us - a.time_us, tile_us(plain) / 2);
        else
            sim_trial_near(b.time_us - a.time_us, tile_us(plain));
        sim_trial_near(half.time_us - a.time_us, tile_us(plain));
    }
}

/* The tail of pulled tiles: their bytes, and what the other rank asks for beside them. */
static void requests_go_the_other_way(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    for (int tiles = 1; tiles <= 16; tiles *= 2) {
        const sim_link plain = {.gbs = 1, .us = 3};
        const sim_link asked = {.gbs = 1, .us = 3, .header_bytes = 16};
        const double request_us = TILE_BYTES * 16.0 / 128 * 1e-3;
        const double tail_us = run(&profile, tiles, "release=output,x=16", asked).tail_us;
        sim_trial_near(run(&profile, tiles, "release=output,x=16", plain).tail_us,
                       tiles * tile_us(plain) + 3);
        assert_true(tail_us > tiles * tile_us(asked) + 3);
        assert_true(tail_us < tiles * (tile_us(asked) + request_us) + 3.001);
    }
    sim_link one = {.gbs = 1, .us = 3, .header_bytes = 16};
    sim_trial_near(run(&profile, 1, "release=output,x=16", one).tail_us,
                   tile_us(one) + TILE_BYTES * 16.0 / 128 * 1e-3 + 3);
}

/* A copy is on the link while it runs, so the slower of the two counts.  Of two tiles a
 * rank the other's is computed first, 10 us, and summed in 1 us. */
static void copies_are_on_the_link_from_their_start(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    const sim_link link = {.gbs = 1, .us = 2};
    static const double copy_gbs[] = {0, 4, 1.1, 0.5, 0.1};
    for (size_t i = 0; i < sizeof copy_gbs / sizeof *copy_gbs; i++) {
        profile.copy_gbs = copy_gbs[i];
        const double copy_us = copy_gbs[i] > 0 ? TILE_BYTES / copy_gbs[i] * 1e-3 : 0;
        sim_trial_near(run(&profile, 1, "transport=copy", link).time_us,
                       10 + fmax(copy_us, tile_us(link) + 2) + 1);
    }
}

/* All ranks at once: a rank's way in and ways out are busy from the first byte to the last,
 * however the tiles are asked for. */
static void pulls_keep_every_way_busy(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    const ew_problem problem = EW_PROBLEM(8 * 128, 128 * 16, 1024, EW_FP16);
    static const char *const configs[] = {"release=output,x=1", "release=output,x=4",
                                          "release=output,x=16"};
    const double bytes_us = ew_remote_bytes(8 * 128, 128 * 16, 8, 2) * 1e-3;
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        sim_outcome o;
        assert_int_equal(sim_trial_over(&profile, &problem, 8, configs[i],
                                        (sim_link){.gbs = 1}, -1, NULL, &o),
                         EW_OK);
        assert_true(fabs(o.tail_us - bytes_us) <= 0.02 * bytes_us);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_way_serves_one_after_the_other),
        cmocka_unit_test(gaps_are_filled),
        cmocka_unit_test(gaps_that_have_passed_are_forgotten),
        cmocka_unit_test(many_gaps_are_remembered),
        cmocka_unit_test(headers_take_their_share),
        cmocka_unit_test(requests_go_the_other_way),
        cmocka_unit_test(copies_are_on_the_link_from_their_start),
        cmocka_unit_test(pulls_keep_every_way_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
