/* The plan layer's numbers: problem checks, heap layout, analysis and forecast.  All pure
 * functions, so no ranks are started. */
#include "harness.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"
#include "plan/spec.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static const ewx_machine two_cores = {.cores = 2};

/* ---- Problem ---- */

static void wrong_problems_are_refused(void **state)
{
    (void)state;
    static const int64_t huge = (int64_t)1 << 62;
    const struct {
        int64_t m, n, k;
        const char *value;
    } wrong[] = {
        {-1, 1, 1, "M=-1"},
        {INT64_MIN, 1, 1, "M=-9223372036854775808"},
        {1, 0, 1, "N=0"},
        {1, -5, 1, "N=-5"},
        {1, 1, 0, "K=0"},
        {1, 1, -7, "K=-7"},
        {huge, 1, 1, "M=4611686018427387904"},
        {1, huge, 1, "N=4611686018427387904"},
        {1, 1, huge, "K=4611686018427387904"},
        {INT64_MAX, 1, 1, "M=9223372036854775807"},
        {INT64_MAX, INT64_MAX, INT64_MAX, "=9223372036854775807"},
        {(int64_t)1 << 40, (int64_t)1 << 40, 1, "M=1099511627776"},
        {(int64_t)1 << 40, 1, (int64_t)1 << 40, "K=1099511627776"},
        {1, (int64_t)1 << 40, (int64_t)1 << 40, "K=1099511627776"},
        {(int64_t)1 << 31, (int64_t)1 << 30, 1, "M=2147483648"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        const ew_problem problem = EW_PROBLEM(wrong[i].m, wrong[i].n, wrong[i].k, EW_FP32);
        ew_forecast forecast;
        harness_expect_error(ew_forecast_build(&problem, 2, NULL, &forecast), EW_ERR_SHAPE,
                             wrong[i].value, wrong[i].value);
    }
    const ew_problem good = EW_PROBLEM(0, 1, 1, EW_FP32);
    ew_forecast forecast;
    static const int ranks[] = {0, -1, EWX_MAX_RANKS + 1, INT32_MAX};
    for (size_t i = 0; i < COUNT(ranks); i++)
        harness_expect_error(ew_forecast_build(&good, ranks[i], NULL, &forecast),
                             EW_ERR_SHAPE, "W=", "ranks");
    assert_int_equal(ew_forecast_build(&good, EWX_MAX_RANKS, NULL, &forecast), EW_OK);
    ew_problem problem = good;
    problem.dtype = (ew_dtype)9;
    harness_expect_error(ew_forecast_build(&problem, 2, NULL, &forecast), EW_ERR_ARGUMENT,
                         "9", "type");
    problem = good;
    problem.weight_layout = (ew_weight_layout)7;
    harness_expect_error(ew_forecast_build(&problem, 2, NULL, &forecast), EW_ERR_ARGUMENT,
                         "7", "layout");
}

static void owned_rows_check_their_arguments(void **state)
{
    (void)state;
    int64_t first, count;
    assert_int_equal(ew_owned_rows(INT64_MAX, 3, 2, &first, &count), EW_OK);
    assert_true(first + count == INT64_MAX);
    assert_int_equal(ew_owned_rows(-1, 2, 0, &first, &count), EW_ERR_ARGUMENT);
    assert_int_equal(ew_owned_rows(1, 0, 0, &first, &count), EW_ERR_ARGUMENT);
    assert_int_equal(ew_owned_rows(1, 2, 2, &first, &count), EW_ERR_ARGUMENT);
    assert_int_equal(ew_owned_rows(1, 2, -1, &first, &count), EW_ERR_ARGUMENT);
    assert_int_equal(ew_owned_rows(1, 2, 0, NULL, &count), EW_ERR_ARGUMENT);
    assert_int_equal(ew_owned_rows(1, 2, 0, &first, NULL), EW_ERR_ARGUMENT);
}

/* ---- Layout ---- */

typedef struct span {
    size_t begin, end;
} span;

static int compare_spans(const void *x, const void *y)
{
    const span *a = x, *b = y;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Each contribution's bytes in both slices, and each tile's flag, for a call of m rows. */
static size_t list_spans(const ewx_spec *spec, int64_t m, span *spans)
{
    const ewx_layout *layout = &spec->layout;
    const ewx_grid grid = ewx_spec_grid(spec, m);
    size_t count = 0;
    for (int dst = 0; dst < spec->num_ranks; dst++)
        for (int64_t task = 0; task < ewx_part_tiles(&grid, dst); task++) {
            const ewx_tile tile = ewx_task_tile(&grid, dst, task);
            const int64_t slot = ewx_layout_slot(layout, dst, tile);
            const size_t flag = layout->flags_offset + (size_t)slot * EWX_FLAG_BYTES;
            const size_t offset = ewx_layout_tile_offset(spec, &grid, dst, tile);
            const size_t length =
                (size_t)((ewx_tile_height(&grid, dst, tile) - 1) * layout->tile_stride +
                         ewx_tile_width(&grid, tile)) *
                spec->elem_bytes;
            assert_in_range(slot, 0, layout->num_slots - 1);
            assert_int_equal(offset % EWX_FLAG_BYTES, 0);
            assert_true(length <= layout->piece_bytes);
            spans[count++] = (span){flag, flag + EWX_FLAG_BYTES};
            for (int at = 0; at < 2 * layout->num_pieces; at++) {
                const size_t begin = layout->slice_offset[at % 2] + offset +
                                     (size_t)(at / 2) * layout->piece_bytes;
                spans[count++] = (span){begin, begin + length};
            }
        }
    return count;
}

static void check_layout(const ewx_spec *spec, int64_t m)
{
    const ewx_layout *layout = &spec->layout;
    const size_t each = 1 + 2 * (size_t)layout->num_pieces;
    span *spans = calloc((size_t)layout->num_slots * each + 1, sizeof *spans);
    const size_t count = list_spans(spec, m, spans);
    qsort(spans, count, sizeof *spans, compare_spans);
    assert_true(layout->flags_offset >= 512); /* the segment's header lies before */
    for (size_t i = 0; i < count; i++) {
        assert_true(spans[i].begin >= layout->flags_offset);
        assert_true(spans[i].end <= layout->segment_bytes);
        assert_true(i == 0 || spans[i].begin >= spans[i - 1].end);
    }
    assert_int_equal(layout->slice_offset[0] % 4096, 0);
    assert_int_equal(layout->slice_offset[1] % 4096, 0);
    assert_int_equal(layout->segment_bytes % 4096, 0);
    free(spans);
}

static void slots_are_disjoint_and_inside(void **state)
{
    (void)state;
    harness_random random = harness_seed(23);
    for (int i = 0; i < 400; i++) {
        ew_config config = EW_CONFIG_INIT;
        config.block_m = (int32_t)(128 * harness_between(&random, 1, 3));
        config.block_n = (int32_t)(128 * harness_between(&random, 1, 4));
        config.group = (int32_t)harness_between(&random, 1, 4);
        const int W = (int)harness_between(&random, 1, 16);
        config.invariant = i % 2 ? 0 : (i % 4 ? 3 : 1) * W;
        const ew_problem problem = EW_PROBLEM(harness_between(&random, 0, 600 * W),
                                              harness_between(&random, 1, 900), 3,
                                              (ew_dtype)harness_between(&random, 1, 3));
        ewx_spec spec;
        assert_int_equal(ewx_spec_build(&problem, W, &config, &two_cores, &spec), EW_OK);
        check_layout(&spec, problem.max_m);
        check_layout(&spec, harness_between(&random, 0, problem.max_m));
        check_layout(&spec, problem.max_m > 0 ? problem.max_m - 1 : 0);
    }
}

/* A row-major heap is one matrix: rows lie n elements apart, and inside the slice. */
static void row_major_tiles_are_parts_of_one_matrix(void **state)
{
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    config.producer = EW_PRODUCER_BLAS;
    const ew_problem problem = EW_PROBLEM(1001, 300, 3, EW_FP32);
    ewx_spec spec;
    assert_int_equal(ewx_spec_build(&problem, 3, &config, &two_cores, &spec), EW_OK);
    const ewx_grid grid = ewx_grid_build(700, 300, 3, &spec.config);
    for (int dst = 0; dst < 3; dst++)
        for (int64_t task = 0; task < ewx_part_tiles(&grid, dst); task++) {
            const ewx_tile tile = ewx_task_tile(&grid, dst, task);
            const int64_t row = ewx_part_first_row(&grid, dst) + 128 * tile.row;
            assert_int_equal(ewx_layout_tile_offset(&spec, &grid, dst, tile),
                             (row * 300 + 128 * tile.col) * 4);
        }
    assert_true(spec.layout.slice_offset[0] + 1001 * 300 * 4 <=
                spec.layout.slice_offset[1]);
    assert_true(spec.layout.slice_offset[1] + 1001 * 300 * 4 <= spec.layout.segment_bytes);
}

/* The heap of a plan serves calls of every m: a tile that two calls share has one slot. */
static void slots_do_not_move_when_m_changes(void **state)
{
    (void)state;
    const ew_problem problem = EW_PROBLEM(3000, 600, 3, EW_BF16);
    ewx_spec spec;
    assert_int_equal(ewx_spec_build(&problem, 4, NULL, &two_cores, &spec), EW_OK);
    const ewx_grid whole = ewx_grid_build(3000, 600, 4, &spec.config);
    for (int64_t m = 0; m <= 3000; m += 37) {
        const ewx_grid grid = ewx_grid_build(m, 600, 4, &spec.config);
        for (int dst = 0; dst < 4; dst++)
            for (int64_t row = 0; row < ewx_part_tile_rows(&grid, dst); row++)
                for (int64_t col = 0; col < grid.tile_cols; col++) {
                    const ewx_tile tile = {row, col};
                    assert_int_equal(ewx_layout_tile_offset(&spec, &grid, dst, tile),
                                     ewx_layout_tile_offset(&spec, &whole, dst, tile));
                }
    }
}

/* ---- Layout on a GPU ---- */

/* The word that rank src sets in this segment for a tile its rank owns, as kernels.h says:
 * uint32_t[unit][W]. */
static span cuda_flag(const ewx_spec *spec, int64_t unit, int src)
{
    const size_t begin = spec->layout.flags_offset +
                         (size_t)(unit * spec->num_ranks + src) * sizeof(uint32_t);
    return (span){begin, begin + sizeof(uint32_t)};
}

static void check_cuda_layout(const ewx_spec *spec)
{
    const ewx_layout *layout = &spec->layout;
    const int W = spec->num_ranks;
    /* done, gate and two calls of each rank, and the link's two clocks */
    assert_true(layout->flags_offset >= EWX_MAX_RANKS * (4 + 4 + 32) + 16);
    assert_int_equal(layout->flags_offset % 4096, 0);
    if (layout->num_slots > 0)
        assert_true(cuda_flag(spec, layout->slots_per_part - 1, W - 1).end <=
                    layout->slice_offset[0]);
    assert_int_equal(layout->slice_offset[0] % 1024, 0);
    assert_int_equal(layout->slice_offset[1] % 1024, 0);
    const size_t slice = layout->segment_bytes - layout->slice_offset[1];
    if (layout->row_major) { /* cuBLAS has one slice */
        assert_int_equal(layout->slice_offset[1], layout->slice_offset[0]);
        assert_int_equal(layout->tile_stride, spec->problem.n);
        assert_true(slice >= (size_t)(spec->problem.max_m * spec->problem.n * 2));
        return;
    }
    assert_int_equal(layout->slice_offset[1], layout->slice_offset[0] + slice);
    assert_int_equal(layout->tile_stride, 128);
    assert_int_equal(layout->piece_bytes, 32768);
    const int64_t tiles = layout->num_slots * layout->num_pieces;
    assert_int_equal(layout->slot_bytes, 32768 * layout->num_pieces);
    assert_int_equal(slice, tiles * 32768); /* one tensor for both */
    assert_true(2 * tiles * 128 <= INT32_MAX);
}

static void cuda_layouts_serve_the_kernels(void **state)
{
    (void)state;
    harness_random random = harness_seed(41);
    const ewx_machine machine = {.cores = 2, .gpu_sms = 16, .gpu_arch = 90};
    for (int i = 0; i < 2000; i++) {
        ew_config config = EW_CONFIG_INIT;
        config.backend = EW_BACKEND_CUDA;
        config.producer = (ew_producer)harness_between(&random, 1, 2);
        const int W = (int)harness_between(&random, 1, i % 8 ? 16 : EWX_MAX_RANKS);
        const int pieces = (int)harness_between(&random, 1, W > 72 ? 1 : 72 / W);
        if (config.producer == EW_PRODUCER_OWN && W <= 72)
            config.invariant = pieces * W;
        const ew_problem problem = EW_PROBLEM(
            harness_between(&random, 0, 600 * W), 8 * harness_between(&random, 1, 200),
            8 * pieces, (ew_dtype)harness_between(&random, EW_BF16, EW_FP16));
        ewx_spec spec;
        assert_int_equal(ewx_spec_build(&problem, W, &config, &machine, &spec), EW_OK);
        check_cuda_layout(&spec);
        const ewx_grid grid = ewx_grid_build(problem.max_m, problem.n, W, &spec.config);
        for (int dst = 0; dst < W; dst++) /* a unit per tile is the most there can be */
            assert_true(ewx_part_tiles(&grid, dst) <= spec.layout.slots_per_part);
    }
}

/* ---- Sizes near the limits ---- */

__extension__ typedef unsigned __int128 wide;

static wide round_up(wide value, wide unit)
{
    return (value + unit - 1) / unit * unit;
}

static wide least_heap(const ew_problem *p)
{
    return 2 * (wide)p->max_m * (wide)p->n * ew_dtype_bytes(p->dtype);
}

static void check_sizes(int64_t m, int64_t n, ew_dtype dtype, int W, int producer)
{
    const ew_problem problem = EW_PROBLEM(m, n, 1, dtype);
    ew_config config = EW_CONFIG_INIT;
    config.producer = (ew_producer)producer;
    ewx_layout layout;
    const wide least = least_heap(&problem);
    const ew_status status = ewx_layout_build(&problem, W, &config, &layout);
    if (status != EW_OK) {
        harness_expect_error(status, EW_ERR_SHAPE, NULL, "layout");
        assert_true(least * 5 > (wide)1 << 63); /* not refused without need */
        return;
    }
    const wide rows = ((wide)m + (wide)W - 1) / (wide)W;
    const wide slots = (rows + 127) / 128 * (((wide)n + 127) / 128) * (wide)W;
    assert_true((wide)layout.num_slots == slots);
    assert_true((wide)layout.segment_bytes >= least + slots * 64);
    assert_true((wide)layout.segment_bytes <= (wide)INT64_MAX);
    assert_true((wide)layout.slice_offset[0] == 4096 + round_up(slots * 64, 4096));
    assert_true((wide)layout.slice_offset[1] * 2 ==
                (wide)layout.segment_bytes + layout.slice_offset[0]);
}

static void sizes_around_powers_of_two(void **state)
{
    (void)state;
    static const int powers[] = {31, 32, 40, 62, 63};
    for (size_t i = 0; i < COUNT(powers); i++)
        for (int64_t around = -1; around <= 1; around++)
            for (int bits = 8; bits <= 33; bits++)
                for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++)
                    for (int W = 1; W <= 8; W += 7)
                        for (int producer = EW_PRODUCER_OWN; producer <= EW_PRODUCER_BLAS;
                             producer++) {
                            const int rest = powers[i] - bits - (dtype == EW_FP32 ? 2 : 1);
                            if (rest < 0 || rest > 40)
                                continue;
                            check_sizes(((int64_t)1 << rest) + around, (int64_t)1 << bits,
                                        (ew_dtype)dtype, W, producer);
                        }
}

/* Whatever the shape: every size is what exact arithmetic says, or the shape is refused. */
static void forecasts_never_wrap(void **state)
{
    (void)state;
    harness_random random = harness_seed(29);
    int accepted = 0;
    for (int i = 0; i < 30000; i++) {
        int64_t extents[3];
        for (int j = 0; j < 3; j++) {
            const int64_t limit = (int64_t)1 << harness_between(&random, 0, 40);
            extents[j] = harness_between(&random, limit - limit / 8, limit);
        }
        const ew_problem p = EW_PROBLEM(extents[0], extents[1], extents[2],
                                        (ew_dtype)harness_between(&random, 1, 3));
        const int W = (int)harness_between(&random, 1, EWX_MAX_RANKS);
        ew_forecast f;
        if (ew_forecast_build(&p, W, NULL, &f) != EW_OK)
            continue;
        accepted++;
        const wide least_weight = (wide)p.n * (wide)p.k * ew_dtype_bytes(p.dtype);
        const wide least_work = (wide)p.max_m * (wide)p.k * ew_dtype_bytes(p.dtype);
        const wide total = (wide)f.heap_bytes + f.weight_bytes + f.workspace_bytes;
        if (f.heap_bytes < least_heap(&p) || f.weight_bytes < least_weight ||
            f.workspace_bytes < least_work || (wide)f.total_bytes != total)
            fail_msg("M=%" PRId64 " N=%" PRId64 " K=%" PRId64 " W=%d wraps", p.max_m, p.n,
                     p.k, W);
    }
    assert_true(accepted > 3000);
}

/* Both halves of the footprint just below 2^63, where their sum leaves 64 bits. */
static void totals_beyond_64_bits_are_refused(void **state)
{
    (void)state;
    const int64_t edge = (int64_t)1 << 30;
    for (int W = 1; W <= EWX_MAX_RANKS; W *= 4)
        for (int64_t m = edge - (4 << 20); m < edge; m += 1 << 17)
            for (int64_t k = edge - 4096; k < edge; k += 64) {
                const ew_problem p = EW_PROBLEM(m, edge, k, EW_FP32);
                ew_forecast f;
                if (ew_forecast_build(&p, W, NULL, &f) != EW_OK)
                    continue;
                if ((wide)f.total_bytes !=
                    (wide)f.heap_bytes + f.weight_bytes + f.workspace_bytes)
                    fail_msg("M=%" PRId64 " K=%" PRId64 " W=%d: the total wraps", m, k, W);
            }
}

/* ---- Analysis and forecast ---- */

static void expect_close(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fabs(want)))
        fail_msg("got %.17g, want %.17g", got, want);
}

