/* The simulator against what can be known without it: closed forms, conservation, order,
 * monotony, and the schedule that the CPU engine records. */
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

/* ---- Closed forms ---- */

static void waves_are_whole(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    static const struct {
        int64_t m, n;
        double us;
    } cases[] = {
        {256, 256, 10}, {512, 256, 10}, {640, 256, 20}, {1024, 512, 40}, {1152, 512, 50}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        sim_trial_near(sim_trial_run(&profile, cases[i].m, cases[i].n, 1, "", 0).gemm_us,
                       cases[i].us);
        sim_trial_near(
            sim_trial_run(&profile, cases[i].m, cases[i].n, 1, "ctas=block", 0).gemm_us,
            cases[i].us);
    }
}

static void parts_of_a_call_add_up(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.start_us = 3;
    profile.publish_us = 0.5;
    profile.launch_us = 7;
    profile.cta_us = 2;
    profile.clock = 0.5;
    /* One wave: start, block at half the clock, flag, one reduction beside it. */
    sim_outcome o = sim_trial_run(&profile, 512, 256, 1, "x=4", 0);
    sim_trial_near(o.gemm_us, 3 + 20);
    sim_trial_near(o.tail_us, 0.5 + 2 * 1); /* 8 tiles, 4 reducers */
    o = sim_trial_run(&profile, 512, 256, 1, "release=output,x=8", 0);
    sim_trial_near(o.tail_us, 7 + 1);
    o = sim_trial_run(&profile, 512, 256, 1, "ctas=block,x=4", 0);
    sim_trial_near(o.gemm_us, 3 + 24); /* the CTA's own time is at that clock too */
}

static void budgets_divide_the_tail(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    static const int budgets[] = {1, 2, 3, 8, 32, 64};
    for (size_t i = 0; i < COUNT(budgets); i++) { /* 32 tiles, all there */
        char config[64];
        snprintf(config, sizeof config, "release=output,b=128,x=%d", budgets[i]);
        const double rounds = ceil(32.0 / fmin(budgets[i], 32));
        sim_trial_near(sim_trial_run(&profile, 512, 1024, 1, config, 0).tail_us, rounds);
    }
}

static void links_bound_the_time(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    const double bytes = ew_remote_bytes(2048, 1024, 4, 2);
    const sim_outcome none = sim_trial_run(&profile, 2048, 1024, 4, "", 0);
    sim_trial_near(sim_trial_run(&profile, 2048, 1024, 4, "", 1e6).time_us, none.time_us);
    for (double gbs = 1; gbs < 100; gbs *= 4) {
        const sim_outcome o = sim_trial_run(&profile, 2048, 1024, 4, "", gbs);
        const double link_us = bytes / gbs * 1e-3;
        sim_trial_near(o.gemm_us, none.gemm_us);
        assert_true(o.time_us > link_us);
        assert_true(o.time_us < link_us + none.time_us);
    }
}

/* Every two waves of four blocks release a group of four tiles to each of two ranks.  While
 * a launch is quicker than that, groups cost nothing but the rest of the last one, as it is
 * with one whole kernel; a launch that is slower is what counts, group after group. */
static void groups_wait_for_their_launches(void **state)
{
    (void)state;
    enum { TILES = 16, GROUPS = TILES / 4 };
    static const char config[] = "block=128x128,release=4,launches=unit,x=4,ctas="
                                 "persistent,cluster=1,order=interleaved";
    ewx_sim_profile profile = sim_trial_gpu();
    profile.sm_shared_bytes = 1.5 * 115904; /* one producer on an SM, and reducers */
    const double gemm_us = 2 * TILES / SIM_TRIAL_SMS * 10;
    profile.command_us = 15;
    sim_trial_near(sim_trial_run(&profile, 256, 128 * TILES, 2, config, 0).time_us,
                   gemm_us + 1);
    profile.beside_us = 2; /* of the GEMM, for each kernel behind the first */
    sim_trial_near(sim_trial_run(&profile, 256, 128 * TILES, 2, config, 0).time_us,
                   gemm_us + (GROUPS - 1) * 2 + 1);
    profile.beside_us = 0;
    profile.command_us = 30;
    sim_trial_near(sim_trial_run(&profile, 256, 128 * TILES, 2, config, 0).time_us,
                   20 + 1 + (GROUPS - 1) * (30 + 1));
    profile.command_us = 0;
    const char *whole =
        "block=128x128,release=16,launches=unit,x=2,ctas=persistent,cluster=1";
    sim_trial_near(sim_trial_run(&profile, 256, 128 * TILES, 2, whole, 0).time_us,
                   gemm_us + TILES / 2);
}

