/* The walk: which block a producer computes at each position, and which tile a consumer
 * reduces at each step. */
#ifndef EWX_PLAN_WALK_H
#define EWX_PLAN_WALK_H

#include <stdbool.h>

#include "plan/grid.h"

/* ---- Producer: position -> block ---- */

/* Block `index` of a part's walk: N-major, `group` block rows at a time (column by
 * column inside a group), so that a group's rows of A and one column of B stay hot. */
EW_HD static inline ewx_block ewx_part_walk(const ewx_grid *grid, int part, int64_t index)
{
    const int64_t group_blocks = grid->group * grid->blocks_per_row;
    const int64_t first_row = index / group_blocks * grid->group;
    const int64_t height =
        ewx_min64(grid->group, ewx_part_block_rows(grid, part) - first_row);
    const int64_t within = index % group_blocks;
    ewx_block block = {part, first_row + within % height, within / height};
    return block;
}

/* The paper's Eq. 1: d = p mod W, l = p / W.  When the first num_large parts have
 * one block row more, the rounds that only they take part in come last. */
EW_HD static inline ewx_block ewx_order_interleaved(const ewx_grid *grid, int64_t pos)
{
    const int64_t full = grid->small_blocks * grid->blocks_per_row * grid->num_parts;
    if (pos < full)
        return ewx_part_walk(grid, (int)(pos % grid->num_parts), pos / grid->num_parts);
    const int64_t rest = pos - full;
    return ewx_part_walk(grid, (int)(rest % grid->num_large),
                         full / grid->num_parts + rest / grid->num_large);
}

EW_HD static inline ewx_block ewx_order_contiguous(const ewx_grid *grid, int64_t pos)
{
    const int64_t large = grid->large_blocks * grid->blocks_per_row;
    const int64_t small = grid->small_blocks * grid->blocks_per_row;
    if (pos < large * grid->num_large)
        return ewx_part_walk(grid, (int)(pos / large), pos % large);
    const int64_t rest = pos - large * grid->num_large;
    return ewx_part_walk(grid, grid->num_large + (int)(rest / small), rest % small);
}

/* M-major over the whole output: down all block rows of all parts, then the next
 * column. */
