/* Sets a simulation up, runs its clock and reads the result off. */
#include "backend/sim/simulate.h"

#include <inttypes.h>
#include <string.h>

#include "backend/sim/ops/sim_op.h"
#include "backend/sim/resources.h"
#include "backend/sim/sim_engines.h"
#include "backend/sim/sim_units.h"
#include "base/status.h"
#include "plan/policy.h"

enum { MAX_BLOCKS = 1 << 25 };

void ewx_sim_trace(ewx_sim *sim, int rank, const ew_trace_event *event)
{
    const ewx_sim_request *request = sim->request;
    if (rank != request->traced_rank)
        return;
    if (sim->num_traced < request->capacity)
        request->events[sim->num_traced] = *event;
    sim->num_traced++;
}

/* What a CTA of the GEMM of few rows takes together are blocks of the plan's grid. */
void ewx_sim_trace_block(ewx_sim *sim, int rank, int worker, int64_t publish_ps)
{
    const ewx_sim_producer *producer = &sim->ranks[rank].producers[worker];
    const ewx_grid *grid = &sim->model.grid;
    const ewx_block block = producer->block;
    const int32_t count = sim->model.streams ? grid->block_rows : 1;
    for (int32_t i = 0; i < count; i++)
        ewx_sim_trace(sim, rank,
                      &(ew_trace_event){.kind = EW_TRACE_BLOCK,
                                        .worker = worker,
                                        .dst = block.part,
                                        .row = (int32_t)(block.row * grid->block_rows) + i,
                                        .col = (int32_t)(block.col * grid->block_cols),
                                        .position = producer->position * count + i,
                                        .begin_ns = producer->begin_ps / 1000,
                                        .end_ns = sim->now_ps / 1000,
                                        .published_ns = (sim->now_ps + publish_ps) / 1000});
}

/* ---- Set-up ---- */

void *ewx_sim_allocate(size_t count, size_t bytes, bool *enough)
{
    void *memory = calloc(count > 0 ? count : 1, bytes);
    *enough = *enough && memory;
    return memory;
}

static void set_up_rank(ewx_sim *sim, int rank, bool *enough)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const ewx_sim_model *model = &sim->model;
    const int64_t num_tasks = sim->op->num_tasks(sim, rank);
    const bool is_cpu = sim->request->profile->is_cpu;
    r->num_slots = is_cpu ? model->sms : model->sms * model->producers_per_sm;
    /* A CPU's rows are shared by any number of workers at once. */
    const bool any = is_cpu && sim->spec->op->gemm_waits;
    const int at_once = any ? r->num_slots : sim->spec->config.budget;
    const bool dealt = !is_cpu && sim->op->share_tasks;
    const int64_t each = dealt ? sim->op->share_tasks(sim) : 1;
    r->budget = (int)ewx_min64(at_once, ewx_div_up(num_tasks, each));
    r->producers = ewx_sim_allocate((size_t)r->num_slots, sizeof *r->producers, enough);
    r->consumers = ewx_sim_allocate((size_t)r->budget, sizeof *r->consumers, enough);
    r->sms = ewx_sim_allocate((size_t)model->sms, sizeof *r->sms, enough);
    r->blocks_left = ewx_num_blocks(&model->grid);
    r->tasks_left = num_tasks;
    r->first_sum = r->last_sum = r->gemm_begin_ps = -1;
    r->start_ps = rank * model->skew_ps;
    r->gemm_end_ps = r->end_ps = r->start_ps + model->start_ps;
    ewx_sim_push(&sim->queue, r->start_ps + model->start_ps, EWX_SIM_START, rank, 0);
}

static void weigh_senders(ewx_sim *sim, int dst)
{
    int num_near = 0, num_far = 0, near_simulated = 0, far_simulated = 0;
    for (int src = 0; src < sim->num_ranks; src++) {
        const bool near = ewx_sim_share_node(sim, src, dst);
        const bool simulated = !sim->ranks[src].mirrored;
        num_near += near && src != dst;
        num_far += !near;
        near_simulated += near && src != dst && simulated;
        far_simulated += !near && simulated;
    }
    sim->ranks[dst].near_weight =
        near_simulated > 0 ? (double)num_near / near_simulated : 0;
    sim->ranks[dst].far_weight = far_simulated > 0 ? (double)num_far / far_simulated : 0;
}

/* From the first, which has a large partition if any has, to the last, whose tiles are
 * computed last. */
