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
#include "testing.h"

#define AGREEMENT_BYTES 512

struct ew_plan {
    ew_world *world;
    ewx_spec spec;
    ew_config request;
    int cores;
    const ewx_backend *backend;
    void *state;
};

/* ---- Which backend ---- */

static ew_status find_backend(const ewx_spec *spec, const ewx_backend **backend_out)
{
    switch (spec->config.backend) {
    case EW_BACKEND_CPU:
        *backend_out = &ewx_backend_cpu;
        return ewx_backend_cpu.check(spec);
    case EW_BACKEND_CUDA:
        return ewx_fail(EW_ERR_UNSUPPORTED, "this build has no cuda backend\n"
                                            "  fix: use backend=cpu");
    case EW_BACKEND_SIM:
        return ewx_fail(EW_ERR_UNSUPPORTED, "this build has no sim backend\n"
                                            "  fix: use backend=cpu");
    }
    return ewx_fail(EW_ERR_CONFIG, "backend %d is unknown", (int)spec->config.backend);
}

static ew_status build_spec(const ew_problem *problem, int num_ranks,
                            const ew_config *request, int cores, ewx_spec *spec_out,
                            const ewx_backend **backend_out)
{
    ewx_spec spec;
    EW_TRY(ewx_spec_build(problem, num_ranks, request, cores, &spec));
    EW_TRY(find_backend(&spec, backend_out));
    *spec_out = spec;
    return EW_OK;
}

/* ---- Agreement ---- */

typedef struct agreement {
    int32_t status;              /* of this rank's own checks */
    char asked[AGREEMENT_BYTES]; /* must be equal on all ranks */
    ew_config chosen;            /* rank 0's counts */
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
 * all ranks can, and all go on with rank 0's choices. */
static ew_status agree(ew_plan *plan, const ew_problem *problem, ew_status own_status)
{
    ew_world *world = plan->world;
    agreement mine = {.status = own_status, .chosen = plan->spec.config};
    ewx_text text = ewx_text_in(mine.asked, sizeof mine.asked);
    if (problem)
        ewx_problem_print(problem, world->num_ranks, &text);
    ewx_text_add(&text, ",");
    ewx_config_print_open(&plan->request, &text);
    agreement *all = calloc((size_t)world->num_ranks, sizeof *all);
    ew_status status =
        all ? ew_world_allgather(world, &mine, all, sizeof mine)
            : ewx_fail(EW_ERR_MEMORY, "no memory for %d ranks", world->num_ranks);
    if (status == EW_OK && own_status == EW_OK) {
        status = check_agreement(world, all);
        plan->spec.config = all[0].chosen;
    }
    free(all);
    return status;
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
    *plan =
        (ew_plan){.world = world, .request = EW_CONFIG_INIT, .cores = ewx_usable_cores()};
    if (config && config->struct_size >= sizeof *config)
        plan->request = *config;
    const ew_status checked = build_spec(problem, world->num_ranks, config, plan->cores,
                                         &plan->spec, &plan->backend);
    char why[1024];
    ewx_text text = ewx_text_in(why, sizeof why);
    if (checked != EW_OK)
        ewx_text_add(&text, "%s", ew_last_error());
    ew_status status = agree(plan, checked == EW_ERR_ARGUMENT ? NULL : problem, checked);
    if (checked != EW_OK)
        status = ewx_fail(checked, "%s", why);
    if (status == EW_OK) /* with rank 0's choices, laid out anew */
        status = build_spec(&plan->spec.problem, world->num_ranks, &plan->spec.config,
                            plan->cores, &plan->spec, &plan->backend);
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

static ew_status explain(const ewx_spec *spec, const ew_config *request, int cores,
                         char *buffer, size_t bytes)
{
    if (!buffer || bytes == 0)
        return ewx_fail(EW_ERR_ARGUMENT, "an explanation needs a buffer");
    ewx_text text = ewx_text_in(buffer, bytes);
    ewx_spec_explain(spec, request, cores, &text);
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
    return explain(&plan->spec, &plan->request, plan->cores, text, bytes);
}

ew_status ew_forecast_explain(const ew_problem *problem, int num_ranks,
                              const ew_config *config, char *text, size_t bytes)
{
    ewx_spec spec;
    const ewx_backend *backend;
    const int cores = ewx_usable_cores();
    EW_TRY(build_spec(problem, num_ranks, config, cores, &spec, &backend));
    return explain(&spec, config, cores, text, bytes);
}

ew_status ew_forecast_build(const ew_problem *problem, int num_ranks,
                            const ew_config *config, ew_forecast *forecast_out)
{
    if (!forecast_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_forecast_build needs a place for its answer");
    ewx_spec spec;
    const ewx_backend *backend;
    EW_TRY(build_spec(problem, num_ranks, config, ewx_usable_cores(), &spec, &backend));
    const ewx_grid grid =
        ewx_grid_build(problem->max_m, problem->n, num_ranks, &spec.config);
    const ewx_footprint footprint = backend->footprint(&spec);
    int64_t num_tiles = 0;
    for (int dst = 0; dst < num_ranks; dst++)
        num_tiles += ewx_partition_tiles(&grid, dst);
    *forecast_out = (ew_forecast){
        .config = spec.config,
        .num_blocks = ewx_num_blocks(&grid),
        .num_tiles = num_tiles,
        .max_owned_tiles = ewx_partition_tiles(&grid, 0),
        .heap_bytes = spec.layout.segment_bytes,
        .weight_bytes = footprint.weight_bytes,
        .workspace_bytes = footprint.workspace_bytes,
        .total_bytes =
            spec.layout.segment_bytes + footprint.weight_bytes + footprint.workspace_bytes,
        .flops = 2.0 * (double)problem->max_m * (double)problem->n * (double)problem->k,
        .remote_bytes =
            ew_remote_bytes(problem->max_m, problem->n, num_ranks, spec.elem_bytes),
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
