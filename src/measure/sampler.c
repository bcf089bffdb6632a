/* Runs, checks and times calls. */
#include "measure/sampler.h"

#include "api/plan.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/status.h"

/* A quiet core never shows a gap this long between two looks at the clock. */
#define GATE_GAP_NS 600000

/* ---- Matrices ---- */

ew_status ewx_sampler_open(ewx_sampler *sampler, ew_world *world, const ew_problem *problem,
                           const ewx_backend *backend, int64_t rows, uint32_t seed)
{
    const size_t elem = ew_dtype_bytes(problem->dtype);
    const ewx_memory *memory = &backend->memory;
    *sampler = (ewx_sampler){
        .world = world, .problem = problem, .backend = backend, .rows = rows, .seed = seed};
    const ewx_op *op = ewx_op_of(problem);
    const int64_t rows_a = op->rows_a(rows, world->num_ranks, world->rank).count;
    const int64_t rows_c = op->rows_c(rows, world->num_ranks, world->rank).count;
    sampler->c_bytes = (size_t)(rows_c * problem->n) * elem;
    EW_TRY(memory->allocate(world, (size_t)(rows_a * problem->k) * elem, &sampler->A));
    EW_TRY(memory->allocate(world, (size_t)(problem->n * problem->k) * elem, &sampler->B));
    EW_TRY(memory->allocate(world, sampler->c_bytes, &sampler->plain_C));
    sampler->C = sampler->plain_C;
    return EW_OK;
}

ew_status ewx_sampler_open_symmetric(ewx_sampler *sampler)
{
    const ew_backend backend = sampler->backend->traits->id;
    if (!sampler->symmetric_C)
        EW_TRY(ew_alloc(sampler->world, backend, sampler->c_bytes, &sampler->symmetric_C));
    if (sampler->plain_normed && !sampler->symmetric_normed)
        EW_TRY(ew_alloc(sampler->world, backend, sampler->c_bytes,
                        &sampler->symmetric_normed));
    return EW_OK;
}

void ewx_sampler_use(ewx_sampler *sampler, const ewx_runner *runner)
{
    sampler->C = runner->symmetric ? sampler->symmetric_C : sampler->plain_C;
    sampler->normed = runner->symmetric ? sampler->symmetric_normed : sampler->plain_normed;
}

static void close_symmetric(ewx_sampler *sampler)
{
    if (!sampler->symmetric_C)
        return;
    const ew_backend backend = sampler->backend->traits->id;
    (void)ew_free(sampler->world, backend, sampler->symmetric_normed);
    (void)ew_free(sampler->world, backend, sampler->symmetric_C);
    sampler->symmetric_C = sampler->symmetric_normed = NULL;
}

void ewx_sampler_close(ewx_sampler *sampler)
{
    close_symmetric(sampler);
    ewx_sampler_close_layer(sampler);
    void *matrices[] = {sampler->plain_C, sampler->B, sampler->A};
    for (int i = 0; i < 3; i++)
        if (matrices[i])
            sampler->backend->memory.release(sampler->world, matrices[i]);
    sampler->A = sampler->B = sampler->C = sampler->plain_C = NULL;
}

ew_status ewx_sampler_load(ewx_sampler *sampler, bool exact)
{
    const ew_problem *p = sampler->problem;
    const ewx_memory *memory = &sampler->backend->memory;
    const int rank = sampler->world->rank;
    ewx_input input = {
        .kind = exact ? EWX_INPUT_EXACT_A : EWX_INPUT_RANDOM,
        .dtype = p->dtype,
        .layout = p->weight_layout,
        .seed = sampler->seed + (exact ? 0 : (uint32_t)rank),
        .rank = rank,
        .num_ranks = sampler->world->num_ranks,
        .rows = ewx_op_of(p)->rows_a(sampler->rows, sampler->world->num_ranks, rank).count,
        .depth = p->k};
    EW_TRY(memory->generate(sampler->world, &input, sampler->A));
    if (exact)
        input.kind = EWX_INPUT_EXACT_B;
    input.rows = p->n;
    EW_TRY(memory->generate(sampler->world, &input, sampler->B));
    return sampler->residual ? ewx_sampler_load_layer(sampler) : EW_OK;
}

