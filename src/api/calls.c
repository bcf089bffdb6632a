/* A plan's calls: what is checked before any rank can see that a call was made, and the way
 * down to the backend. */
#include <inttypes.h>

#include "api/epilogue_check.h"
#include "api/plan.h"
#include "api/products.h"
#include "base/status.h"
#include "base/versioned.h"
#include "plan/policy.h"

typedef struct ewx_call_rows {
    int64_t a, c, residual;
} ewx_call_rows;

/* How many rows each of a call's matrices has on this rank. */
static ewx_call_rows call_rows(const ew_plan *plan, const ewx_call *call)
{
    const ewx_op *op = plan->spec.op;
    const int num_ranks = plan->spec.num_ranks, rank = plan->world->rank;
    const bool all = call->epilogue && call->epilogue->residual_rows == EW_RESIDUAL_ALL;
    return (ewx_call_rows){op->rows_a(call->m, num_ranks, rank).count,
                           op->rows_c(call->m, num_ranks, rank).count,
                           all ? call->m : ewx_rows_dealt(call->m, num_ranks, rank).count};
}

/* What a call without an epilogue writes, then what it reads. */
static ew_status check_matrices(const ew_plan *plan, const ewx_call *call)
{
    static const char *const names[] = {"gathered", "C", "A", "B"};
    const ew_problem *problem = &plan->spec.problem;
    const ewx_call_rows rows = call_rows(plan, call);
    const size_t elem = plan->spec.elem_bytes, depth = (size_t)problem->k * elem;
    const ewx_part parts[] = {ewx_part_of(call->gathered, (size_t)call->m * depth),
                              ewx_part_of(call->C, (size_t)(rows.c * problem->n) * elem),
                              ewx_part_of(call->A, (size_t)rows.a * depth),
                              ewx_part_of(call->B, (size_t)problem->n * depth)};
    return ewx_parts_check(parts, names, 2, 4);
}

/* The same of a call with one. */
static ew_status check_layer_matrices(const ew_plan *plan, const ewx_call *call)
{
    static const char *const names[] = {"normed", "residual", "C",          "A",
                                        "B",      "bias",     "norm_weight"};
    const ew_problem *problem = &plan->spec.problem;
    const ew_epilogue *epilogue = call->epilogue;
    const ewx_call_rows rows = call_rows(plan, call);
    const size_t elem = plan->spec.elem_bytes, row = (size_t)problem->n * elem;
    const size_t out = (size_t)rows.c * row;
    ewx_part parts[7];
    parts[2] = ewx_part_of(call->C, out);
    parts[3] = ewx_part_of(call->A, (size_t)(rows.a * problem->k) * elem);
    parts[4] = ewx_part_of(call->B, (size_t)problem->k * row);
    parts[0] = ewx_part_of(epilogue->normed, out);
    parts[1] = ewx_part_of(epilogue->residual, (size_t)rows.residual * row);
    parts[5] = ewx_part_of(epilogue->bias, row);
    parts[6] = ewx_part_of(epilogue->norm_weight, row);
    return ewx_parts_check(parts, names, 3, 7);
}

static ew_status check_memory(const ew_plan *plan, const ewx_call *call)
{
    if (plan->backend->traits->simulated)
        return EW_OK;
    return call->epilogue ? check_layer_matrices(plan, call) : check_matrices(plan, call);
}

/* Whether the plan is one, and one for calls like this. */
static ew_status check_plan(const ew_plan *plan, const char *function, ew_op op, int64_t m)
{
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, function));
    if (op != plan->spec.problem.op)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%s cannot run a plan for %s\n  fix: call %s, or create the plan "
                        "with op=%s",
                        function, plan->spec.op->name, plan->spec.op->function,
                        ew_op_name(op));
    if (m < 0)
        return ewx_fail(EW_ERR_SHAPE, "m=%" PRId64 " is negative\n  fix: use 0 or more", m);
    if (m > plan->spec.problem.max_m)
        return ewx_fail(EW_ERR_SHAPE,
                        "m=%" PRId64 " is more than the plan's max_m=%" PRId64 "\n"
                        "  fix: create the plan with a larger max_m",
                        m, plan->spec.problem.max_m);
    return EW_OK;
}

/* What can be told before any rank can see that the call was made. */
static ew_status check_call(const ew_plan *plan, const char *function, ew_op op,
                            const ewx_call *call)
{
    const int64_t m = call->m;
    EW_TRY(check_plan(plan, function, op, m));
    const ewx_call_rows rows = call_rows(plan, call);
    if ((rows.a > 0 && !call->A) || (rows.c > 0 && !call->C && !call->epilogue))
        return ewx_fail(EW_ERR_ARGUMENT, "%s needs %s for m=%" PRId64, function,
                        rows.a > 0 && !call->A ? "A" : "C", m);
    if (call->epilogue)
        EW_TRY(ewx_epilogue_check(call->epilogue, call->C, rows.c, op));
    return check_memory(plan, call);
}

/* In the entered world: until then another thread may bind and unbind. */
static ew_status find_weight(const ew_plan *plan, ewx_call *call)
{
    call->packed = ewx_weight_packed(plan->binding.weight);
    return call->B || call->packed || call->products || plan->backend->traits->simulated
               ? EW_OK
               : ewx_fail(EW_ERR_ARGUMENT,
                          "the plan has no weight\n"
                          "  fix: call ew_plan_set_weight or ew_plan_bind_weight first, or "
                          "pass B");
}

