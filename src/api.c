/* The public plan: argument checks, agreement between ranks, and the way down to a
 * backend. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "base/cores.h"
#include "base/status.h"
#include "base/text.h"
#include "entwine/measure.h"
#include "plan/tuning.h"
#include "testing.h"

#define AGREEMENT_BYTES 512

struct ew_plan {
    ew_world *world;
    ewx_spec spec;
    ew_config request;
    ewx_machine machine;
    ewx_tuning_origin origin; /* of the config, if it was tuned */
    const ewx_backend *backend;
    void *state;
};

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
    *origin_out = (ewx_tuning_origin){0};
    if ((!request || ewx_tuning_serves(request)) &&
        ewx_tuning_find(problem, num_ranks,
                        request && request->backend ? request->backend : EW_BACKEND_CPU,
                        machine->device, &tuned, origin_out) &&
        build_spec(backend, problem, num_ranks, &tuned, machine, spec_out) == EW_OK)
        return EW_OK;
    *origin_out = (ewx_tuning_origin){0};
    return build_spec(backend, problem, num_ranks, request, machine, spec_out);
}

typedef struct forecast {
    ewx_machine machine;
    ewx_spec spec;
    ewx_tuning_origin origin;
    const ewx_backend *backend;
} forecast;

/* What `num_ranks` ranks on this machine would get. */
static ew_status forecast_plan(const ew_problem *problem, int num_ranks,
                               const ew_config *request, forecast *f)
{
    *f = (forecast){.machine = {.cores = ewx_usable_cores()}};
    EW_TRY(ewx_backend_find(request ? request->backend : (ew_backend)0, &f->backend));
    EW_TRY(ewx_problem_check(problem, num_ranks));
    EW_TRY(f->backend->survey(NULL, num_ranks, &f->machine));
    return build_tuned_spec(f->backend, problem, num_ranks, request, &f->machine, &f->spec,
                            &f->origin);
}

/* ---- Agreement ---- */

typedef struct agreement {
    int32_t status;              /* of this rank's own checks */
    char asked[AGREEMENT_BYTES]; /* must be equal on all ranks */
} agreement;

/* The first "key=value" in which two texts of the same keys differ. */
static void find_difference(const char *mine, const char *other, ewx_text *my_item,
                            ewx_text *other_item)
{
    size_t item = 0;
    for (size_t i = 0; mine[i] && mine[i] == other[i]; i++)
        if (mine[i] == ',')
            item = i + 1;
    ewx_text_add(my_item, "%.*s", (int)strcspn(mine + item, ","), mine + item);
    ewx_text_add(other_item, "%.*s", (int)strcspn(other + item, ","), other + item);
}

static ew_status check_agreement(const ew_world *world, const agreement *all)
{
    const char *mine = all[world->rank].asked;
    for (int rank = 0; rank < world->num_ranks; rank++) {
        char my_item[64], other_item[64];
        ewx_text my_text = ewx_text_in(my_item, sizeof my_item);
        ewx_text other_text = ewx_text_in(other_item, sizeof other_item);
        if (strncmp(mine, all[rank].asked, AGREEMENT_BYTES) == 0)
            continue;
        find_difference(mine, all[rank].asked, &my_text, &other_text);
        return ewx_fail(EW_ERR_MISMATCH,
                        "ranks disagree: rank %d has %s, rank %d has %s\n"
                        "  fix: create the plan with the same problem and config "
                        "on all ranks",
                        world->rank, my_item, rank, other_item);
    }
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (all[rank].status != EW_OK)
            return ewx_fail((ew_status)all[rank].status,
                            "rank %d cannot create the plan (%s)", rank,
                            ew_status_text((ew_status)all[rank].status));
    return EW_OK;
}

/* Collective.  `own_status` is what this rank's own checks found; nobody goes on unless
 * all ranks can. */
static ew_status agree(ew_plan *plan, const ew_problem *problem, ew_status own_status)
{
    ew_world *world = plan->world;
    agreement mine = {.status = own_status};
    ewx_text text = ewx_text_in(mine.asked, sizeof mine.asked);
    if (problem)
        ewx_problem_print(problem, world->num_ranks, &text);
    ewx_text_add(&text, ",");
    ewx_config_print_open(&plan->request, &text);
    agreement *all = calloc((size_t)world->num_ranks, sizeof *all);
    ew_status status =
        all ? ew_world_allgather(world, &mine, all, sizeof mine)
            : ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", world->num_ranks);
    if (status == EW_OK && own_status == EW_OK)
        status = check_agreement(world, all);
    free(all);
    return status;
}

typedef struct choice {
    ew_config config;
    ewx_tuning_origin origin;
} choice;

