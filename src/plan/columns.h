/* The columns of a call with several weights on a GPU.
 *
 * Its grid is made of stripes of 64 columns, two of which are a tile, and each stripe
 * belongs to one weight: to one after the other, the last stripe of each with fewer columns
 * if need be; or to the gate and to the up in turn, so that a tile has both for the same
 * columns of their result.  So no weight is copied, and tiles are full but where a weight
 * ends. */
#ifndef EWX_PLAN_COLUMNS_H
#define EWX_PLAN_COLUMNS_H

#include "plan/grid.h"

#define EWX_STRIPE_COLS 64
#define EWX_TILE_STRIPES (EWX_TILE_N / EWX_STRIPE_COLS)

typedef struct ewx_columns {
    int32_t count;                /* of weights */
    int32_t paired;               /* stripes of the first and of the second in turn */
    int32_t n[EW_MAX_PRODUCTS];   /* columns of each */
    int32_t end[EW_MAX_PRODUCTS]; /* stripes of it and of those before */
} ewx_columns;

/* Columns of a weight that a stripe has; count is below 1 behind the end of the weight. */
typedef struct ewx_stripe {
    int32_t product;
    int32_t first, count;
} ewx_stripe;

EW_HD static inline ewx_stripe ewx_columns_stripe(const ewx_columns *columns,
                                                  int64_t stripe)
{
    ewx_stripe found = {0, 0, 0};
    int32_t before = 0;
    if (columns->paired) {
        found.product = (int32_t)(stripe % 2);
        stripe /= 2;
    } else {
        while (found.product < columns->count - 1 && stripe >= columns->end[found.product])
            before = columns->end[found.product++];
    }
    found.first = (int32_t)(stripe - before) * EWX_STRIPE_COLS;
    found.count = (int32_t)ewx_min64(EWX_STRIPE_COLS,
                                     columns->n[found.product] - (int64_t)found.first);
    return found;
}

/* Columns of the grid. */
EW_HD static inline int64_t ewx_columns_all(const ewx_columns *columns)
{
    return (int64_t)columns->end[columns->count - 1] * EWX_STRIPE_COLS;
}

EW_HD static inline void ewx_columns_add(ewx_columns *columns, int64_t n)
{
    const int at = columns->count++;
    columns->n[at] = (int32_t)n;
    columns->end[at] =
        (at > 0 ? columns->end[at - 1] : 0) + (int32_t)ewx_div_up(n, EWX_STRIPE_COLS);
}

#endif
