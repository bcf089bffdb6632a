/* Who sums what: the tiles of a call that a rank reduces, and who waits for a tile. */
#ifndef EWX_PLAN_OWNERSHIP_H
#define EWX_PLAN_OWNERSHIP_H

#include <stdbool.h>

#include "plan/walk.h"

typedef enum ewx_ownership {
    EWX_OWNS_PART,  /* every rank a part of the grid: the sum is scattered by rows */
    EWX_OWNS_TILES, /* every rank each W-th tile of the only part */
    EWX_OWNS_ROWS,  /* every rank some rows of the only part: a tile may have several owners
                     */
    EWX_OWNS_ALL,   /* every rank all tiles: nobody waits for another's sum */
    EWX_OWNS_NOTHING /* there is no sum */
} ewx_ownership;

#define EWX_EVERYONE (-1)

/* EWX_OWNS_TILES: the rank that sums a task of the only part.  W consecutive tasks, a
 * round, have an owner each. */
EW_HD static inline int ewx_task_owner(int num_ranks, int64_t task)
{
    return (int)(task % num_ranks);
}

/* Tasks first, first + step, ... of a part, `count` of them, and of their tiles the rows
 * that lie in `rows`, counted inside the part. */
typedef struct ewx_share {
    ewx_ownership ownership;
    int32_t part;
    int64_t first, step, count;
    int64_t first_row, num_rows;
} ewx_share;

/* A rank's share of the only part, by rows: consecutive ones, as in GEMM-ReduceScatter's
 * output. */
EW_HD static inline ewx_share ewx_share_rows(const ewx_grid *grid, int num_ranks, int rank)
{
    const int64_t large = grid->rows % num_ranks;
    ewx_share share = {EWX_OWNS_ROWS, 0, 0, 1, 0, 0, grid->rows / num_ranks};
    share.first_row = share.num_rows * rank + ewx_min64(rank, large);
    share.num_rows += rank < large;
    share.first = share.first_row / EWX_TILE_M * grid->tile_cols;
    const int64_t end = ewx_div_up(share.first_row + share.num_rows, EWX_TILE_M);
    share.count = share.num_rows > 0 ? end * grid->tile_cols - share.first : 0;
    return share;
}

EW_HD static inline ewx_share ewx_share_of(const ewx_grid *grid, ewx_ownership ownership,
                                           int num_ranks, int rank)
{
    if (ownership == EWX_OWNS_ROWS)
        return ewx_share_rows(grid, num_ranks, rank);
    if (ownership == EWX_OWNS_NOTHING) {
        ewx_share nothing = {EWX_OWNS_NOTHING, 0, 0, 1, 0, 0, 0};
        return nothing;
    }
    ewx_share share = {ownership, ownership == EWX_OWNS_PART ? rank : 0, 0, 1, 0, 0, 0};
    share.count = ewx_part_tiles(grid, share.part);
    share.num_rows = ewx_part_rows(grid, share.part);
    if (ownership == EWX_OWNS_TILES) {
        share.first = rank;
        share.step = num_ranks;
        share.count = share.count > rank ? ewx_div_up(share.count - rank, num_ranks) : 0;
    }
    return share;
}

/* Rows are taken from top to bottom, tiles in the order of the walk. */
EW_HD static inline ewx_tile ewx_share_tile(const ewx_grid *grid, const ewx_share *share,
                                            int64_t index)
{
    const int64_t task = share->first + index * share->step;
    if (share->ownership != EWX_OWNS_ROWS)
        return ewx_task_tile(grid, share->part, task);
    ewx_tile tile = {task / grid->tile_cols, task % grid->tile_cols};
    return tile;
}

/* EWX_OWNS_ROWS: the same tiles column by column, as a walk down all rows makes them. */
EW_HD static inline ewx_tile ewx_share_tile_in_columns(const ewx_grid *grid,
                                                       const ewx_share *share,
                                                       int64_t index)
{
    const int64_t height = share->count / grid->tile_cols;
    ewx_tile tile = {share->first / grid->tile_cols + index % height, index / height};
    return tile;
}