static void analysis_by_hand(void **state)
{
    (void)state;
    /* W=2: half of 2048 x 2048 fp32 is remote: 8 MiB. */
    expect_close(ew_remote_bytes(2048, 2048, 2, 4), 8388608.0);
    /* W=8, 8192 x 4096 bf16: 7/8 of 64 MiB. */
    expect_close(ew_remote_bytes(8192, 4096, 8, 2), 58720256.0);
    expect_close(ew_remote_bytes(1000, 1000, 1, 4) + 1.0, 1.0);
    /* 2 * 1000^3 flop at 1 Tflop/s: 2 ms. */
    expect_close(ew_gemm_seconds(1000, 1000, 1000, 1e12), 2e-3);
    /* W=2, K=512, fp32, 100 Gflop/s: 0.5 * 4 * 1e11 / 1024. */
    expect_close(ew_required_bandwidth(512, 2, 4, 1e11), 195312500.0);
    /* W=8, K=1024, bf16, 1 Pflop/s: 7/8 * 2 * 1e15 / 2048 byte/s. */
    expect_close(ew_required_bandwidth(1024, 8, 2, 1e15), 854492187500.0);
}

static void analysis_identities(void **state)
{
    (void)state;
    harness_random random = harness_seed(31);
    for (int i = 0; i < 10000; i++) {
        const int64_t m = harness_between(&random, 1, 1 << 20);
        const int64_t n = harness_between(&random, 1, 1 << 20);
        const int64_t k = harness_between(&random, 1, 1 << 20);
        const int W = (int)harness_between(&random, 2, 256);
        const size_t elem = (size_t)harness_between(&random, 1, 2) * 2;
        const double flops = (double)harness_between(&random, 1, 1 << 30) * 1e6;
        const double V = ew_remote_bytes(m, n, W, elem),
                     T = ew_gemm_seconds(m, n, k, flops);
        const double B = ew_required_bandwidth(k, W, elem, flops);
        expect_close(B, V / T);
        expect_close(ew_required_bandwidth(2 * k, W, elem, flops), B / 2);
        expect_close(V * W, (double)(W - 1) * (double)m * (double)n * (double)elem);
    }
}