static void choose_sample(ewx_sim *sim)
{
    const int all = sim->num_ranks, wish = sim->request->sampled_ranks;
    /* Rows of every rank are waited for, so none can stand for another. */
    const bool shares = sim->request->profile->is_cpu || sim->model.sharers > 1 ||
                        sim->spec->op->gemm_waits;
    const int count = wish < 2 || wish > all || shares ? all : wish;
    for (int rank = 0; rank < all; rank++)
        sim->ranks[rank].mirrored = true;
    for (int place = 0; place < count; place++) {
        ewx_sim_rank *r = &sim->ranks[count > 1 ? place * (all - 1) / (count - 1) : 0];
        r->mirrored = false;
        r->place = place;
    }
    sim->num_simulated = count;
    for (int rank = 0; rank < all; rank++)
        weigh_senders(sim, rank);
}

static ew_status set_up(ewx_sim *sim)
{
    bool enough = true;
    for (int rank = 0; rank < sim->num_ranks; rank++)
        if (!sim->ranks[rank].mirrored)
            set_up_rank(sim, rank, &enough);
    ewx_sim_number_units(sim);
    const size_t num_units = (size_t)ewx_sim_num_units(sim);
    sim->missing = ewx_sim_allocate(num_units, sizeof *sim->missing, &enough);
    sim->ready_ps = ewx_sim_allocate(num_units, sizeof *sim->ready_ps, &enough);
    if (enough && sim->op->set_up(sim) && !sim->queue.failed)
        return EW_OK;
    return ewx_fail(EW_ERR_MEMORY,
                    "no memory to simulate %zu units of release\n"
                    "  fix: use a smaller shape",
                    num_units);
}

static void tear_down(ewx_sim *sim)
{
    for (int rank = 0; rank < sim->num_ranks; rank++) {
        free(sim->ranks[rank].producers);
        free(sim->ranks[rank].consumers);
        free(sim->ranks[rank].sms);
        free(sim->ranks[rank].egress.gaps);
        free(sim->ranks[rank].ingress.gaps);
        free(sim->ranks[rank].nic_out.gaps);
        free(sim->ranks[rank].nic_in.gaps);
    }
    free(sim->medium.gaps);
    free(sim->missing);
    free(sim->ready_ps);
    free(sim->unreleased);
    free(sim->unsummed);
    free(sim->next_sum);
    free(sim->shared_ps);
    free(sim->sources);
    free(sim->queue.events);
}

/* ---- The clock ---- */

/* Producers first, but where they come behind what they wait for. */
static void start_kernels(ewx_sim *sim, int rank)
{
    ewx_sim_rank *r = &sim->ranks[rank];
    const bool after = sim->spec->config.pool == EW_POOL_AFTER;
    const bool movers_first = after && sim->spec->op->gemm_waits && r->tasks_left > 0;
    for (int sm = 0; sm < sim->model.set_apart; sm++)
        r->sms[sm].only_reduces = true;
    if (!movers_first)
        ewx_sim_start_part(sim, rank);
    if ((!after || movers_first) && !sim->model.calls_nccl)
        ewx_sim_launch_reducers(sim, rank);
}

static void dispatch(ewx_sim *sim, const ewx_sim_event *event)
{
    const bool is_cpu = sim->request->profile->is_cpu;
    const int rank = event->rank, who = event->who;
    switch ((enum ewx_sim_kind)event->kind) {
    case EWX_SIM_START:
        is_cpu ? ewx_sim_start_workers(sim, rank) : start_kernels(sim, rank);
        break;
    case EWX_SIM_BLOCK_END:
        is_cpu ? ewx_sim_worker_block(sim, rank, who) : ewx_sim_end_block(sim, rank, who);
        break;
    case EWX_SIM_LAUNCH:
        ewx_sim_interrupt_producers(sim, rank);
        ewx_sim_launch_reducers(sim, rank);
        break;
    case EWX_SIM_PART:
        ewx_sim_start_part(sim, rank);
        break;
    case EWX_SIM_RESUME:
        ewx_sim_resume(sim, rank, who);
        break;
    case EWX_SIM_SEND:
        ewx_sim_send(sim, rank, who);
        break;
    case EWX_SIM_DELIVER:
        ewx_sim_deliver(sim, rank, who);
        break;
    case EWX_SIM_REDUCE_END:
        is_cpu ? ewx_sim_worker_reduced(sim, rank, who)
               : ewx_sim_end_reduce(sim, rank, who);
        break;
    case EWX_SIM_WAKE:
        ewx_sim_wake_workers(sim, rank);
        break;
    case EWX_SIM_ARRIVAL:
        ewx_sim_arrive(sim, rank, who);
        break;
    case EWX_SIM_CALL:
        ewx_sim_begin_call(sim);
        break;
    case EWX_SIM_CALL_END:
        ewx_sim_end_call(sim);
        break;
    }
}

