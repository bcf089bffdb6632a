/* The tile map's properties, for every order, block shape, group and number of ranks:
 * nothing is computed twice or forgotten, and consumers meet tiles in the order in which
 * producers make them. */
#include "grid_check.h"
#include "harness.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "plan/policy.h"
#include "plan/spec.h"
#include "plan/walk.h"

enum { MAX_W = 16 };

static const ew_order all_orders[] = {EW_ORDER_INTERLEAVED, EW_ORDER_DEFAULT,
                                      EW_ORDER_CONTIGUOUS};
static const ewx_release all_releases[] = {{.size = 1},
                                           {.size = 3},
                                           {.size = 64},
                                           {.size = EW_RELEASE_PARTITION},
                                           {.size = EW_RELEASE_OUTPUT},
                                           {.size = 4, .first = 1},
                                           {.size = 2, .first = 5, .last = 3},
                                           {.size = 64, .last = 1},
                                           {.size = 8, .first = 100, .last = 100}};
static const int32_t block_shapes[][2] = {{128, 128}, {128, 256}, {256, 256}, {128, 512}};

/* ---- One grid ---- */

static void check_rows(const ewx_grid *grid)
{
    int64_t next = 0;
    for (int dst = 0; dst < grid->num_parts; dst++) {
        int64_t first, count;
        EXPECT(grid,
               ew_owned_rows(grid->rows, grid->num_parts, dst, &first, &count) == EW_OK);
        EXPECT(grid, first == next && count >= 0);
        EXPECT(grid, first == ewx_part_first_row(grid, dst));
        EXPECT(grid, count == ewx_part_rows(grid, dst));
        EXPECT(grid, count - grid->rows / grid->num_parts <= 1);
        EXPECT(grid, ewx_part_tile_rows(grid, dst) * EWX_TILE_M >= count);
        EXPECT(grid, (ewx_part_tile_rows(grid, dst) - 1) * EWX_TILE_M < count);
        next += count;
    }
    EXPECT(grid, next == grid->rows);
}

static void check_interleaving(const ewx_grid *grid)
{
    const int64_t blocks = ewx_num_blocks(grid);
    int64_t left[MAX_W];
    int open = 0, last = -1;
    bool equal = true;
    for (int dst = 0; dst < grid->num_parts; dst++) {
        left[dst] = ewx_part_block_rows(grid, dst) * grid->blocks_per_row;
        open += left[dst] > 0;
        equal = equal && left[dst] == left[0];
    }
    for (int64_t pos = 0; pos < blocks; pos++) {
        const ewx_block block = ewx_order_block(grid, pos);
        EXPECT(grid, open < 2 || block.part != last);
        EXPECT(grid, !equal || block.part == pos % grid->num_parts);
        last = block.part;
        open -= --left[block.part] == 0;
    }
}

/* Where a panel of the rank's is among those that come to `dst`. */
static int64_t place_among_arrivals(const ewx_grid *grid, int rank, ewx_push push)
{
    const int64_t panels = ewx_gather_panels(grid, push.dst);
    for (int64_t i = 0; i < panels; i++) {
        const ewx_block panel = ewx_gather_panel(grid, push.dst, i);
        if (panel.part == rank && panel.row == push.row)
            return i;
    }
    return -1;
}

/* A rank pushes every panel once to every other, and a receiver expects it at the same
 * place, so that it is sent to by one rank at a time; what only large parts have comes
 * last.
 */
static void check_pushes(const ewx_grid *grid, int rank)
{
    const int others = grid->num_parts - 1;
    const int64_t pushes = ewx_part_block_rows(grid, rank) * others;
    for (int64_t i = 0; i < pushes; i++) {
        const ewx_push push = ewx_gather_push(grid, rank, others, 1, i);
        const bool is_last = push.row == grid->small_blocks;
        const int64_t place = place_among_arrivals(grid, rank, push);
        EXPECT(grid, push.dst != rank && push.row < ewx_part_block_rows(grid, rank));
        EXPECT(grid,
               is_last ? place >= grid->small_blocks * others && place <= i : place == i);
    }
}