static void forecast_adds_up(void **state)
{
    (void)state;
    harness_random random = harness_seed(37);
    for (int i = 0; i < 2000; i++) {
        const int W = (int)harness_between(&random, 1, 16);
        const ew_problem p = EW_PROBLEM(
            harness_between(&random, 0, 5000), harness_between(&random, 1, 3000),
            harness_between(&random, 1, 500), (ew_dtype)harness_between(&random, 1, 3));
        ew_forecast f;
        assert_int_equal(ew_forecast_build(&p, W, NULL, &f), EW_OK);
        int64_t tiles = 0, most = 0;
        for (int rank = 0; rank < W; rank++) {
            int64_t first, count;
            assert_int_equal(ew_owned_rows(p.max_m, W, rank, &first, &count), EW_OK);
            const int64_t own = (count + 127) / 128 * ((p.n + 127) / 128);
            tiles += own;
            most = own > most ? own : most;
        }
        assert_int_equal(f.num_tiles, tiles);
        assert_int_equal(f.max_owned_tiles, most);
        assert_true(f.num_blocks <= tiles && (tiles == 0) == (f.num_blocks == 0));
        assert_int_equal(f.total_bytes, f.heap_bytes + f.weight_bytes + f.workspace_bytes);
        expect_close(f.flops + 1, 2.0 * (double)p.max_m * (double)p.n * (double)p.k + 1);
        expect_close(f.remote_bytes + 1,
                     ew_remote_bytes(p.max_m, p.n, W, ew_dtype_bytes(p.dtype)) + 1);
    }
}