static void static_pools_take_their_sms(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    /* Four reducers of 512 threads fill one of the four SMs: 8 blocks on 3. */
    sim_trial_near(
        sim_trial_run(&profile, 1024, 256, 1, "pool=static,x=4,b=512,cluster=1", 0).gemm_us,
        30);
    sim_trial_near(sim_trial_run(&profile, 1024, 256, 1, "x=4", 0).gemm_us, 20);
}

static void reducers_that_exclude_producers_cost_their_sms(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.sm_registers = 49152; /* no room beside the producer */
    profile.block_us_256 = (ewx_sim_curve){1, {1024}, {10}};
    const sim_outcome alone = sim_trial_run(&profile, 4096, 256, 1, "release=output", 0);
    const sim_outcome shared =
        sim_trial_run(&profile, 4096, 256, 1, "ctas=block,x=1,cluster=1", 0);
    sim_trial_near(alone.gemm_us, 80);
    assert_true(shared.gemm_us > 1.2 * alone.gemm_us);
    sim_outcome o;
    harness_expect_error(
        sim_trial_try(&profile, 4096, 256, 1, "ctas=block,x=4,cluster=1", 0, -1, NULL, &o),
        EW_ERR_CONFIG, "x=4", "more reducers than SMs can spare");
}

static void thieves_delay_producers(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    const double before = sim_trial_run(&profile, 2048, 1024, 2, "", 0).gemm_us;
    profile.steal_ps_per_byte = 10;
    const double after = sim_trial_run(&profile, 2048, 1024, 2, "", 0).gemm_us;
    assert_true(after > before);
    sim_trial_near(sim_trial_run(&profile, 2048, 1024, 2, "release=output", 0).gemm_us,
                   before);
}

/* Two waves of four tiles; one reducer, whose first three tiles begin beside a producer. */
static void producers_slow_their_neighbours(void **state)
{
    (void)state;
    const char *config = "block=128x128,x=1,ctas=persistent,cluster=1";
    ewx_sim_profile profile = sim_trial_gpu();
    profile.sm_shared_bytes = 1.5 * 115904; /* one producer on an SM, and reducers */
    sim_trial_near(sim_trial_run(&profile, 128, 1024, 1, config, 0).time_us, 20 + 4);
    profile.shared_time = 4;
    sim_trial_near(sim_trial_run(&profile, 128, 1024, 1, config, 0).time_us,
                   10 + 3 * 4 + 5);
}

/* ---- Conservation ---- */

static const char *const schedules[] = {
    "",
    "order=default",
    "order=contiguous,group=2",
    "release=3",
    "release=partition",
    "release=output",
    "block=128x128,group=2",
    "ctas=block",
    "x=1",
    "x=2,b=128",
    "pool=static,x=4,b=512",
    "transport=push",
    "transport=push,release=output",
    "transport=copy",
    "launches=unit",
    "launches=unit,release=5",
    "pool=after",
};

static void check_events(const sim_outcome *o, const ew_trace_event *events, int rank,
                         const char *config)
{
    const ewx_grid grid = ewx_spec_grid(&o->spec, o->spec.problem.max_m);
    const ewx_share share = ewx_spec_share(&o->spec, o->spec.problem.max_m, rank);
    const int64_t blocks = ewx_num_blocks(&grid), tiles = share.count;
    char *seen = calloc((size_t)(blocks + tiles) + 1, 1);
    int64_t before_ns = 0;
    assert_int_equal(o->result.num_traced, blocks + tiles);
    for (size_t i = 0; i < o->result.num_traced; i++) {
        const ew_trace_event *e = &events[i];
        const bool is_block = e->kind == EW_TRACE_BLOCK;
        const int64_t at = e->position + (is_block ? 0 : blocks);
        assert_true(e->position >= 0 && e->position < (is_block ? blocks : tiles));
        if (seen[at]++)
            fail_msg("%s: position %lld twice", config, (long long)e->position);
        assert_true(e->end_ns >= before_ns && e->begin_ns <= e->end_ns);
        before_ns = e->end_ns;
        if (is_block) {
            const ewx_block block = ewx_order_block(&grid, e->position);
            assert_int_equal(e->dst, block.part);
            assert_int_equal(e->row, block.row * grid.block_rows);
            assert_int_equal(e->col, block.col * grid.block_cols);
        } else {
            const ewx_tile tile =
                share.ownership == EWX_OWNS_ROWS
                    ? ewx_share_tile_in_columns(&grid, &share, e->position)
                    : ewx_task_tile(&grid, rank, e->position);
            assert_int_equal(e->dst, rank);
            assert_int_equal(e->row, tile.row);
            assert_int_equal(e->col, tile.col);
        }
    }
    free(seen);
}

