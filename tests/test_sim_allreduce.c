/* GEMM-AllReduce in the simulator: every tile summed or copied once, nothing before what it
 * waits for, every byte counted, times that can be added up by hand. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/sim.h"
#include "plan/policy.h"
#include "sim_trial.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

enum { W = 4, N = 776 };

static const char *const schedules[] = {"",
                                        "shots=1",
                                        "shots=2",
                                        "shots=2,x=1",
                                        "shots=2,release=5",
                                        "shots=1,release=3",
                                        "shots=2,release=output",
                                        "shots=1,release=output",
                                        "shots=1,release=2",
                                        "shots=2,pool=after",
                                        "shots=2,launches=unit,release=8",
                                        "shots=2,launches=unit,release=6,first=3,last=2",
                                        "shots=1,launches=unit,release=7,last=1",
                                        "shots=2,block=128x128,ctas=block"};

static ew_problem problem_of(const ewx_sim_profile *profile, int64_t m, int64_t n)
{
    ew_problem problem = EW_PROBLEM(m, n, 1024, profile->is_cpu ? EW_FP32 : EW_FP16);
    problem.op = EW_OP_GEMM_AR;
    return problem;
}

static sim_outcome run(const ewx_sim_profile *profile, int64_t m, int64_t n, int num_ranks,
                       const char *config, double link_gbs, int traced,
                       ew_trace_event *events)
{
    const ew_problem problem = problem_of(profile, m, n);
    sim_outcome o;
    if (sim_trial_call(profile, &problem, num_ranks, config, link_gbs, traced, events,
                       &o) != EW_OK)
        fail_msg("%s: %s", config, ew_last_error());
    return o;
}

static ewx_sim_profile simple_cpu(int cores)
{
    return (ewx_sim_profile){.name = "simple-cpu",
                             .is_cpu = true,
                             .nodes = 1,
                             .cores = cores,
                             .block_us_128 = {1, {1024}, {10}},
                             .clock = 1,
                             .bf16_time = 1,
                             .blas_time = 1,
                             .half_time = 1,
                             .reducer_gbs = {1, {1}, {10}}};
}

/* ---- What is done, and moved ---- */

static void check_tiles(const sim_outcome *o, const ew_trace_event *events, int rank)
{
    const ewx_grid grid = ewx_spec_grid(&o->spec, o->spec.problem.max_m);
    const int64_t blocks = ewx_num_blocks(&grid), tiles = ewx_part_tiles(&grid, 0);
    const bool one_shot = ewx_allreduce_shots(&o->spec, grid.rows) == 1;
    char *seen = calloc((size_t)tiles + 1, 1);
    assert_int_equal(o->result.num_traced, blocks + tiles);
    for (size_t i = 0; i < o->result.num_traced; i++) {
        const ew_trace_event *e = &events[i];
        if (e->kind == EW_TRACE_BLOCK)
            continue;
        const ewx_tile tile = {e->row, e->col};
        const int64_t place = ewx_tile_task(&grid, 0, tile);
        assert_true(place >= 0 && place < tiles && !seen[place]);
        seen[place] = 1;
        assert_int_equal(e->dst, one_shot ? rank : place % o->spec.num_ranks);
        assert_int_equal(e->kind, e->dst == rank ? EW_TRACE_REDUCE : EW_TRACE_COLLECT);
    }
    free(seen);
}

static void every_tile_once_and_every_byte(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    static const int64_t rows[] = {1, 129, 1000, 2048};
    ew_trace_event *events = malloc(SIM_TRIAL_EVENTS * sizeof *events);
    for (size_t i = 0; i < COUNT(schedules); i++)
        for (size_t m = 0; m < COUNT(rows); m++)
            for (int num_ranks = 1; num_ranks <= W; num_ranks += num_ranks == 1 ? 2 : 1) {
                const int rank = num_ranks - 1;
                const sim_outcome o =
                    run(&profile, rows[m], N, num_ranks, schedules[i], 20, rank, events);
                const int64_t all = rows[m] * N * 2;
                int64_t moved = 0;
                check_tiles(&o, events, rank);
                for (int r = 0; r < num_ranks; r++)
                    moved += o.ranks[r].remote_bytes;
                if (strstr(schedules[i], "shots=2"))
                    assert_int_equal(moved, 2 * (num_ranks - 1) * all);
                if (strstr(schedules[i], "shots=1"))
                    assert_int_equal(moved, (int64_t)num_ranks * (num_ranks - 1) * all);
            }
    free(events);
}

