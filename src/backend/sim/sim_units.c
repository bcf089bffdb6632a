#include "backend/sim/sim_units.h"

#include "backend/sim/ops/sim_op.h"
#include "backend/sim/sim_engines.h"

void ewx_sim_number_units(ewx_sim *sim)
{
    for (int rank = 0; rank < sim->num_ranks; rank++)
        sim->first_unit[rank + 1] =
            sim->first_unit[rank] +
            ewx_release_units(sim->unit_tasks, sim->op->num_tasks(sim, rank));
}

int64_t ewx_sim_unit(const ewx_sim *sim, int rank, int64_t task)
{
    return sim->first_unit[rank] +
           ewx_release_unit(sim->unit_tasks, sim->op->num_tasks(sim, rank), task);
}

int ewx_sim_part_of(const ewx_sim *sim, int64_t unit)
{
    int low = 0, high = sim->num_ranks - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (sim->first_unit[middle] <= unit)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

int64_t ewx_sim_unit_bytes(const ewx_sim *sim, int part, int64_t unit)
{
    const ewx_grid *grid = &sim->model.grid;
    const ewx_task_range tasks = ewx_release_tasks(grid, ewx_release_of(&sim->spec->config),
                                                   part, unit - sim->first_unit[part]);
    int64_t bytes = 0;
    for (int64_t task = tasks.first; task < tasks.end; task++)
        bytes += ewx_sim_tile_bytes(sim, part, ewx_task_tile(grid, part, task));
    return bytes * sim->spec->layout.num_pieces;
}

void ewx_sim_publish(ewx_sim *sim, int rank, int64_t unit, int64_t visible_ps)
{
    if (sim->ranks[rank].mirrored)
        return;
    if (sim->ready_ps[unit] < visible_ps)
        sim->ready_ps[unit] = visible_ps;
    if (--sim->missing[unit] == 0)
        ewx_sim_wake_unit(sim, rank, unit);
}

bool ewx_sim_is_ready(const ewx_sim *sim, int rank, int64_t task, int64_t *ready_ps_out)
{
    const int64_t unit = ewx_sim_unit(sim, rank, task);
    *ready_ps_out = sim->ready_ps[unit];
    return sim->missing[unit] == 0;
}