static void every_tile_once_and_every_byte(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.split_time = 0.6;
    static const int64_t rows[] = {1, 129, 1000, 2048};
    ew_trace_event *events = malloc(SIM_TRIAL_EVENTS * sizeof *events);
    for (size_t i = 0; i < COUNT(schedules); i++)
        for (size_t m = 0; m < COUNT(rows); m++)
            for (int num_ranks = 1; num_ranks <= 4; num_ranks += num_ranks == 1 ? 2 : 1) {
                sim_outcome o;
                const int rank = num_ranks - 1;
                if (sim_trial_try(&profile, rows[m], 776, num_ranks, schedules[i], 20, rank,
                                  events, &o) != EW_OK)
                    fail_msg("%s: %s", schedules[i], ew_last_error());
                check_events(&o, events, rank, schedules[i]);
                int64_t first, owned, moved = 0;
                for (int r = 0; r < num_ranks; r++) {
                    moved += o.ranks[r].remote_bytes;
                    assert_true(o.ranks[r].timing.end_ns >= o.ranks[r].timing.gemm_end_ns);
                }
                ew_owned_rows(rows[m], num_ranks, rank, &first, &owned);
                assert_int_equal(o.ranks[rank].remote_bytes,
                                 (num_ranks - 1) * owned * 776 * 2);
                assert_int_equal(moved, (num_ranks - 1) * rows[m] * 776 * 2);
            }
    free(events);
}

/* No reduction before all contributions to its tile are there. */
static void nothing_is_reduced_early(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.jitter = 0.2; /* ranks differ */
    static ew_trace_event events[4][4096];
    for (size_t i = 0; i < COUNT(schedules); i++) {
        sim_outcome o;
        for (int rank = 0; rank < 4; rank++)
            assert_int_equal(sim_trial_try(&profile, 1024, 768, 4, schedules[i], 20, rank,
                                           events[rank], &o),
                             EW_OK);
        const ewx_grid grid = ewx_grid_build(1024, 768, 4, &o.spec.config);
        const size_t count = o.result.num_traced;
        for (size_t e = 0; e < count; e++) {
            const ew_trace_event *reduced = &events[2][e];
            if (reduced->kind != EW_TRACE_REDUCE)
                continue;
            for (int src = 0; src < 4; src++)
                for (size_t b = 0; b < count; b++) {
                    const ew_trace_event *block = &events[src][b];
                    if (block->kind == EW_TRACE_BLOCK && block->dst == 2 &&
                        block->row / grid.block_rows == reduced->row / grid.block_rows &&
                        block->col / grid.block_cols == reduced->col / grid.block_cols)
                        assert_true(reduced->begin_ns >= block->end_ns);
                }
        }
    }
}

/* ---- Monotony and determinism ---- */

static void more_link_is_never_slower(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    for (size_t i = 0; i < COUNT(schedules); i++) {
        double before = INFINITY;
        for (double gbs = 2; gbs < 5000; gbs *= 1.5) {
            const double us =
                sim_trial_run(&profile, 2048, 1024, 4, schedules[i], gbs).time_us;
            if (us > before * 1.002)
                fail_msg("%s: %g us at %g GB/s, %g us with less", schedules[i], us, gbs,
                         before);
            before = us;
        }
    }
}

static void more_budget_never_shortens_the_gemm(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.steal_ps_per_byte = 5;
    double before = 0;
    for (int budget = 1; budget <= SIM_TRIAL_SMS; budget++) {
        char config[32];
        snprintf(config, sizeof config, "x=%d", budget);
        const double us = sim_trial_run(&profile, 4096, 1024, 4, config, 0).gemm_us;
        assert_true(us >= before * 0.999);
        before = us;
    }
}

static void the_same_input_gives_the_same_answer(void **state)
{
    (void)state;
    ewx_sim_profile profile = sim_trial_gpu();
    profile.jitter = 0.1;
    profile.steal_ps_per_byte = 5;
    profile.skew_us = 2;
    for (size_t i = 0; i < COUNT(schedules); i++) {
        const sim_outcome a = sim_trial_run(&profile, 1536, 1024, 3, schedules[i], 30);
        const sim_outcome b = sim_trial_run(&profile, 1536, 1024, 3, schedules[i], 30);
        assert_memory_equal(a.ranks, b.ranks, 3 * sizeof a.ranks[0]);
        assert_int_equal(a.result.num_events, b.result.num_events);
    }
}