static ew_status run_entered(ew_plan *plan, ewx_call *call)
{
    EW_TRY(find_weight(plan, call));
    call->timeout_ns = plan->timeout_ns;
    call->plan = plan->number;
    EW_TRY(plan->backend->admit(plan->state, call));
    const ew_problem *problem = &plan->spec.problem;
    const bool enqueues = ewx_plan_replays(plan->world, plan->backend->traits);
    const ewx_operation operation = {.op = (int32_t)problem->op,
                                     .kind = EWX_RECORD_CALL,
                                     .shape = {call->m, problem->n, problem->k},
                                     .plan = ewx_plan_word(plan->number, plan->fingerprint),
                                     .timeout_ns = plan->timeout_ns,
                                     .replays = enqueues};
    ew_status status = ewx_recorder_begin(plan->world, &operation);
    if (status == EW_OK)
        status = plan->backend->run(plan->state, call);
    ewx_recorder_end(plan->world, status, enqueues && status == EW_OK);
    return status;
}

static ew_status enter_and_call(ew_plan *plan, const char *function, ew_op op,
                                ewx_call *call)
{
    EW_TRY(check_call(plan, function, op, call));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status = run_entered(plan, call);
    ewx_world_leave(plan->world);
    return status;
}

static ew_status call_layer(ew_plan *plan, const char *function, ew_op op, ewx_call *call)
{
    ew_epilogue given;
    if (call->epilogue) {
        EW_TRY(ewx_struct_take(&given, sizeof given, call->epilogue, EWX_FIRST_EPILOGUE,
                               "the epilogue", "EW_EPILOGUE_INIT"));
        call->epilogue = &given;
    }
    return enter_and_call(plan, function, op, call);
}

ew_status ew_gemm_rs(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                     ew_stream stream)
{
    ewx_call call = {.m = m, .A = A, .B = B, .C = C, .stream = stream};
    return enter_and_call(plan, "ew_gemm_rs", EW_OP_GEMM_RS, &call);
}

ew_status ew_gemm_rs_layer(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                           const ew_epilogue *epilogue, ew_stream stream)
{
    ewx_call call = {
        .m = m, .A = A, .B = B, .C = C, .epilogue = epilogue, .stream = stream};
    return call_layer(plan, "ew_gemm_rs_layer", EW_OP_GEMM_RS, &call);
}

ew_status ew_gemm_ar(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                     ew_stream stream)
{
    ewx_call call = {.m = m, .A = A, .B = B, .C = C, .stream = stream};
    return enter_and_call(plan, "ew_gemm_ar", EW_OP_GEMM_AR, &call);
}

ew_status ew_gemm_ar_layer(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                           const ew_epilogue *epilogue, ew_stream stream)
{
    ewx_call call = {
        .m = m, .A = A, .B = B, .C = C, .epilogue = epilogue, .stream = stream};
    return call_layer(plan, "ew_gemm_ar_layer", EW_OP_GEMM_AR, &call);
}

ew_status ew_ag_gemm(ew_plan *plan, int64_t m, const void *A, const void *B, void *C,
                     void *gathered, ew_stream stream)
{
    ewx_call call = {
        .m = m, .A = A, .B = B, .C = C, .gathered = gathered, .stream = stream};
    return enter_and_call(plan, "ew_ag_gemm", EW_OP_AG_GEMM, &call);
}

static ew_status run_products(ew_plan *plan, const char *function,
                              const ew_product *products, ewx_call *call)
{
    ewx_product taken[EW_MAX_PRODUCTS];
    EW_TRY(ewx_products_take(function, plan->world, &plan->spec, products,
                             call->num_products, taken));
    call->products = taken;
    EW_TRY(ewx_products_check(function, &plan->spec, plan->world->rank, call));
    return run_entered(plan, call);
}

static ew_status call_products(ew_plan *plan, const char *function,
                               const ew_product *products, ewx_call *call)
{
    EW_TRY(check_plan(plan, function, EW_OP_AG_GEMM, call->m));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status = run_products(plan, function, products, call);
    ewx_world_leave(plan->world);
    return status;
}

ew_status ew_ag_gemm_multi(ew_plan *plan, int64_t m, const void *A,
                           const ew_product *products, int num_products, void *gathered,
                           ew_stream stream)
{
    ewx_call call = {.m = m,
                     .A = A,
                     .num_products = num_products,
                     .gathered = gathered,
                     .stream = stream};
    return call_products(plan, "ew_ag_gemm_multi", products, &call);
}

ew_status ew_ag_gemm_act(ew_plan *plan, int64_t m, const void *A,
                         const ew_product *products, int num_products,
                         ew_activation activation, void *C, void *gathered,
                         ew_stream stream)
{
    ewx_call call = {.m = m,
                     .A = A,
                     .C = C,
                     .num_products = num_products,
                     .activates = true,
                     .activation = activation,
                     .gathered = gathered,
                     .stream = stream};
    return call_products(plan, "ew_ag_gemm_act", products, &call);
}

ew_status ew_plan_wait(ew_plan *plan)
{
    EW_TRY(ewx_handle_check(plan, EWX_KIND_PLAN, "ew_plan_wait"));
    EW_TRY(ewx_world_enter(plan->world));
    const ew_status status = plan->backend->wait(plan->state);
    ewx_recorder_drain(plan->world, status);
    ewx_world_leave(plan->world);
    return status;
}