/* A set's panels are pushed side by side: a chunk of each before the next of any.  Where
 * the rank has an odd number of them, the first push is a set of its own. */
static void check_chunks(const ewx_grid *grid, int rank)
{
    enum { CHUNKS = 3 };
    const int others = grid->num_parts - 1;
    const int64_t own = ewx_part_block_rows(grid, rank), pushes = own * others;
    ewx_push last = {0};
    for (int64_t i = 0, last_set = -1; i < pushes * CHUNKS; i++) {
        const ewx_push push = ewx_gather_push(grid, rank, others, CHUNKS, i);
        const int turn = (push.dst - rank - 1 + grid->num_parts) % grid->num_parts;
        const int64_t set = set_behind(grid, i / CHUNKS, own % 2, pushes);
        EXPECT(grid, set_behind(grid, push.row * others + turn, own % 2, pushes) == set);
        EXPECT(grid, set == last_set ? push.chunk >= last.chunk : push.chunk == 0);
        last = push;
        last_set = set;
    }
}

/* A block's panel in the order in which the rank has them: its own, then as they come. */
static int64_t panel_of(const ewx_grid *grid, int rank, ewx_block block)
{
    const ewx_push push = {.row = block.row, .dst = rank};
    return block.part == rank ? block.row
                              : ewx_part_block_rows(grid, rank) +
                                    place_among_arrivals(grid, block.part, push);
}

/* Its own rows come first, with one panel more where their number is odd, and then sets of
 * panels as they arrive.  Two neighbours share a column where every set is even. */
static void check_turns(const ewx_grid *grid, int rank)
{
    const int64_t own = ewx_part_block_rows(grid, rank);
    const int64_t panels = own + ewx_gather_panels(grid, rank);
    const int64_t early = ewx_min64(own + own % 2, panels);
    for (int64_t i = 0; i < panels * grid->blocks_per_row; i++) {
        const ewx_block block = ewx_gather_block(grid, grid->num_parts, rank, i);
        EXPECT(grid, set_behind(grid, panel_of(grid, rank, block), early, panels) ==
                         set_behind(grid, i / grid->blocks_per_row, early, panels));
        const bool is_second = panels % 2 == 0 && grid->group % 2 == 0 && i % 2 == 1;
        EXPECT(grid,
               !is_second ||
                   block.col == ewx_gather_block(grid, grid->num_parts, rank, i - 1).col);
    }
    check_pushes(grid, rank);
    check_chunks(grid, rank);
}

/* Every block once on every rank. */
static void check_gather(const ewx_grid *grid, int rank, bool *seen)
{
    const int64_t blocks = ewx_num_blocks(grid);
    memset(seen, 0, (size_t)blocks * sizeof *seen);
    for (int64_t i = 0; i < blocks; i++) {
        const ewx_block block = ewx_gather_block(grid, grid->num_parts, rank, i);
        int64_t number = block.row * grid->blocks_per_row + block.col;
        for (int part = 0; part < block.part; part++)
            number += ewx_part_block_rows(grid, part) * grid->blocks_per_row;
        EXPECT(grid, block.part >= 0 && block.part < grid->num_parts);
        EXPECT(grid, block.row >= 0 && block.row < ewx_part_block_rows(grid, block.part));
        EXPECT(grid, number >= 0 && number < blocks && !seen[number]);
        seen[number] = true;
    }
    EXPECT(grid, blocks == 0 || grid->order == EW_ORDER_DEFAULT ||
                     ewx_part_rows(grid, rank) == 0 ||
                     ewx_gather_block(grid, grid->num_parts, rank, 0).part == rank);
    if (grid->order == EW_ORDER_INTERLEAVED && grid->num_parts > 1)
        check_turns(grid, rank);
}

