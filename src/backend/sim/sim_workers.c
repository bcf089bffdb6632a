/* The CPU engine's schedule: a worker reduces when inputs are there, else computes the next
 * block, tile by tile, and looks again.  At most x of a rank's consumers are served. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

/* The `at`-th tile of a block that exists; false: it has fewer. */
static bool tile_of_block(const ewx_grid *grid, ewx_block block, int at, ewx_tile *tile_out)
{
    const int64_t first_col = block.col * grid->block_cols;
    const int64_t width = ewx_min64(grid->block_cols, grid->tile_cols - first_col);
    *tile_out =
        (ewx_tile){block.row * grid->block_rows + at / width, first_col + at % width};
    return at / width < grid->block_rows &&
           tile_out->row < ewx_part_tile_rows(grid, block.part);
}

/* A tile's share of its block, and less where it holds less of the output. */
static int64_t tile_ps(const ewx_sim *sim, int rank, const ewx_sim_producer *worker)
{
    const ewx_grid *grid = &sim->model.grid;
    const ewx_block block = worker->block;
    ewx_tile tile;
    tile_of_block(grid, block, worker->tile, &tile);
    const double share =
        (double)(ewx_tile_height(grid, block.part, tile) * ewx_tile_width(grid, tile)) /
        (EWX_TILE_M * EWX_TILE_N * grid->block_rows * grid->block_cols);
    return 1 + (int64_t)(share * (double)ewx_sim_block_ps(&sim->model, rank,
                                                          (ewx_taken){worker->position, -1},
                                                          worker->block, sim->model.slots));
}

static bool is_reducer(const ewx_sim *sim, int worker)
{
    const ew_config *config = &sim->spec->config;
    return config->pool == EW_POOL_STATIC && worker >= config->workers - config->budget;
}

static bool is_producer(const ewx_sim *sim, int worker)
{
    return sim->spec->config.pool == EW_POOL_STATIC && !is_reducer(sim, worker);
}

/* Begins the worker's next tile; false: its consumer has none that is ready. */
static bool serve(ewx_sim *sim, int rank, int worker, int at)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_consumer *consumer = &r->consumers[at];
    int64_t ready_ps;
    if (consumer->task >= r->end_share ||
        !ewx_sim_is_ready(sim, rank, consumer->task, &ready_ps) || ready_ps > sim->now_ps)
        return false;
    consumer->phase = EWX_SIM_ACTIVE;
    consumer->begin_ps = sim->now_ps;
    r->producers[worker].busy = true;
    r->producers[worker].consumer = at;
    const int64_t end_ps = sim->op->book_task(sim, rank, consumer->task, false) +
                           ewx_sim_pay_network(sim, rank, worker);
    ewx_sim_push(&sim->queue, end_ps, EWX_SIM_REDUCE_END, rank, worker);
    return true;
}

static bool find_consumer(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    r->producers[worker].served = 0;
    for (int i = 0; i < r->budget; i++) {
        const int at = (worker + i) % r->budget;
        if (r->consumers[at].phase != EWX_SIM_ACTIVE && serve(sim, rank, worker, at))
            return true;
    }
    return false;
}

static void push_tile_end(ewx_sim *sim, int rank, int worker)
{
    const int64_t ps = tile_ps(sim, rank, &sim->ranks[rank].producers[worker]) +
                       ewx_sim_pay_network(sim, rank, worker);
    ewx_sim_push(&sim->queue, ewx_sim_after(sim->now_ps, (double)ps), EWX_SIM_BLOCK_END,
                 rank, worker);
}

static bool take_block(ewx_sim *sim, int rank, ewx_block *block_out)
{
    const int64_t position = sim->ranks[rank].next_position;
    if (position >= ewx_num_blocks(&sim->model.grid))
        return false;
    if (sim->op->next_block)
        return sim->op->next_block(sim, rank, block_out);
    *block_out = ewx_order_block(&sim->model.grid, position);
    return true;
}

static bool begin_block(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[worker];
    if (is_reducer(sim, worker) || !take_block(sim, rank, &producer->block))
        return false;
    if (r->next_position == 0)
        r->gemm_begin_ps = sim->now_ps;
    producer->busy = true;
    producer->position = r->next_position++;
    producer->begin_ps = sim->now_ps;
    producer->tile = 0;
    push_tile_end(sim, rank, worker);
    return true;
}

static void look_for_work(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_producer *producer = &sim->ranks[rank].producers[worker];
    producer->busy = false;
    producer->consumer = -1;
    producer->sum = -1;
    if (!is_producer(sim, worker) &&
        (ewx_sim_begin_sum(sim, rank, worker) || find_consumer(sim, rank, worker)))
        return;
    if (!begin_block(sim, rank, worker))
        ewx_sim_serve_network(sim, rank, worker);
}

void ewx_sim_start_workers(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    r->end_share = sim->op->num_tasks(sim, rank);
    for (int at = 0; at < r->budget; at++)
        r->consumers[at] = (ewx_sim_consumer){.phase = EWX_SIM_WAITING, .task = at};
    for (int worker = 0; worker < r->num_slots; worker++)
        look_for_work(sim, rank, worker);
}

/* None are awake before their rank is in the call. */
void ewx_sim_wake_workers(ewx_sim *sim, int rank)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    if (sim->now_ps < r->start_ps + sim->model.start_ps)
        return;
    for (int worker = 0; worker < r->num_slots; worker++)
        if (!r->producers[worker].busy)
            look_for_work(sim, rank, worker);
}

void ewx_sim_worker_block(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_producer *producer = &sim->ranks[rank].producers[worker];
    const ewx_grid *grid = &sim->model.grid;
    const ewx_block block = producer->block;
    ewx_tile tile, next;
    tile_of_block(grid, block, producer->tile++, &tile);
    const bool goes_on = tile_of_block(grid, block, producer->tile, &next);
    if (!goes_on)
        ewx_sim_count_block(sim, rank);
    sim->op->complete_tile(sim, rank, block.part, tile);
    if (goes_on) {
        push_tile_end(sim, rank, worker);
        return;
    }
    ewx_sim_trace_block(sim, rank, worker, 0);
    look_for_work(sim, rank, worker);
}

void ewx_sim_worker_reduced(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_producer *producer = &r->producers[worker];
    if (producer->sum >= 0) {
        ewx_sim_end_sum(sim, rank, worker);
        look_for_work(sim, rank, worker);
        return;
    }
    ewx_sim_consumer *consumer = &r->consumers[producer->consumer];
    ewx_sim_finish_task(sim, rank, worker, consumer->task, consumer->begin_ps);
    consumer->task += r->budget;
    consumer->phase = EWX_SIM_WAITING;
    if (++producer->served < sim->spec->config.batch &&
        serve(sim, rank, worker, producer->consumer))
        return;
    look_for_work(sim, rank, worker);
}
