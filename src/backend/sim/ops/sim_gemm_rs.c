/* GEMM, then ReduceScatter.  A task is a tile of the rank's own part; it waits until every
 * rank (with two levels: every rank of its node, and every other node) has contributed to
 * its unit, reads the contributions and writes their sum. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

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

/* When what a rank has pushed so far has arrived. */
static int64_t stored_ps(const ewx_sim *sim, int src)
{
    return ewx_sim_later(sim->ranks[src].arrival_ps, sim->now_ps);
}

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
    if (sim->spec->config.transport == EW_TRANSPORT_PUSH)
        return stored_ps(sim, src) + model->publish_ps;
    return sim->now_ps + model->publish_ps;
}

static void release_unit(ewx_sim *sim, int src, int dst, int64_t unit)
{
    if (sim->request->profile->is_cpu && !ewx_sim_share_node(sim, src, dst))
        ewx_sim_contribute(sim, src, dst, unit);
    else
        ewx_sim_publish(sim, dst, unit, visible_ps(sim, src, dst, unit));
}

/* push: the epilogue's stores are on their way as soon as a tile is computed. */
static int64_t push_tile(ewx_sim *sim, int src, int dst, ewx_tile tile)
{
    if (src == dst)
        return sim->now_ps;
    const int64_t arrival =
        ewx_sim_book_send(sim, sim->now_ps, src, dst, ewx_sim_tile_bytes(sim, dst, tile));
    ewx_sim_rank *r = &sim->ranks[src];
    r->arrival_ps = ewx_sim_later(r->arrival_ps, arrival);
    return arrival;
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
        stored_ps(sim, src) + (fences ? sim->model.publish_ps : 0);
}

/* Releases the tile, or its unit when it was the last one. */
static void complete_tile(ewx_sim *sim, int src, int dst, ewx_tile tile)
{
    const int64_t unit = ewx_sim_unit(sim, dst, ewx_tile_task(&sim->model.grid, dst, tile));
    const bool pushes = sim->spec->config.transport == EW_TRANSPORT_PUSH;
    const int64_t arrival = pushes ? push_tile(sim, src, dst, tile) : sim->now_ps;
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

/* Flat, W contributions are read and one tile is written.  With two levels the own node's
 * are summed first, then the nodes' sums; where the same reducers also sum for other nodes,
 * as a GPU's are taken to, the first happens as often as there are nodes. */
static double moved_tiles(const ewx_sim *sim)
{
    const ewx_sim_model *model = &sim->model;
    const int sums = sim->request->profile->is_cpu ? 1 : model->num_nodes;
    return model->sums_in_nodes ? sums * (model->ranks_per_node + 1) + model->num_nodes + 1
                                : sim->num_ranks + 1;
}

/* Flat, near and far sources at once.  With two levels the reducer reads as much again from
 * near ones for each sum that it makes for another node, and those of other nodes do the
 * same: their sums are there when it has.  The link that a virtual node emulates lets a
 * tile's sum begin when its turn comes; a real one brings some bytes to every reader from
 * the start. */
static int64_t pull(ewx_sim *sim, int rank, int64_t bytes, int64_t *begin_ps)
{
    const ewx_sim_model *model = &sim->model;
    const bool sums = model->sums_in_nodes;
    const int64_t near_bytes = sums ? bytes * model->num_nodes : bytes;
    const int64_t near_ps =
        ewx_sim_book_pull(sim, rank, true, sums, sim->now_ps, near_bytes);
    if (model->sharers > 1) {
        const int num_near = ewx_sim_ranks_of_node(sim, rank) - 1;
        const double ps = (double)(near_bytes * num_near) * model->link_ps;
        *begin_ps = ewx_sim_later(*begin_ps, near_ps - (int64_t)ps);
    }
    const int64_t far_from_ps = sums ? near_ps : sim->now_ps;
    return ewx_sim_later(near_ps,
                         ewx_sim_book_pull(sim, rank, false, sums, far_from_ps, bytes));
}

static int64_t book_task(ewx_sim *sim, int rank, int64_t task, bool shares_sm)
{
    const ewx_sim_model *model = &sim->model;
    const ewx_tile tile = ewx_task_tile(&model->grid, rank, task);
    const int64_t bytes = ewx_sim_tile_bytes(sim, rank, tile);
    const double moved = (double)bytes * moved_tiles(sim);
    const double slowdown = shares_sm ? model->shared_time : 1;
    int64_t begin = sim->now_ps;
    int64_t end = ewx_sim_book_memory(sim, rank, moved);
    if (sim->spec->config.transport == EW_TRANSPORT_PULL && !sim->request->profile->is_cpu)
        end = ewx_sim_later(end, pull(sim, rank, bytes, &begin));
    end = ewx_sim_later(end, ewx_sim_after(begin, slowdown * ((double)model->reducer_ps +
                                                              moved * model->cta_ps)));
    ewx_sim_delay_producers(sim, rank, moved);
    return end;
}

/* ---- Bytes ---- */

static int64_t part_bytes(const ewx_sim *sim, int rank)
{
    return ewx_part_rows(&sim->model.grid, rank) * sim->model.grid.cols *
           (int64_t)sim->spec->elem_bytes;
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

const ewx_sim_op ewx_sim_gemm_rs = {.set_up = set_up,
                                    .complete_tile = complete_tile,
                                    .book_task = book_task,
                                    .remote_bytes = remote_bytes,
                                    .crossed_bytes = crossed_bytes};
