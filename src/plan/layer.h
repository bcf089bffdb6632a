/* How a layer's epilogue is cut into pieces of work, and the one order in which the squares
 * of a row are summed, for hosts and kernels alike.
 *
 * A tile's 128 squares (those beyond the last column are 0): each 8 neighbours s0..s7 add
 * up to ((s0+s4) + (s1+s5)) + ((s2+s6) + (s3+s7)); of these 16 sums, those 8 apart are
 * added, then those 4, 2 and 1 apart.  A row's tiles: column j goes, in rising order, into
 * running sum j mod 32; of these 32, those 16 apart are added, then 8, 4, 2 and 1 apart.
 * All in fp32 without fused multiply-adds. */
#ifndef EWX_PLAN_LAYER_H
#define EWX_PLAN_LAYER_H

#include "plan/walk.h"

#define EWX_ROW_SUMS 32

/* Rows that one worker, or CTA, normalises at a time, once their tiles are all there. */
#define EWX_STRIP_ROWS 16
#define EWX_BLOCK_STRIPS (EWX_TILE_M / EWX_STRIP_ROWS) /* of a row of tiles */

EW_HD static inline int64_t ewx_num_strips(int64_t rows)
{
    return ewx_div_up(rows, EWX_STRIP_ROWS);
}

#endif
