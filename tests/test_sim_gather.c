/* AllGather-GEMM in the simulator: every block once and none before its rows, every byte
 * counted, times that can be added up by hand, and what is refused. */
#include "faultkit.h"
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/sim.h"

#include "sim_trial.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

enum { W = 4, K = 1024, PANEL_BYTES = 128 * K * 4 };

static const char *const schedules[] = {"",
                                        "order=contiguous",
                                        "order=default",
                                        "release=2",
                                        "release=partition",
                                        "workers=3",
                                        "release=output",
                                        "block=256x256",
                                        "workers=3,pool=static,x=1"};

/* A tile's block takes 10 us, copying a panel of 128 rows as long as `copy_us` says, and
 * nothing else any time. */
static ewx_sim_profile simple_cpu(int cores, double copy_us)
{
    return (ewx_sim_profile){.name = "simple-cpu",
                             .is_cpu = true,
                             .nodes = 1,
                             .cores = cores,
                             .block_us_128 = {1, {K}, {10}},
                             .clock = 1,
                             .bf16_time = 1,
                             .blas_time = 1,
                             .half_time = 1,
                             .reducer_gbs = {1, {1}, {2e-3 * PANEL_BYTES / copy_us}}};
}

static ew_problem problem_of(int64_t m, int64_t n)
{
    ew_problem problem = EW_PROBLEM(m, n, K, EW_FP32);
    problem.op = EW_OP_AG_GEMM;
    return problem;
}

static sim_outcome run(const ewx_sim_profile *profile, int64_t m, int64_t n, int num_ranks,
                       const char *config, double link_gbs, int traced,
                       ew_trace_event *events)
{
    const ew_problem problem = problem_of(m, n);
    sim_outcome o;
    if (sim_trial_call(profile, &problem, num_ranks, config, link_gbs, traced, events,
                       &o) != EW_OK)
        fail_msg("%s: %s", config, ew_last_error());
    return o;
}

/* ---- What is done, and moved ---- */

static void check_blocks(const sim_outcome *o, const ew_trace_event *events)
{
    const ewx_grid crossing = ewx_spec_grid(&o->spec, o->spec.problem.max_m);
    const ewx_grid grid = ewx_gathered_grid(&o->spec, &crossing);
    const int64_t blocks = ewx_num_blocks(&grid);
    int64_t parts[W] = {0};
    assert_int_equal(o->result.num_traced, blocks);
    for (int64_t i = 0; i < blocks; i++) {
        assert_int_equal(events[i].kind, EW_TRACE_BLOCK);
        parts[events[i].dst]++;
        for (int64_t j = 0; j < i; j++)
            assert_false(events[i].dst == events[j].dst && events[i].row == events[j].row &&
                         events[i].col == events[j].col);
    }
    for (int part = 0; part < grid.num_parts; part++)
        assert_int_equal(parts[part],
                         ewx_part_block_rows(&grid, part) * grid.blocks_per_row);
}

static void every_block_once_and_every_byte(void **state)
{
    static const int64_t rows[] = {1, 129, 1000};
    static const double links[] = {0, 20}; /* 0: none, ranks read each other's memory */
    const ewx_sim_profile profile = simple_cpu(16, 1);
    ew_trace_event *events = malloc(SIM_TRIAL_EVENTS * sizeof *events);
    (void)state;
    for (size_t i = 0; i < COUNT(schedules) * COUNT(links); i++)
        for (size_t m = 0; m < COUNT(rows); m++)
            for (int num_ranks = 1; num_ranks <= W; num_ranks++) {
                const sim_outcome o =
                    run(&profile, rows[m], 776, num_ranks, schedules[i / COUNT(links)],
                        links[i % COUNT(links)], num_ranks - 1, events);
                int64_t moved = 0;
                check_blocks(&o, events);
                for (int rank = 0; rank < num_ranks; rank++)
                    moved += o.ranks[rank].remote_bytes;
                assert_int_equal(moved, (num_ranks - 1) * rows[m] * K * 4);
            }
    free(events);
}

/* Rows of the ranks before it arrive while a rank is not in the call yet. */
static void nobody_computes_before_its_call(void **state)
{
    ewx_sim_profile profile = simple_cpu(16, 1);
    ew_trace_event *events = malloc(SIM_TRIAL_EVENTS * sizeof *events);
    profile.skew_us = 1000;
    (void)state;
    for (size_t i = 0; i < COUNT(schedules); i++) {
        sim_outcome o = run(&profile, 1000, 776, W, schedules[i], 0, -1, NULL);
        const ewx_sim_request apart = {.profile = &profile,
                                       .spec = &o.spec,
                                       .rows = 1000,
                                       .traced_rank = W - 1,
                                       .events = events,
                                       .capacity = SIM_TRIAL_EVENTS};
        o.result.ranks = o.ranks;
        assert_int_equal(ewx_sim_run(&apart, &o.result), EW_OK);
        check_blocks(&o, events);
        for (size_t at = 0; at < o.result.num_traced; at++)
            assert_true(events[at].begin_ns >= o.ranks[W - 1].timing.start_ns);
    }
    free(events);
}

