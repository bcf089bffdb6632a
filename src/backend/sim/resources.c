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

/* ---- The front end ---- */

int64_t ewx_sim_book_launch(ewx_sim *sim, int rank, int64_t ready_ps)
{
    int64_t *free_ps = &sim->front_ps[gpu_of(sim, rank)];
    const int64_t start = ewx_sim_later(ready_ps, *free_ps);
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

ewx_sim_span ewx_sim_book_memory(ewx_sim *sim, int rank, double bytes)
{
    int64_t *busy_until_ps = &sim->memory_ps[gpu_of(sim, rank)];
    const int64_t begin = ewx_sim_later(*busy_until_ps, sim->now_ps);
    const int64_t end = occupy(busy_until_ps, sim->now_ps, bytes * sim->model.mem_ps);
    return (ewx_sim_span){begin, end};
}

void ewx_sim_interrupt_producers(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    if (r->num_computing > 0)
        r->stolen_ps = ewx_sim_after(r->stolen_ps, (double)sim->model.beside_ps);
}

void ewx_sim_delay_producers(ewx_sim *sim, int rank, double bytes)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    if (r->num_computing > 0)
        r->stolen_ps =
            ewx_sim_after(r->stolen_ps, bytes * sim->model.steal_ps / r->num_computing);
}

/* ---- Links, NICs and copy engines ---- */

static ewx_sim_span travel(ewx_sim *sim, ewx_sim_way *way, int64_t from_ps,
                           double duration_ps)
{
    const ewx_sim_span span =
        ewx_sim_way_take(way, sim->now_ps, from_ps, ewx_sim_after(0, duration_ps));
    sim->queue.failed = sim->queue.failed || way->failed;
    return span;
}

static double way_ps(const ewx_sim *sim, bool near, int64_t bytes)
{
    return (double)bytes * (near ? sim->model.link_ps : sim->model.nic_ps);
}

ewx_sim_span ewx_sim_book_way_out(ewx_sim *sim, int64_t from_ps, int src, int dst,
                                  int64_t bytes)
{
    const bool near = ewx_sim_share_node(sim, src, dst);
    ewx_sim_way *out = near                    ? &sim->ranks[src].egress
                       : sim->model.nic_shared ? &sim->medium
                                               : &nic_of(sim, src)->nic_out;
    return travel(sim, out, from_ps, way_ps(sim, near, bytes));
}

/* Where NICs share their rate, every byte has had its turn on the way out. */
int64_t ewx_sim_book_way_in(ewx_sim *sim, ewx_sim_span sent, int src, int dst,
                            int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *to = &sim->ranks[dst];
    const bool near = ewx_sim_share_node(sim, src, dst);
    const bool one = sim->spec->config.transport == EW_TRANSPORT_COPY;
    const double weight = one ? 1 : near ? to->near_weight : to->far_weight;
    ewx_sim_span received = sent;
    if (near || !model->nic_shared)
        received = travel(sim, near ? &to->ingress : &nic_of(sim, dst)->nic_in,
                          sent.begin_ps, way_ps(sim, near, bytes) * weight);
    to->remote_bytes += bytes;
    to->crossed_bytes += near ? 0 : bytes;
    return ewx_sim_later(sent.end_ps, received.end_ps) +
           (near ? model->link_latency_ps : model->nic_latency_ps);
}

int64_t ewx_sim_book_send(ewx_sim *sim, int64_t from_ps, int src, int dst, int64_t bytes)
{
    const ewx_sim_span sent = ewx_sim_book_way_out(sim, from_ps, src, dst, bytes);
    return ewx_sim_book_way_in(sim, sent, src, dst, bytes);
}

static bool has_place_of(const ewx_sim *sim, int src, int rank)
{
    const int per_node = sim->model.ranks_per_node;
    return src % per_node == rank % per_node % ewx_sim_ranks_of_node(sim, src);
}

static bool is_source(const ewx_sim *sim, int src, int rank, bool near, bool per_node)
{
    return src != rank && ewx_sim_share_node(sim, src, rank) == near &&
           (near || !per_node || has_place_of(sim, src, rank));
}

/* What asks for the bytes goes the other way.  It takes its share of that and does not
 * wait, being short. */
static void book_requests(ewx_sim *sim, int reader, int src, int64_t from_ps, int64_t bytes)
{
    const double ps = (double)bytes * sim->model.asked_ps;
    if (ps > 0) {
        travel(sim, &sim->ranks[reader].egress, from_ps, ps);
        travel(sim, &sim->ranks[src].ingress, from_ps, ps);
    }
}

/* First the owner's way in, for all of them together; when its turn has come there, the
 * way out of each source. */
int64_t ewx_sim_book_pull(ewx_sim *sim, int rank, bool near, bool per_node, int64_t from_ps,
                          int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *owner = &sim->ranks[rank];
    const double ps = (double)bytes * (near ? model->link_ps : model->nic_ps);
    int count = 0;
    for (int src = 0; src < sim->num_ranks; src++)
        count += is_source(sim, src, rank, near, per_node);
    if (count == 0)
        return from_ps;
    const ewx_sim_span received =
        travel(sim, near ? &owner->ingress : &owner->nic_in, from_ps, count * ps);
    int64_t end_ps = received.end_ps;
    for (int src = 0; src < sim->num_ranks; src++) {
        ewx_sim_rank *from = &sim->ranks[src];
        if (from->mirrored || !is_source(sim, src, rank, near, per_node))
            continue;
        const ewx_sim_span sent =
            travel(sim, near ? &from->egress : &from->nic_out, received.begin_ps, ps);
        end_ps = ewx_sim_later(end_ps, sent.end_ps);
        if (near)
            book_requests(sim, rank, src, received.begin_ps, bytes);
    }
    owner->remote_bytes += bytes * count;
    owner->crossed_bytes += near ? 0 : bytes * count;
    return end_ps + (near ? model->link_latency_ps : model->nic_latency_ps);
}

/* Behind the GEMM of its partition and the copy before, when its stream has seen that
 * GEMM's event and, where the link is emulated, has booked the copy there; behind it comes
 * the kernel that announces it.  It is on the link from its start on. */
int64_t ewx_sim_book_copy(ewx_sim *sim, int src, int dst, int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *r = &sim->ranks[src];
    const bool emulated = model->sharers > 1 && model->link_ps > 0;
    const int64_t begin =
        ewx_sim_later(sim->now_ps, r->copying_ps) + (emulated ? 3 : 2) * model->command_ps;
    const int64_t arrival = ewx_sim_book_send(sim, begin, src, dst, bytes);
    const int64_t copied =
        occupy(&sim->copies_ps[gpu_of(sim, src)], begin, (double)bytes * model->copy_ps);
    r->copying_ps = ewx_sim_later(copied + model->command_ps, arrival);
    /* Its writes take memory bandwidth from all that compute on the GPU. */
    r->owed_ps = ewx_sim_after(r->owed_ps, (double)bytes * model->mem_ps * model->sharers);
    return r->copying_ps + model->publish_ps;
}
