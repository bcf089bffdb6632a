/* Blocks, and the release of their tiles. */
#include "backend/sim/engine.h"

/* ---- Release ---- */

int64_t ewx_sim_unit(const ewx_sim *sim, int dst, int64_t task)
{
    return sim->first_unit[dst] + ewx_release_unit(sim->spec->config.release, task);
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
    const ewx_task_range tasks = ewx_release_tasks(grid, sim->spec->config.release, dst,
                                                   unit - sim->first_unit[dst]);
    int64_t bytes = 0;
    for (int64_t task = tasks.first; task < tasks.end; task++)
        bytes += ewx_sim_tile_bytes(sim, dst, ewx_task_tile(grid, dst, task));
    return bytes;
}

/* When what a rank has pushed so far has arrived. */
static int64_t stored_ps(const ewx_sim *sim, int src)
{
    const int64_t arrival_ps = sim->ranks[src].arrival_ps;
    return arrival_ps > sim->now_ps ? arrival_ps : sim->now_ps;
}

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

/* A GPU's producer ends behind one fence for all owners, unless NCCL needs no telling. */
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

void ewx_sim_release_tile(ewx_sim *sim, int src, int dst, ewx_tile tile)
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

/* ---- Blocks ---- */

void ewx_sim_count_block(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    if (--r->blocks_left == 0)
        r->gemm_end_ps = sim->now_ps;
}

/* copy: destination after destination, beginning behind the own one, which is the last. */
static int destination(const ewx_sim *sim, int rank, int step)
{
    return (rank + 1 + step) % sim->num_ranks;
}

static int64_t partition_blocks(const ewx_sim *sim, int dst)
{
    return ewx_part_block_rows(&sim->model.grid, dst) * sim->model.grid.blocks_per_row;
}

/* The blocks of a rank's next GEMM: all there are, or with copy those of a partition. */
static void choose_part(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t num_blocks = ewx_num_blocks(&sim->model.grid);
    const bool copies = sim->spec->config.transport == EW_TRANSPORT_COPY;
    for (int dst = 0; copies && r->num_parts == 0 && dst < destination(sim, rank, 0); dst++)
        r->first_position += partition_blocks(sim, dst);
    r->first_of_part = r->next_position;
    while (r->end_of_part == r->next_position && r->end_of_part < num_blocks)
        r->end_of_part +=
            copies ? partition_blocks(sim, destination(sim, rank, r->num_parts++))
                   : num_blocks;
}

/* Producers are spread over the SMs, one on each, then a second one. */
void ewx_sim_start_part(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int per_sm = sim->model.producers_per_sm;
    choose_part(sim, rank);
    for (int i = 0; i < per_sm; i++)
        for (int sm = 0; sm < sim->model.sms; sm++) {
            if (r->sms[sm].only_reduces || !ewx_sim_begin_block(sim, rank, sm * per_sm + i))
                continue;
            r->sms[sm].producers++;
            r->num_computing++;
        }
    r->stolen_ps = ewx_sim_after(r->stolen_ps, (double)r->owed_ps);
    r->owed_ps = 0;
}

/* A GEMM of copies is over: the next one's kernel, when the host has come to it. */
static void launch_part(ewx_sim *sim, int rank)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t behind = ewx_sim_after(sim->now_ps, (double)sim->model.launch_ps);
    const int64_t there =
        ewx_sim_enqueued_ps(sim, rank, EWX_SIM_CALLS_PER_PART * r->num_parts);
    ewx_sim_push(&sim->queue, behind > there ? behind : there, EWX_SIM_PART, rank, 0);
}

/* That are computed together with the next one. */
static int64_t blocks_of_wave(const ewx_sim *sim, const ewx_sim_rank *r)
{
    const int sms = sim->model.sms - sim->model.set_apart;
    const int64_t most = sms * sim->model.producers_per_sm;
    const int64_t left_before = (r->end_of_part - r->first_of_part) -
                                (r->next_position - r->first_of_part) / most * most;
    return ewx_min64(most, left_before);
}

bool ewx_sim_begin_block(ewx_sim *sim, int rank, int slot)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    if (r->next_position >= r->end_of_part)
        return false;
    producer->busy = true;
    const int64_t wave = blocks_of_wave(sim, r);
    producer->position =
        (r->first_position + r->next_position++) % ewx_num_blocks(&sim->model.grid);
    producer->begin_ps = sim->now_ps;
    producer->stolen_ps = r->stolen_ps;
    producer->tile = 0;
    ewx_sim_push(
        &sim->queue,
        ewx_sim_after(sim->now_ps, (double)ewx_sim_block_ps(&sim->model, rank,
                                                            producer->position, wave)),
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
            ewx_sim_release_tile(sim, rank, block.part, (ewx_tile){row, col});
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
                          .dst = block.part,
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
    if (r->num_computing > 0)
        return;
    if (r->blocks_left > 0 && r->next_position == r->end_of_part)
        launch_part(sim, rank);
    else if (r->blocks_left == 0 && sim->spec->config.pool == EW_POOL_AFTER &&
             !sim->model.uses_nccl)
        ewx_sim_launch_next(sim, rank);
}
