#include "grid_check.h"

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

void fail_grid(const ewx_grid *grid, const char *what, int line)
{
    fail_msg("line %d: %s\n  m=%lld N=%lld W=%d order=%d group=%d block=%dx%d tiles", line,
             what, (long long)grid->rows, (long long)grid->cols, grid->num_parts,
             grid->order, grid->group, grid->block_rows, grid->block_cols);
}

int64_t num_tiles(const ewx_grid *grid)
{
    int64_t tiles = 0;
    for (int dst = 0; dst < grid->num_parts; dst++)
        tiles += ewx_part_tiles(grid, dst);
    return tiles;
}

int64_t tile_number(const ewx_grid *grid, int dst, ewx_tile tile)
{
    int64_t before = 0;
    for (int other = 0; other < dst; other++)
        before += ewx_part_tiles(grid, other);
    return before + tile.row * grid->tile_cols + tile.col;
}

void check_coverage(const ewx_grid *grid, int64_t *positions)
{
    const int64_t tiles = num_tiles(grid), blocks = ewx_num_blocks(grid);
    for (int64_t tile = 0; tile < tiles; tile++)
        positions[tile] = -1;
    int64_t covered = 0;
    for (int64_t pos = 0; pos < blocks; pos++) {
        const ewx_block block = ewx_order_block(grid, pos);
        EXPECT(grid, block.part >= 0 && block.part < grid->num_parts);
        EXPECT(grid, block.row >= 0 && block.row < ewx_part_block_rows(grid, block.part));
        EXPECT(grid, block.col >= 0 && block.col < grid->blocks_per_row);
        const int64_t end_row = ewx_min64((block.row + 1) * grid->block_rows,
                                          ewx_part_tile_rows(grid, block.part));
        const int64_t end_col =
            ewx_min64((block.col + 1) * grid->block_cols, grid->tile_cols);
        EXPECT(grid, end_row > block.row * grid->block_rows); /* no empty block */
        EXPECT(grid, end_col > block.col * grid->block_cols);
        for (int64_t row = block.row * grid->block_rows; row < end_row; row++)
            for (int64_t col = block.col * grid->block_cols; col < end_col; col++) {
                int64_t *place =
                    &positions[tile_number(grid, block.part, (ewx_tile){row, col})];
                EXPECT(grid, *place == -1);
                *place = pos;
                covered++;
            }
    }
    EXPECT(grid, covered == tiles);
}

/* The set that one of `panels` panels belongs to: the first may be smaller. */
static int64_t set_of(const ewx_grid *grid, int64_t panel, int64_t panels)
{
    return (panel + (grid->group - panels % grid->group) % grid->group) / grid->group;
}

int64_t set_behind(const ewx_grid *grid, int64_t panel, int64_t early, int64_t panels)
{
    return panel < early ? set_of(grid, panel, early)
                         : ewx_div_up(early, grid->group) +
                               set_of(grid, panel - early, panels - early);
}
