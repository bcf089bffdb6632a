/* GEMM, then ReduceScatter.  A task is a tile of the rank's own part, or where tiles span
 * owners the rank's rows of a tile; it waits until every rank (with two levels: every rank
 * of its node, and every other node) has contributed to its unit, reads the contributions
 * and writes their sum. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/ops/sim_sums.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

/* ---- Tasks ---- */

static bool spans_owners(const ewx_sim *sim)
{
    return sim->ownership == EWX_OWNS_ROWS;
}

static ewx_share share_of(const ewx_sim *sim, int rank)
{
    return ewx_share_of(&sim->model.grid, sim->ownership, sim->num_ranks, rank);
}

static int64_t num_tasks(const ewx_sim *sim, int rank)
{
    return share_of(sim, rank).count;
}

static ewx_tile tile_of(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_share share = share_of(sim, rank);
    return spans_owners(sim) ? ewx_share_tile_in_columns(&sim->model.grid, &share, task)
                             : ewx_share_tile(&sim->model.grid, &share, task);
}

/* Of a rank's contribution to a task. */
static int64_t bytes_of(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_grid *grid = &sim->model.grid;
    const ewx_share share = share_of(sim, rank);
    const ewx_tile tile = tile_of(sim, rank, task);
    const ewx_tile_rows rows = ewx_share_tile_rows(grid, &share, tile);
    return ewx_sim_tile_bytes(sim, share.part, tile) * (rows.end - rows.first) /
           ewx_tile_height(grid, share.part, tile);
}

static ew_trace_event event(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_tile tile = tile_of(sim, rank, task);
    return (ew_trace_event){.kind = EW_TRACE_REDUCE,
                            .dst = rank,
                            .row = (int32_t)tile.row,
                            .col = (int32_t)tile.col,
                            .position = task};
}

/* ---- What a unit waits for ---- */

/* Tiles that a rank must complete before a unit is released. */
static void count_unreleased(ewx_sim *sim)
{
    const int64_t num_units = ewx_sim_num_units(sim);
    const bool output = sim->spec->config.release == EW_RELEASE_OUTPUT;
    for (int part = 0; part < sim->model.grid.num_parts; part++) {
        const int64_t tiles = ewx_part_tiles(&sim->model.grid, part);
        for (int place = 0; place < sim->num_simulated && output; place++)
            sim->unreleased[place] += tiles;
        for (int64_t task = 0; task < tiles && !output; task++)
            for (int place = 0; place < sim->num_simulated; place++)
                sim->unreleased[place * num_units + ewx_sim_unit(sim, part, task)]++;
    }
}

static int contributors(const ewx_sim *sim, int dst)
{
    return sim->unsummed ? ewx_sim_ranks_of_node(sim, dst) + sim->model.num_nodes - 1
                         : sim->num_simulated;
}

static void count_contributions(ewx_sim *sim)
{
    const int64_t num_units = ewx_sim_num_units(sim);
    for (int dst = 0; dst < sim->num_ranks; dst++)
        for (int64_t unit = sim->first_unit[dst]; unit < sim->first_unit[dst + 1]; unit++)
            sim->missing[unit] = contributors(sim, dst);
    for (int rank = 0; rank < sim->num_ranks && sim->unsummed; rank++)
        for (int64_t unit = 0; unit < num_units; unit++)
            sim->unsummed[rank / sim->model.ranks_per_node * num_units + unit]++;
}

static bool set_up(ewx_sim *sim)
{
    bool enough = true;
    const size_t num_units = (size_t)ewx_sim_num_units(sim);
    if (sim->request->profile->is_cpu && sim->model.sums_in_nodes) {
        const size_t num_sums = num_units * (size_t)sim->model.num_nodes;
        sim->unsummed = ewx_sim_allocate(num_sums, sizeof *sim->unsummed, &enough);
        sim->next_sum = ewx_sim_allocate(num_sums, sizeof *sim->next_sum, &enough);
    }
    if (sim->spec->config.release != 1)
        sim->unreleased = ewx_sim_allocate((num_units + 1) * (size_t)sim->num_simulated,
                                           sizeof *sim->unreleased, &enough);
    if (!enough)
        return false;
    count_contributions(sim);
    if (sim->unreleased)
        count_unreleased(sim);
    return true;
}

/* ---- A contribution's way to the owner ---- */

/* When the flag of a unit that is complete now can be seen by its owner. */
static int64_t visible_ps(ewx_sim *sim, int src, int dst, int64_t unit)
{
    const ewx_sim_model *model = &sim->model;
    const bool copies = sim->spec->config.transport == EW_TRANSPORT_COPY;
    const bool paced = sim->request->profile->is_cpu && model->link_ps > 0;
    if (src != dst && copies)
        return ewx_sim_book_copy(sim, src, dst, ewx_sim_unit_bytes(sim, dst, unit));
    if (src != dst && paced)
        return ewx_sim_book_send(sim, sim->now_ps, src, dst,
                                 ewx_sim_unit_bytes(sim, dst, unit));
    if (ewx_transport_pushes(sim->spec->config.transport))
        return ewx_sim_stored_ps(sim, src) + model->publish_ps;
    return sim->now_ps + model->publish_ps;
}

