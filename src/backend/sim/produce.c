/* Blocks, and the release of their tiles. */
#include "backend/sim/engine.h"

/* ---- Release ---- */

int64_t ewx_sim_unit(const ewx_sim *sim, int dst, int64_t task)
{
    const int32_t release = sim->spec->config.release;
    return sim->first_unit[dst] + (release > 0 ? task / release : 0);
}

static int64_t tile_bytes(const ewx_sim *sim, int dst, ewx_tile tile)
{
    const ewx_grid *grid = &sim->model.grid;
    return ewx_tile_height(grid, dst, tile) * ewx_tile_width(grid, tile) *
           (int64_t)sim->spec->elem_bytes;
}

void ewx_sim_publish(ewx_sim *sim, int dst, int64_t unit, int64_t visible_ps)
{
    if (sim->ranks[dst].mirrored)
        return;
    if (sim->ready_ps[unit] < visible_ps)
        sim->ready_ps[unit] = visible_ps;
    if (--sim->missing[unit] == 0)
        ewx_sim_wake_unit(sim, dst, unit);
}

int64_t ewx_sim_unit_bytes(const ewx_sim *sim, int dst, int64_t unit)
{
    const ewx_grid *grid = &sim->model.grid;
    const int32_t release = sim->spec->config.release;
    if (release <= 0)
        return ewx_partition_rows(grid, dst) * grid->cols * (int64_t)sim->spec->elem_bytes;
    const int64_t first = (unit - sim->first_unit[dst]) * release;
    const int64_t end = ewx_min64(first + release, ewx_partition_tiles(grid, dst));
    int64_t bytes = 0;
    for (int64_t task = first; task < end; task++)
        bytes += tile_bytes(sim, dst, ewx_task_tile(grid, dst, task));
    return bytes;
}

/* When the flag of a unit that is complete now can be seen by its owner. */
static int64_t visible_ps(ewx_sim *sim, int src, int dst, int64_t unit)
{
    const ewx_sim_model *model = &sim->model;
    const bool copies = sim->spec->config.transport == EW_TRANSPORT_COPY;
    const bool paced = sim->request->profile->is_cpu && model->link_ps > 0;
    if (src != dst && (copies || paced)) {
        const int64_t from_ps = copies ? ewx_sim_book_copy(sim, src) : sim->now_ps;
        return ewx_sim_book_send(sim, from_ps, src, dst,
                                 ewx_sim_unit_bytes(sim, dst, unit)) +
               (copies ? model->launch_ps : 0);
    }
    if (sim->spec->config.transport == EW_TRANSPORT_PUSH)
        return (sim->ranks[src].arrival_ps > sim->now_ps ? sim->ranks[src].arrival_ps
                                                         : sim->now_ps) +
               model->publish_ps;
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
        ewx_sim_book_send(sim, sim->now_ps, src, dst, tile_bytes(sim, dst, tile));
    ewx_sim_rank *r = &sim->ranks[src];
    r->arrival_ps = r->arrival_ps > arrival ? r->arrival_ps : arrival;
    return arrival;
}

static bool completes_unit(ewx_sim *sim, int src, int64_t unit)
{
    if (!sim->unreleased)
        return true;
    const bool output = sim->spec->config.release == EW_RELEASE_OUTPUT;
    const int64_t place = sim->ranks[src].place;
    const int64_t at = output ? place : place * sim->first_unit[sim->num_ranks] + unit;
    return --sim->unreleased[at] == 0;
}

