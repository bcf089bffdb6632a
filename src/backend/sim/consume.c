/* Reducers: where they sit, what they wait for, what they move. */
#include "backend/sim/engine.h"

/* ---- Links and memory: each serves its bookings in their order ---- */

static int64_t occupy(int64_t *busy_until_ps, int64_t now_ps, double duration_ps)
{
    const int64_t begin = *busy_until_ps > now_ps ? *busy_until_ps : now_ps;
    *busy_until_ps = ewx_sim_after(begin, duration_ps);
    return *busy_until_ps;
}

static int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

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

/* A GPU has its own, the ranks of a CPU's node have one. */
static ewx_sim_rank *nic_of(ewx_sim *sim, int rank)
{
    const int per_node = sim->model.ranks_per_node;
    return &sim->ranks[sim->request->profile->is_cpu ? rank / per_node * per_node : rank];
}

int64_t ewx_sim_book_core(ewx_sim *sim, int rank, int64_t from_ps, double duration_ps)
{
    return occupy(&sim->ranks[rank].network_ps, from_ps, duration_ps);
}

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
    return later(sent, received) + (near ? model->link_latency_ps : model->nic_latency_ps);
}

/* A copy behind the GEMM of its partition and the copy before, and the kernel that
 * announces it behind that. */
int64_t ewx_sim_book_copy(ewx_sim *sim, int src, int dst, int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *r = &sim->ranks[src];
    const int num_calls = EWX_SIM_CALLS_PER_PART * r->num_parts - 1; /* the part's last */
    const int64_t there = ewx_sim_enqueued_ps(sim, src, num_calls);
    const int64_t begin =
        later(later(sim->now_ps, r->copying_ps) + model->launch_ps, there);
    const int64_t copied =
        occupy(&sim->copies_ps[gpu_of(sim, src)], begin, (double)bytes * model->copy_ps);
    r->copying_ps = ewx_sim_book_send(sim, copied + model->launch_ps, src, dst, bytes);
    /* Its writes keep the memory from all who compute on the GPU. */
    r->owed_ps = ewx_sim_after(r->owed_ps, (double)bytes * model->mem_ps * model->sharers);
    return r->copying_ps + model->publish_ps;
}

/* With two levels one rank of each other node does: the one in the owner's place. */
static bool sends_to(const ewx_sim *sim, int src, int rank)
{
    const int per_node = sim->model.ranks_per_node;
    const int count = ewx_sim_ranks_of_node(sim, src);
    return !sim->model.sums_in_nodes || src % per_node == rank % per_node % count;
}

/* All sources at once, each over its egress, together over the owner's ingress. */
static int64_t pull_from(ewx_sim *sim, int rank, bool near, int64_t from_ps, int64_t bytes)
{
    const ewx_sim_model *model = &sim->model;
    ewx_sim_rank *owner = &sim->ranks[rank];
    const double ps = (double)bytes * (near ? model->link_ps : model->nic_ps);
    int count = 0;
    int64_t end_ps = from_ps;
    for (int src = 0; src < sim->num_ranks; src++) {
        ewx_sim_rank *from = &sim->ranks[src];
        if (src == rank || ewx_sim_share_node(sim, src, rank) != near ||
            (!near && !sends_to(sim, src, rank)))
            continue;
        count++;
        if (!from->mirrored)
            end_ps = later(
                end_ps, occupy(near ? &from->egress_ps : &from->nic_out_ps, from_ps, ps));
    }
    owner->remote_bytes += bytes * count;
    owner->crossed_bytes += near ? 0 : bytes * count;
    if (count == 0)
        return from_ps;
    return later(end_ps, occupy(near ? &owner->ingress_ps : &owner->nic_in_ps, from_ps,
                                count * ps)) +
           (near ? model->link_latency_ps : model->nic_latency_ps);
}

/* Flat, near and far sources at once.  With two levels the reducer reads as much again from
 * near ones for each sum that it makes for another node, and those of other nodes do the
 * same: their sums are there when it has.  The link that a virtual node emulates lets a
 * tile's sum begin when its turn comes; a real one brings some bytes to everybody from the
 * start. */
