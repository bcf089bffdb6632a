/* The public weight: packed once, and read by all the plans that it is bound to. */
#include "api/weight.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/cores.h"
#include "base/status.h"
#include "base/versioned.h"

struct ew_weight {
    ewx_handle handle;
    ew_world *world;
    const ewx_backend *backend;
    ewx_spec spec; /* of no rows, or of the plan whose own weight it is */
    void *packed;
    bool is_packed; /* false while an update failed */
    ewx_binding *bindings;
};

/* ---- Bindings ---- */

void ewx_weight_bind(ewx_binding *binding, ew_weight *weight)
{
    if (binding->weight == weight)
        return;
    if (binding->weight) {
        *binding->link = binding->next;
        if (binding->next)
            binding->next->link = binding->link;
    }
    *binding = (ewx_binding){0};
    if (!weight)
        return;
    *binding = (ewx_binding){weight, weight->bindings, &weight->bindings};
    if (binding->next)
        binding->next->link = &binding->next;
    weight->bindings = binding;
}

const void *ewx_weight_packed(const ew_weight *weight)
{
    return weight && weight->is_packed ? weight->packed : NULL;
}

static ew_status differ(const char *what, const char *weights, const char *plans)
{
    return ewx_fail(EW_ERR_ARGUMENT,
                    "the weight has %s=%s, the plan %s=%s\n"
                    "  fix: create the weight with the plan's problem and config",
                    what, weights, what, plans);
}

/* In how many pieces K is multiplied: `invariant` decides, for as many ranks. */
static ew_status check_pieces(const ew_weight *weight, const ewx_spec *spec)
{
    char weights[16], plans[16];
    if (weight->spec.layout.num_pieces == spec->layout.num_pieces)
        return EW_OK;
    snprintf(weights, sizeof weights, "%d", weight->spec.config.invariant);
    snprintf(plans, sizeof plans, "%d", spec->config.invariant);
    return differ("invariant", weights, plans);
}

ew_status ewx_weight_check(const ew_weight *weight, const char *function,
                           const ew_world *world, const ewx_spec *spec, int64_t n)
{
    EW_TRY(ewx_handle_check(weight, EWX_KIND_WEIGHT, function));
    const ew_problem *mine = &weight->spec.problem, *its = &spec->problem;
    const ew_config *config = &weight->spec.config;
    if (weight->world != world)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the weight belongs to another world than the plan\n"
                        "  fix: create the weight in the plan's world");
    if (mine->n != n || mine->k != its->k)
        return ewx_fail(EW_ERR_SHAPE,
                        "the weight has N=%" PRId64 ",K=%" PRId64 ", the %s N=%" PRId64
                        ",K=%" PRId64 "\n  fix: pass a weight of %s",
                        mine->n, mine->k, n == its->n ? "plan" : "product", n, its->k,
                        n == its->n ? "the plan's shape" : "this n and the plan's K");
    if (mine->dtype != its->dtype)
        return differ("type", ew_dtype_name(mine->dtype), ew_dtype_name(its->dtype));
    if (mine->weight_layout != its->weight_layout)
        return differ("layout", mine->weight_layout == EW_WEIGHT_NK ? "nk" : "kn",
                      its->weight_layout == EW_WEIGHT_NK ? "nk" : "kn");
    if (config->backend != spec->config.backend)
        return differ("backend", ewx_traits_of(config->backend)->name,
                      ewx_traits_of(spec->config.backend)->name);
    if (config->producer != spec->config.producer)
        return differ("producer", config->producer == EW_PRODUCER_OWN ? "own" : "blas",
                      spec->config.producer == EW_PRODUCER_OWN ? "own" : "blas");
    return check_pieces(weight, spec);
}

/* ---- Creation ---- */

ew_status ewx_weight_open(ew_world *world, const ewx_backend *backend, const ewx_spec *spec,
                          ew_weight **weight_out)
{
    ew_weight *weight = calloc(1, sizeof *weight);
    if (!weight)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a weight");
    *weight = (ew_weight){.world = world, .backend = backend, .spec = *spec};
    ewx_handle_begin(&weight->handle, EWX_KIND_WEIGHT);
    const ew_status status = backend->weights.open(world, spec, &weight->packed);
    if (status == EW_OK)
        *weight_out = weight;
    else
        free(weight);
    return status;
}