static void explanations_fit_and_need_room(void **state)
{
    (void)state;
    const ew_problem p = EW_PROBLEM(4096, 4096, 512, EW_BF16);
    char text[EW_EXPLAIN_BYTES], config[EW_CONFIG_TEXT_BYTES];
    ew_forecast f;
    assert_int_equal(ew_forecast_explain(&p, 4, NULL, text, sizeof text), EW_OK);
    assert_int_equal(ew_forecast_build(&p, 4, NULL, &f), EW_OK);
    assert_int_equal(ew_config_print(&f.config, config, sizeof config), EW_OK);
    assert_non_null(strstr(text, config)); /* can be run again from its text */
    harness_expect_error(ew_forecast_explain(&p, 4, NULL, text, 10), EW_ERR_ARGUMENT, "10",
                         "room");
    assert_int_equal(ew_forecast_explain(&p, 4, NULL, NULL, 0), EW_ERR_ARGUMENT);
}

/* What a profile had a say in names it; what it had not does not. */
static void explanations_name_the_profile(void **state)
{
    (void)state;
    const ew_problem p = EW_PROBLEM(4096, 4096, 512, EW_BF16);
    char text[EW_EXPLAIN_BYTES];
    ew_config config = EW_CONFIG_INIT;
    ew_forecast f;
    unsetenv("ENTWINE_PROFILE");
    assert_int_equal(ew_forecast_explain(&p, 4, &config, text, sizeof text), EW_OK);
    assert_int_equal(ew_forecast_build(&p, 4, &config, &f), EW_OK);
    assert_null(strstr(text, "profile"));
    assert_string_equal(f.profile, "");
    config.backend = EW_BACKEND_SIM;
    assert_int_equal(ew_forecast_explain(&p, 4, &config, text, sizeof text), EW_OK);
    assert_int_equal(ew_forecast_build(&p, 4, &config, &f), EW_OK);
    assert_non_null(strstr(text, "\nprofile: chosen for h200-8, SIMULATED\n"));
    assert_string_equal(f.profile, "h200-8");
}

