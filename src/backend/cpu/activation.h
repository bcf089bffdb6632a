/* The activation of a gated layer, for a tile.  A pure function of its arguments: the bits
 * of an element depend neither on its place nor on the processor. */
#ifndef EWX_CPU_ACTIVATION_H
#define EWX_CPU_ACTIVATION_H

#include "entwine/entwine.h"

/* A tile of a row-major matrix; the stride is in elements. */
typedef struct ewx_matrix_tile {
    void *at;
    int64_t stride;
} ewx_matrix_tile;

/* c = round(act(gate) * up), where there is an up; c may be gate.  At most EWX_TILE_N
 * columns. */
void ewx_activate_tile(ew_dtype dtype, ew_activation activation, int64_t rows, int64_t cols,
                       ewx_matrix_tile gate, ewx_matrix_tile up, ewx_matrix_tile c);

#endif
