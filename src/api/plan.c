/* The public plan: argument checks, and agreement between ranks.  Its calls are in calls.c.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/agreement.h"
#include "api/plan.h"
#include "api/testing.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/memory.h"
#include "base/status.h"
#include "base/text.h"
#include "base/versioned.h"
#include "entwine/measure.h"
#include "plan/policy.h"

/* The world counts milliseconds in 32 bits; so do faults. */
#define MIN_TIMEOUT_S 1e-3
#define MAX_TIMEOUT_S 4e6

/* ---- Specs ---- */

static ew_status build_spec(const ewx_backend *backend, const ew_problem *problem,
                            int num_ranks, const ew_config *request,
                            const ewx_machine *machine, ewx_spec *spec_out)
{
    ewx_spec spec;
    EW_TRY(ewx_spec_build(problem, num_ranks, request, machine, &spec));
    EW_TRY(backend->check(&spec));
    *spec_out = spec;
    return EW_OK;
}

/* As build_spec, with the tuned config if there is one that can still run. */
static ew_status build_tuned_spec(const ewx_backend *backend, const ew_problem *problem,
                                  int num_ranks, const ew_config *request,
                                  const ewx_machine *machine, ewx_spec *spec_out,
                                  ewx_tuning_origin *origin_out)
{
    ew_config tuned = EW_CONFIG_INIT;
    bool wanted;
    *origin_out = (ewx_tuning_origin){0};
    EW_TRY(ewx_tuning_wanted(&wanted));
    if (wanted && ewx_tuning_serves(request) &&
        ewx_tuning_find(problem, num_ranks, backend->traits->id, machine->device, &tuned,
                        origin_out)) {
        tuned.epilogue = request->epilogue;
        if (build_spec(backend, problem, num_ranks, &tuned, machine, spec_out) == EW_OK &&
            ewx_tuning_fits(spec_out, machine, origin_out))
            return EW_OK;
    }
    origin_out->bucket = 0;
    return build_spec(backend, problem, num_ranks, request, machine, spec_out);
}

typedef struct forecast {
    ew_config request;
    ewx_machine machine;
    ewx_spec spec;
    ewx_tuning_origin origin;
    const ewx_backend *backend;
} forecast;

/* What `num_ranks` ranks on this machine would get. */
static ew_status forecast_plan(const ew_problem *problem, int num_ranks,
                               const ew_config *request, forecast *f)
{
    ew_problem asked;
    *f = (forecast){.machine = {.cores = ewx_usable_cores()}};
    EW_TRY(ewx_problem_take(&asked, problem));
    EW_TRY(ewx_config_take(&f->request, request));
    EW_TRY(ewx_backend_find(f->request.backend, &f->backend));
    EW_TRY(ewx_problem_check(&asked, num_ranks));
    EW_TRY(f->backend->survey(NULL, num_ranks, &f->machine));
    return build_tuned_spec(f->backend, &asked, num_ranks, &f->request, &f->machine,
                            &f->spec, &f->origin);
}

/* ---- Agreement ---- */

typedef struct choice {
    ew_config config;
    ewx_tuning_origin origin;
} choice;

/* Collective: what rank 0 has chosen.  The choices of all ranks would fill a small stack.
 */
static ew_status take_first_choice(ew_world *world, const choice *mine, choice *first_out)
{
    choice *all = malloc((size_t)world->num_ranks * sizeof *all);
    ew_status status =
        all ? EW_OK : ewx_fail(EW_ERR_MEMORY, "no memory for the ranks' choices");
    status = ewx_world_agree(world, status, "create the plan");
    if (status == EW_OK)
        status = ewx_world_allgather(world, mine, all, sizeof *mine);
    if (status == EW_OK)
        *first_out = all[0];
    free(all);
    return status;
}