static int64_t book_pull(ewx_sim *sim, int rank, int64_t bytes, int64_t *begin_ps)
{
    const ewx_sim_model *model = &sim->model;
    const bool sums = model->sums_in_nodes;
    const int64_t near_bytes = sums ? bytes * model->num_nodes : bytes;
    const int64_t near_ps = pull_from(sim, rank, true, sim->now_ps, near_bytes);
    if (model->sharers > 1) {
        const int num_near = ewx_sim_ranks_of_node(sim, rank) - 1;
        const double ps = (double)(near_bytes * num_near) * model->link_ps;
        *begin_ps = later(*begin_ps, near_ps - (int64_t)ps);
    }
    return later(near_ps, pull_from(sim, rank, false, sums ? near_ps : sim->now_ps, bytes));
}

int64_t ewx_sim_book_reduce(ewx_sim *sim, int rank, int64_t task, bool shares_sm)
{
    const ewx_sim_model *model = &sim->model;
    const ewx_grid *grid = &model->grid;
    ewx_sim_rank *r = &sim->ranks[rank];
    const ewx_tile tile = ewx_task_tile(grid, rank, task);
    const int64_t bytes = ewx_sim_tile_bytes(sim, rank, tile);
    const double moved = (double)bytes * model->moved_tiles;
    const double slowdown = shares_sm ? model->shared_time : 1;
    int64_t begin = sim->now_ps;
    int64_t end =
        occupy(&sim->memory_ps[gpu_of(sim, rank)], sim->now_ps, moved * model->mem_ps);
    if (sim->spec->config.transport == EW_TRANSPORT_PULL && !sim->request->profile->is_cpu)
        end = later(end, book_pull(sim, rank, bytes, &begin));
    end = later(end, ewx_sim_after(begin, slowdown * ((double)model->reducer_ps +
                                                      moved * model->cta_ps)));
    if (r->num_computing > 0)
        r->stolen_ps =
            ewx_sim_after(r->stolen_ps, moved * model->steal_ps / r->num_computing);
    return end;
}

/* ---- Tasks ---- */

bool ewx_sim_is_ready(const ewx_sim *sim, int rank, int64_t task, int64_t *ready_ps_out)
{
    const int64_t unit = ewx_sim_unit(sim, rank, task);
    *ready_ps_out = sim->ready_ps[unit];
    return sim->missing[unit] == 0;
}

void ewx_sim_finish_task(ewx_sim *sim, int rank, int worker, int64_t task, int64_t begin_ps)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const ewx_tile tile = ewx_task_tile(&sim->model.grid, rank, task);
    ewx_sim_trace(sim, rank,
                  &(ew_trace_event){.kind = EW_TRACE_REDUCE,
                                    .worker = worker,
                                    .dst = rank,
                                    .row = (int32_t)tile.row,
                                    .col = (int32_t)tile.col,
                                    .position = task,
                                    .begin_ns = begin_ps / 1000,
                                    .end_ns = sim->now_ps / 1000});
    if (--r->tasks_left == 0)
        r->end_ps = sim->now_ps;
}

/* The reducer's current task: begins it, sleeps until it is ready, or waits. */
static void try_task(ewx_sim *sim, int rank, int at)
{
    ewx_sim_consumer *consumer = &sim->ranks[rank].consumers[at];
    int64_t ready_ps;
    if (!ewx_sim_is_ready(sim, rank, consumer->task, &ready_ps)) {
        consumer->phase = EWX_SIM_WAITING;
        return;
    }
    consumer->phase = EWX_SIM_ACTIVE;
    if (ready_ps > sim->now_ps) {
        ewx_sim_push(&sim->queue, ready_ps, EWX_SIM_RESUME, rank, at);
        return;
    }
    const bool shares_sm = sim->ranks[rank].sms[consumer->sm].producers > 0;
    consumer->begin_ps = sim->now_ps;
    ewx_sim_push(&sim->queue, ewx_sim_book_reduce(sim, rank, consumer->task, shares_sm),
                 EWX_SIM_REDUCE_END, rank, at);
}

void ewx_sim_resume(ewx_sim *sim, int rank, int consumer)
{
    try_task(sim, rank, consumer);
}

/* The reducers that wait for a unit are those of its tasks. */
void ewx_sim_wake_unit(ewx_sim *sim, int dst, int64_t unit)
{
    ewx_sim_rank *r = &sim->ranks[dst];
    const int budget = r->budget;
    const int32_t release = sim->spec->config.release;
    if (sim->request->profile->is_cpu) {
        ewx_sim_push(&sim->queue, later(sim->ready_ps[unit], sim->now_ps), EWX_SIM_WAKE,
                     dst, 0);
        return;
    }
    const bool few = release > 0 && release < budget;
    const int64_t first = few ? (unit - sim->first_unit[dst]) * release - r->first_task : 0;
    for (int64_t i = 0; i < (few ? release : budget); i++) {
        const int64_t task = first + i;
        if (task < 0)
            continue;
        ewx_sim_consumer *consumer = &r->consumers[task % budget];
        if (consumer->phase == EWX_SIM_WAITING &&
            ewx_sim_unit(sim, dst, consumer->task) == unit)
            try_task(sim, dst, (int)(task % budget));
    }
}

