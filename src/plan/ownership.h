/* Who sums what: the tiles of a call that a rank reduces, and who waits for a tile. */
#ifndef EWX_PLAN_OWNERSHIP_H
#define EWX_PLAN_OWNERSHIP_H

#include "plan/walk.h"

typedef enum ewx_ownership {
    EWX_OWNS_PART,  /* every rank a part of the grid: the sum is scattered by rows */
    EWX_OWNS_TILES, /* every rank each W-th tile of the only part */
    EWX_OWNS_ALL    /* every rank all tiles: nobody waits for another's sum */
} ewx_ownership;

#define EWX_EVERYONE (-1)

/* The tasks first, first + step, ... of a part, `count` of them. */
typedef struct ewx_share {
    int32_t part;
    int64_t first, step, count;
} ewx_share;

EW_HD static inline ewx_share ewx_share_of(const ewx_grid *grid, ewx_ownership ownership,
                                           int num_ranks, int rank)
{
    ewx_share share = {ownership == EWX_OWNS_PART ? rank : 0, 0, 1, 0};
    share.count = ewx_part_tiles(grid, share.part);
    if (ownership == EWX_OWNS_TILES) {
        share.first = rank;
        share.step = num_ranks;
        share.count = share.count > rank ? ewx_div_up(share.count - rank, num_ranks) : 0;
    }
    return share;
}

EW_HD static inline ewx_tile ewx_share_tile(const ewx_grid *grid, const ewx_share *share,
                                            int64_t index)
{
    return ewx_task_tile(grid, share->part, share->first + index * share->step);
}

/* The rank that sums a tile, or EWX_EVERYONE. */
EW_HD static inline int ewx_owner_of(const ewx_grid *grid, ewx_ownership ownership,
                                     int num_ranks, int part, ewx_tile tile)
{
    if (ownership == EWX_OWNS_PART)
        return part;
    return ownership == EWX_OWNS_ALL ? EWX_EVERYONE
                                     : (int)(ewx_tile_task(grid, part, tile) % num_ranks);
}

#endif