static void check_tasks(const ewx_grid *grid, const int64_t *positions, bool *seen)
{
    const bool follows = grid->order != EW_ORDER_DEFAULT;
    for (int dst = 0; dst < grid->num_parts; dst++) {
        const int64_t tasks = ewx_part_tiles(grid, dst);
        memset(seen, 0, (size_t)tasks * sizeof *seen);
        int64_t last = -1;
        for (int64_t task = 0; task < tasks; task++) {
            const ewx_tile tile = ewx_task_tile(grid, dst, task);
            EXPECT(grid, tile.row >= 0 && tile.row < ewx_part_tile_rows(grid, dst));
            EXPECT(grid, tile.col >= 0 && tile.col < grid->tile_cols);
            EXPECT(grid, ewx_tile_task(grid, dst, tile) == task);
            bool *place = &seen[tile.row * grid->tile_cols + tile.col];
            EXPECT(grid, !*place);
            *place = true;
            const int64_t position = positions[tile_number(grid, dst, tile)];
            EXPECT(grid, !follows || position >= last);
            last = position;
        }
    }
}

/* Every unit has the size that it was given, as far as there are tiles. */
static void check_release_sizes(const ewx_grid *grid, ewx_release release, int part)
{
    const int64_t tiles = ewx_part_tiles(grid, part);
    const int64_t units = ewx_release_units(release, tiles);
    int64_t next = 0;
    for (int64_t unit = 0; unit < units; unit++) {
        const ewx_task_range tasks = ewx_release_tasks(grid, release, part, unit);
        const int64_t size = tasks.end - tasks.first;
        const bool is_last = unit == units - 1, is_first = unit == 0;
        EXPECT(grid, tasks.first == next && size > 0);
        next = tasks.end;
        if (release.size < 1)
            EXPECT(grid, size == tiles);
        else if (is_first)
            EXPECT(grid,
                   size == ewx_min64(release.first ? release.first : release.size, tiles));
        else if (is_last && release.last)
            EXPECT(grid, size == release.last || (units == 2 && size < release.last));
        else if (!is_last && !(release.last && unit == units - 2))
            EXPECT(grid, size == release.size);
        else
            EXPECT(grid, size <= release.size);
    }
    EXPECT(grid, next == tiles);
}

/* Units cut a part's tasks into consecutive runs; counting every tile into its unit's
 * counter gives what must be complete before the unit is released. */
static void check_release(const ewx_grid *grid, ewx_release release)
{
    const int64_t units_per_part = ewx_release_units(release, ewx_part_tiles(grid, 0));
    const int64_t num_counters =
        ewx_release_counters(release, units_per_part, grid->num_parts);
    int64_t *counts = calloc((size_t)num_counters + 1, sizeof *counts);
    for (int part = 0; part < grid->num_parts; part++)
        for (int64_t task = 0; task < ewx_part_tiles(grid, part); task++) {
            const int64_t tiles = ewx_part_tiles(grid, part);
            const int64_t unit = ewx_release_unit(release, tiles, task);
            const ewx_task_range tasks = ewx_release_tasks(grid, release, part, unit);
            EXPECT(grid, task >= tasks.first && task < tasks.end);
            EXPECT(grid, unit < ewx_release_units(release, ewx_part_tiles(grid, part)));
            counts[ewx_release_counter(release, units_per_part, part, unit)]++;
        }
    for (int part = 0; part < grid->num_parts; part++) {
        const int64_t units = ewx_release_units(release, ewx_part_tiles(grid, part));
        check_release_sizes(grid, release, part);
        for (int64_t unit = 0; unit < units; unit++)
            EXPECT(grid, counts[ewx_release_counter(release, units_per_part, part, unit)] ==
                             ewx_release_tiles(grid, release, part, unit));
    }
    free(counts);
}

static int compare_blocks(const void *x, const void *y)
{
    const ewx_block *a = x, *b = y;
    if (a->part != b->part)
        return a->part < b->part ? -1 : 1;
    if (a->row != b->row)
        return a->row < b->row ? -1 : 1;
    return (a->col > b->col) - (a->col < b->col);
}