ew_status ewx_sampler_bind(ewx_sampler *sampler, const ewx_runner *runner)
{
    return runner->plan ? ew_plan_set_weight(runner->plan, sampler->B) : EW_OK;
}

bool ewx_sampler_refuses(ew_status status)
{
    return status == EW_ERR_UNSUPPORTED || status == EW_ERR_SHAPE ||
           status == EW_ERR_CONFIG || status == EW_ERR_ARGUMENT;
}

/* ---- Calls ---- */

static ew_status run_custom(ewx_sampler *sampler, const ewx_runner *runner, ewx_sample *s)
{
    const ew_bench_custom *custom = runner->custom;
    s->start_ns = ewx_now_ns();
    const int code = custom->run(custom->context, sampler->rows, sampler->A, sampler->B,
                                 sampler->C, &s->gemm_end_ns);
    s->end_ns = ewx_now_ns();
    if (code == 0)
        return EW_OK;
    ew_world_abort(sampler->world); /* the others would wait for this rank */
    return ewx_fail(EW_ERR_ABORTED, "method %s failed with code %d", runner->label, code);
}

ew_status ewx_sampler_enqueue(const ewx_sampler *sampler, const ewx_runner *runner,
                              ew_stream stream)
{
    if (runner->layer)
        return ewx_sampler_call_layer(sampler, runner, stream);
    switch (sampler->problem->op) {
    case EW_OP_GEMM_AR:
        return ew_gemm_ar(runner->plan, sampler->rows, sampler->A, NULL, sampler->C,
                          stream);
    case EW_OP_AG_GEMM:
        return ew_ag_gemm(runner->plan, sampler->rows, sampler->A, NULL, sampler->C, NULL,
                          stream);
    case EW_OP_GEMM_RS:
        break;
    }
    return ew_gemm_rs(runner->plan, sampler->rows, sampler->A, NULL, sampler->C, stream);
}

/* A GPU's calls are timed by its own clock, from the start of the first kernel to the end
 * of the last; the host's would add the launch and the wake-up. */
static ew_status run_plan(ewx_sampler *sampler, const ewx_runner *runner, ewx_sample *s)
{
    ew_timing timing;
    const int64_t called_ns = ewx_now_ns();
    EW_TRY(ewx_sampler_enqueue(sampler, runner, NULL));
    const int64_t enqueued_ns = ewx_now_ns();
    EW_TRY(ew_plan_wait(runner->plan));
    const int64_t ended_ns = ewx_now_ns();
    EW_TRY(ew_plan_timing(runner->plan, &timing));
    const bool own_clock = sampler->backend->traits->has_own_clock;
    s->start_ns = own_clock ? timing.start_ns : called_ns;
    s->gemm_end_ns = timing.gemm_end_ns;
    s->end_ns = own_clock ? timing.end_ns : ended_ns;
    s->enqueue_ns = sampler->backend->traits->enqueues ? enqueued_ns - called_ns : 0;
    return EW_OK;
}

static ew_status run_once(ewx_sampler *sampler, const ewx_runner *runner,
                          ewx_sample *sample_out)
{
    return runner->custom ? run_custom(sampler, runner, sample_out)
                          : run_plan(sampler, runner, sample_out);
}

static ew_status check_bare(ewx_sampler *sampler, ewx_runner runner, ew_check *check_out)
{
    ew_world *world = sampler->world;
    const ewx_memory *memory = &sampler->backend->memory;
    ewx_sample ignored;
    runner.layer = EW_BENCH_BARE;
    EW_TRY(memory->fill(world, sampler->C, 0xff, sampler->c_bytes)); /* NaN in every type */
    EW_TRY(ew_world_barrier(world));
    EW_TRY(run_once(sampler, &runner, &ignored));
    return memory->verify(world, sampler->problem, sampler->seed, sampler->rows, sampler->C,
                          check_out);
}