/* ---- Times ---- */

/* One panel each: it is copied first, in 3 us, and then all four are multiplied. */
static void parts_of_a_call_add_up(void **state)
{
    const ewx_sim_profile profile = simple_cpu(W, 3);
    (void)state;
    for (size_t i = 0; i < 5; i++) { /* one worker each */
        const sim_outcome o = run(&profile, W * 128, 256, W, schedules[i], 0, -1, NULL);
        sim_trial_near(o.time_us, 3 + W * 2 * 10);
        sim_trial_near(o.gemm_us, W * 2 * 10);
    }
    sim_trial_near(run(&profile, 128, 256, 1, "", 0, -1, NULL).time_us, 2 * 10);
}

/* A panel crosses to each of the others in turn, and they use it when the last has it: with
 * release=output the GEMM follows the gather, else own rows are multiplied meanwhile. */
static void a_slow_link_hides_own_rows(void **state)
{
    const ewx_sim_profile profile = simple_cpu(W, 1);
    const double gbs = 0.5, panel_us = PANEL_BYTES / gbs * 1e-3;
    const double gather_us = 1 + (W - 1) * panel_us, block_us = 20;
    sim_outcome o = run(&profile, W * 128, 256, W, "release=output", gbs, -1, NULL);
    (void)state;
    sim_trial_near(o.time_us, gather_us + W * block_us);
    o = run(&profile, W * 128, 256, W, "", gbs, -1, NULL);
    sim_trial_near(o.time_us, gather_us + (W - 1) * block_us);
}

/* Two panels each; the first ones are multiplied while the second ones cross. */
static void links_bound_the_time(void **state)
{
    const ewx_sim_profile profile = simple_cpu(W, 1);
    const ew_problem problem = problem_of(W * 1024, 512);
    const double bytes = ew_problem_remote_bytes(&problem, W * 1024, W);
    const sim_outcome none = run(&profile, W * 1024, 512, W, "", 0, -1, NULL);
    double before = INFINITY;
    (void)state;
    for (double gbs = 0.25; gbs < 300; gbs *= 4) {
        const sim_outcome o = run(&profile, W * 1024, 512, W, "", gbs, -1, NULL);
        const sim_outcome apart =
            run(&profile, W * 1024, 512, W, "release=output", gbs, -1, NULL);
        const double link_us = bytes / gbs * 1e-3;
        assert_true(o.time_us > link_us && o.time_us < link_us + none.time_us);
        assert_true(o.time_us <= apart.time_us);
        assert_true(o.time_us <= before * 1.002);
        before = o.time_us;
    }
}

/* Of a 16384th of a block's output, the GEMM takes less than a nanosecond. */
static void the_least_gemm_takes_a_tick(void **state)
{
    const ewx_sim_profile profile = simple_cpu(1, 1);
    const sim_outcome o = run(&profile, 1, 1, 1, "", 0, -1, NULL);
    (void)state;
    assert_true(o.gemm_us > 0 && o.gemm_us < 0.0015);
    assert_true(o.time_us >= o.gemm_us);
}

static void more_workers_are_faster(void **state)
{
    const ewx_sim_profile profile = simple_cpu(4 * W, 1);
    (void)state;
    const double one = run(&profile, 2048, 1024, W, "workers=1", 0, -1, NULL).time_us;
    const double four = run(&profile, 2048, 1024, W, "workers=4", 0, -1, NULL).time_us;
    sim_trial_near(four, one / 4);
}

/* ---- Hosts ---- */

/* A panel each, which goes to both ranks of the other host over its one NIC; then all four
 * are multiplied. */
static void panels_cross_between_hosts(void **state)
{
    ewx_sim_profile profile = simple_cpu(2, 1);
    const double panel_us = 50, block_us = 20;
    (void)state;
    profile.nodes = 2;
    profile.nic_gbs = PANEL_BYTES / panel_us * 1e-3;
    sim_outcome o = run(&profile, W * 128, 256, W, "release=output", 0, -1, NULL);
    sim_trial_near(o.time_us, 1 + 4 * panel_us + W * block_us);
    for (int rank = 0; rank < W; rank++)
        assert_int_equal(o.ranks[rank].crossed_bytes, 2 * PANEL_BYTES);
    o = run(&profile, W * 128, 256, W, "", 0, -1, NULL);
    sim_trial_near(o.time_us, 1 + 4 * panel_us + block_us);
}