/* No sum before its contributions, no copy before its sum. */
static void nothing_is_early(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    static ew_trace_event events[W][4096];
    size_t count = 0;
    profile.jitter = 0.2; /* ranks differ */
    for (size_t i = 0; i < COUNT(schedules); i++) {
        ewx_grid grid = {0};
        for (int rank = 0; rank < W; rank++) {
            const sim_outcome o =
                run(&profile, 1024, 768, W, schedules[i], 20, rank, events[rank]);
            grid = ewx_spec_grid(&o.spec, 1024);
            count = o.result.num_traced;
        }
        for (size_t e = 0; e < count; e++) {
            const ew_trace_event *reader = &events[2][e];
            for (int src = 0; src < W && reader->kind != EW_TRACE_BLOCK; src++)
                for (size_t s = 0; s < count; s++) {
                    const ew_trace_event *source = &events[src][s];
                    const bool contributes =
                        reader->kind == EW_TRACE_REDUCE && source->kind == EW_TRACE_BLOCK &&
                        source->row / grid.block_rows == reader->row / grid.block_rows &&
                        source->col / grid.block_cols == reader->col / grid.block_cols;
                    const bool is_result =
                        reader->kind == EW_TRACE_COLLECT && src == reader->dst &&
                        source->kind == EW_TRACE_REDUCE && source->row == reader->row &&
                        source->col == reader->col;
                    if (contributes || is_result)
                        assert_true(reader->begin_ns >= source->end_ns);
                }
        }
    }
}

/* ---- Times ---- */

static void one_rank_has_nothing_to_send(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    for (int shots = 1; shots <= 2; shots++) {
        const char *config = shots == 1 ? "shots=1,x=4" : "shots=2,x=4";
        sim_trial_near(run(&profile, 1024, 512, 1, config, 20, -1, NULL).time_us,
                       sim_trial_run(&profile, 1024, 512, 1, "x=4", 20).time_us);
    }
}

/* Sixteen tiles, all there when the GEMM ends.  Sums and copies take a microsecond each:
 * with four reducers two ranks make eight sums each and then copy eight. */
static void parts_of_a_call_add_up(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    sim_outcome o = run(&profile, 512, 512, 2, "release=output,shots=1,x=4", 0, -1, NULL);
    sim_trial_near(o.tail_us, 16 / 4);
    o = run(&profile, 512, 512, 2, "release=output,shots=2,x=4", 0, -1, NULL);
    sim_trial_near(o.tail_us, 8 / 4 + 8 / 4);
}

static void links_bound_the_time(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    const ew_problem problem = problem_of(&profile, 2048, 1024);
    const double bytes = ew_problem_remote_bytes(&problem, 2048, W);
    assert_true(bytes == 2 * ew_remote_bytes(2048, 1024, W, 2));
    const sim_outcome none = run(&profile, 2048, 1024, W, "shots=2", 0, -1, NULL);
    double before = INFINITY;
    for (double gbs = 1; gbs < 1000; gbs *= 4) {
        const sim_outcome o = run(&profile, 2048, 1024, W, "shots=2", gbs, -1, NULL);
        const double link_us = bytes / gbs * 1e-3;
        assert_true(o.time_us > link_us && o.time_us < link_us + 2 * none.time_us);
        assert_true(o.time_us <= before * 1.002);
        before = o.time_us;
    }
}

static void cpus_are_simulated_too(void **state)
{
    (void)state;
    const ewx_sim_profile profile = simple_cpu(W);
    for (size_t i = 0; i < 8; i++) { /* those without a GPU's keys */
        const sim_outcome o = run(&profile, 700, 640, W, schedules[i], 0, -1, NULL);
        const sim_outcome paced = run(&profile, 700, 640, W, schedules[i], 1, -1, NULL);
        assert_true(o.time_us >= o.gemm_us && o.gemm_us > 0);
        assert_true(paced.time_us > o.time_us);
    }
}