static ewx_block *sorted_blocks(const ewx_grid *grid)
{
    const int64_t blocks = ewx_num_blocks(grid);
    ewx_block *list = calloc((size_t)blocks + 1, sizeof *list);
    for (int64_t pos = 0; pos < blocks; pos++)
        list[pos] = ewx_order_block(grid, pos);
    qsort(list, (size_t)blocks, sizeof *list, compare_blocks);
    return list;
}

/* All orders visit the same set of blocks, each once. */
static void check_same_set(const ewx_grid grids[3])
{
    ewx_block *first = sorted_blocks(&grids[0]);
    const int64_t blocks = ewx_num_blocks(&grids[0]);
    for (int64_t i = 1; i < blocks; i++)
        EXPECT(&grids[0], compare_blocks(&first[i - 1], &first[i]) < 0);
    for (int order = 1; order < 3; order++) {
        EXPECT(&grids[order], ewx_num_blocks(&grids[order]) == blocks);
        ewx_block *other = sorted_blocks(&grids[order]);
        for (int64_t i = 0; i < blocks; i++)
            EXPECT(&grids[order], compare_blocks(&first[i], &other[i]) == 0);
        free(other);
    }
    free(first);
}

static void check_grids(int64_t rows, int64_t cols, int num_ranks, const int32_t shape[2],
                        int32_t group)
{
    ew_config config = EW_CONFIG_INIT;
    config.block_m = shape[0];
    config.block_n = shape[1];
    config.group = group;
    ewx_grid grids[3];
    for (int order = 0; order < 3; order++) {
        config.order = all_orders[order];
        grids[order] = ewx_grid_build(rows, cols, num_ranks, &config);
    }
    const int64_t tiles = num_tiles(&grids[0]);
    int64_t *positions = calloc((size_t)tiles + 1, sizeof *positions);
    bool *seen = calloc((size_t)tiles + 1, sizeof *seen);
    for (int order = 0; order < 3; order++) {
        check_coverage(&grids[order], positions);
        for (size_t i = 0; i < sizeof all_releases / sizeof *all_releases; i++)
            check_release(&grids[order], all_releases[i]);
        check_tasks(&grids[order], positions, seen);
        check_gather(&grids[order], 0, seen);
        check_gather(&grids[order], num_ranks / 2, seen);
        check_gather(&grids[order], num_ranks - 1, seen);
    }
    check_rows(&grids[0]);
    check_interleaving(&grids[0]);
    check_same_set(grids);
    free(seen);
    free(positions);
}

/* ---- Tests ---- */

/* Row counts around every boundary that partitions and tiles have. */
static int list_rows(int num_ranks, int64_t *rows)
{
    static const int64_t primes[] = {2, 3, 5, 7, 31, 127, 131, 257, 1009, 2053};
    const int64_t W = num_ranks;
    int count = 0;
    rows[count++] = 0;
    rows[count++] = 1;
    rows[count++] = W - 1;
    rows[count++] = W;
    for (int64_t share = 127; share <= 129; share++)
        for (int64_t extra = 0; extra <= W; extra++)
            rows[count++] = share * W + extra;
    rows[count++] = 256 * W + W / 2;
    rows[count++] = 385 * W - 1;
    for (size_t i = 0; i < sizeof primes / sizeof primes[0]; i++)
        rows[count++] = primes[i];
    return count;
}

static void every_tile_is_made_once_and_met_in_order(void **state)
{
    (void)state;
    for (int W = 1; W <= MAX_W; W++) {
        int64_t rows[128];
        const int count = list_rows(W, rows);
        for (int i = 0; i < count; i++)
            for (int64_t tile_cols = 1; tile_cols <= 9; tile_cols++)
                for (size_t shape = 0; shape < 4; shape++)
                    for (int32_t group = 1; group <= 4; group++)
                        check_grids(rows[i], tile_cols * 128 - (i + group) % 128, W,
                                    block_shapes[shape], group);
    }
}

