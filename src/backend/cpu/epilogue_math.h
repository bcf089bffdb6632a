/* The arithmetic of a layer's epilogue, row by row.  Pure functions of their arguments; the
 * order of summation is that of plan/layer.h. */
#ifndef EWX_CPU_EPILOGUE_MATH_H
#define EWX_CPU_EPILOGUE_MATH_H

#include "entwine/entwine.h"

/* A row of a tile: where its parts start. */
typedef struct ewx_epilogue_row {
    const void *sum;
    const void *bias;     /* or NULL */
    const void *residual; /* or NULL */
    void *c;              /* sum + bias; NULL: not wanted, or there already */
    void *h;              /* c + residual; NULL as well; may be the residual */
} ewx_epilogue_row;

/* Computes c and h of at most EWX_TILE_N columns; returns the sum of the squares of h. */
float ewx_epilogue_add(ew_dtype dtype, const ewx_epilogue_row *row, int64_t cols);

/* r of a row of n columns, from what ewx_epilogue_add returned for each of its tiles. */
float ewx_epilogue_scale(const float *squares, int64_t tiles, int64_t n, float eps);

/* normed = round(round(h * r) * weight). */
void ewx_epilogue_normalise(ew_dtype dtype, const void *h, float r, const void *weight,
                            void *normed, int64_t n);

#endif