static void release_unit(ewx_sim *sim, int src, int dst, int64_t unit)
{
    if (sim->request->profile->is_cpu && !ewx_sim_share_node(sim, src, dst))
        ewx_sim_contribute(sim, src, dst, unit);
    else
        ewx_sim_publish(sim, dst, unit, visible_ps(sim, src, dst, unit));
}

static bool completes_unit(ewx_sim *sim, int src, int64_t unit)
{
    if (!sim->unreleased)
        return true;
    const bool output = sim->spec->config.release == EW_RELEASE_OUTPUT;
    const int64_t place = sim->ranks[src].place;
    const int64_t at = output ? place : place * ewx_sim_num_units(sim) + unit;
    return --sim->unreleased[at] == 0;
}

/* A GPU's producer ends behind one fence for all owners; NCCL needs none. */
static void publish_output(ewx_sim *sim, int src)
{
    const bool fences = !sim->request->profile->is_cpu && !sim->model.uses_nccl;
    for (int owner = 0; owner < sim->num_ranks; owner++)
        for (int64_t unit = sim->first_unit[owner]; unit < sim->first_unit[owner + 1];
             unit++)
            release_unit(sim, src, owner, unit);
    sim->ranks[src].gemm_end_ps =
        ewx_sim_stored_ps(sim, src) + (fences ? sim->model.publish_ps : 0);
}

/* Releases the tile to all who own rows of it, or the output with its last tile. */
static void complete_spanning_tile(ewx_sim *sim, int src, ewx_tile tile)
{
    const ewx_owners owners = ewx_tile_owners(&sim->model.grid, sim->num_ranks, tile);
    if (sim->unreleased) {
        if (completes_unit(sim, src, 0))
            publish_output(sim, src);
        return;
    }
    for (int dst = owners.first; dst <= owners.last; dst++) {
        const ewx_share share = share_of(sim, dst);
        const int64_t tile_cols = sim->model.grid.tile_cols;
        const int64_t task =
            tile.col * (share.count / tile_cols) + tile.row - share.first / tile_cols;
        ewx_sim_publish(sim, dst, sim->first_unit[dst] + task,
                        sim->now_ps + sim->model.publish_ps);
    }
}

/* Releases the tile, or its unit when it was the last one. */
static void complete_tile(ewx_sim *sim, int src, int dst, ewx_tile tile)
{
    if (spans_owners(sim)) {
        complete_spanning_tile(sim, src, tile);
        return;
    }
    const int64_t unit = ewx_sim_unit(sim, dst, ewx_tile_task(&sim->model.grid, dst, tile));
    const bool pushes = ewx_transport_pushes(sim->spec->config.transport);
    const int64_t arrival =
        pushes ? ewx_sim_push_tile(sim, src, dst, ewx_sim_tile_bytes(sim, dst, tile))
               : sim->now_ps;
    if (!completes_unit(sim, src, unit))
        return;
    if (sim->spec->config.release == EW_RELEASE_OUTPUT)
        publish_output(sim, src);
    else if (!sim->unreleased && pushes)
        ewx_sim_publish(sim, dst, unit, arrival + sim->model.publish_ps);
    else
        release_unit(sim, src, dst, unit);
}

/* ---- What a task moves ---- */

static int64_t book_task(ewx_sim *sim, int rank, int64_t task, bool shares_sm)
{
    return ewx_sim_book_sum(sim, rank, bytes_of(sim, rank, task), 0, shares_sm);
}

/* ---- Bytes ---- */

/* One rank's contributions to another's part. */
static int64_t part_bytes(const ewx_sim *sim, int rank)
{
    return share_of(sim, rank).num_rows * sim->model.grid.cols *
           (int64_t)sim->spec->elem_bytes * sim->spec->layout.num_pieces;
}

/* Eq. 2 for one rank. */
static int64_t remote_bytes(const ewx_sim *sim, int rank)
{
    return (sim->num_ranks - 1) * part_bytes(sim, rank);
}

/* From other nodes: a sum of each, or all that their ranks have. */
static int64_t crossed_bytes(const ewx_sim *sim, int rank)
{
    const ewx_sim_model *model = &sim->model;
    const int64_t far = model->sums_in_nodes
                            ? model->num_nodes - 1
                            : sim->num_ranks - ewx_sim_ranks_of_node(sim, rank);
    return far * part_bytes(sim, rank);
}

const ewx_sim_op ewx_sim_gemm_rs = {.num_tasks = num_tasks,
                                    .set_up = set_up,
                                    .complete_tile = complete_tile,
                                    .book_task = book_task,
                                    .message_bytes = ewx_sim_unit_bytes,
                                    .event = event,
                                    .remote_bytes = remote_bytes,
                                    .crossed_bytes = crossed_bytes};