/* ---- GPUs ---- */

enum { CHUNK_BYTES = 128 * 512 * 2 }; /* two of them in a panel of depth K */

static double push_us = 1; /* of a chunk, by one mover */
static double split_time;  /* of a tile, of its block's; 0: no block is split */

static sim_outcome run_on_gpus(int64_t m, int64_t n, int num_ranks, const char *config,
                               double link_gbs, int traced, ew_trace_event *events)
{
    ewx_sim_profile profile = sim_trial_gpu();
    profile.reducer_us = push_us;
    profile.split_time = split_time;
    ew_problem problem = problem_of(m, n);
    sim_outcome o;
    problem.dtype = EW_FP16;
    if (sim_trial_call(&profile, &problem, num_ranks, config, link_gbs, traced, events,
                       &o) != EW_OK)
        fail_msg("%s: %s", config, ew_last_error());
    return o;
}

static void every_block_and_every_byte_of_gpus(void **state)
{
    static const char *const configs[] = {
        "",    "order=contiguous", "order=default", "release=2",    "release=partition",
        "x=1", "release=output",   "group=3,x=3",   "block=128x128"};
    static const int64_t rows[] = {1, 129, 1000};
    ew_trace_event *events = malloc(SIM_TRIAL_EVENTS * sizeof *events);
    (void)state;
    for (size_t i = 0; i < COUNT(configs); i++)
        for (size_t m = 0; m < COUNT(rows); m++)
            for (int num_ranks = 1; num_ranks <= W; num_ranks++) {
                const sim_outcome o = run_on_gpus(rows[m], 776, num_ranks, configs[i], 20,
                                                  num_ranks - 1, events);
                int64_t moved = 0;
                check_blocks(&o, events);
                for (int rank = 0; rank < num_ranks; rank++)
                    moved += o.ranks[rank].remote_bytes;
                assert_int_equal(moved, (num_ranks - 1) * rows[m] * K * 2);
            }
    free(events);
}

/* A panel each, and one wave for it.  Its two chunks cross one after the other, and are
 * multiplied as they arrive; or the whole panel is waited for; or the GEMM follows. */
static void chunks_are_multiplied_as_they_arrive(void **state)
{
    const double chunk_us = 20, wave_us = 10, gbs = CHUNK_BYTES / chunk_us * 1e-3;
    (void)state;
    sim_outcome o = run_on_gpus(2 * 128, 1024, 2, "", gbs, -1, NULL);
    sim_trial_near(o.time_us, 2 * chunk_us + wave_us / 2);
    o = run_on_gpus(2 * 128, 1024, 2, "release=partition", gbs, -1, NULL);
    sim_trial_near(o.time_us, 2 * chunk_us + wave_us);
    o = run_on_gpus(2 * 128, 1024, 2, "release=output", gbs, -1, NULL);
    sim_trial_near(o.time_us, 2 * chunk_us + 2 * wave_us);
    sim_trial_near(o.gemm_us, 2 * wave_us);
    o = run_on_gpus(2 * 128, 1024, 2, "", 0, -1, NULL); /* one wave of both panels */
    sim_trial_near(o.time_us, push_us + 2 * wave_us);
    /* Own rows first: the others come long before their wave. */
    o = run_on_gpus(2 * 128, 1024, 2, "order=contiguous,release=partition", 0, -1, NULL);
    sim_trial_near(o.time_us, 2 * wave_us);
}

/* Four SMs take the tiles of two blocks, each as long as it says, and what came before is
 * no part of the GEMM. */
static void the_wait_before_split_blocks_is_no_gemm(void **state)
{
    const double chunk_us = 20, tile_us = 6, gbs = CHUNK_BYTES / chunk_us * 1e-3;
    (void)state;
    split_time = tile_us / 10;
    const sim_outcome o =
        run_on_gpus(2 * 128, 256, 2, "cluster=2,release=output", gbs, -1, NULL);
    split_time = 0;
    sim_trial_near(o.time_us, 2 * chunk_us + tile_us);
    sim_trial_near(o.gemm_us, tile_us);
    sim_trial_near(o.tail_us, 2 * chunk_us);
}

/* 32 rows of each of four ranks are one tile, not four, of which a wave is multiplied as
 * the last rank's chunks arrive: first one of all rows, then the next.  A rank stores its
 * own rows too, over no link. */