/* Collective: chooses for the machine that the ranks found together, as rank 0 does. */
static ew_status choose_together(ew_plan *plan, const ew_problem *problem)
{
    ew_world *world = plan->world;
    ew_status status = plan->backend->survey(world, world->num_ranks, &plan->machine);
    if (status == EW_OK)
        status = build_tuned_spec(plan->backend, problem, world->num_ranks, &plan->request,
                                  &plan->machine, &plan->spec, &plan->origin);
    EW_TRY(ewx_world_agree(world, status, "create the plan"));
    const choice mine = {plan->spec.config, plan->origin};
    choice first;
    EW_TRY(take_first_choice(world, &mine, &first));
    plan->origin = first.origin;
    const ew_status built = build_spec(plan->backend, problem, world->num_ranks,
                                       &first.config, &plan->machine, &plan->spec);
    char facts[EWX_FACTS_BYTES];
    ewx_text text = ewx_text_in(facts, sizeof facts);
    if (built == EW_OK)
        ewx_facts_decided(&plan->spec, &text);
    plan->fingerprint = (uint32_t)ewx_text_hash(facts);
    return ewx_agree_on(world, built, facts);
}

/* What this rank can tell by itself. */
static ew_status check_alone(ew_plan *plan, const ew_problem *problem)
{
    EW_TRY(ewx_backend_find(plan->request.backend, &plan->backend));
    if (plan->backend->traits->simulated)
        EW_TRY(plan->backend->survey(NULL, plan->world->num_ranks, &plan->machine));
    return build_spec(plan->backend, problem, plan->world->num_ranks, &plan->request,
                      &plan->machine, &plan->spec);
}

/* ---- Plan ---- */

/* Collective.  plan->request is set; `taken` says whether the arguments could be. */
static ew_status create_together(ew_plan *plan, const ew_problem *problem, ew_status taken)
{
    ew_world *world = plan->world;
    const ew_status checked = taken ? taken : check_alone(plan, problem);
    char facts[EWX_FACTS_BYTES];
    ewx_text text = ewx_text_in(facts, sizeof facts);
    if (checked != EW_ERR_ARGUMENT)
        ewx_facts_asked(problem, world->num_ranks, &plan->request, &text);
    EW_TRY(ewx_agree_on(world, checked, facts));
    EW_TRY(choose_together(plan, problem));
    return ewx_world_agree(world, plan->backend->create(world, &plan->spec, &plan->state),
                           "create the plan");
}

static void free_plan(ew_plan *plan)
{
    if (plan->backend)
        plan->backend->destroy(plan->state);
    ewx_weight_bind(&plan->binding, NULL);
    ewx_weight_close(plan->own);
    ewx_handle_end(&plan->handle);
    free(plan);
}

/* Collective.  All ranks have agreed on success, or none has: so a plan has the same number
 * on all of them, and a failed one has none. */
static ew_status create_plan(ew_world *world, const ew_problem *problem,
                             const ew_config *request, ew_status taken, ew_plan **plan_out)
{
    ew_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return ewx_agree_on(world, ewx_fail(EW_ERR_MEMORY, "no memory for a plan"), "");
    *plan = (ew_plan){.world = world,
                      .request = *request,
                      .machine = {.cores = ewx_usable_cores()},
                      .timeout_ns = world->timeout_ns};
    ewx_handle_begin(&plan->handle, EWX_KIND_PLAN);
    ewx_place_post(world);
    const ew_status status = create_together(plan, problem, taken);
    if (status != EW_OK) {
        free_plan(plan);
        return status;
    }
    plan->number = ++world->num_plans;
    *plan_out = plan;
    return EW_OK;
}

/* Recorded from the first step that may fail on one rank alone: after a failure all ranks
 * have made as many records. */
static ew_status create_recorded(ew_world *world, const ew_problem *problem,
                                 const ew_config *config, ew_plan **plan_out)
{
    ew_config request = EW_CONFIG_INIT;
    ew_problem asked = {0};
    ew_status taken = ewx_problem_take(&asked, problem);
    if (taken == EW_OK)
        taken = ewx_config_take(&request, config);
    const ewx_operation operation = {
        .op = (int32_t)asked.op,
        .kind = EWX_RECORD_PLAN,
        .shape = {asked.max_m, asked.n, asked.k},
        .plan = ewx_plan_word(world->num_plans + 1, 0),
        .replays = ewx_plan_replays(world, ewx_traits_of(request.backend))};
    ew_status status = ewx_recorder_begin(world, &operation);
    if (status == EW_OK)
        status = create_plan(world, &asked, &request, taken, plan_out);
    ewx_recorder_end(world, status, false);
    return status;
}

