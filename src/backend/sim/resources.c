#include "backend/sim/resources.h"

static int64_t occupy(int64_t *busy_until_ps, int64_t now_ps, double duration_ps)
{
    const int64_t begin = ewx_sim_later(*busy_until_ps, now_ps);
    *busy_until_ps = ewx_sim_after(begin, duration_ps);
    return *busy_until_ps;
}

/* ---- Nodes ---- */

static int gpu_of(const ewx_sim *sim, int rank)
{
    return sim->model.sharers > 1 ? rank % (int)sim->request->profile->gpus : rank;
}

bool ewx_sim_share_node(const ewx_sim *sim, int a, int b)
{
    return a / sim->model.ranks_per_node == b / sim->model.ranks_per_node;
}

int ewx_sim_ranks_of_node(const ewx_sim *sim, int rank)
{
    const int per_node = sim->model.ranks_per_node;
    return (int)ewx_min64(per_node, sim->num_ranks - rank / per_node * per_node);
}

/* A GPU has its own; the ranks of a CPU's node share one. */
static ewx_sim_rank *nic_of(ewx_sim *sim, int rank)
{
    const int per_node = sim->model.ranks_per_node;
    return &sim->ranks[sim->request->profile->is_cpu ? rank / per_node * per_node : rank];
}

/* ---- The host ---- */

int64_t ewx_sim_enqueued_ps(const ewx_sim *sim, int rank, int num_calls)
{
    return sim->ranks[rank].start_ps + num_calls * sim->model.host_ps;
}

int64_t ewx_sim_book_launch(ewx_sim *sim, int rank, int64_t ready_ps, int num_calls)
{
    int64_t *free_ps = &sim->front_ps[gpu_of(sim, rank)];
    const int64_t start = ewx_sim_later(ewx_sim_later(ready_ps, *free_ps),
                                        ewx_sim_enqueued_ps(sim, rank, num_calls));
    *free_ps = start + sim->model.stagger_ps;
    return start;
}

int64_t ewx_sim_book_core(ewx_sim *sim, int rank, int64_t from_ps, double duration_ps)
{
    return occupy(&sim->ranks[rank].network_ps, from_ps, duration_ps);
}

/* ---- SMs ---- */

bool ewx_sim_fits_producer(const ewx_sim *sim, int rank, int sm)
{
    const ewx_sim_sm *s = &sim->ranks[rank].sms[sm];
    const int producers = s->producers + 1;
    return producers <= sim->model.producers_per_sm &&
           s->reducers <= sim->model.reducers_beside[producers];
}

bool ewx_sim_fits_reducer(const ewx_sim *sim, int rank, int sm)
{
    const ewx_sim_sm *s = &sim->ranks[rank].sms[sm];
    if (sim->spec->config.pool == EW_POOL_STATIC && !s->only_reduces)
        return false;
    return s->reducers < sim->model.reducers_beside[s->producers];
}

void ewx_sim_add_producers(ewx_sim *sim, int rank, int sm, int change)
{
    sim->ranks[rank].sms[sm].producers += (int16_t)change;
    sim->ranks[rank].num_computing += change;
}

void ewx_sim_add_reducers(ewx_sim *sim, int rank, int sm, int change)
{
    sim->ranks[rank].sms[sm].reducers += (int16_t)change;
    sim->ranks[rank].num_resident += change;
}

/* ---- Memory ---- */

int64_t ewx_sim_book_memory(ewx_sim *sim, int rank, double bytes)
{
    return occupy(&sim->memory_ps[gpu_of(sim, rank)], sim->now_ps,
                  bytes * sim->model.mem_ps);
}

void ewx_sim_delay_producers(ewx_sim *sim, int rank, double bytes)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    if (r->num_computing > 0)
        r->stolen_ps =
            ewx_sim_after(r->stolen_ps, bytes * sim->model.steal_ps / r->num_computing);
}

/* ---- Links, NICs and copy engines ---- */

int64_t ewx_sim_book_send(ewx_sim *sim, int64_t from_ps, int src, int dst, int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *from = &sim->ranks[src], *to = &sim->ranks[dst];
    const bool near = ewx_sim_share_node(sim, src, dst);
    const double ps = (double)bytes * (near ? model->link_ps : model->nic_ps);
    int64_t *out = near ? &from->egress_ps : &nic_of(sim, src)->nic_out_ps;
    int64_t *in = near ? &to->ingress_ps : &nic_of(sim, dst)->nic_in_ps;
    if (!near && model->nic_shared) /* every byte takes its turn once */
        in = out = &sim->medium_ps;
    const int64_t sent = occupy(out, from_ps, ps);
    const double weight = near ? to->near_weight : to->far_weight;
    const bool one = sim->spec->config.transport == EW_TRANSPORT_COPY;
    const int64_t received = in == out ? sent : occupy(in, from_ps, one ? ps : ps * weight);
    to->remote_bytes += bytes;
    to->crossed_bytes += near ? 0 : bytes;
    return ewx_sim_later(sent, received) +
           (near ? model->link_latency_ps : model->nic_latency_ps);
}

static bool has_place_of(const ewx_sim *sim, int src, int rank)
{
    const int per_node = sim->model.ranks_per_node;
    return src % per_node == rank % per_node % ewx_sim_ranks_of_node(sim, src);
}

/* Each source over its egress, together over the owner's ingress. */
int64_t ewx_sim_book_pull(ewx_sim *sim, int rank, bool near, bool per_node, int64_t from_ps,
                          int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *owner = &sim->ranks[rank];
    const double ps = (double)bytes * (near ? model->link_ps : model->nic_ps);
    int count = 0;
    int64_t end_ps = from_ps;
    for (int src = 0; src < sim->num_ranks; src++) {
        ewx_sim_rank *from = &sim->ranks[src];
        if (src == rank || ewx_sim_share_node(sim, src, rank) != near ||
            (!near && per_node && !has_place_of(sim, src, rank)))
            continue;
        count++;
        if (!from->mirrored)
            end_ps = ewx_sim_later(
                end_ps, occupy(near ? &from->egress_ps : &from->nic_out_ps, from_ps, ps));
    }
    owner->remote_bytes += bytes * count;
    owner->crossed_bytes += near ? 0 : bytes * count;
    if (count == 0)
        return from_ps;
    return ewx_sim_later(end_ps, occupy(near ? &owner->ingress_ps : &owner->nic_in_ps,
                                        from_ps, count * ps)) +
           (near ? model->link_latency_ps : model->nic_latency_ps);
}

/* Behind the GEMM of its partition and the copy before; behind it comes the kernel that
 * announces it. */
int64_t ewx_sim_book_copy(ewx_sim *sim, int src, int dst, int64_t bytes, int num_calls)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *r = &sim->ranks[src];
    const int64_t there = ewx_sim_enqueued_ps(sim, src, num_calls);
    const int64_t begin =
        ewx_sim_later(ewx_sim_later(sim->now_ps, r->copying_ps) + model->launch_ps, there);
    const int64_t copied =
        occupy(&sim->copies_ps[gpu_of(sim, src)], begin, (double)bytes * model->copy_ps);
    r->copying_ps = ewx_sim_book_send(sim, copied + model->launch_ps, src, dst, bytes);
    /* Its writes take memory bandwidth from all that compute on the GPU. */
    r->owed_ps = ewx_sim_after(r->owed_ps, (double)bytes * model->mem_ps * model->sharers);
    return r->copying_ps + model->publish_ps;
}