static void tiles_span_owners(void **state)
{
    const double chunk_us = 20, wave_us = 10, gbs = CHUNK_BYTES / 4 / chunk_us * 1e-3;
    (void)state;
    sim_outcome o = run_on_gpus(W * 32, 1024, W, "x=4", 0, -1, NULL);
    sim_trial_near(o.time_us, push_us + wave_us);
    o = run_on_gpus(W * 32, 1024, W, "x=4", gbs, -1, NULL);
    assert_true(fabs(o.time_us - (2 * (W - 1) * chunk_us + wave_us / 2)) < 2 * push_us);
    o = run_on_gpus(W * 32, 1024, W, "x=4,release=output", gbs, -1, NULL);
    assert_true(fabs(o.time_us - (2 * (W - 1) * chunk_us + wave_us)) < 2 * push_us);
    o = run_on_gpus(W * 32, 1024, W, "x=4,order=contiguous", 0, -1, NULL);
    sim_trial_near(o.time_us, W * wave_us);
}

/* On a virtual node's link, chunks of all ranks that are stored at about the same time take
 * their turns as they come: the link is busy all the time. */
static void chunks_take_turns_as_they_come(void **state)
{
    ewx_sim_profile profile = sim_trial_gpu();
    ew_problem problem = problem_of(W * 32, 256);
    const double chunk_us = 4, gbs = CHUNK_BYTES / 4 / chunk_us * 1e-3;
    sim_outcome o;
    (void)state;
    profile.gpus = 1;
    profile.virtual_node = true;
    profile.sms = 8 * W;
    profile.reducer_us = 9;
    profile.mem_gbs = 4000;
    problem.dtype = EW_FP16;
    problem.k = 16 * 512;
    assert_int_equal(sim_trial_call(&profile, &problem, W, "x=4", gbs, -1, NULL, &o),
                     EW_OK);
    const double link_us = 16 * (W - 1) * chunk_us;
    if (o.time_us < link_us || o.time_us > 1.2 * link_us)
        fail_msg("%.1f us, the link alone %.1f", o.time_us, link_us);
}

/* 8 panels to 3 ranks in 2 chunks: one mover pushes them one after the other, and the GEMM
 * waits for the last. */
static void movers_bound_the_time(void **state)
{
    (void)state;
    push_us = 5;
    const sim_outcome one = run_on_gpus(W * 1024, 256, W, "x=1", 0, -1, NULL);
    const sim_outcome three = run_on_gpus(W * 1024, 256, W, "x=3", 0, -1, NULL);
    push_us = 1;
    assert_true(fabs(one.time_us - (8 * (W - 1) * 2 * 5 + 10 / 2)) < 0.1); /* and bytes */
    assert_true(three.time_us < one.time_us / 2);
}

/* On an A800 no mover fits on an SM that two CTAs of the GEMM fill. */
static void movers_have_room_where_none_fits_beside(void **state)
{
    const ew_sim_options options = {.struct_size = sizeof options, .profile = "a800-8"};
    ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    ew_config config = EW_CONFIG_INIT;
    ew_sim_report all, movers;
    (void)state;
    problem.op = EW_OP_AG_GEMM;
    assert_int_equal(ew_sim_call(&problem, 8, NULL, &options, &all), EW_OK);
    config.budget = all.config.budget / 2;
    assert_int_equal(ew_sim_call(&problem, 8, &config, &options, &movers), EW_OK);
    assert_true(movers.gemm_us < all.gemm_us); /* the others are the GEMM's */
}

/* ---- Refusals ---- */

static void refusals(void **state)
{
    ewx_sim_profile hosts = simple_cpu(2, 1);
    const ew_problem problem = problem_of(512, 512);
    sim_outcome o;
    (void)state;
    hosts.nodes = 2;
    assert_int_equal(sim_trial_call(&hosts, &problem, 4, "levels=2", 0, -1, NULL, &o),
                     EW_ERR_UNSUPPORTED);
    assert_true(error_has("one level", "fix:", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_once_and_every_byte),
        cmocka_unit_test(nobody_computes_before_its_call),
        cmocka_unit_test(parts_of_a_call_add_up),
        cmocka_unit_test(a_slow_link_hides_own_rows),
        cmocka_unit_test(links_bound_the_time),
        cmocka_unit_test(the_least_gemm_takes_a_tick),
        cmocka_unit_test(more_workers_are_faster),
        cmocka_unit_test(panels_cross_between_hosts),
        cmocka_unit_test(every_block_and_every_byte_of_gpus),
        cmocka_unit_test(chunks_are_multiplied_as_they_arrive),
        cmocka_unit_test(the_wait_before_split_blocks_is_no_gemm),
        cmocka_unit_test(tiles_span_owners),
        cmocka_unit_test(chunks_take_turns_as_they_come),
        cmocka_unit_test(movers_bound_the_time),
        cmocka_unit_test(movers_have_room_where_none_fits_beside),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
