/* AllGather, then GEMM, as the CPU engine runs it.  A rank's tasks are its panels of rows,
 * which it copies to where the others see them, and which other hosts get as messages; its
 * blocks wait for the panels they multiply, and which block comes next is decided when a
 * worker is free. */
#include "backend/sim/ops/sim_gather.h"
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/ops/sim_sums.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

/* ---- Panels ---- */

/* A rank that is alone keeps its rows where they are. */
static int64_t num_tasks(const ewx_sim *sim, int rank)
{
    return sim->num_ranks > 1 ? ewx_part_tile_rows(&sim->model.grid, rank) : 0;
}

static int64_t panel_bytes(const ewx_sim *sim, int rank, int64_t panel)
{
    return ewx_tile_height(&sim->model.grid, rank, (ewx_tile){panel, 0}) *
           sim->spec->problem.k * (int64_t)sim->spec->elem_bytes;
}

/* When dst sees the panel of a unit. */
static int64_t *seen_ps(const ewx_sim *sim, int64_t unit, int dst)
{
    return &sim->shared_ps[unit * sim->num_ranks + dst];
}

static bool set_up(ewx_sim *sim)
{
    const int64_t count = ewx_sim_num_units(sim) * sim->num_ranks;
    bool enough = true;
    sim->shared_ps = ewx_sim_allocate((size_t)count, sizeof *sim->shared_ps, &enough);
    sim->sources = ewx_sim_allocate((size_t)(sim->num_ranks * sim->num_ranks),
                                    sizeof *sim->sources, &enough);
    for (int64_t i = 0; enough && i < count; i++)
        sim->shared_ps[i] = EWX_SIM_LAST_PS;
    return enough;
}

static int64_t book_task(ewx_sim *sim, int rank, int64_t task, bool shares_sm)
{
    return ewx_sim_book_moves(sim, rank, 2.0 * (double)panel_bytes(sim, rank, task),
                              sim->now_ps, shares_sm);
}

static void receive(ewx_sim *sim, int dst, int64_t unit, int64_t visible_ps)
{
    *seen_ps(sim, unit, dst) = visible_ps;
    ewx_sim_push(&sim->queue, visible_ps, EWX_SIM_WAKE, dst, 0);
}

static int64_t message_bytes(const ewx_sim *sim, int dst, int64_t unit)
{
    const int src = ewx_sim_part_of(sim, unit);
    (void)dst;
    return panel_bytes(sim, src, unit - sim->first_unit[src]);
}

/* An emulated link books a panel to every peer of the host, and all see it when the last
 * has it. */
static void finish_task(ewx_sim *sim, int rank, int64_t task)
{
    const int64_t unit = ewx_sim_unit(sim, rank, task);
    const int64_t bytes = panel_bytes(sim, rank, task);
    int64_t there = sim->now_ps;
    for (int i = 1; i < sim->num_ranks; i++) {
        const int dst = (rank + i) % sim->num_ranks;
        if (!ewx_sim_share_node(sim, rank, dst))
            ewx_sim_contribute(sim, rank, dst, unit);
        else if (sim->model.link_ps > 0)
            there =
                ewx_sim_later(there, ewx_sim_book_send(sim, sim->now_ps, rank, dst, bytes));
        else
            sim->ranks[dst].remote_bytes += bytes;
    }
    for (int dst = 0; dst < sim->num_ranks; dst++)
        if (dst != rank && ewx_sim_share_node(sim, rank, dst))
            receive(sim, dst, unit, there + sim->model.publish_ps);
}

/* ---- Blocks ---- */

static ewx_sim_source *source_of(const ewx_sim *sim, int rank, int src)
{
    return &sim->sources[rank * sim->num_ranks + src];
}

