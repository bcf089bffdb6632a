/* Reducers on a GPU: where they sit, and when they begin, wait and end. */
#include "backend/sim/ops/sim_op.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"

/* ---- Tasks ---- */

void ewx_sim_finish_task(ewx_sim *sim, int rank, int worker, int64_t task, int64_t begin_ps)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    if (sim->op->event) {
        ew_trace_event event = sim->op->event(sim, rank, task);
        event.worker = worker;
        event.begin_ns = begin_ps / 1000;
        event.end_ns = sim->now_ps / 1000;
        ewx_sim_trace(sim, rank, &event);
    }
    if (sim->op->finish_task)
        sim->op->finish_task(sim, rank, task);
    if (--r->tasks_left > 0)
        return;
    r->end_ps = sim->now_ps;
    if (sim->spec->op->gemm_waits && sim->spec->config.pool == EW_POOL_AFTER)
        ewx_sim_launch_gemm(sim, rank);
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
    const bool sends = sim->op->send_task && sim->model.sharers > 1;
    consumer->begin_ps = sim->now_ps;
    ewx_sim_push(&sim->queue, sim->op->book_task(sim, rank, consumer->task, shares_sm),
                 sends ? EWX_SIM_SEND : EWX_SIM_REDUCE_END, rank, at);
}

void ewx_sim_send(ewx_sim *sim, int rank, int consumer)
{
    ewx_sim_consumer *mover = &sim->ranks[rank].consumers[consumer];
    mover->sent = sim->op->send_task(sim, rank, mover->task);
    ewx_sim_push(&sim->queue, mover->sent.begin_ps, EWX_SIM_DELIVER, rank, consumer);
}

void ewx_sim_deliver(ewx_sim *sim, int rank, int consumer)
{
    const ewx_sim_consumer *mover = &sim->ranks[rank].consumers[consumer];
    ewx_sim_push(&sim->queue, sim->op->deliver_task(sim, rank, mover->task, mover->sent),
                 EWX_SIM_REDUCE_END, rank, consumer);
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
    if (sim->request->profile->is_cpu) {
        ewx_sim_push(&sim->queue, ewx_sim_later(sim->ready_ps[unit], sim->now_ps),
                     EWX_SIM_WAKE, dst, 0);
        return;
    }
    if (sim->model.calls_nccl) {
        ewx_sim_book_call(sim);
        return;
    }
    if (sim->op->cta_of) {
        const int at = sim->op->cta_of(sim, dst, unit - sim->first_unit[dst]);
        if (at >= 0 && r->consumers[at].phase == EWX_SIM_WAITING &&
            ewx_sim_unit(sim, dst, r->consumers[at].task) == unit)
            try_task(sim, dst, at);
        return;
    }
    const ewx_task_range tasks = ewx_release_range(
        sim->unit_tasks, sim->op->num_tasks(sim, dst), unit - sim->first_unit[dst]);
    const bool few = tasks.end - tasks.first < budget;
    const int64_t first = few ? tasks.first - r->first_share : 0;
    for (int64_t i = 0; i < (few ? tasks.end - tasks.first : budget); i++) {
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
    ewx_sim_add_reducers(sim, rank, sm, 1);
    sim->ranks[rank].consumers[at].sm = sm;
    try_task(sim, rank, at);
}

/* SMs in turn, one reducer each, while there is room anywhere. */
static void admit_pending(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int sms = sim->model.sms;
    for (int full = 0; r->first_pending < r->num_ctas && full < sms;) {
        const int sm = r->next_sm;
        r->next_sm = (sm + 1) % sms;
        if (!ewx_sim_fits_reducer(sim, rank, sm)) {
            full++;
            continue;
        }
        full = 0;
        admit(sim, rank, r->first_pending++, sm);
    }
}

void ewx_sim_launch_next(ewx_sim *sim, int rank)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    const ewx_sim_model *model = &sim->model;
    const bool by_unit = sim->spec->config.launches == EW_LAUNCHES_UNIT;
    const int64_t before =
        ewx_sim_later(ewx_sim_later(sim->now_ps, r->gemm_end_ps), r->copying_ps);
    const int64_t ready = before + (by_unit ? model->command_ps : model->launch_ps);
    ewx_sim_push(&sim->queue, ewx_sim_book_launch(sim, rank, ready), EWX_SIM_LAUNCH, rank,
                 0);
}