static ew_status check_layer(ewx_sampler *sampler, const ewx_runner *runner,
                             ew_check *check)
{
    ew_check more;
    ewx_sample ignored;
    EW_TRY(ewx_sampler_poison_layer(sampler));
    EW_TRY(ew_world_barrier(sampler->world));
    EW_TRY(run_once(sampler, runner, &ignored));
    EW_TRY(ewx_sampler_verify_layer(sampler, runner, &more));
    check->wrong += more.wrong;
    if (!(more.max_abs_err <= check->max_abs_err))
        check->max_abs_err = more.max_abs_err;
    return EW_OK;
}

ew_status ewx_sampler_check(ewx_sampler *sampler, const ewx_runner *runner, ew_check *total)
{
    ew_world *world = sampler->world;
    ew_check check, all[EWX_MAX_RANKS];
    ewx_sampler_use(sampler, runner);
    EW_TRY(check_bare(sampler, *runner, &check));
    if (runner->layer)
        EW_TRY(check_layer(sampler, runner, &check));
    EW_TRY(ew_world_allgather(world, &check, all, sizeof check));
    for (int rank = 0; rank < world->num_ranks; rank++) {
        total->wrong += all[rank].wrong;
        if (!(all[rank].max_abs_err <= total->max_abs_err))
            total->max_abs_err = all[rank].max_abs_err;
    }
    return EW_OK;
}

/* ---- Samples ---- */

/* Spins for the gate's time; false when this core was taken away meanwhile. */
static bool core_is_quiet(double gate_ms)
{
    const int64_t end_ns = ewx_now_ns() + (int64_t)(gate_ms * 1e6);
    int64_t before = ewx_now_ns();
    for (;;) {
        const int64_t now = ewx_now_ns();
        if (now - before > GATE_GAP_NS)
            return false;
        if (now >= end_ns)
            return true;
        before = now;
    }
}

static void spin(int64_t ns)
{
    const int64_t end_ns = ewx_now_ns() + ns;
    while (ewx_now_ns() < end_ns)
        ;
}

/* Where the backend has the clock, it has the start too. */
static void set_start(const ewx_sampler *sampler, const ewx_runner *runner,
                      ewx_sampling how)
{
    if (sampler->backend->traits->has_own_clock && runner->plan)
        sampler->backend->set_start(runner->plan->state,
                                    (ewx_start){true, how.delay_ns, how.hold_ns});
    else
        spin(how.delay_ns + how.hold_ns);
}

ew_status ewx_sampler_sample(ewx_sampler *sampler, const ewx_runner *runner,
                             ewx_sampling how, ewx_sample *sample_out, bool *kept)
{
    ew_world *world = sampler->world;
    int32_t quiet = 1, all[EWX_MAX_RANKS];
    ewx_sampler_use(sampler, runner);
    EW_TRY(ew_world_barrier(world));
    if (how.gate_ms > 0)
        quiet = core_is_quiet(how.gate_ms);
    EW_TRY(ew_world_barrier(world));
    set_start(sampler, runner, how);
    EW_TRY(run_once(sampler, runner, sample_out));
    if (sample_out->enqueue_ns > 0)
        sample_out->enqueue_ns -= how.hold_ns;
    *kept = true;
    if (how.gate_ms <= 0)
        return EW_OK;
    quiet &= core_is_quiet(how.gate_ms);
    EW_TRY(ew_world_allgather(world, &quiet, all, sizeof quiet));
    for (int rank = 0; rank < world->num_ranks; rank++)
        *kept &= all[rank] != 0;
    return EW_OK;
}

void ewx_sampler_rest(const ewx_sample *sample, double idle)
{
    spin((int64_t)(idle * (double)(sample->end_ns - sample->start_ns)));
}

int64_t ewx_sampler_hold_ns(const int64_t *enqueue_ns, int count, int which)
{
    int64_t longest_ns = 0;
    for (int other = 0; other < count; other++)
        if (enqueue_ns[other] > longest_ns)
            longest_ns = enqueue_ns[other];
    return longest_ns - enqueue_ns[which];
}
