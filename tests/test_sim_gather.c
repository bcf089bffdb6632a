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
    const ewx_grid grid = ewx_spec_grid(&o->spec, o->spec.problem.max_m);
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
    const ewx_sim_profile profile = simple_cpu(16, 1);
    ew_trace_event *events = malloc(SIM_TRIAL_EVENTS * sizeof *events);
    (void)state;
    for (size_t i = 0; i < COUNT(schedules); i++)
        for (size_t m = 0; m < COUNT(rows); m++)
            for (int num_ranks = 1; num_ranks <= W; num_ranks++) {
                const sim_outcome o = run(&profile, rows[m], 776, num_ranks, schedules[i],
                                          20, num_ranks - 1, events);
                int64_t moved = 0;
                check_blocks(&o, events);
                for (int rank = 0; rank < num_ranks; rank++)
                    moved += o.ranks[rank].remote_bytes;
                assert_int_equal(moved, (num_ranks - 1) * rows[m] * K * 4);
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

static void more_workers_are_faster(void **state)
{
    const ewx_sim_profile profile = simple_cpu(4 * W, 1);
    (void)state;
    const double one = run(&profile, 2048, 1024, W, "workers=1", 0, -1, NULL).time_us;
    const double four = run(&profile, 2048, 1024, W, "workers=4", 0, -1, NULL).time_us;
    sim_trial_near(four, one / 4);
}

/* ---- Refusals ---- */

static void refusals(void **state)
{
    const ewx_sim_profile gpu = sim_trial_gpu();
    ewx_sim_profile hosts = simple_cpu(2, 1);
    const ew_problem problem = problem_of(512, 512);
    sim_outcome o;
    (void)state;
    hosts.nodes = 2;
    ew_problem half = problem;
    half.dtype = EW_FP16;
    assert_int_equal(sim_trial_call(&gpu, &half, 2, "", 0, -1, NULL, &o),
                     EW_ERR_UNSUPPORTED);
    assert_true(error_has("ag-gemm is simulated for CPUs", "fix:", NULL));
    assert_int_equal(sim_trial_call(&hosts, &problem, 4, "", 0, -1, NULL, &o),
                     EW_ERR_UNSUPPORTED);
    assert_true(error_has("2 hosts", "fix:", NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_once_and_every_byte),
        cmocka_unit_test(parts_of_a_call_add_up),
        cmocka_unit_test(a_slow_link_hides_own_rows),
        cmocka_unit_test(links_bound_the_time),
        cmocka_unit_test(more_workers_are_faster),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