/* With invariant=S a rank sends and sums S/W contributions to a tile. */
static void move_and_sum_pieces(const ewx_sim_profile *profile)
{
    const int64_t elem = profile->is_cpu ? 4 : 2;
    static const char *const plain[] = {"shots=1", "shots=2,release=3"};
    for (int pieces = 1; pieces <= 4; pieces *= 2)
        for (size_t i = 0; i < COUNT(plain); i++) {
            char config[64];
            snprintf(config, sizeof config, "%s,invariant=%d", plain[i], W * pieces);
            const sim_outcome one = run(profile, 700, 640, W, plain[i], 1, -1, NULL);
            const sim_outcome o = run(profile, 700, 640, W, config, 1, -1, NULL);
            int64_t before = 0, moved = 0;
            for (int rank = 0; rank < W; rank++) {
                before += one.ranks[rank].remote_bytes;
                moved += o.ranks[rank].remote_bytes;
            }
            const int64_t output = 700 * 640 * elem;
            const int64_t contributions = i == 0 ? before : before - (W - 1) * output;
            assert_int_equal(moved, before + (pieces - 1) * contributions);
            assert_true(moved == W * ewx_spec_remote_bytes(&o.spec, 700));
            assert_true(pieces == 1 ? o.time_us == one.time_us : o.time_us > one.time_us);
        }
}

static void pieces_of_k_are_moved_and_summed(void **state)
{
    (void)state;
    const ewx_sim_profile cpu = simple_cpu(W), gpu = sim_trial_gpu();
    move_and_sum_pieces(&cpu);
    move_and_sum_pieces(&gpu);
}

static void a_sample_stands_for_all(void **state)
{
    (void)state;
    ew_problem problem = EW_PROBLEM(8192, 4096, 1024, EW_FP16);
    problem.op = EW_OP_GEMM_AR;
    for (int shots = 1; shots <= 2; shots++) {
        ew_sim_options options = EW_SIM_OPTIONS_INIT;
        ew_sim_report whole, sample;
        ew_config config = EW_CONFIG_INIT;
        config.backend = EW_BACKEND_SIM;
        config.shots = shots;
        options.profile = "nvl72";
        if (ew_sim_call(&problem, 64, &config, &options, &whole) != EW_OK)
            fail_msg("%s", ew_last_error());
        options.sampled_ranks = 16;
        assert_int_equal(ew_sim_call(&problem, 64, &config, &options, &sample), EW_OK);
        if (fabs(sample.time_us / whole.time_us - 1) > 0.05)
            fail_msg("shots=%d: %.1f for %.1f us", shots, sample.time_us, whole.time_us);
        assert_int_equal(sample.moved_bytes, whole.moved_bytes);
    }
}

/* Four waves of 8 tiles, of which a rank sums half and copies half, a microsecond each: a
 * CTA copies between its sums what is there, so that only the last wave's are left when the
 * GEMM ends. */
static void copies_come_between_sums(void **state)
{
    const ewx_sim_profile profile = sim_trial_gpu();
    (void)state;
    const sim_outcome o = run(&profile, 16 * 128, 256, 2, "shots=2,x=1", 0, -1, NULL);
    sim_trial_near(o.gemm_us, 4 * 10);
    assert_true(o.tail_us >= 8 && o.tail_us < 9); /* copies at the end would take 20 */
}

static void what_needs_parts_is_refused(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    static const char *const refused[] = {"transport=push", "transport=push,release=output",
                                          "transport=copy", "transport=add", "levels=2"};
    const ew_problem problem = problem_of(&profile, 1024, 512);
    for (size_t i = 0; i < COUNT(refused); i++) {
        sim_outcome o;
        assert_int_not_equal(
            sim_trial_call(&profile, &problem, W, refused[i], 0, -1, NULL, &o), EW_OK);
        assert_non_null(strstr(ew_last_error(), "fix: "));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_once_and_every_byte),
        cmocka_unit_test(nothing_is_early),
        cmocka_unit_test(one_rank_has_nothing_to_send),
        cmocka_unit_test(parts_of_a_call_add_up),
        cmocka_unit_test(links_bound_the_time),
        cmocka_unit_test(cpus_are_simulated_too),
        cmocka_unit_test(pieces_of_k_are_moved_and_summed),
        cmocka_unit_test(a_sample_stands_for_all),
        cmocka_unit_test(copies_come_between_sums),
        cmocka_unit_test(what_needs_parts_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