/* The shares of the next launch: all, or those that begin in the next release unit. */
static void next_shares(const ewx_sim *sim, int rank, ewx_sim_rank *r)
{
    const ewx_release release = ewx_release_of(&sim->spec->config);
    const bool by_unit = sim->spec->config.launches == EW_LAUNCHES_UNIT && release.size > 0;
    const int64_t num_tasks = sim->op->num_tasks(sim, rank);
    const int64_t each = sim->op->share_tasks ? sim->op->share_tasks(sim) : 1;
    int64_t end = num_tasks;
    r->first_share = r->end_share;
    if (by_unit) {
        const int64_t unit = ewx_release_unit(release, num_tasks, r->first_share * each);
        end = ewx_release_range(release, num_tasks, unit).end;
    }
    r->end_share = ewx_div_up(end, each);
}

void ewx_sim_launch_reducers(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    next_shares(sim, rank, r);
    r->num_ctas = (int)ewx_min64(r->budget, r->end_share - r->first_share);
    r->first_pending = 0;
    for (int at = 0; at < r->budget; at++)
        r->consumers[at] = (ewx_sim_consumer){.phase = EWX_SIM_PENDING,
                                              .task = r->first_share + at,
                                              .round = r->first_share + at,
                                              .collected = r->first_share + at};
    for (int at = 0; at < r->budget && sim->op->next_task; at++)
        r->consumers[at].task = sim->op->next_task(sim, rank, &r->consumers[at]);
    admit_pending(sim, rank);
}

void ewx_sim_fill_sm(ewx_sim *sim, int rank, int sm)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const int per_sm = sim->model.producers_per_sm;
    while (r->first_pending < r->num_ctas && ewx_sim_fits_reducer(sim, rank, sm))
        admit(sim, rank, r->first_pending++, sm);
    if (r->sms[sm].only_reduces || sim->spec->config.ctas != EW_CTAS_BLOCK)
        return;
    for (int i = 0; i < per_sm; i++) {
        const int slot = sm * per_sm + i;
        if (!r->producers[slot].busy && ewx_sim_fits_producer(sim, rank, sm) &&
            ewx_sim_begin_block(sim, rank, slot))
            ewx_sim_add_producers(sim, rank, sm, 1);
    }
}

/* Whether there is one. */
static bool next_task(const ewx_sim *sim, int rank, ewx_sim_consumer *consumer)
{
    const ewx_sim_rank *r = &sim->ranks[rank];
    if (sim->op->next_task) {
        consumer->task = sim->op->next_task(sim, rank, consumer);
        return consumer->task >= 0;
    }
    consumer->task += r->budget;
    return consumer->task < r->end_share;
}

void ewx_sim_end_reduce(ewx_sim *sim, int rank, int at)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    ewx_sim_consumer *consumer = &r->consumers[at];
    ewx_sim_finish_task(sim, rank, r->num_slots + at, consumer->task, consumer->begin_ps);
    if (next_task(sim, rank, consumer)) {
        try_task(sim, rank, at);
        return;
    }
    consumer->phase = EWX_SIM_GONE;
    ewx_sim_add_reducers(sim, rank, consumer->sm, -1);
    ewx_sim_fill_sm(sim, rank, consumer->sm);
    if (r->num_resident == 0 && r->tasks_left > 0 && r->first_pending == r->num_ctas)
        ewx_sim_launch_next(sim, rank);
}