static bool have_arrived(const ewx_sim *sim, int rank, int src, int64_t count)
{
    ewx_sim_source *source = source_of(sim, rank, src);
    while (src != rank && source->num_arrived < count &&
           *seen_ps(sim, ewx_sim_unit(sim, src, source->num_arrived), rank) <= sim->now_ps)
        source->num_arrived++;
    return src == rank || source->num_arrived >= count;
}

/* The panels that a block multiplies, and those that `release` puts together with them. */
static bool rows_ready(const ewx_sim *sim, int rank, ewx_block block)
{
    const ewx_grid *grid = &sim->model.grid;
    const int32_t release = sim->spec->config.release;
    const int64_t all = ewx_part_tile_rows(grid, block.part);
    const int64_t end = ewx_block_tiles(grid, block).end.row;
    if (release != EW_RELEASE_OUTPUT)
        return have_arrived(
            sim, rank, block.part,
            release < 1 ? all : ewx_min64(ewx_div_up(end, release) * release, all));
    for (int src = 0; src < sim->num_ranks; src++)
        if (!have_arrived(sim, rank, src, ewx_part_tile_rows(grid, src)))
            return false;
    return true;
}

static int64_t num_blocks_of(const ewx_sim *sim, int src)
{
    return ewx_part_block_rows(&sim->model.grid, src) * sim->model.grid.blocks_per_row;
}

/* The next block of a source's rows, if these are there. */
static bool take_from(ewx_sim *sim, int rank, int src, ewx_block *block_out)
{
    ewx_sim_source *source = source_of(sim, rank, src);
    if (source->num_taken >= num_blocks_of(sim, src))
        return false;
    *block_out = ewx_part_walk(&sim->model.grid, src, source->num_taken);
    const bool ready = rows_ready(sim, rank, *block_out);
    source->num_taken += ready;
    return ready;
}

/* Other ranks take turns; own rows while none of theirs are there. */
static bool take_in_turn(ewx_sim *sim, int rank, ewx_block *block_out)
{
    const int others = sim->num_ranks - 1;
    const int64_t turn = sim->ranks[rank].next_position;
    for (int i = 0; i < others; i++) {
        const int src = (int)(rank + 1 + (turn + i) % others) % sim->num_ranks;
        if (take_from(sim, rank, src, block_out))
            return true;
    }
    return take_from(sim, rank, rank, block_out);
}

/* One rank's rows after the other's, from the own ones on. */
static bool take_in_a_ring(ewx_sim *sim, int rank, ewx_block *block_out)
{
    for (int i = 0; i < sim->num_ranks; i++) {
        const int src = (rank + i) % sim->num_ranks;
        if (source_of(sim, rank, src)->num_taken < num_blocks_of(sim, src))
            return take_from(sim, rank, src, block_out);
    }
    return false;
}

static bool next_block(ewx_sim *sim, int rank, ewx_block *block_out)
{
    const ew_config *config = &sim->spec->config;
    if (config->order == EW_ORDER_DEFAULT || config->producer == EW_PRODUCER_BLAS) {
        *block_out = ewx_order_default(&sim->model.grid, sim->ranks[rank].next_position);
        return rows_ready(sim, rank, *block_out);
    }
    return config->order == EW_ORDER_CONTIGUOUS ? take_in_a_ring(sim, rank, block_out)
                                                : take_in_turn(sim, rank, block_out);
}

/* Nobody waits for a tile of C. */
static void complete_tile(ewx_sim *sim, int src, int part, ewx_tile tile)
{
    (void)sim, (void)src, (void)part, (void)tile;
}

const ewx_sim_op ewx_sim_ag_gemm = {.num_tasks = num_tasks,
                                    .set_up = set_up,
                                    .next_block = next_block,
                                    .complete_tile = complete_tile,
                                    .book_task = book_task,
                                    .message_bytes = message_bytes,
                                    .receive = receive,
                                    .finish_task = finish_task,
                                    .remote_bytes = ewx_sim_gathered_bytes,
                                    .crossed_bytes = ewx_sim_crossed_bytes};