static const char *explain_cuda_op(ew_op op, const char *asked, int W, ewx_machine machine)
{
    static char buffer[EW_EXPLAIN_BYTES];
    ew_problem p = EW_PROBLEM(8192, 8192, 2048, EW_BF16);
    p.op = op;
    ew_config request = EW_CONFIG_INIT;
    ewx_spec spec;
    assert_int_equal(ew_config_parse(asked, &request), EW_OK);
    request.backend = EW_BACKEND_CUDA;
    assert_int_equal(ewx_spec_build(&p, W, &request, &machine, &spec), EW_OK);
    ewx_text text = ewx_text_in(buffer, sizeof buffer);
    ewx_spec_explain(&spec, &request, &machine, &text);
    assert_false(text.truncated);
    return buffer;
}

static const char *explain_cuda(const char *asked, int W, ewx_machine machine)
{
    return explain_cuda_op(EW_OP_GEMM_RS, asked, W, machine);
}

static void expect_line(const char *text, const char *start)
{
    for (const char *at = text; (at = strstr(at, start)); at++)
        if (at == text || at[-1] == '\n')
            return;
    fail_msg("no line starts with '%s' in\n%s", start, text);
}

static void cuda_choices_are_explained(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "order=",   "release=",   "kernel=sm90: ", "block=", "ctas=",
        "cluster=", "group=1: ",  "pool=",         "x=16: ", "b=256: ",
        "grid: ",   "GPU heap: ", "config: "};
    const ewx_machine slice = {
        .cores = 16, .gpu_sms = 16, .gpu_arch = 90, .gpu_sharers = 8};
    const ewx_machine ampere = {
        .cores = 16, .gpu_sms = 108, .gpu_arch = 80, .gpu_sharers = 1};
    const char *text = explain_cuda("", 8, slice);
    for (size_t i = 0; i < COUNT(keys); i++)
        expect_line(text, keys[i]);
    expect_line(text, "virtual node: 8 ranks share this GPU, 16 SMs each\n");
    text = explain_cuda("cluster=1,release=output", 8, slice);
    expect_line(text, "cluster=1: given\n");
    expect_line(text, "pool=after: nothing is released before");
    text = explain_cuda("", 2, ampere);
    assert_null(strstr(text, "virtual node"));
    expect_line(text, "kernel=sm80: compute capability 8.0");
    assert_null(strstr(explain_cuda("producer=blas", 2, ampere), "\nkernel="));
    expect_line(explain_cuda("", 2, two_cores), "gpu: none here");
}

