/* Release units: the tiles of a part that become visible together.  `release` is the
 * config's: so many consecutive tasks, a whole part, or the whole output. */
#ifndef EWX_PLAN_RELEASE_H
#define EWX_PLAN_RELEASE_H

#include "plan/walk.h"

/* The unit of a task, counted inside its part. */
EW_HD static inline int64_t ewx_release_unit(int32_t release, int64_t task)
{
    return release > 0 ? task / release : 0;
}

/* Units of a part of so many tiles. */
EW_HD static inline int64_t ewx_release_units(int32_t release, int64_t tiles)
{
    return release > 0 ? ewx_div_up(tiles, release) : tiles > 0;
}

/* The tasks of a unit: from first up to, not including, end. */
typedef struct ewx_task_range {
    int64_t first, end;
} ewx_task_range;

EW_HD static inline ewx_task_range ewx_release_tasks(const ewx_grid *grid, int32_t release,
                                                     int part, int64_t unit)
{
    const int64_t tiles = ewx_part_tiles(grid, part);
    ewx_task_range tasks = {0, tiles};
    if (release > 0) {
        tasks.first = unit * release;
        tasks.end = ewx_min64(tasks.first + release, tiles);
    }
    return tasks;
}

/* How many tiles must be complete before the unit is released. */
EW_HD static inline int64_t ewx_release_tiles(const ewx_grid *grid, int32_t release,
                                              int part, int64_t unit)
{
    if (release != EW_RELEASE_OUTPUT) {
        const ewx_task_range tasks = ewx_release_tasks(grid, release, part, unit);
        return tasks.end - tasks.first;
    }
    int64_t tiles = 0;
    for (int any = 0; any < grid->num_parts; any++)
        tiles += ewx_part_tiles(grid, any);
    return tiles;
}

/* Where the unit is counted, of ewx_release_counters places: all parts of a whole
 * output share one, the others have room for `units_per_part` each. */
EW_HD static inline int64_t ewx_release_counter(int32_t release, int64_t units_per_part,
                                                int part, int64_t unit)
{
    return release == EW_RELEASE_OUTPUT ? 0 : part * units_per_part + unit;
}

EW_HD static inline int64_t ewx_release_counters(int32_t release, int64_t units_per_part,
                                                 int num_parts)
{
    return release == EW_RELEASE_OUTPUT ? 1 : num_parts * units_per_part;
}

#endif