static void large_partitions_of_many_groups(void **state)
{
    (void)state;
    harness_random random = harness_seed(7);
    for (int i = 0; i < 300; i++) {
        const int W = (int)harness_between(&random, 1, MAX_W);
        const int64_t rows =
            harness_between(&random, 0, 2500) * W / 2 + harness_between(&random, 0, W);
        check_grids(rows, harness_between(&random, 1, 1200), W,
                    block_shapes[harness_between(&random, 0, 3)],
                    (int32_t)harness_between(&random, 1, 7));
    }
}

static void consumers_share_all_tasks_for_every_budget(void **state)
{
    (void)state;
    enum { TASKS = 60 };
    for (int64_t tasks = 0; tasks <= TASKS; tasks++)
        for (int64_t x = 1; x <= TASKS + 3; x++) {
            int seen[TASKS] = {0};
            for (int64_t j = 0; j < x; j++) {
                int64_t last = -1;
                for (int64_t step = 0, task; (task = ewx_consumer_task(j, x, step)) < tasks;
                     step++) {
                    assert_true(task > last);
                    seen[task]++;
                    last = task;
                }
            }
            for (int64_t task = 0; task < tasks; task++)
                assert_int_equal(seen[task], 1);
        }
}

/* ---- Huge shapes against __int128 ---- */

__extension__ typedef __int128 wide;

static wide div_up(wide a, wide b)
{
    return (a + b - 1) / b;
}

static ew_config random_config(harness_random *random)
{
    ew_config config = EW_CONFIG_INIT;
    config.order = all_orders[harness_between(random, 0, 2)];
    config.block_m = (int32_t)(128 * harness_between(random, 1, 64));
    config.block_n = (int32_t)(128 * harness_between(random, 1, 64));
    config.group = (int32_t)harness_between(random, 1, 64);
    return config;
}

/* Uniform in the number of bits, so that small and huge both come often. */
static int64_t random_extent(harness_random *random)
{
    const int64_t limit = (int64_t)1 << harness_between(random, 1, 40);
    return harness_between(random, limit / 2, limit);
}

static void check_counts(const ewx_grid *grid)
{
    const wide W = grid->num_parts, m = grid->rows;
    wide blocks = 0, rows = 0;
    const int some[] = {0, grid->num_large - 1, grid->num_large, grid->num_parts - 1};
    for (int dst = 0; dst < grid->num_parts; dst++) {
        const wide own = m / W + (dst < m % W);
        const wide tile_rows = div_up(own, 128);
        blocks += div_up(tile_rows, grid->block_rows) *
                  div_up(div_up(grid->cols, 128), grid->block_cols);
        EXPECT(grid, ewx_part_rows(grid, dst) == own);
        EXPECT(grid, ewx_part_first_row(grid, dst) == rows);
        EXPECT(grid, ewx_part_tiles(grid, dst) == tile_rows * div_up(grid->cols, 128));
        rows += own;
    }
    EXPECT(grid, rows == m);
    EXPECT(grid, ewx_num_blocks(grid) == blocks);
    for (size_t i = 0; i < sizeof some / sizeof some[0]; i++) {
        const int dst = some[i] < 0 || some[i] >= grid->num_parts ? 0 : some[i];
        const int64_t tasks = ewx_part_tiles(grid, dst);
        if (tasks == 0)
            continue;
        const ewx_tile last = {ewx_part_tile_rows(grid, dst) - 1, grid->tile_cols - 1};
        EXPECT(grid, ewx_tile_task(grid, dst, last) == tasks - 1);
    }
}