ew_status ew_plan_create(ew_world *world, const ew_problem *problem,
                         const ew_config *config, ew_plan **plan_out)
{
    if (!world || !plan_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_plan_create needs a world and a place for the plan");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_plan_create"));
    EW_TRY(ewx_world_enter(world));
    const ew_status status = create_recorded(world, problem, config, plan_out);
    ewx_world_leave(world);
    return status;
}

static ew_status set_weight(ew_plan *plan, const void *B)
{
    if (!plan->own)
        EW_TRY(ewx_weight_open(plan->world, plan->backend, &plan->spec, &plan->own));
    EW_TRY(ewx_weight_pack(plan->own, B));
    ewx_weight_bind(&plan->binding, plan->own);
    return EW_OK;
}

ew_status ew_plan_set_weight(ew_plan *plan, const void *B)
{
    if (!plan || !B)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_set_weight needs a plan and a weight");
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_set_weight"));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status = set_weight(plan, B);
    ewx_world_leave(plan->world);
    return status;
}

ew_status ew_plan_bind_weight(ew_plan *plan, ew_weight *weight)
{
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_bind_weight"));
    if (weight)
        EW_TRY(ewx_weight_check(weight, "ew_plan_bind_weight", plan->world, &plan->spec,
                                plan->spec.problem.n));
    EW_TRY(ewx_world_enter(plan->world));
    ewx_weight_bind(&plan->binding, weight);
    ewx_world_leave(plan->world);
    return EW_OK;
}

static ew_status check_timeout(double seconds)
{
    if (seconds == 0.0 || (seconds >= MIN_TIMEOUT_S && seconds <= MAX_TIMEOUT_S))
        return EW_OK;
    return ewx_fail(EW_ERR_ARGUMENT,
                    "a plan's timeout of %.15g s is out of range\n"
                    "  fix: use %g to %.15g s, or 0 for the world's",
                    seconds, MIN_TIMEOUT_S, MAX_TIMEOUT_S);
}

ew_status ew_plan_set_timeout(ew_plan *plan, double seconds)
{
    if (!plan)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_set_timeout needs a plan");
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_set_timeout"));
    EW_TRY(check_timeout(seconds));
    EW_TRY(ewx_world_enter(plan->world));
    plan->timeout_ns =
        seconds > 0.0 ? (int64_t)(seconds * 1e3 + 0.5) * 1000000 : plan->world->timeout_ns;
    ewx_world_leave(plan->world);
    return EW_OK;
}