/* Events, hence time and memory, grow with the tiles. */
static void events_grow_with_the_tiles(void **state)
{
    (void)state;
    const ewx_sim_profile profile = sim_trial_gpu();
    const sim_outcome small = sim_trial_run(&profile, 4096, 1024, 4, "", 20);
    const sim_outcome large = sim_trial_run(&profile, 32768, 1024, 4, "", 20);
    assert_true(large.result.num_events < 9 * small.result.num_events);
}

/* ---- The CPU engine's schedule ---- */

typedef struct recorded {
    const char *config;
    ew_trace_event *events; /* of rank 1, shared with the ranks */
    size_t *count;
} recorded;

static int record_engine(ew_world *world, void *argument)
{
    recorded *r = argument;
    const ew_problem problem = EW_PROBLEM(700, 640, 64, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    RANK_OK(ew_config_parse(r->config, &config));
    config.workers = 1;
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    RANK_OK(ew_plan_trace_enable(plan));
    float *A = calloc(700 * 64, sizeof *A), *B = calloc(640 * 64, sizeof *B);
    float *C = calloc(700 * 640, sizeof *C);
    RANK_OK(ew_plan_set_weight(plan, B));
    RANK_OK(ew_gemm_rs(plan, 700, A, NULL, C, NULL));
    if (ew_world_rank(world) == 1)
        RANK_OK(ew_plan_trace(plan, r->events, SIM_TRIAL_EVENTS, r->count));
    RANK_OK(ew_world_barrier(world));
    ew_plan_destroy(plan);
    free(A);
    free(B);
    free(C);
    return 0;
}

/* The events of one kind, in their order; false: there are no more. */
static bool next_of(const ew_trace_event *events, size_t count, ew_trace_kind kind,
                    size_t *at)
{
    while (*at < count && events[*at].kind != kind)
        ++*at;
    return *at < count;
}

static void engines_run_the_simulated_schedule(void **state)
{
    (void)state;
    static const char *const configs[] = {"block=128x256,x=1",
                                          "block=128x256,x=1,order=contiguous",
                                          "block=128x256,x=1,order=default",
                                          "block=256x128,x=1,group=2",
                                          "block=128x256,x=1,release=partition",
                                          "block=128x512,x=1,release=output"};
    ewx_sim_profile profile = {.name = "simple-cpu",
                               .is_cpu = true,
                               .nodes = 1,
                               .cores = 3,
                               .block_us_128 = {1, {1024}, {10}},
                               .clock = 1,
                               .bf16_time = 1,
                               .blas_time = 1,
                               .half_time = 1,
                               .reducer_gbs = {1, {1}, {10}}};
    ew_trace_event *simulated = malloc(SIM_TRIAL_EVENTS * sizeof *simulated);
    for (size_t i = 0; i < COUNT(configs); i++) {
        recorded r = {configs[i], malloc(SIM_TRIAL_EVENTS * sizeof *r.events),
                      &(size_t){0}};
        sim_outcome o;
        harness_run(EW_RANKS_AS_THREADS, 3, record_engine, &r);
        assert_int_equal(
            sim_trial_try(&profile, 700, 640, 3, configs[i], 0, 1, simulated, &o), EW_OK);
        assert_int_equal(*r.count, o.result.num_traced);
        for (int kind = EW_TRACE_BLOCK; kind <= EW_TRACE_REDUCE; kind++) {
            size_t a = 0, b = 0;
            while (next_of(r.events, *r.count, (ew_trace_kind)kind, &a)) {
                assert_true(next_of(simulated, *r.count, (ew_trace_kind)kind, &b));
                assert_int_equal(r.events[a].position, simulated[b].position);
                assert_int_equal(r.events[a].dst, simulated[b].dst);
                assert_int_equal(r.events[a].row, simulated[b].row);
                assert_int_equal(r.events[a].col, simulated[b].col);
                a++, b++;
            }
        }
        free(r.events);
    }
    free(simulated);
}

/* ---- The backend ---- */

static int run_backend(ew_world *world, void *argument)
{
    const ew_sim_report *want = argument;
    const ew_problem problem = EW_PROBLEM((int64_t)1 << 20, 8192, 2048, EW_BF16);
    ew_config config = EW_CONFIG_INIT;
    config.backend = EW_BACKEND_SIM;
    config.group = 4;
    ew_plan *plan;
    void *memory;
    ew_timing timing;
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    RANK_OK(ew_plan_start_together(plan));
    /* Petabytes, if anything lay in them. */
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_SIM, (size_t)1 << 50, &memory));
    RANK_OK(ew_plan_set_weight(plan, memory));
    for (int call = 0; call < 3; call++)
        RANK_OK(ew_gemm_rs(plan, 8192, memory, NULL, memory, NULL));
    RANK_OK(ew_plan_timing(plan, &timing));
    const double us = (double)(timing.end_ns - timing.start_ns) * 1e-3;
    RANK_CHECK(us <= want->time_us && us > 0.9 * want->time_us, "%g against %g", us,
               want->time_us);
    ew_memory_free(world, EW_BACKEND_SIM, memory);
    ew_plan_destroy(plan);
    return 0;
}

