/* A spec from a problem and a request: choose.c fills in, check.c refuses, layout.c lays
 * the heap out. */
#include "base/status.h"
#include "plan/policy.h"

ew_status ewx_config_choose(const ew_problem *problem, int num_ranks,
                            const ew_config *request, const ewx_machine *machine,
                            ew_config *config_out)
{
    ew_config config = EW_CONFIG_INIT;
    if (request)
        config = *request;
    ewx_config_fill(problem, num_ranks, machine, &config);
    EW_TRY(ewx_config_check(problem, num_ranks, machine, &config));
    *config_out = config;
    return EW_OK;
}

ew_status ewx_spec_build(const ew_problem *problem, int num_ranks, const ew_config *request,
                         const ewx_machine *machine, ewx_spec *spec_out)
{
    EW_TRY(request && ewx_traits_of(request->backend)->simulated
               ? ewx_problem_check_shape(problem)
               : ewx_problem_check(problem, num_ranks));
    ewx_spec spec = {.problem = *problem,
                     .op = ewx_op_of(problem),
                     .num_ranks = num_ranks,
                     .num_hosts = machine->hosts > 1 ? machine->hosts : 1,
                     .elem_bytes = ew_dtype_bytes(problem->dtype)};
    EW_TRY(ewx_config_choose(problem, num_ranks, request, machine, &spec.config));
    EW_TRY(ewx_layout_build(problem, num_ranks, &spec.config, &spec.layout));
    *spec_out = spec;
    return EW_OK;
}