static ew_status run_clock(ewx_sim *sim)
{
    ewx_sim_event event;
    while (ewx_sim_pop(&sim->queue, &event)) {
        sim->now_ps = event.time_ps;
        dispatch(sim, &event);
    }
    if (sim->queue.failed)
        return ewx_fail(EW_ERR_MEMORY, "no memory for the simulation's events\n"
                                       "  fix: use a smaller shape");
    if (sim->model.uses_nccl)
        ewx_sim_run_nccl(sim);
    for (int rank = 0; rank < sim->num_ranks; rank++)
        if (sim->ranks[rank].blocks_left > 0 || sim->ranks[rank].tasks_left > 0)
            return ewx_fail(
                EW_ERR_CONFIG,
                "x=%d reducing CTAs of b=%d threads would keep the producer off "
                "its SMs for ever\n  fix: use a smaller x or b",
                sim->spec->config.budget, sim->spec->config.batch);
    return EW_OK;
}

static ew_status check_end(const ewx_sim *sim)
{
    for (int rank = 0; rank < sim->num_ranks; rank++)
        if (sim->ranks[rank].end_ps >= EWX_SIM_LAST_PS ||
            sim->ranks[rank].gemm_end_ps >= EWX_SIM_LAST_PS)
            return ewx_fail(EW_ERR_SHAPE,
                            "a call of M=%" PRId64 " rows would take weeks on profile %s\n"
                            "  fix: make the shape smaller, or the profile faster",
                            sim->request->rows, sim->request->profile->name);
    return EW_OK;
}

/* Bounds the time and memory that the events take. */
static ew_status check_size(const ewx_sim *sim)
{
    const double blocks = (double)ewx_num_blocks(&sim->model.grid) * sim->num_simulated;
    double tasks = 0;
    for (int rank = 0; rank < sim->num_ranks && sim->spec->op->gemm_waits; rank++)
        tasks += (double)sim->op->num_tasks(sim, rank);
    if (blocks + tasks <= MAX_BLOCKS)
        return EW_OK;
    return ewx_fail(EW_ERR_SHAPE,
                    "%g blocks of all ranks are too many to simulate\n"
                    "  fix: make M or N smaller, below %d blocks",
                    blocks, MAX_BLOCKS);
}

static void read_result(const ewx_sim *sim, ewx_sim_result *result)
{
    const bool all = sim->num_simulated == sim->num_ranks;
    const ewx_sim_rank *r = NULL;
    for (int rank = 0; rank < sim->num_ranks; rank++) {
        if (!sim->ranks[rank].mirrored)
            r = &sim->ranks[rank]; /* the first one always is */
        /* What came before the first block was no GEMM, as in the engine's timing. */
        const int64_t before_ps = sim->spec->op->gemm_waits && r->gemm_begin_ps >= 0
                                      ? r->gemm_begin_ps - r->start_ps
                                      : 0;
        /* A GEMM takes a tick of the engine's clock at least: it is divided by. */
        const int64_t start_ns = r->start_ps / 1000;
        const int64_t gemm_end_ns =
            ewx_sim_later((r->gemm_end_ps - before_ps) / 1000,
                          start_ns + (ewx_num_blocks(&sim->model.grid) > 0));
        const int64_t end_ps = ewx_sim_later(r->end_ps, r->gemm_end_ps);
        result->ranks[rank] = (ewx_sim_rank_result){
            .timing = {start_ns, gemm_end_ns, ewx_sim_later(gemm_end_ns, end_ps / 1000)},
            .remote_bytes = all ? r->remote_bytes : sim->op->remote_bytes(sim, rank),
            .crossed_bytes = all ? r->crossed_bytes : sim->op->crossed_bytes(sim, rank)};
    }
    result->num_events = sim->queue.serial;
    result->num_traced = sim->num_traced;
}

ew_status ewx_sim_run(const ewx_sim_request *request, ewx_sim_result *result)
{
    ewx_sim *sim = calloc(1, sizeof *sim);
    if (!sim)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a simulation");
    sim->request = request;
    sim->spec = request->spec;
    sim->op = ewx_sim_op_of(request->spec, request->profile->is_cpu);
    sim->ownership = ewx_spec_ownership(request->spec, request->rows);
    sim->unit_tasks = sim->ownership == EWX_OWNS_PART
                          ? ewx_release_of(&request->spec->config)
                          : (ewx_release){.size = 1};
    sim->num_ranks = request->spec->num_ranks;
    ew_status status = ewx_sim_model_build(request, &sim->model);
    if (status == EW_OK) {
        choose_sample(sim);
        status = check_size(sim);
    }
    if (status == EW_OK)
        status = set_up(sim);
    if (status == EW_OK)
        status = run_clock(sim);
    if (status == EW_OK)
        status = check_end(sim);
    if (status == EW_OK)
        read_result(sim, result);
    tear_down(sim);
    free(sim);
    return status;
}
