/* What tests of the tile map share. */
#ifndef GRID_CHECK_H
#define GRID_CHECK_H

#include <stdint.h>

#include "plan/walk.h"

/* Fails with the whole case: one grid out of a hundred thousand. */
#define EXPECT(grid, condition)                    \
    do {                                           \
        if (!(condition))                          \
            fail_grid(grid, #condition, __LINE__); \
    } while (0)

void fail_grid(const ewx_grid *grid, const char *what, int line);

int64_t num_tiles(const ewx_grid *grid);
/* The number of the output's tile, over all partitions. */
int64_t tile_number(const ewx_grid *grid, int dst, ewx_tile tile);
/* Every tile is produced once: notes in positions[tile number] where. */
void check_coverage(const ewx_grid *grid, int64_t *positions);

/* The set that one of `panels` panels belongs to, where the first `early` are sets of their
 * own. */
int64_t set_behind(const ewx_grid *grid, int64_t panel, int64_t early, int64_t panels);

#endif
