/* What both programs of AllGather-GEMM have in common: the bytes that come to a rank. */
#ifndef EWX_SIM_OPS_SIM_GATHER_H
#define EWX_SIM_OPS_SIM_GATHER_H

#include "backend/sim/resources.h"

static inline int64_t ewx_sim_bytes_of_rows(const ewx_sim *sim, int64_t rows)
{
    return rows * sim->spec->problem.k * (int64_t)sim->spec->elem_bytes;
}

static inline int64_t ewx_sim_gathered_bytes(const ewx_sim *sim, int rank)
{
    const ewx_grid *grid = &sim->model.crossing;
    return ewx_sim_bytes_of_rows(sim, grid->rows - ewx_part_rows(grid, rank));
}

static inline int64_t ewx_sim_crossed_bytes(const ewx_sim *sim, int rank)
{
    int64_t rows = 0;
    for (int src = 0; src < sim->num_ranks; src++)
        if (!ewx_sim_share_node(sim, src, rank))
            rows += ewx_part_rows(&sim->model.crossing, src);
    return ewx_sim_bytes_of_rows(sim, rows);
}

#endif