static void check_random_places(const ewx_grid *grid, harness_random *random)
{
    const int64_t blocks = ewx_num_blocks(grid);
    for (int i = 0; i < 8 && blocks > 0; i++) {
        const int64_t pos = i == 0   ? 0
                            : i == 1 ? blocks - 1
                                     : harness_between(random, 0, blocks - 1);
        const ewx_block block = ewx_order_block(grid, pos);
        EXPECT(grid, block.part >= 0 && block.part < grid->num_parts);
        EXPECT(grid, block.row >= 0 && block.row < ewx_part_block_rows(grid, block.part));
        EXPECT(grid, block.col >= 0 && block.col < grid->blocks_per_row);
        const int64_t tasks = ewx_part_tiles(grid, block.part);
        const int64_t task = harness_between(random, 0, tasks - 1);
        const ewx_tile tile = ewx_task_tile(grid, block.part, task);
        EXPECT(grid, tile.row >= 0 && tile.row < ewx_part_tile_rows(grid, block.part));
        EXPECT(grid, tile.col >= 0 && tile.col < grid->tile_cols);
        EXPECT(grid, ewx_tile_task(grid, block.part, tile) == task);
    }
}

/* Shapes whose heap is too large to be counted are refused before any index is made. */
static void huge_indices_do_not_overflow(void **state)
{
    (void)state;
    harness_random random = harness_seed(11);
    for (int i = 0; i < 200000; i++) {
        const int W = (int)harness_between(&random, 1, EWX_MAX_RANKS);
        const ew_config config = random_config(&random);
        const ew_problem problem =
            EW_PROBLEM(random_extent(&random), random_extent(&random), 1, EW_BF16);
        ewx_layout layout;
        if (ewx_problem_check(&problem, W) != EW_OK ||
            ewx_layout_build(&problem, W, &config, &layout) != EW_OK)
            continue;
        const ewx_grid grid = ewx_grid_build(problem.max_m, problem.n, W, &config);
        if (i % 64 == 0)
            check_counts(&grid);
        check_random_places(&grid, &random);
    }
}

/* The largest numbers a config text can hold must not wrap any product either. */
static void huge_blocks_and_groups_do_not_overflow(void **state)
{
    (void)state;
    ew_config config = EW_CONFIG_INIT;
    config.block_m = INT32_MAX / 128 * 128;
    config.block_n = INT32_MAX / 128 * 128;
    config.group = INT32_MAX;
    harness_random random = harness_seed(13);
    for (int order = 0; order < 3; order++)
        for (int64_t bits = 8; bits <= 34; bits++) {
            config.order = all_orders[order];
            const ewx_grid grid = ewx_grid_build(1000, (int64_t)1 << bits, 3, &config);
            check_counts(&grid);
            check_random_places(&grid, &random);
        }
}

/* Every block is taken once, whole or by its two tiles, in the order of positions; and what
 * is split is a last wave of which half of the CTAs or more would have nothing. */
static void split_blocks_are_taken_once(void **state)
{
    (void)state;
    for (int ctas = 2; ctas <= 132; ctas += 2)
        for (int blocks = 0; blocks <= 3 * ctas; blocks++)
            for (int cluster = 1; cluster <= 2; cluster++) {
                const int64_t split = ewx_split_from(blocks, ctas);
                int64_t index = 0;
                uint8_t taken[3 * 132 + 2] = {0}; /* bits: tile 0, tile 1, whole */
                assert_int_equal(split, 2 * (blocks % ctas) <= ctas ? blocks / ctas * ctas
                                                                    : blocks);
                for (;; index += cluster) {
                    const ewx_taken t = ewx_take(split, cluster, index);
                    if (t.position >= blocks)
                        break;
                    assert_int_equal(t.tile >= 0, t.position >= split);
                    for (int i = 0; i < cluster; i++) {
                        const uint8_t bit = t.tile < 0 ? 4 : (uint8_t)(1 << t.tile);
                        assert_int_equal(taken[t.position + i] & bit, 0);
                        taken[t.position + i] |= bit;
                    }
                }
                for (int block = 0; block < blocks; block++)
                    assert_int_equal(taken[block], block < split ? 4 : 3);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_is_made_once_and_met_in_order),
        cmocka_unit_test(large_partitions_of_many_groups),
        cmocka_unit_test(consumers_share_all_tasks_for_every_budget),
        cmocka_unit_test(huge_indices_do_not_overflow),
        cmocka_unit_test(huge_blocks_and_groups_do_not_overflow),
        cmocka_unit_test(split_blocks_are_taken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