static void plans_give_the_simulated_times(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    ew_config config = EW_CONFIG_INIT;
    ew_sim_report report;
    config.group = 4;
    assert_int_equal(ew_sim_call(&problem, 8, &config, NULL, &report), EW_OK);
    harness_run(EW_RANKS_AS_THREADS, 8, run_backend, &report);
}

static int run_with_another_m(ew_world *world, void *argument)
{
    const ew_problem problem = EW_PROBLEM(1024, 1024, 512, EW_BF16);
    ew_config config = EW_CONFIG_INIT;
    config.backend = EW_BACKEND_SIM;
    ew_plan *plan;
    char memory[1];
    (void)argument;
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    const int64_t rows = ew_world_rank(world) == 1 ? 512 : 1024;
    const ew_status status = ew_gemm_rs(plan, rows, memory, NULL, memory, NULL);
    RANK_CHECK(status == EW_ERR_MISMATCH, "%s", ew_status_name(status));
    ew_plan_destroy(plan);
    return 0;
}

static void ranks_with_another_m_are_told(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 3, run_with_another_m, NULL);
}

/* ---- Search ---- */

static ew_sim_report searched(const ew_problem *problem, const char *text, int32_t *tried)
{
    const ew_sim_options options = {.struct_size = sizeof options, .profile = "h200-8"};
    ew_sim_report built_in, best;
    ew_config config;
    assert_int_equal(ew_config_parse(text, &config), EW_OK);
    assert_int_equal(ew_sim_call(problem, 8, &config, &options, &built_in), EW_OK);
    assert_int_equal(ew_sim_search(problem, 8, &config, &options, &best, tried), EW_OK);
    assert_true(best.time_us <= built_in.time_us);
    return best;
}

/* What the caller has set stays; what is worse than the built-in choice is not taken. */
static void searches_keep_what_is_fixed(void **state)
{
    (void)state;
    ew_problem small = EW_PROBLEM(1024, 4096, 512, EW_BF16);
    const ew_sim_options options = {.struct_size = sizeof options, .profile = "h200-8"};
    int32_t tried = 0, with_fixed = 0;
    ew_sim_report report;
    const double open_us = searched(&small, "", &tried).time_us;
    report = searched(&small, "block=128x128,x=8,b=128,transport=pull", &with_fixed);
    assert_int_equal(report.config.block_n, 128);
    assert_int_equal(report.config.budget, 8);
    assert_int_equal(report.config.batch, 128);
    assert_int_equal(report.config.transport, EW_TRANSPORT_PULL);
    assert_true(open_us < report.time_us);
    assert_true(with_fixed < tried && with_fixed >= 2);
    assert_int_equal(ew_sim_search(&small, 8, NULL, &options, NULL, NULL), EW_ERR_ARGUMENT);
    assert_int_equal(ew_sim_search(&small, 9, NULL, &options, &report, NULL), EW_ERR_SHAPE);
    small.max_m = 8192;
    small.n = 0;
    assert_int_equal(ew_sim_search(&small, 8, NULL, &options, &report, NULL), EW_ERR_SHAPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waves_are_whole),
        cmocka_unit_test(parts_of_a_call_add_up),
        cmocka_unit_test(budgets_divide_the_tail),
        cmocka_unit_test(links_bound_the_time),
        cmocka_unit_test(groups_wait_for_their_launches),
        cmocka_unit_test(static_pools_take_their_sms),
        cmocka_unit_test(reducers_that_exclude_producers_cost_their_sms),
        cmocka_unit_test(thieves_delay_producers),
        cmocka_unit_test(producers_slow_their_neighbours),
        cmocka_unit_test(every_tile_once_and_every_byte),
        cmocka_unit_test(nothing_is_reduced_early),
        cmocka_unit_test(more_link_is_never_slower),
        cmocka_unit_test(more_budget_never_shortens_the_gemm),
        cmocka_unit_test(the_same_input_gives_the_same_answer),
        cmocka_unit_test(events_grow_with_the_tiles),
        cmocka_unit_test(engines_run_the_simulated_schedule),
        cmocka_unit_test(searches_keep_what_is_fixed),
        cmocka_unit_test(plans_give_the_simulated_times),
        cmocka_unit_test(ranks_with_another_m_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
