/* The tile map: which block a producer computes at each position, and which tile a
 * consumer reduces at each step.  Written once, as pure functions, for the engines, the
 * kernels, the simulator and the tests.  Knows no memory layout and no backend.
 *
 * The output's rows are split among W destinations; each partition has its own grid of
 * 128 x 128 tiles, so a tile never straddles two owners.  Partitions differ by at most
 * one row, hence by at most one row of tiles: `num_large` of them come first. */
#ifndef EWX_PLAN_ORDER_H
#define EWX_PLAN_ORDER_H

#include <stdint.h>

#include "entwine/entwine.h"

#ifdef __CUDACC__
#define EW_HD __host__ __device__
#else
#define EW_HD
#endif

#define EWX_TILE_M 128
#define EWX_TILE_N 128

/* One call's geometry; build it with ewx_grid_build. */
typedef struct ewx_grid {
    int32_t num_ranks;      /* W */
    int32_t num_large;      /* destinations that own one row more: m mod W */
    int32_t order;          /* ew_order */
    int32_t group;          /* block rows walked together inside a partition */
    int32_t block_rows;     /* of a block, in tiles */
    int32_t block_cols;     /* of a block, in tiles */
    int64_t rows;           /* m */
    int64_t cols;           /* N */
    int64_t small_rows;     /* rows of a small partition */
    int64_t tile_cols;      /* tiles across N */
    int64_t blocks_per_row; /* blocks across N */
    int64_t small_blocks;   /* block rows of a small partition */
    int64_t large_blocks;   /* block rows of a large partition */
} ewx_grid;

typedef struct ewx_block {
    int32_t dst;
    int64_t row, col; /* in blocks, inside dst's partition */
} ewx_block;

typedef struct ewx_tile {
    int64_t row, col; /* in tiles, inside the partition */
} ewx_tile;

EW_HD static inline int64_t ewx_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

EW_HD static inline int64_t ewx_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Partitions ---- */

EW_HD static inline int64_t ewx_partition_rows(const ewx_grid *grid, int dst)
{
    return grid->small_rows + (dst < grid->num_large ? 1 : 0);
}

EW_HD static inline int64_t ewx_partition_first_row(const ewx_grid *grid, int dst)
{
    return grid->small_rows * dst + ewx_min64(dst, grid->num_large);
}

EW_HD static inline int64_t ewx_partition_tile_rows(const ewx_grid *grid, int dst)
{
    return ewx_div_up(ewx_partition_rows(grid, dst), EWX_TILE_M);
}

EW_HD static inline int64_t ewx_partition_block_rows(const ewx_grid *grid, int dst)
{
    return dst < grid->num_large ? grid->large_blocks : grid->small_blocks;
}

/* Q of one destination. */
EW_HD static inline int64_t ewx_partition_tiles(const ewx_grid *grid, int dst)
{
    return ewx_partition_tile_rows(grid, dst) * grid->tile_cols;
}

EW_HD static inline ewx_grid ewx_grid_build(int64_t rows, int64_t cols, int num_ranks,
                                            const ew_config *config)
{
    ewx_grid grid;
    grid.num_ranks = num_ranks;
    grid.num_large = (int32_t)(rows % num_ranks);
    grid.order = (int32_t)config->order;
    grid.rows = rows;
    grid.cols = cols;
    grid.small_rows = rows / num_ranks;
    grid.tile_cols = ewx_div_up(cols, EWX_TILE_N);
    /* No larger than the partition, which changes nothing but keeps products small. */
    const int64_t tile_rows = ewx_div_up(grid.small_rows + 1, EWX_TILE_M);
    grid.group = (int32_t)ewx_min64(config->group, tile_rows);
    grid.block_rows = (int32_t)ewx_min64(config->block_m / EWX_TILE_M, tile_rows);
    grid.block_cols = (int32_t)ewx_min64(config->block_n / EWX_TILE_N, grid.tile_cols);
    grid.blocks_per_row = ewx_div_up(grid.tile_cols, grid.block_cols);
    grid.small_blocks =
        ewx_div_up(ewx_div_up(grid.small_rows, EWX_TILE_M), grid.block_rows);
    grid.large_blocks =
        ewx_div_up(ewx_div_up(grid.small_rows + 1, EWX_TILE_M), grid.block_rows);
    return grid;
}

/* ---- Producer: position -> block ---- */

/* P: blocks that every rank computes. */
EW_HD static inline int64_t ewx_num_blocks(const ewx_grid *grid)
{
    return grid->blocks_per_row *
           (grid->large_blocks * grid->num_large +
            grid->small_blocks * (grid->num_ranks - grid->num_large));
}

/* Block `index` of a partition's walk: N-major, `group` block rows at a time (column by
 * column inside a group), so that a group's rows of A and one column of B stay hot. */
EW_HD static inline ewx_block ewx_partition_walk(const ewx_grid *grid, int dst,
                                                 int64_t index)
{
    const int64_t group_blocks = grid->group * grid->blocks_per_row;
    const int64_t first_row = index / group_blocks * grid->group;
    const int64_t height =
        ewx_min64(grid->group, ewx_partition_block_rows(grid, dst) - first_row);
    const int64_t within = index % group_blocks;
    ewx_block block = {dst, first_row + within % height, within / height};
    return block;
}

