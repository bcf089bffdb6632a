/* GEMM, then ReduceScatter.  A task is a tile of the rank's own part; it waits until every
 * rank (with two levels: every rank of its node, and every other node) has contributed to
 * its unit, reads the contributions and writes their sum. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/ops/sim_sums.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

/* ---- Tasks ---- */

static int64_t num_tasks(const ewx_sim *sim, int rank)
{
    return ewx_part_tiles(&sim->model.grid, rank);
}

static ew_trace_event event(const ewx_sim *sim, int rank, int64_t task)
{
    const ewx_tile tile = ewx_task_tile(&sim->model.grid, rank, task);
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
    for (int dst = 0; dst < sim->num_ranks; dst++) {
        const int64_t tiles = ewx_part_tiles(&sim->model.grid, dst);
        for (int place = 0; place < sim->num_simulated && output; place++)
            sim->unreleased[place] += tiles;
        for (int64_t task = 0; task < tiles && !output; task++)
            for (int place = 0; place < sim->num_simulated; place++)
                sim->unreleased[place * num_units + ewx_sim_unit(sim, dst, task)]++;
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
    if (src != dst && copies) /* by the last call of the part's */
        return ewx_sim_book_copy(sim, src, dst, ewx_sim_unit_bytes(sim, dst, unit),
                                 EWX_SIM_CALLS_PER_PART * sim->ranks[src].num_parts - 1);
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
    for (int owner = 0; owner < sim->num_ranks; owner++) {
        const int64_t unit = sim->first_unit[owner];
        if (unit < sim->first_unit[owner + 1])
            release_unit(sim, src, owner, unit);
    }
    sim->ranks[src].gemm_end_ps =
        ewx_sim_stored_ps(sim, src) + (fences ? sim->model.publish_ps : 0);
}

/* Releases the tile, or its unit when it was the last one. */
static void complete_tile(ewx_sim *sim, int src, int dst, ewx_tile tile)
{
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
    const ewx_tile tile = ewx_task_tile(&sim->model.grid, rank, task);
    return ewx_sim_book_sum(sim, rank, ewx_sim_tile_bytes(sim, rank, tile), 0, shares_sm);
}

/* ---- Bytes ---- */

/* One rank's contributions to another's part. */
static int64_t part_bytes(const ewx_sim *sim, int rank)
{
    return ewx_part_rows(&sim->model.grid, rank) * sim->model.grid.cols *
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
