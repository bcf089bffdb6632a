/* Between hosts, as the CPU engine does it.  A unit goes to the network when its last
 * tile is there.  The caller's thread, worker 0, sends it and receives what arrives:
 * core time that slows its tiles down, or that it spends while it would wait.  With two
 * levels the ranks of a host sum their contributions first and take turns, unit by unit,
 * in doing so. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

/* ---- Core time ---- */

/* Returns when the bytes are through; they have been on their way since `since_ps`. */
static int64_t spend_core(ewx_sim *sim, int rank, int64_t since_ps, int64_t bytes)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const double ps = (double)bytes * sim->model.nic_cpu_ps;
    if (!r->producers[0].busy)
        return ewx_sim_book_core(sim, rank, since_ps, ps);
    r->network_owed_ps = ewx_sim_after(r->network_owed_ps, ps);
    return sim->now_ps;
}

int64_t ewx_sim_pay_network(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t owed_ps = worker == 0 ? r->network_owed_ps : 0;
    r->network_owed_ps -= owed_ps;
    return owed_ps;
}

void ewx_sim_serve_network(ewx_sim *sim, int rank, int worker)
{
    const int64_t owed_ps = ewx_sim_pay_network(sim, rank, worker);
    if (owed_ps > 0)
        ewx_sim_book_core(sim, rank, sim->now_ps, (double)owed_ps);
}

/* ---- Messages ---- */

static void send_unit(ewx_sim *sim, int src, int dst, int64_t unit)
{
    const int64_t bytes = sim->op->message_bytes(sim, dst, unit);
    spend_core(sim, src, sim->now_ps, bytes);
    ewx_sim_push(&sim->queue, ewx_sim_book_send(sim, sim->now_ps, src, dst, bytes),
                 EWX_SIM_ARRIVAL, dst, (int)unit);
}

/* A long message is received as it arrives. */
void ewx_sim_arrive(ewx_sim *sim, int dst, int64_t unit)
{
    const int64_t bytes = sim->op->message_bytes(sim, dst, unit);
    const int64_t first_ps = sim->now_ps - (int64_t)((double)bytes * sim->model.nic_ps);
    const int64_t through_ps = spend_core(sim, dst, first_ps, bytes);
    (sim->op->receive ? sim->op->receive : ewx_sim_publish)(
        sim, dst, unit, ewx_sim_later(through_ps, sim->now_ps));
}

/* ---- Sums of a host ---- */

static int node_of(const ewx_sim *sim, int rank)
{
    return rank / sim->model.ranks_per_node;
}

static void queue_sum(ewx_sim *sim, int rank, int64_t unit)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    int64_t *next = sim->next_sum + node_of(sim, rank) * ewx_sim_num_units(sim);
    next[unit] = -1;
    if (r->first_sum < 0)
        r->first_sum = unit;
    else
        next[r->last_sum] = unit;
    r->last_sum = unit;
    ewx_sim_push(&sim->queue, sim->now_ps + sim->model.publish_ps, EWX_SIM_WAKE, rank, 0);
}

void ewx_sim_contribute(ewx_sim *sim, int src, int dst, int64_t unit)
{
    const int node = node_of(sim, src);
    if (!sim->unsummed) {
        send_unit(sim, src, dst, unit);
        return;
    }
    if (--sim->unsummed[node * ewx_sim_num_units(sim) + unit] > 0)
        return;
    const int turn = (int)((unit - sim->first_unit[dst]) % ewx_sim_ranks_of_node(sim, src));
    queue_sum(sim, node * sim->model.ranks_per_node + turn, unit);
}

bool ewx_sim_begin_sum(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const ewx_sim_model *model = &sim->model;
    if (r->summing || r->first_sum < 0)
        return false;
    const int64_t unit = r->first_sum;
    const int64_t bytes = ewx_sim_unit_bytes(sim, ewx_sim_part_of(sim, unit), unit);
    /* Contributions are read, the sum is written and copied to where it is sent from. */
    const double moved = (double)bytes * (ewx_sim_ranks_of_node(sim, rank) + 3);
    const double ps = moved * model->cta_ps +
                      (double)bytes / (double)model->tile_bytes * (double)model->reducer_ps;
    r->first_sum = sim->next_sum[node_of(sim, rank) * ewx_sim_num_units(sim) + unit];
    r->summing = true;
    r->producers[worker].busy = true;
    r->producers[worker].sum = unit;
    ewx_sim_push(
        &sim->queue,
        ewx_sim_after(sim->now_ps, ps + (double)ewx_sim_pay_network(sim, rank, worker)),
        EWX_SIM_REDUCE_END, rank, worker);
    return true;
}

void ewx_sim_end_sum(ewx_sim *sim, int rank, int worker)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t unit = r->producers[worker].sum;
    r->summing = false;
    send_unit(sim, rank, ewx_sim_part_of(sim, unit), unit);
}
