/* Blocks on a GPU: which slot computes which, and for how long. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"

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

/* Blocks that a rank computes at the same time.  Where a GEMM waits for movers, and none
 * fits beside it on an SM, each has the room of one of its CTAs, as on the cuda backend. */
static int64_t most_blocks(const ewx_sim *sim)
{
    const ewx_sim_model *model = &sim->model;
    const ew_config *config = &sim->spec->config;
    const int64_t slots =
        (int64_t)(model->sms - model->set_apart) * model->producers_per_sm;
    const bool shares = sim->spec->op->gemm_waits && config->pool != EW_POOL_AFTER &&
                        model->reducers_beside[model->producers_per_sm] == 0;
    return shares ? slots - config->budget : slots;
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
    r->first_split = r->end_of_part;
    if (sim->model.tile_ps > 0 && most_blocks(sim) > 0)
        r->first_split =
            r->first_of_part +
            ewx_split_from(r->end_of_part - r->first_of_part, most_blocks(sim));
}

/* Producers are spread over the SMs, one on each, then a second one. */
void ewx_sim_start_part(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int per_sm = sim->model.producers_per_sm;
    int64_t left = most_blocks(sim);
    choose_part(sim, rank);
    for (int i = 0; i < per_sm; i++)
        for (int sm = 0; sm < sim->model.sms; sm++) {
            if (left <= 0 || r->sms[sm].only_reduces ||
                !ewx_sim_begin_block(sim, rank, sm * per_sm + i))
                continue;
            ewx_sim_add_producers(sim, rank, sm, 1);
            left--;
        }
    r->stolen_ps = ewx_sim_after(r->stolen_ps, (double)r->owed_ps);
    r->owed_ps = 0;
}

/* A GEMM of copies is over: the next one's kernel, behind the event that it is. */
static void launch_part(ewx_sim *sim, int rank)
{
    ewx_sim_push(&sim->queue, ewx_sim_after(sim->now_ps, (double)sim->model.command_ps),
                 EWX_SIM_PART, rank, 0);
}

void ewx_sim_launch_gemm(ewx_sim *sim, int rank)
{
    const int64_t ready = ewx_sim_after(sim->now_ps, (double)sim->model.launch_ps);
    ewx_sim_push(&sim->queue, ewx_sim_book_launch(sim, rank, ready), EWX_SIM_PART, rank, 0);
}

/* Blocks in the wave of the next position, or tiles of those that are split. */
static int64_t blocks_of_wave(const ewx_sim *sim, const ewx_sim_rank *r)
{
    const int64_t most = most_blocks(sim);
    const int64_t left_before = (r->end_of_part - r->first_of_part) -
                                (r->next_position - r->first_of_part) / most * most;
    return ewx_min64(most,
                     r->next_position >= r->first_split ? 2 * left_before : left_before);
}

/* What a slot takes next: a block, or of one that is split a tile after the other. */
static ewx_taken take_next(ewx_sim *sim, ewx_sim_rank *r)
{
    const int64_t num_blocks = ewx_num_blocks(&sim->model.grid);
    ewx_taken taken = {(r->first_position + r->next_position) % num_blocks, -1};
    if (r->next_position < r->first_split) {
        r->next_position++;
        return taken;
    }
    taken.tile = r->next_tile;
    r->next_tile = !r->next_tile;
    if (taken.tile == 0)
        r->blocks_left++; /* it ends twice */
    else
        r->next_position++;
    return taken;
}

/* The end of a block that has begun, when it is known.  While it waited, nobody took time
 * from it. */
static void schedule_end(ewx_sim *sim, int rank, int slot)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    const int64_t end_ps = sim->op->block_end
                               ? sim->op->block_end(sim, rank, producer)
                               : ewx_sim_after(sim->now_ps, (double)producer->block_ps);
    producer->waits = end_ps < 0;
    if (producer->waits)
        return;
    producer->stolen_ps = r->stolen_ps;
    if (r->gemm_begin_ps < 0)
        r->gemm_begin_ps = end_ps - producer->block_ps;
    ewx_sim_push(&sim->queue, end_ps, EWX_SIM_BLOCK_END, rank, slot);
}

void ewx_sim_wake_blocks(ewx_sim *sim, int rank, int part)
{
    for (int slot = 0; slot < sim->ranks[rank].num_slots; slot++) {
        const ewx_sim_producer *producer = &sim->ranks[rank].producers[slot];
        if (producer->waits && (part == EWX_EVERYONE || producer->block.part == part))
            schedule_end(sim, rank, slot);
    }
}

static ewx_block block_at(const ewx_sim *sim, int rank, int64_t position)
{
    return sim->op->block_at ? sim->op->block_at(sim, rank, position)
                             : ewx_order_block(&sim->model.grid, position);
}

bool ewx_sim_begin_block(ewx_sim *sim, int rank, int slot)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    if (r->next_position >= r->end_of_part)
        return false;
    producer->busy = true;
    const int64_t wave = blocks_of_wave(sim, r);
    const ewx_taken taken = take_next(sim, r);
    producer->position = taken.position;
    producer->tile = taken.tile;
    producer->block = block_at(sim, rank, producer->position);
    producer->begin_ps = producer->awaited_ps = sim->now_ps;
    producer->num_awaited = 0;
    producer->block_ps = ewx_sim_block_ps(&sim->model, rank, taken, producer->block, wave);
    schedule_end(sim, rank, slot);
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

static void complete_block(ewx_sim *sim, int rank, const ewx_sim_producer *producer)
{
    const ewx_block block = producer->block;
    ewx_tile_range tiles = ewx_block_tiles(&sim->model.grid, block);
    if (producer->tile == 0)
        tiles.end.col = tiles.first.col + 1;
    if (producer->tile == 1)
        tiles.first.col++;
    for (int64_t row = tiles.first.row; row < tiles.end.row; row++)
        for (int64_t col = tiles.first.col; col < tiles.end.col; col++)
            sim->op->complete_tile(sim, rank, block.part, (ewx_tile){row, col});
}

void ewx_sim_end_block(ewx_sim *sim, int rank, int slot)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[slot];
    if (is_delayed(sim, rank, slot))
        return;
    ewx_sim_count_block(sim, rank);
    complete_block(sim, rank, producer);
    if (ewx_transport_pushes(sim->spec->config.transport))
        producer->stores_end_ps = r->arrival_ps - sim->model.link_latency_ps;
    if (producer->tile != 0) /* of a split block's tiles the second stands for both */
        ewx_sim_trace_block(sim, rank, slot, sim->model.publish_ps);
    if (sim->spec->config.ctas != EW_CTAS_BLOCK && ewx_sim_begin_block(sim, rank, slot))
        return;
    producer->busy = false;
    const int sm = slot / sim->model.producers_per_sm;
    ewx_sim_add_producers(sim, rank, sm, -1);
    ewx_sim_fill_sm(sim, rank, sm);
    if (r->num_computing > 0)
        return;
    if (r->blocks_left > 0 && r->next_position == r->end_of_part)
        launch_part(sim, rank);
    else if (r->blocks_left == 0 && sim->spec->config.pool == EW_POOL_AFTER &&
             !sim->spec->op->gemm_waits && !sim->model.uses_nccl)
        ewx_sim_launch_next(sim, rank);
}
