/* Release units, the tiles of a part that become visible together: a number of consecutive
 * tasks, a whole part, or the whole output. */
#ifndef EWX_PLAN_RELEASE_H
#define EWX_PLAN_RELEASE_H

#include "plan/walk.h"

/* A config's.  Where units are counted in tiles, the first and the last of a part may have
 * other sizes than those between them: a small first one is there early, and behind a small
 * last one little is left to do. */
typedef struct ewx_release {
    int32_t size;        /* tiles of a unit, or EW_RELEASE_... */
    int32_t first, last; /* tiles of these units; 0: as all others */
} ewx_release;

EW_HD static inline ewx_release ewx_release_of(const ew_config *config)
{
    ewx_release release = {config->release, config->release_first, config->release_last};
    return release;
}

/* How the tiles of a part fall into its first unit, its last one if that has a size of its
 * own, and those between them. */
typedef struct ewx_release_cut {
    int64_t head, body, tail;
} ewx_release_cut;

EW_HD static inline ewx_release_cut ewx_release_cut_of(ewx_release release, int64_t tiles)
{
    ewx_release_cut cut;
    cut.head = ewx_min64(release.first > 0 ? release.first : release.size, tiles);
    cut.tail = ewx_min64(release.last, tiles - cut.head);
    cut.body = tiles - cut.head - cut.tail;
    return cut;
}

/* Units of a part of `tiles` tiles. */
EW_HD static inline int64_t ewx_release_units(ewx_release release, int64_t tiles)
{
    if (release.size < 1)
        return tiles > 0;
    const ewx_release_cut cut = ewx_release_cut_of(release, tiles);
    return (cut.head > 0) + ewx_div_up(cut.body, release.size) + (cut.tail > 0);
}

/* The unit of a task, counted inside its part of `tiles` tiles. */
EW_HD static inline int64_t ewx_release_unit(ewx_release release, int64_t tiles,
                                             int64_t task)
{
    if (release.size <= 1) /* most often: without a division */
        return release.size == 1 ? task : 0;
    const ewx_release_cut cut = ewx_release_cut_of(release, tiles);
    if (task < cut.head)
        return 0;
    const int64_t within = task - cut.head;
    return 1 + (within < cut.body ? within : cut.body + release.size - 1) / release.size;
}

/* The tasks of a unit: from first up to, not including, end. */
typedef struct ewx_task_range {
    int64_t first, end;
} ewx_task_range;

/* The tasks of a unit, in a part of `tiles` tiles. */
EW_HD static inline ewx_task_range ewx_release_range(ewx_release release, int64_t tiles,
                                                     int64_t unit)
{
    ewx_task_range tasks = {0, tiles};
    if (release.size < 1)
        return tasks;
    const ewx_release_cut cut = ewx_release_cut_of(release, tiles);
    const int64_t end_of_body = cut.head + cut.body;
    if (unit == 0) {
        tasks.end = cut.head;
        return tasks;
    }
    tasks.first = ewx_min64(cut.head + (unit - 1) * release.size, end_of_body);
    if (tasks.first < end_of_body)
        tasks.end = ewx_min64(tasks.first + release.size, end_of_body);
    return tasks;
}

EW_HD static inline ewx_task_range ewx_release_tasks(const ewx_grid *grid,
                                                     ewx_release release, int part,
                                                     int64_t unit)
{
    return ewx_release_range(release, ewx_part_tiles(grid, part), unit);
}

/* How many tiles must be complete before the unit is released. */
EW_HD static inline int64_t ewx_release_tiles(const ewx_grid *grid, ewx_release release,
                                              int part, int64_t unit)
{
    if (release.size != EW_RELEASE_OUTPUT) {
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
EW_HD static inline int64_t ewx_release_counter(ewx_release release, int64_t units_per_part,
                                                int part, int64_t unit)
{
    return release.size == EW_RELEASE_OUTPUT ? 0 : part * units_per_part + unit;
}

EW_HD static inline int64_t ewx_release_counters(ewx_release release,
                                                 int64_t units_per_part, int num_parts)
{
    return release.size == EW_RELEASE_OUTPUT ? 1 : num_parts * units_per_part;
}

#endif