EW_HD static inline ewx_block ewx_order_default(const ewx_grid *grid, int64_t pos)
{
    const int64_t large_total = grid->large_blocks * grid->num_large;
    const int64_t block_rows =
        large_total + grid->small_blocks * (grid->num_parts - grid->num_large);
    const int64_t row = pos % block_rows;
    ewx_block block = {0, 0, pos / block_rows};
    if (row < large_total) {
        block.part = (int32_t)(row / grid->large_blocks);
        block.row = row % grid->large_blocks;
    } else {
        block.part = grid->num_large + (int32_t)((row - large_total) / grid->small_blocks);
        block.row = (row - large_total) % grid->small_blocks;
    }
    return block;
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

/* Of `blocks` blocks, how many are computed whole; those of the last wave may be split into
 * their tiles.  A wave that leaves half of the CTAs or more without a block takes as long
 * as a full one, and half of that with a tile for each.  Every element is summed as before,
 * so the bits are the same. */
EW_HD static inline int64_t ewx_split_from(int64_t blocks, int64_t ctas)
{
    const int64_t rest = blocks % ctas;
    return 2 * rest <= ctas ? blocks - rest : blocks;
}

/* What `count` CTAs side by side take: the blocks from `position` on, or a tile of each. */
typedef struct ewx_taken {
    int64_t position;
    int tile; /* -1: whole blocks */
} ewx_taken;

/* Number `index` of what is taken, counted in CTAs, where blocks from `split` on are split.
 * Below `split` that is the position itself. */
EW_HD static inline ewx_taken ewx_take(int64_t split, int64_t count, int64_t index)
{
    ewx_taken taken = {index, -1};
    if (index >= split) {
        const int64_t turn = (index - split) / count;
        taken.position = split + turn / 2 * count;
        taken.tile = (int)(turn % 2);
    }
    return taken;
}

/* ---- Where the GEMM waits for rows: another order on every rank ----
 *
 * A panel is a row of blocks.  A rank pushes each of its panels to one rank after the
 * other, the next one first, and every rank is then sent to by one other at a time. Sets of
 * `group` such panels travel side by side, and are multiplied side by side. */

/* Place `index` of a walk over `rows` rows, `group` at a time, column by column.  The first
 * set is the one that may be smaller: the last one ends the call, and arrives slowly enough
 * to be multiplied meanwhile only if it is whole. */
typedef struct ewx_set_place {
    int64_t row, col;
} ewx_set_place;

EW_HD static inline ewx_set_place ewx_set_walk(int64_t group, int64_t rows, int64_t cols,
                                               int64_t index)
{
    const int64_t few = rows % group;
    if (index < few * cols) {
        ewx_set_place early = {index % few, index / few};
        return early;
    }
    const int64_t rest = index - few * cols, within = rest % (group * cols);
    const int64_t first = few + rest / (group * cols) * group;
    ewx_set_place place = {first + within % group, within / group};
    return place;
}

/* As ewx_set_walk, of which the first `early` rows are walked before the others. */
EW_HD static inline ewx_set_place ewx_early_walk(int64_t group, int64_t early, int64_t rows,
                                                 int64_t cols, int64_t index)
{
    if (index < early * cols)
        return ewx_set_walk(group, early, cols, index);
    ewx_set_place place = ewx_set_walk(group, rows - early, cols, index - early * cols);
    place.row += early;
    return place;
}

/* A rank with an odd number of panels multiplies them together with the first one to come:
 * two CTAs that take two rows of a column load it once. */
EW_HD static inline int64_t ewx_gather_joined(const ewx_grid *grid, int rank)
{
    return ewx_part_block_rows(grid, rank) % 2;
}

/* A chunk of a panel of a rank's own, and a rank that it is pushed to. */
typedef struct ewx_push {
    int64_t row;
    int dst, chunk;
} ewx_push;

/* Push `index` of a rank that pushes every panel in so many chunks to `times` ranks: all
 * others, and last itself where it keeps its rows too.  Then none joins its own. */
EW_HD static inline ewx_push ewx_gather_push(const ewx_grid *grid, int rank, int times,
                                             int num_chunks, int64_t index)
{
    const int64_t joined = times < grid->num_parts ? ewx_gather_joined(grid, rank) : 0;
    const ewx_set_place place = ewx_early_walk(
        grid->group, joined, ewx_part_block_rows(grid, rank) * times, num_chunks, index);
    ewx_push push = {place.row / times,
                     (int)((rank + 1 + place.row % times) % grid->num_parts),
                     (int)place.col};
    return push;
}

/* Where tiles span owners and no rank has as many rows as a tile, every tile waits for rows
 * of others: all rows travel, and are multiplied, side by side. */
EW_HD static inline bool ewx_gathers_at_once(int64_t rows, int num_ranks)
{
    return rows < (int64_t)num_ranks * EWX_TILE_M;
}

/* The same where tiles span owners: all panels to itself, all to the next rank, and so on.
 */
EW_HD static inline ewx_push ewx_gather_push_spanning(const ewx_grid *grid, int rank,
                                                      int num_chunks, int64_t index)
{
    const int64_t panels = ewx_part_block_rows(grid, rank);
    const int64_t pushes = panels * grid->num_parts;
    const bool at_once = ewx_gathers_at_once(grid->rows, grid->num_parts);
    const ewx_set_place place =
        ewx_set_walk(at_once ? pushes : panels, pushes, num_chunks, index);
    ewx_push push = {place.row % panels,
                     (int)((rank + place.row / panels) % grid->num_parts), (int)place.col};
    return push;
}

/* Panels that come to a rank. */
EW_HD static inline int64_t ewx_gather_panels(const ewx_grid *grid, int rank)
{
    return ewx_num_blocks(grid) / grid->blocks_per_row - ewx_part_block_rows(grid, rank);
}

/* The panel that comes to a rank as number `index`: ewx_gather_push as its receivers see
 * it.  What only the large parts have comes last. */
EW_HD static inline ewx_block ewx_gather_panel(const ewx_grid *grid, int rank,
                                               int64_t index)
{
    const int others = grid->num_parts - 1;
    const int64_t rest = index - grid->small_blocks * others;
    if (rest < 0) {
        const int part = rank - 1 - (int)(index % others);
        ewx_block panel = {part < 0 ? part + grid->num_parts : part, index / others, 0};
        return panel;
    }
    /* Downwards from the rank: the large parts below it, then those above. */
    const int below = (int)ewx_min64(rank, grid->num_large);
    const int part =
        rest < below ? below - 1 - (int)rest : grid->num_large - 1 - (int)(rest - below);
    ewx_block panel = {part, grid->small_blocks, 0};
    return panel;
}

/* The rank's own rows, then those of others in the order in which they come.  Rows that
 * come early wait while the rank's own are multiplied, which costs no time: an SM has
 * nothing to do only when neither are left, in whatever order they are taken. */
EW_HD static inline ewx_block ewx_gather_in_turn(const ewx_grid *grid, int rank,
                                                 int64_t pos)
{
    const int64_t own = ewx_part_block_rows(grid, rank);
    const int64_t others = ewx_gather_panels(grid, rank);
    const int64_t joined = others > 0 ? ewx_gather_joined(grid, rank) : 0;
    const ewx_set_place place =
        ewx_early_walk(grid->group, own + joined, own + others, grid->blocks_per_row, pos);
    ewx_block block = {rank, place.row, place.col};
    if (place.row >= own)
        block = ewx_gather_panel(grid, rank, place.row - own);
    block.col = place.col;
    return block;
}

/* One part after the other, from the rank's own on. */
EW_HD static inline ewx_block ewx_gather_in_a_ring(const ewx_grid *grid, int rank,
                                                   int64_t pos)
{
    int part = rank;
    for (int i = 0; i < grid->num_parts; i++) {
        const int64_t blocks = ewx_part_block_rows(grid, part) * grid->blocks_per_row;
        if (pos < blocks)
            break;
        pos -= blocks;
        part = part + 1 < grid->num_parts ? part + 1 : 0;
    }
    return ewx_part_walk(grid, part, pos);
}

/* How many rows of tiles that span owners are walked first: two, or three if a set would be
 * of one row otherwise. */
EW_HD static inline int64_t ewx_early_spanning(const ewx_grid *grid)
{
    const int64_t block_rows = ewx_part_block_rows(grid, 0);
    return ewx_min64(2 + ((block_rows - 2) % grid->group == 1), block_rows);
}

/* Tiles that span owners: from the last one that needs no rows beyond the rank's own
 * downwards, as the rows of the ranks before it come. */
EW_HD static inline ewx_block ewx_gather_spanning(const ewx_grid *grid, int num_ranks,
                                                  int rank, int64_t pos)
{
    const int64_t height = (int64_t)grid->block_rows * EWX_TILE_M;
    const int64_t block_rows = ewx_part_block_rows(grid, 0);
    const int64_t own_end =
        grid->rows / num_ranks * (rank + 1) + ewx_min64(rank + 1, grid->rows % num_ranks);
    const int64_t first = own_end == grid->rows ? block_rows : own_end / height;
    const int64_t early =
        ewx_gathers_at_once(grid->rows, num_ranks) ? 0 : ewx_early_spanning(grid);
    const ewx_set_place place =
        ewx_early_walk(grid->group, early, block_rows, grid->blocks_per_row, pos);
    ewx_block block = {0, (first - 1 - place.row + block_rows) % block_rows, place.col};
    return block;
}

/* The block at position pos, 0 <= pos < ewx_num_blocks. */
EW_HD static inline ewx_block ewx_gather_block(const ewx_grid *grid, int num_ranks,
                                               int rank, int64_t pos)
{
    if (grid->num_parts < num_ranks)
        return ewx_gather_spanning(grid, num_ranks, rank, pos);
    if (grid->order == EW_ORDER_DEFAULT)
        return ewx_order_default(grid, pos);
    return grid->order == EW_ORDER_CONTIGUOUS ? ewx_gather_in_a_ring(grid, rank, pos)
                                              : ewx_gather_in_turn(grid, rank, pos);
}

/* ---- Consumer: task -> tile ---- */

/* Tiles of a part are numbered in the order of ewx_part_walk, row by row
 * inside a group of blocks, whatever the producer's order: the paper keeps the task
 * order fixed in its order ablation. */
EW_HD static inline ewx_tile ewx_task_tile(const ewx_grid *grid, int part, int64_t task)
{
    const int64_t group_rows = (int64_t)grid->group * grid->block_rows;
    const int64_t group_tiles = group_rows * grid->tile_cols;
    const int64_t first_row = task / group_tiles * group_rows;
    const int64_t height =
        ewx_min64(group_rows, ewx_part_tile_rows(grid, part) - first_row);
    const int64_t within = task % group_tiles;
    const int64_t first_col = within / (height * grid->block_cols) * grid->block_cols;
    const int64_t width = ewx_min64(grid->block_cols, grid->tile_cols - first_col);
    const int64_t rest = within - first_col * height;
    ewx_tile tile = {first_row + rest / width, first_col + rest % width};
    return tile;
}

/* The inverse of ewx_task_tile. */
EW_HD static inline int64_t ewx_tile_task(const ewx_grid *grid, int part, ewx_tile tile)
{
    const int64_t group_rows = (int64_t)grid->group * grid->block_rows;
    const int64_t first_row = tile.row / group_rows * group_rows;
    const int64_t height =
        ewx_min64(group_rows, ewx_part_tile_rows(grid, part) - first_row);
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