/* EWX_OWNS_ROWS: the owner of a row of the only part. */
EW_HD static inline int ewx_row_owner(const ewx_grid *grid, int num_ranks, int64_t row)
{
    const int64_t small = grid->rows / num_ranks, large = grid->rows % num_ranks;
    const int64_t in_large = large * (small + 1);
    return (int)(row < in_large ? row / (small + 1) : large + (row - in_large) / small);
}

/* ... and those of a tile's rows, from the first to the last: each has some of them. */
typedef struct ewx_owners {
    int first, last;
} ewx_owners;

EW_HD static inline ewx_owners ewx_tile_owners(const ewx_grid *grid, int num_ranks,
                                               ewx_tile tile)
{
    const int64_t top = tile.row * EWX_TILE_M;
    ewx_owners owners;
    owners.first = ewx_row_owner(grid, num_ranks, top);
    owners.last = ewx_row_owner(grid, num_ranks, top + ewx_tile_height(grid, 0, tile) - 1);
    return owners;
}

/* The rows of a tile that belong to a share, counted inside the tile: from first up to, not
 * including, end; and where the first of them is in the share. */
typedef struct ewx_tile_rows {
    int64_t first, end, place;
} ewx_tile_rows;

EW_HD static inline ewx_tile_rows ewx_share_tile_rows(const ewx_grid *grid,
                                                      const ewx_share *share, ewx_tile tile)
{
    const int64_t top = tile.row * EWX_TILE_M;
    ewx_tile_rows rows;
    rows.first = share->first_row > top ? share->first_row - top : 0;
    rows.end = ewx_min64(ewx_tile_height(grid, share->part, tile),
                         share->first_row + share->num_rows - top);
    rows.place = top + rows.first - share->first_row;
    return rows;
}

/* Rows of A that cross are published in panels of EWX_TILE_M, counted inside a rank's own.
 * Those of a rank that hold rows of a row of tiles over all rows: from first up to, not
 * including, end.  In 32 bits, which hold every row count of a GPU: a thread that waits has
 * few registers. */
typedef struct ewx_panels {
    int32_t first, end;
} ewx_panels;

EW_HD static inline ewx_panels ewx_panels_in_tile(const ewx_grid *grid, int num_ranks,
                                                  int src, int tile_row)
{
    const int32_t large = (int32_t)grid->rows % num_ranks;
    const int32_t count = (int32_t)grid->rows / num_ranks + (src < large);
    const int32_t top = tile_row * EWX_TILE_M;
    const int32_t before =
        count * src + (src < large ? 0 : large); /* rows of other ranks */
    const int32_t first = top > before ? top - before : 0;
    const int32_t bottom = top + EWX_TILE_M - before;
    const int32_t end = bottom < count ? bottom : count;
    ewx_panels panels = {first / EWX_TILE_M, first / EWX_TILE_M};
    if (first < end)
        panels.end = (end + EWX_TILE_M - 1) / EWX_TILE_M;
    return panels;
}

/* The same of any tile; none of the rows where the share has no part in it. */
EW_HD static inline ewx_tile_rows ewx_share_rows_in(const ewx_grid *grid,
                                                    const ewx_share *share, ewx_tile tile)
{
    ewx_tile_rows rows = ewx_share_tile_rows(grid, share, tile);
    const bool is_other =
        share->ownership == EWX_OWNS_TILES &&
        ewx_task_owner((int)share->step, ewx_tile_task(grid, share->part, tile)) !=
            share->first;
    if (is_other || rows.end < rows.first)
        rows.end = rows.first;
    return rows;
}

/* Whether ranks wait for what others have summed. */
EW_HD static inline bool ewx_has_results(ewx_ownership ownership)
{
    return ownership == EWX_OWNS_TILES || ownership == EWX_OWNS_ROWS;
}

/* The only rank that waits for a contribution to a tile, or EWX_EVERYONE. */
EW_HD static inline int ewx_owner_of(const ewx_grid *grid, ewx_ownership ownership,
                                     int num_ranks, int part, ewx_tile tile)
{
    if (ownership == EWX_OWNS_PART)
        return part;
    return ownership == EWX_OWNS_TILES
               ? ewx_task_owner(num_ranks, ewx_tile_task(grid, part, tile))
               : EWX_EVERYONE;
}

#endif