static void reasons_are_those_of_the_choice(void **state)
{
    static const struct {
        ew_op op;
        const char *asked, *line;
    } cases[] = {
        {EW_OP_GEMM_RS, "", "x=132: one CTA beside the GEMM on each of 132 SMs\n"},
        {EW_OP_AG_GEMM, "", "x=66: one CTA beside the GEMM on every other of 132 SMs\n"},
        {EW_OP_AG_GEMM, "", "group=4: panels that arrive side by side"},
        {EW_OP_GEMM_RS, "pool=after", "x=264: two CTAs on each of 132 SMs"},
        {EW_OP_GEMM_AR, "pool=after", "x=528: four CTAs on each of 132 SMs"},
        {EW_OP_AG_GEMM, "pool=after", "x=528: four CTAs on each of 132 SMs"},
        {EW_OP_GEMM_RS, "pool=static", "x=66: CTAs that fill an eighth of 132 SMs"},
        {EW_OP_GEMM_RS, "pool=static", "b=512: threads of a CTA, as many as hide"},
        {EW_OP_GEMM_RS, "order=contiguous", "group=16: with 1 part in turn"},
        {EW_OP_GEMM_RS, "launches=unit", "release=66: so many tiles hide the launch"},
        {EW_OP_GEMM_RS, "transport=copy", "order=contiguous: one destination's part after"},
        {EW_OP_GEMM_RS, "transport=copy", "release=partition: a destination's part is one"},
        {EW_OP_GEMM_RS, "transport=copy", "pool=after: parts are copied beside the GEMM"},
    };
    const ewx_machine h200 = {
        .cores = 16, .gpu_sms = 132, .gpu_arch = 90, .gpu_sharers = 1};
    const ew_problem small = EW_PROBLEM(64, 1024, 64, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    char text[EW_EXPLAIN_BYTES];
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_line(explain_cuda_op(cases[i].op, cases[i].asked, 8, h200), cases[i].line);
    config.order = EW_ORDER_CONTIGUOUS;
    assert_int_equal(ew_forecast_explain(&small, 2, &config, text, sizeof text), EW_OK);
    expect_line(text, "block=128x256: two tiles wide; interleaving would use 2 row panels");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_problems_are_refused),
        cmocka_unit_test(owned_rows_check_their_arguments),
        cmocka_unit_test(slots_are_disjoint_and_inside),
        cmocka_unit_test(row_major_tiles_are_parts_of_one_matrix),
        cmocka_unit_test(slots_do_not_move_when_m_changes),
        cmocka_unit_test(cuda_layouts_serve_the_kernels),
        cmocka_unit_test(sizes_around_powers_of_two),
        cmocka_unit_test(forecasts_never_wrap),
        cmocka_unit_test(totals_beyond_64_bits_are_refused),
        cmocka_unit_test(analysis_by_hand),
        cmocka_unit_test(analysis_identities),
        cmocka_unit_test(forecast_adds_up),
        cmocka_unit_test(explanations_fit_and_need_room),
        cmocka_unit_test(explanations_name_the_profile),
        cmocka_unit_test(cuda_choices_are_explained),
        cmocka_unit_test(reasons_are_those_of_the_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