ew_status ew_plan_config(const ew_plan *plan, ew_config *config_out)
{
    if (!plan || !config_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_config needs a plan and a config");
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_config"));
    ewx_config_give(config_out, &plan->spec.config);
    return EW_OK;
}

void ew_plan_destroy(ew_plan *plan)
{
    if (!plan || ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_destroy") != EW_OK)
        return;
    const ew_world *world = plan->world;
    if (ewx_world_is_elsewhere(world)) {
        ewx_handle_end(&plan->handle);
        free(plan); /* what it works with is the parent's: threads, peers, a GPU */
        return;
    }
    if (ewx_world_enter(world) != EW_OK)
        return; /* it is still in use, or its world is gone: a leak harms less */
    free_plan(plan);
    ewx_world_leave(world);
}

/* ---- Explain and forecast ---- */

static ew_status explain(const ewx_spec *spec, const ew_config *request,
                         const ewx_machine *machine, const ewx_tuning_origin *origin,
                         char *buffer, size_t bytes)
{
    if (!buffer || bytes == 0)
        return ewx_fail(EW_ERR_ARGUMENT, "an explanation needs a buffer");
    ewx_text text = ewx_text_in(buffer, bytes);
    if (origin->bucket > 0)
        ewx_text_add(&text,
                     "tuned: from the entry for M up to %" PRId64
                     " (%.1f us, the built-in choice %.1f us)%s%s\n",
                     origin->bucket, origin->time_us, origin->default_us,
                     *origin->profile ? ", its candidates planned with profile " : "",
                     origin->profile);
    if (*origin->ignored)
        ewx_text_add(&text, "tuning: an entry is ignored: %s\n", origin->ignored);
    ewx_spec_explain(spec, origin->bucket > 0 ? &spec->config : request, machine, &text);
    return text.truncated ? ewx_fail(EW_ERR_ARGUMENT,
                                     "%zu bytes are too few for an explanation\n"
                                     "  fix: use EW_EXPLAIN_BYTES",
                                     bytes)
                          : EW_OK;
}

ew_status ew_plan_explain(const ew_plan *plan, char *text, size_t bytes)
{
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_explain"));
    return explain(&plan->spec, &plan->request, &plan->machine, &plan->origin, text, bytes);
}

ew_status ew_forecast_explain(const ew_problem *problem, int num_ranks,
                              const ew_config *config, char *text, size_t bytes)
{
    forecast f;
    EW_TRY(forecast_plan(problem, num_ranks, config, &f));
    return explain(&f.spec, &f.request, &f.machine, &f.origin, text, bytes);
}

ew_status ew_forecast_build(const ew_problem *problem, int num_ranks,
                            const ew_config *config, ew_forecast *forecast_out)
{
    forecast f;
    if (!forecast_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_forecast_build needs a place for its answer");
    EW_TRY(forecast_plan(problem, num_ranks, config, &f));
    problem = &f.spec.problem;
    const ewx_grid grid = ewx_spec_grid(&f.spec, problem->max_m);
    const ewx_footprint footprint = f.backend->footprint(&f.spec);
    int64_t num_tiles = 0;
    for (int part = 0; part < grid.num_parts; part++)
        num_tiles += ewx_part_tiles(&grid, part);
    *forecast_out = (ew_forecast){
        .config = f.spec.config,
        .num_blocks = ewx_num_blocks(&grid),
        .num_tiles = num_tiles,
        .max_owned_tiles = ewx_spec_share(&f.spec, problem->max_m, 0).count,
        .heap_bytes = f.spec.layout.segment_bytes,
        .weight_bytes = footprint.weight_bytes,
        .workspace_bytes = footprint.workspace_bytes,
        .total_bytes = f.spec.layout.segment_bytes + footprint.weight_bytes +
                       footprint.workspace_bytes,
        .flops = 2.0 * (double)problem->max_m * (double)problem->n * (double)problem->k,
        .remote_bytes = ewx_spec_remote_bytes(&f.spec, problem->max_m),
        .uses_nccl = f.machine.has_nccl && f.spec.config.producer == EW_PRODUCER_BLAS,
    };
    memcpy(forecast_out->profile,
           f.origin.bucket > 0 ? f.origin.profile : f.machine.profile,
           sizeof forecast_out->profile);
    return EW_OK;
}

/* ---- Observation ---- */

ew_status ew_plan_timing(const ew_plan *plan, ew_timing *timing_out)
{
    if (!plan || !timing_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_timing needs a plan and a timing");
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_timing"));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status = plan->backend->timing(plan->state, timing_out);
    ewx_world_leave(plan->world);
    return status;
}

ew_status ew_plan_trace_enable(ew_plan *plan)
{
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_trace_enable"));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status = plan->backend->trace_enable(plan->state);
    ewx_world_leave(plan->world);
    return status;
}

ew_status ew_plan_trace(const ew_plan *plan, ew_trace_event *events, size_t capacity,
                        size_t *count_out)
{
    if (!plan || !count_out || (capacity > 0 && !events))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_plan_trace needs a plan and places for its answer");
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_trace"));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status =
        plan->backend->trace_read(plan->state, events, capacity, count_out);
    ewx_world_leave(plan->world);
    return status;
}

ew_status ew_plan_start_together(ew_plan *plan)
{
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_start_together"));
    EW_TRY(ewx_world_enter(plan->world));
    plan->backend->set_start(plan->state, (ewx_start){.together = true});
    ewx_world_leave(plan->world);
    return EW_OK;
}

/* ---- The machine ---- */

int64_t ew_now_ns(void)
{
    return ewx_now_ns();
}

int ew_usable_cores(void)
{
    return ewx_usable_cores();
}

size_t ew_available_memory(void)
{
    ewx_memory_limits limits;
    ewx_memory_limits_read(&limits);
    size_t least = limits.count > 0 ? limits.at[0].free_bytes : 0;
    for (int at = 1; at < limits.count; at++)
        if (limits.at[at].free_bytes < least)
            least = limits.at[at].free_bytes;
    return least;
}

#ifdef EW_TESTING
void *ewx_plan_state(const ew_plan *plan)
{
    return plan->state;
}
#endif
