/* The grid: how a call's rows are split into parts, and these into blocks and tiles.
 * Like walk.h, release.h and layout.h it is written once, as pure functions, for the
 * engines, the kernels, the simulator and the tests.
 *
 * Each part has its own grid of 128 x 128 tiles, so a tile never straddles two of
 * them.  Parts differ by at most one row, hence by at most one row of tiles:
 * `num_large` of them come first.  What a part means is the operation's business: in
 * GEMM-ReduceScatter each rank owns one. */
#ifndef EWX_PLAN_GRID_H
#define EWX_PLAN_GRID_H

#include <stdint.h>

#include "base/host_device.h"
#include "entwine/entwine.h"

#define EWX_TILE_M 128
#define EWX_TILE_N 128

/* One call's geometry; build it with ewx_grid_build. */
typedef struct ewx_grid {
    int32_t num_parts;      /* W, where every rank owns one */
    int32_t num_large;      /* parts that have one row more: rows mod num_parts */
    int32_t order;          /* ew_order, of walk.h */
    int32_t group;          /* block rows walked together inside a part */
    int32_t block_rows;     /* of a block, in tiles */
    int32_t block_cols;     /* of a block, in tiles */
    int64_t rows;           /* m */
    int64_t cols;           /* N */
    int64_t small_rows;     /* rows of a small part */
    int64_t tile_cols;      /* tiles across N */
    int64_t blocks_per_row; /* blocks across N */
    int64_t small_blocks;   /* block rows of a small part */
    int64_t large_blocks;   /* block rows of a large part */
} ewx_grid;

typedef struct ewx_block {
    int32_t part;
    int64_t row, col; /* in blocks, inside the part */
} ewx_block;

typedef struct ewx_tile {
    int64_t row, col; /* in tiles, inside the part */
} ewx_tile;

EW_HD static inline int64_t ewx_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

EW_HD static inline int64_t ewx_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- Parts ---- */

EW_HD static inline int64_t ewx_part_rows(const ewx_grid *grid, int part)
{
    return grid->small_rows + (part < grid->num_large ? 1 : 0);
}

EW_HD static inline int64_t ewx_part_first_row(const ewx_grid *grid, int part)
{
    return grid->small_rows * part + ewx_min64(part, grid->num_large);
}

EW_HD static inline int64_t ewx_part_tile_rows(const ewx_grid *grid, int part)
{
    return ewx_div_up(ewx_part_rows(grid, part), EWX_TILE_M);
}

EW_HD static inline int64_t ewx_part_block_rows(const ewx_grid *grid, int part)
{
    return part < grid->num_large ? grid->large_blocks : grid->small_blocks;
}

/* Q of one destination. */
EW_HD static inline int64_t ewx_part_tiles(const ewx_grid *grid, int part)
{
    return ewx_part_tile_rows(grid, part) * grid->tile_cols;
}

EW_HD static inline ewx_grid ewx_grid_build(int64_t rows, int64_t cols, int num_parts,
                                            const ew_config *config)
{
    ewx_grid grid;
    grid.num_parts = num_parts;
    grid.num_large = (int32_t)(rows % num_parts);
    grid.order = (int32_t)config->order;
    grid.rows = rows;
    grid.cols = cols;
    grid.small_rows = rows / num_parts;
    grid.tile_cols = ewx_div_up(cols, EWX_TILE_N);
    /* No larger than what there is, which changes nothing but keeps products small. */
    const int64_t tile_rows = ewx_div_up(grid.small_rows + 1, EWX_TILE_M);
    grid.group = (int32_t)ewx_min64(config->group, tile_rows * num_parts);
    grid.block_rows = (int32_t)ewx_min64(config->block_m / EWX_TILE_M, tile_rows);
    grid.block_cols = (int32_t)ewx_min64(config->block_n / EWX_TILE_N, grid.tile_cols);
    grid.blocks_per_row = ewx_div_up(grid.tile_cols, grid.block_cols);
    grid.small_blocks =
        ewx_div_up(ewx_div_up(grid.small_rows, EWX_TILE_M), grid.block_rows);
    grid.large_blocks =
        ewx_div_up(ewx_div_up(grid.small_rows + 1, EWX_TILE_M), grid.block_rows);
    return grid;
}

/* ---- Blocks and tiles ---- */

/* P: blocks that every rank computes. */
EW_HD static inline int64_t ewx_num_blocks(const ewx_grid *grid)
{
    return grid->blocks_per_row *
           (grid->large_blocks * grid->num_large +
            grid->small_blocks * (grid->num_parts - grid->num_large));
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
    tiles.end.row =
        ewx_min64(tiles.first.row + grid->block_rows, ewx_part_tile_rows(grid, block.part));
    tiles.end.col = ewx_min64(tiles.first.col + grid->block_cols, grid->tile_cols);
    return tiles;
}

/* Rows and columns of a tile that hold output, and their bytes. */
EW_HD static inline int64_t ewx_tile_height(const ewx_grid *grid, int part, ewx_tile tile)
{
    return ewx_min64(EWX_TILE_M, ewx_part_rows(grid, part) - tile.row * EWX_TILE_M);
}

EW_HD static inline int64_t ewx_tile_width(const ewx_grid *grid, ewx_tile tile)
{
    return ewx_min64(EWX_TILE_N, grid->cols - tile.col * EWX_TILE_N);
}

EW_HD static inline int64_t ewx_tile_bytes(const ewx_grid *grid, int part, ewx_tile tile,
                                           int64_t elem_bytes)
{
    return ewx_tile_height(grid, part, tile) * ewx_tile_width(grid, tile) * elem_bytes;
}

#endif