/* Collective: chooses for the machine that the ranks found together, as rank 0 does. */
static ew_status choose_together(ew_plan *plan, const ew_problem *problem)
{
    ew_world *world = plan->world;
    choice mine, all[EWX_MAX_RANKS];
    EW_TRY(plan->backend->survey(world, world->num_ranks, &plan->machine));
    const ew_status status =
        build_tuned_spec(plan->backend, problem, world->num_ranks, &plan->request,
                         &plan->machine, &plan->spec, &plan->origin);
    EW_TRY(ewx_world_agree(world, status, "create the plan"));
    mine = (choice){plan->spec.config, plan->origin};
    EW_TRY(ew_world_allgather(world, &mine, all, sizeof mine));
    plan->origin = all[0].origin;
    return build_spec(plan->backend, problem, world->num_ranks, &all[0].config,
                      &plan->machine, &plan->spec);
}

/* What this rank can tell by itself. */
static ew_status check_alone(ew_plan *plan, const ew_problem *problem,
                             const ew_config *config)
{
    EW_TRY(ewx_backend_find(plan->request.backend, &plan->backend));
    if (plan->request.backend == EW_BACKEND_SIM) /* whose machine is a file */
        EW_TRY(plan->backend->survey(NULL, plan->world->num_ranks, &plan->machine));
    return build_spec(plan->backend, problem, plan->world->num_ranks, config,
                      &plan->machine, &plan->spec);
}

/* ---- Plan ---- */