void ewx_sim_release_tile(ewx_sim *sim, int src, int dst, ewx_tile tile)
{
    const int64_t unit = ewx_sim_unit(sim, dst, ewx_tile_task(&sim->model.grid, dst, tile));
    const bool pushes = sim->spec->config.transport == EW_TRANSPORT_PUSH;
    const int64_t arrival = pushes ? push_tile(sim, src, dst, tile) : sim->now_ps;
    if (!completes_unit(sim, src, unit))
        return;
    if (sim->spec->config.release == EW_RELEASE_OUTPUT)
        for (int owner = 0; owner < sim->num_ranks; owner++) {
            if (sim->first_unit[owner] < sim->first_unit[owner + 1])
                release_unit(sim, src, owner, sim->first_unit[owner]);
        }
    else if (!sim->unreleased && pushes)
        ewx_sim_publish(sim, dst, unit, arrival + sim->model.publish_ps);
    else
        release_unit(sim, src, dst, unit);
}

/* ---- Blocks ---- */

void ewx_sim_count_block(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    if (--r->blocks_left == 0)
        r->gemm_end_ps = sim->now_ps;
}

bool ewx_sim_begin_block(ewx_sim *sim, int rank, int slot)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    if (r->next_position >= ewx_num_blocks(&sim->model.grid))
        return false;
    producer->busy = true;
    producer->position = r->next_position++;
    producer->begin_ps = sim->now_ps;
    producer->stolen_ps = r->stolen_ps;
    producer->tile = 0;
    ewx_sim_push(&sim->queue,
                 ewx_sim_after(sim->now_ps, (double)ewx_sim_block_ps(&sim->model, rank,
                                                                     producer->position)),
                 EWX_SIM_BLOCK_END, rank, slot);
    return true;
}

/* Whether the block must go on for the time that others took from it meanwhile. */
static bool is_delayed(ewx_sim *sim, int rank, int slot)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    int64_t end_ps = sim->now_ps + r->stolen_ps - producer->stolen_ps;
    producer->stolen_ps = r->stolen_ps;
    if (end_ps < producer->stores_end_ps) /* push: the box is not empty yet */
        end_ps = producer->stores_end_ps;
    if (end_ps == sim->now_ps)
        return false;
    ewx_sim_push(&sim->queue, end_ps, EWX_SIM_BLOCK_END, rank, slot);
    return true;
}

static void release_block(ewx_sim *sim, int rank, ewx_block block)
{
    const ewx_tile_range tiles = ewx_block_tiles(&sim->model.grid, block);
    for (int64_t row = tiles.first.row; row < tiles.end.row; row++)
        for (int64_t col = tiles.first.col; col < tiles.end.col; col++)
            ewx_sim_release_tile(sim, rank, block.dst, (ewx_tile){row, col});
}

void ewx_sim_end_block(ewx_sim *sim, int rank, int slot)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    const ewx_grid *grid = &sim->model.grid;
    if (is_delayed(sim, rank, slot))
        return;
    const ewx_block block = ewx_order_block(grid, producer->position);
    ewx_sim_count_block(sim, rank);
    release_block(sim, rank, block);
    if (sim->spec->config.transport == EW_TRANSPORT_PUSH)
        producer->stores_end_ps = r->arrival_ps - sim->model.link_latency_ps;
    ewx_sim_trace(
        sim, rank,
        &(ew_trace_event){.kind = EW_TRACE_BLOCK,
                          .worker = slot,
                          .dst = block.dst,
                          .row = (int32_t)(block.row * grid->block_rows),
                          .col = (int32_t)(block.col * grid->block_cols),
                          .position = producer->position,
                          .begin_ns = producer->begin_ps / 1000,
                          .end_ns = sim->now_ps / 1000,
                          .published_ns = (sim->now_ps + sim->model.publish_ps) / 1000});
    if (sim->spec->config.ctas != EW_CTAS_BLOCK && ewx_sim_begin_block(sim, rank, slot))
        return;
    producer->busy = false;
    r->num_computing--;
    const int sm = slot / sim->model.producers_per_sm;
    r->sms[sm].producers--;
    ewx_sim_fill_sm(sim, rank, sm);
    if (r->blocks_left == 0 && r->num_computing == 0 &&
        sim->spec->config.pool == EW_POOL_AFTER && !sim->model.uses_nccl)
        ewx_sim_launch_next(sim, rank);
}
