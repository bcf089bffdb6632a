/* Release units.  The tasks of a unit wait until all that they need has been published and
 * can be seen by the rank whose tasks they are. */
#ifndef EWX_SIM_UNITS_H
#define EWX_SIM_UNITS_H

#include "backend/sim/sim_state.h"

/* Numbers the units of all ranks; sets sim->first_unit. */
void ewx_sim_number_units(ewx_sim *sim);
static inline int64_t ewx_sim_num_units(const ewx_sim *sim)
{
    return sim->first_unit[sim->num_ranks];
}
int64_t ewx_sim_unit(const ewx_sim *sim, int rank, int64_t task);
/* The part that a unit lies in. */
int ewx_sim_part_of(const ewx_sim *sim, int64_t unit);
static inline int64_t ewx_sim_tile_bytes(const ewx_sim *sim, int part, ewx_tile tile)
{
    return ewx_tile_bytes(&sim->model.grid, part, tile, (int64_t)sim->spec->elem_bytes);
}
/* The bytes of all that a rank contributes to a unit. */
int64_t ewx_sim_unit_bytes(const ewx_sim *sim, int part, int64_t unit);

/* One more of the things that a unit waits for can be seen by its rank. */
void ewx_sim_publish(ewx_sim *sim, int rank, int64_t unit, int64_t visible_ps);
/* Whether a task's inputs are published, and when the last can be seen. */
bool ewx_sim_is_ready(const ewx_sim *sim, int rank, int64_t task, int64_t *ready_ps_out);

#endif