ew_status ew_plan_create(ew_world *world, const ew_problem *problem,
                         const ew_config *config, ew_plan **plan_out)
{
    if (!world || !plan_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_plan_create needs a world and a place for the plan");
    ew_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a plan");
    *plan = (ew_plan){.world = world,
                      .request = EW_CONFIG_INIT,
                      .machine = {.cores = ewx_usable_cores()}};
    if (config && config->struct_size >= sizeof *config)
        plan->request = *config;
    const ew_status checked = check_alone(plan, problem, config);
    char why[1024];
    ewx_text text = ewx_text_in(why, sizeof why);
    if (checked != EW_OK)
        ewx_text_add(&text, "%s", ew_last_error());
    ew_status status = agree(plan, checked == EW_ERR_ARGUMENT ? NULL : problem, checked);
    if (checked != EW_OK)
        status = ewx_fail(checked, "%s", why);
    if (status == EW_OK)
        status = choose_together(plan, problem);
    if (status == EW_OK) { /* on all ranks or on none */
        status = plan->backend->create(world, &plan->spec, &plan->state);
        status = ewx_world_agree(world, status, "create the plan");
    }
    if (status != EW_OK) {
        ew_plan_destroy(plan);
        return status;
    }
    *plan_out = plan;
    return EW_OK;
}

ew_status ew_plan_set_weight(ew_plan *plan, const void *B)
{
    if (!plan || !B)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_set_weight needs a plan and a weight");
    return plan->backend->set_weight(plan->state, B);
}

ew_status ew_gemm_rs(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                     ew_stream stream)
{
    if (!plan)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_gemm_rs needs a plan");
    if (m < 0 || m > plan->spec.problem.max_m)
        return ewx_fail(EW_ERR_SHAPE,
                        "m=%" PRId64 " is outside the plan's 0..%" PRId64 "\n"
                        "  fix: create the plan with a larger max_m",
                        m, plan->spec.problem.max_m);
    int64_t first, count;
    EW_TRY(ew_owned_rows(m, plan->spec.num_ranks, plan->world->rank, &first, &count));
    if ((m > 0 && !A) || (count > 0 && !C))
        return ewx_fail(EW_ERR_ARGUMENT, "ew_gemm_rs needs %s for m=%" PRId64,
                        A ? "C" : "A", m);
    return plan->backend->run(plan->state, m, A, B, C, stream);
}

ew_status ew_plan_wait(ew_plan *plan)
{
    if (!plan)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_wait needs a plan");
    return plan->backend->wait(plan->state);
}

ew_status ew_plan_config(const ew_plan *plan, ew_config *config_out)
{
    if (!plan || !config_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_config needs a plan and a config");
    *config_out = plan->spec.config;
    return EW_OK;
}

void ew_plan_destroy(ew_plan *plan)
{
    if (!plan)
        return;
    if (plan->backend)
        plan->backend->destroy(plan->state);
    free(plan);
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
                     " (%.1f us, the built-in choice %.1f us)\n",
                     origin->bucket, origin->time_us, origin->default_us);
    ewx_spec_explain(spec, origin->bucket > 0 ? &spec->config : request, machine, &text);
    return text.truncated ? ewx_fail(EW_ERR_ARGUMENT,
                                     "%zu bytes are too few for an explanation\n"
                                     "  fix: use EW_EXPLAIN_BYTES",
                                     bytes)
                          : EW_OK;
}

ew_status ew_plan_explain(const ew_plan *plan, char *text, size_t bytes)
{
    if (!plan)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_explain needs a plan");
    return explain(&plan->spec, &plan->request, &plan->machine, &plan->origin, text, bytes);
}

ew_status ew_forecast_explain(const ew_problem *problem, int num_ranks,
                              const ew_config *config, char *text, size_t bytes)
{
    forecast f;
    EW_TRY(forecast_plan(problem, num_ranks, config, &f));
    return explain(&f.spec, config, &f.machine, &f.origin, text, bytes);
}

ew_status ew_forecast_build(const ew_problem *problem, int num_ranks,
                            const ew_config *config, ew_forecast *forecast_out)
{
    forecast f;
    if (!forecast_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_forecast_build needs a place for its answer");
    EW_TRY(forecast_plan(problem, num_ranks, config, &f));
    const ewx_grid grid =
        ewx_grid_build(problem->max_m, problem->n, num_ranks, &f.spec.config);
    const ewx_footprint footprint = f.backend->footprint(&f.spec);
    int64_t num_tiles = 0;
    for (int dst = 0; dst < num_ranks; dst++)
        num_tiles += ewx_partition_tiles(&grid, dst);
    *forecast_out = (ew_forecast){
        .config = f.spec.config,
        .num_blocks = ewx_num_blocks(&grid),
        .num_tiles = num_tiles,
        .max_owned_tiles = ewx_partition_tiles(&grid, 0),
        .heap_bytes = f.spec.layout.segment_bytes,
        .weight_bytes = footprint.weight_bytes,
        .workspace_bytes = footprint.workspace_bytes,
        .total_bytes = f.spec.layout.segment_bytes + footprint.weight_bytes +
                       footprint.workspace_bytes,
        .flops = 2.0 * (double)problem->max_m * (double)problem->n * (double)problem->k,
        .remote_bytes =
            ew_remote_bytes(problem->max_m, problem->n, num_ranks, f.spec.elem_bytes),
        .uses_nccl = f.machine.has_nccl && f.spec.config.producer == EW_PRODUCER_BLAS,
    };
    return EW_OK;
}

/* ---- Observation ---- */

ew_status ew_plan_timing(const ew_plan *plan, ew_timing *timing_out)
{
    if (!plan || !timing_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_timing needs a plan and a timing");
    return plan->backend->observe(plan->state, false, timing_out, NULL, 0, NULL);
}

ew_status ew_plan_trace_enable(ew_plan *plan)
{
    if (!plan)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_trace_enable needs a plan");
    return plan->backend->observe(plan->state, true, NULL, NULL, 0, NULL);
}

ew_status ew_plan_trace(const ew_plan *plan, ew_trace_event *events, size_t capacity,
                        size_t *count_out)
{
    if (!plan || !count_out || (capacity > 0 && !events))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_plan_trace needs a plan and places for its answer");
    return plan->backend->observe(plan->state, false, NULL, events, capacity, count_out);
}

ew_status ew_plan_start_together(ew_plan *plan)
{
    if (!plan)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_plan_start_together needs a plan");
    plan->backend->start_together(plan->state);
    return EW_OK;
}

/* ---- Memory ---- */

ew_status ew_memory_alloc(ew_world *world, ew_backend backend, size_t bytes,
                          void **memory_out)
{
    const ewx_backend *found = NULL;
    if (!world || !memory_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_memory_alloc needs a world and a place");
    EW_TRY(ewx_backend_find(backend, &found));
    return found->memory.allocate(world, bytes, memory_out);
}

void ew_memory_free(ew_world *world, ew_backend backend, void *memory)
{
    const ewx_backend *found = NULL;
    if (world && memory && ewx_backend_find(backend, &found) == EW_OK)
        found->memory.release(world, memory);
}

ew_status ew_memory_copy(ew_world *world, ew_backend backend, void *to, const void *from,
                         size_t bytes)
{
    const ewx_backend *found = NULL;
    if (bytes == 0)
        return EW_OK;
    if (!world || !to || !from)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_memory_copy needs a world and two buffers");
    EW_TRY(ewx_backend_find(backend, &found));
    return found->memory.copy(world, to, from, bytes);
}

ew_status ew_memory_fill(ew_world *world, ew_backend backend, void *to, int byte,
                         size_t bytes)
{
    const ewx_backend *found = NULL;
    if (bytes == 0)
        return EW_OK;
    if (!world || !to)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_memory_fill needs a world and a buffer");
    EW_TRY(ewx_backend_find(backend, &found));
    return found->memory.fill(world, to, byte, bytes);
}

int64_t ew_now_ns(void)
{
    return ewx_now_ns();
}

int ew_usable_cores(void)
{
    return ewx_usable_cores();
}

#ifdef EW_TESTING
void *ewx_plan_state(const ew_plan *plan)
{
    return plan->state;
}
#endif