/* ---- Kernels and SMs ---- */

static void admit(ewx_sim *sim, int rank, int at, int sm)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    r->sms[sm].reducers++;
    r->num_resident++;
    r->consumers[at].sm = sm;
    try_task(sim, rank, at);
}

static bool has_room(const ewx_sim *sim, const ewx_sim_rank *r, int sm)
{
    const ewx_sim_sm *s = &r->sms[sm];
    if (sim->spec->config.pool == EW_POOL_STATIC && !s->only_reduces)
        return false;
    return s->reducers < sim->model.reducers_beside[s->producers];
}

/* SMs in turn, one reducer each, while there is room anywhere. */
static void admit_pending(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int sms = sim->model.sms;
    for (int full = 0; r->first_pending < r->num_ctas && full < sms;) {
        const int sm = r->next_sm;
        r->next_sm = (sm + 1) % sms;
        if (!has_room(sim, r, sm)) {
            full++;
            continue;
        }
        full = 0;
        admit(sim, rank, r->first_pending++, sm);
    }
}

void ewx_sim_launch_next(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    int64_t *free_ps = &sim->front_ps[gpu_of(sim, rank)];
    const int gemms = r->num_parts > 1 ? EWX_SIM_CALLS_PER_PART * (r->num_parts - 1) : 0;
    const int num_calls = gemms + ++r->num_launches;
    const int64_t before = later(later(sim->now_ps, r->gemm_end_ps), r->copying_ps);
    const int64_t ready = before + sim->model.launch_ps;
    const int64_t start =
        later(later(ready, *free_ps), ewx_sim_enqueued_ps(sim, rank, num_calls));
    *free_ps = start + sim->model.stagger_ps;
    ewx_sim_push(&sim->queue, start, EWX_SIM_LAUNCH, rank, 0);
}

void ewx_sim_launch_reducers(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int64_t num_tasks = ewx_part_tiles(&sim->model.grid, rank);
    const int32_t release = sim->spec->config.release;
    const bool by_unit = sim->spec->config.launches == EW_LAUNCHES_UNIT && release > 0;
    r->first_task = r->end_task;
    r->end_task = by_unit ? ewx_min64(r->end_task + release, num_tasks) : num_tasks;
    r->num_ctas = (int)ewx_min64(r->budget, r->end_task - r->first_task);
    r->first_pending = 0;
    for (int at = 0; at < r->budget; at++)
        r->consumers[at] =
            (ewx_sim_consumer){.phase = EWX_SIM_PENDING, .task = r->first_task + at};
    admit_pending(sim, rank);
}

void ewx_sim_fill_sm(ewx_sim *sim, int rank, int sm)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int per_sm = sim->model.producers_per_sm;
    while (r->first_pending < r->num_ctas && has_room(sim, r, sm))
        admit(sim, rank, r->first_pending++, sm);
    if (r->sms[sm].only_reduces || sim->spec->config.ctas != EW_CTAS_BLOCK)
        return;
    for (int i = 0; i < per_sm; i++) {
        const int slot = sm * per_sm + i;
        const int producers = r->sms[sm].producers + 1;
        if (r->producers[slot].busy || producers > per_sm ||
            r->sms[sm].reducers > sim->model.reducers_beside[producers] ||
            !ewx_sim_begin_block(sim, rank, slot))
            continue;
        r->sms[sm].producers++;
        r->num_computing++;
    }
}

void ewx_sim_end_reduce(ewx_sim *sim, int rank, int at)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_consumer *consumer = &r->consumers[at];
    ewx_sim_finish_task(sim, rank, r->num_slots + at, consumer->task, consumer->begin_ps);
    consumer->task += r->budget;
    if (consumer->task < r->end_task) {
        try_task(sim, rank, at);
        return;
    }
    consumer->phase = EWX_SIM_GONE;
    r->sms[consumer->sm].reducers--;
    r->num_resident--;
    ewx_sim_fill_sm(sim, rank, consumer->sm);
    if (r->num_resident == 0 && r->tasks_left > 0 && r->first_pending == r->num_ctas)
        ewx_sim_launch_next(sim, rank);
}