/* The paper's Eq. 1: d = p mod W, l = p / W.  When the first num_large partitions have
 * one block row more, the rounds that only they take part in come last. */
EW_HD static inline ewx_block ewx_order_interleaved(const ewx_grid *grid, int64_t pos)
{
    const int64_t full = grid->small_blocks * grid->blocks_per_row * grid->num_ranks;
    if (pos < full)
        return ewx_partition_walk(grid, (int)(pos % grid->num_ranks),
                                  pos / grid->num_ranks);
    const int64_t rest = pos - full;
    return ewx_partition_walk(grid, (int)(rest % grid->num_large),
                              full / grid->num_ranks + rest / grid->num_large);
}

EW_HD static inline ewx_block ewx_order_contiguous(const ewx_grid *grid, int64_t pos)
{
    const int64_t large = grid->large_blocks * grid->blocks_per_row;
    const int64_t small = grid->small_blocks * grid->blocks_per_row;
    if (pos < large * grid->num_large)
        return ewx_partition_walk(grid, (int)(pos / large), pos % large);
    const int64_t rest = pos - large * grid->num_large;
    return ewx_partition_walk(grid, grid->num_large + (int)(rest / small), rest % small);
}

/* M-major over the whole output: down all block rows of all partitions, then the next
 * column. */
EW_HD static inline ewx_block ewx_order_default(const ewx_grid *grid, int64_t pos)
{
    const int64_t large_total = grid->large_blocks * grid->num_large;
    const int64_t block_rows =
        large_total + grid->small_blocks * (grid->num_ranks - grid->num_large);
    const int64_t row = pos % block_rows;
    ewx_block block = {0, 0, pos / block_rows};
    if (row < large_total) {
        block.dst = (int32_t)(row / grid->large_blocks);
        block.row = row % grid->large_blocks;
    } else {
        block.dst = grid->num_large + (int32_t)((row - large_total) / grid->small_blocks);
        block.row = (row - large_total) % grid->small_blocks;
    }
    return block;
}

/* The tiles of a block that exist: from first up to, not including, end. */
typedef struct ewx_tile_range {
    ewx_tile first, end;
} ewx_tile_range;

EW_HD static inline ewx_tile_range ewx_block_tiles(const ewx_grid *grid, ewx_block block)
{
    ewx_tile_range tiles;
    tiles.first.row = block.row * grid->block_rows;
    tiles.first.col = block.col * grid->block_cols;
    tiles.end.row = ewx_min64(tiles.first.row + grid->block_rows,
                              ewx_partition_tile_rows(grid, block.dst));
    tiles.end.col = ewx_min64(tiles.first.col + grid->block_cols, grid->tile_cols);
    return tiles;
}

/* The block computed at position pos, 0 <= pos < ewx_num_blocks, on every rank. */
EW_HD static inline ewx_block ewx_order_block(const ewx_grid *grid, int64_t pos)
{
    if (grid->order == EW_ORDER_CONTIGUOUS)
        return ewx_order_contiguous(grid, pos);
    if (grid->order == EW_ORDER_DEFAULT)
        return ewx_order_default(grid, pos);
    return ewx_order_interleaved(grid, pos);
}

/* ---- Consumer: task -> tile ---- */

/* Tiles of a partition are numbered in the order of ewx_partition_walk, row by row
 * inside a group of blocks, whatever the producer's order: the paper keeps the task
 * order fixed in its order ablation. */
EW_HD static inline ewx_tile ewx_task_tile(const ewx_grid *grid, int dst, int64_t task)
{
    const int64_t group_rows = (int64_t)grid->group * grid->block_rows;
    const int64_t group_tiles = group_rows * grid->tile_cols;
    const int64_t first_row = task / group_tiles * group_rows;
    const int64_t height =
        ewx_min64(group_rows, ewx_partition_tile_rows(grid, dst) - first_row);
    const int64_t within = task % group_tiles;
    const int64_t first_col = within / (height * grid->block_cols) * grid->block_cols;
    const int64_t width = ewx_min64(grid->block_cols, grid->tile_cols - first_col);
    const int64_t rest = within - first_col * height;
    ewx_tile tile = {first_row + rest / width, first_col + rest % width};
    return tile;
}

/* The inverse of ewx_task_tile. */
EW_HD static inline int64_t ewx_tile_task(const ewx_grid *grid, int dst, ewx_tile tile)
{
    const int64_t group_rows = (int64_t)grid->group * grid->block_rows;
    const int64_t first_row = tile.row / group_rows * group_rows;
    const int64_t height =
        ewx_min64(group_rows, ewx_partition_tile_rows(grid, dst) - first_row);
    const int64_t first_col = tile.col / grid->block_cols * grid->block_cols;
    const int64_t width = ewx_min64(grid->block_cols, grid->tile_cols - first_col);
    return first_row * grid->tile_cols + first_col * height +
           (tile.row - first_row) * width + (tile.col - first_col);
}

/* Step i of consumer j under budget x: tasks j, j+x, j+2x, ... */
EW_HD static inline int64_t ewx_consumer_task(int64_t consumer, int64_t budget,
                                              int64_t step)
{
    return consumer + step * budget;
}

#endif