/* Keeps of the config only what decides the packed form, and who packs. */
static ew_status reduce_config(const ew_config *config, ew_config *request_out)
{
    ew_config given = EW_CONFIG_INIT, request = EW_CONFIG_INIT;
    EW_TRY(ewx_config_take(&given, config));
    request.backend = given.backend;
    request.producer = given.producer;
    request.invariant = given.invariant;
    const ewx_traits *traits = ewx_traits_of(given.backend);
    if (!traits->is_gpu && !traits->simulated)
        request.workers = given.workers;
    *request_out = request;
    return EW_OK;
}

static ew_status build_spec(ew_world *world, const ew_problem *problem,
                            const ew_config *config, const ewx_backend **backend_out,
                            ewx_spec *spec_out)
{
    ewx_machine machine = {.cores = ewx_usable_cores()};
    ew_config request;
    ew_problem shape;
    EW_TRY(reduce_config(config, &request));
    EW_TRY(ewx_problem_take(&shape, problem));
    shape.max_m = 0;
    EW_TRY(ewx_backend_find(request.backend, backend_out));
    EW_TRY((*backend_out)->survey(world, ew_world_size(world), &machine));
    EW_TRY(ewx_spec_build(&shape, ew_world_size(world), &request, &machine, spec_out));
    return (*backend_out)->check(spec_out);
}

static ew_status create(ew_world *world, const ew_problem *problem, const ew_config *config,
                        const void *B, ew_weight **weight_out)
{
    const ewx_backend *backend = NULL;
    ewx_spec spec;
    ew_weight *weight = NULL;
    EW_TRY(build_spec(world, problem, config, &backend, &spec));
    EW_TRY(ewx_weight_open(world, backend, &spec, &weight));
    const ew_status status = ewx_weight_pack(weight, B);
    if (status == EW_OK)
        *weight_out = weight;
    else
        ewx_weight_close(weight);
    return status;
}

ew_status ew_weight_create(ew_world *world, const ew_problem *problem,
                           const ew_config *config, const void *B, ew_weight **weight_out)
{
    if (!world || !B || !weight_out)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_weight_create needs a world, B, and a place for the weight");
    EW_TRY(ewx_handle_check(world, EWX_KIND_WORLD, "ew_weight_create"));
    EW_TRY(ewx_world_enter(world));
    const ew_status status = create(world, problem, config, B, weight_out);
    ewx_world_leave(world);
    return status;
}

/* ---- Use ---- */

ew_status ewx_weight_pack(ew_weight *weight, const void *B)
{
    weight->is_packed = false;
    EW_TRY(weight->backend->weights.pack(weight->world, &weight->spec, weight->packed, B));
    weight->is_packed = true;
    return EW_OK;
}

ew_status ew_weight_update(ew_weight *weight, const void *B)
{
    if (!weight || !B)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_weight_update needs a weight and B");
    EW_TRY(ewx_handle_check(weight, EWX_KIND_WEIGHT, "ew_weight_update"));
    EW_TRY(ewx_world_enter(weight->world));
    const ew_status status = ewx_weight_pack(weight, B);
    ewx_world_leave(weight->world);
    return status;
}

size_t ew_weight_bytes(const ew_weight *weight)
{
    return !weight || ewx_handle_check(weight, EWX_KIND_WEIGHT, "ew_weight_bytes") != EW_OK
               ? 0
               : weight->backend->footprint(&weight->spec).weight_bytes;
}

void ewx_weight_close(ew_weight *weight)
{
    if (!weight)
        return;
    while (weight->bindings)
        ewx_weight_bind(weight->bindings, NULL);
    weight->backend->weights.close(weight->world, weight->packed);
    ewx_handle_end(&weight->handle);
    free(weight);
}

void ew_weight_destroy(ew_weight *weight)
{
    if (!weight || ewx_handle_check(weight, EWX_KIND_WEIGHT, "ew_weight_destroy") != EW_OK)
        return;
    const ew_world *world = weight->world;
    if (ewx_world_is_elsewhere(world)) {
        ewx_handle_end(&weight->handle);
        free(weight); /* what it was packed into is the parent's */
        return;
    }
    if (ewx_world_enter(world) != EW_OK)
        return; /* it is still in use, or its world is gone: a leak harms less */
    ewx_weight_close(weight);
    ewx_world_leave(world);
}
