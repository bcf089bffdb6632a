#include "backend/sim/ops/sim_sums.h"

#include "backend/sim/resources.h"

int64_t ewx_sim_stored_ps(const ewx_sim *sim, int src)
{
    return ewx_sim_later(sim->ranks[src].arrival_ps, sim->now_ps);
}

int64_t ewx_sim_push_tile(ewx_sim *sim, int src, int dst, int64_t bytes)
{
    if (src == dst)
        return sim->now_ps;
    const int64_t arrival =
        ewx_sim_book_send(sim, sim->now_ps, src, dst, bytes * sim->spec->layout.num_pieces);
    ewx_sim_rank *r = &sim->ranks[src];
    r->arrival_ps = ewx_sim_later(r->arrival_ps, arrival);
    return arrival;
}

/* Flat, all ranks' contributions are read and one tile is written; where they have become
 * a sum on their way, that is read, written and set to zero.  With two levels the own
 * node's are summed first, then the nodes' sums; where the same reducers also sum for other
 * nodes, as a GPU's are taken to, the first happens as often as there are nodes. */
static double moved_tiles(const ewx_sim *sim)
{
    const ewx_sim_model *model = &sim->model;
    const int sums = sim->request->profile->is_cpu ? 1 : model->num_nodes;
    if (ewx_transport_adds(sim->spec->config.transport))
        return 3;
    return model->sums_in_nodes ? sums * (model->ranks_per_node + 1) + model->num_nodes + 1
                                : sim->num_ranks * sim->spec->layout.num_pieces + 1;
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

/* Bytes that pass the memory, that take the GEMM's time, and that count for the rate of a
 * CTA, whose loads wait for their turn in the memory. */
typedef struct moved_bytes {
    double memory, beside, handled;
} moved_bytes;

static int64_t book(ewx_sim *sim, int rank, moved_bytes moved, int64_t begin_ps,
                    bool shares_sm)
{
    const ewx_sim_model *model = &sim->model;
    const double slowdown = shares_sm ? model->shared_time : 1;
    const ewx_sim_span turn = ewx_sim_book_memory(sim, rank, moved.memory);
    ewx_sim_delay_producers(sim, rank, moved.beside);
    return ewx_sim_later(turn.end_ps,
                         ewx_sim_after(ewx_sim_later(begin_ps, turn.begin_ps),
                                       slowdown * ((double)model->reducer_ps +
                                                   moved.handled * model->cta_ps)));
}

int64_t ewx_sim_book_moves(ewx_sim *sim, int rank, double moved, int64_t begin_ps,
                           bool shares_sm)
{
    return book(sim, rank, (moved_bytes){moved, moved, moved}, begin_ps, shares_sm);
}

/* What a byte that is pushed takes of a GPU's memory: it is written, but read once for all
 * that it is pushed to, since the others find it in the L2.  Of an H200 with W = 8
 * (allgather-unpaced.json, sequential). */
static const double memory_per_pushed_byte = 1.65;

int64_t ewx_sim_book_push(ewx_sim *sim, int rank, int64_t bytes, bool shares_sm)
{
    const double all = (double)bytes;
    return book(sim, rank, (moved_bytes){memory_per_pushed_byte * all, 2.0 * all, all},
                sim->now_ps, shares_sm);
}

int64_t ewx_sim_book_sum(ewx_sim *sim, int rank, int64_t bytes, int pushed, bool shares_sm)
{
    int64_t begin = sim->now_ps, end = sim->now_ps;
    if (sim->spec->config.transport == EW_TRANSPORT_PULL && !sim->request->profile->is_cpu)
        end = pull(sim, rank, bytes * sim->spec->layout.num_pieces, &begin);
    const double moved = (double)bytes * (moved_tiles(sim) + pushed);
    return ewx_sim_later(end, ewx_sim_book_moves(sim, rank, moved, begin, shares_sm));
}
