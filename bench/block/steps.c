/* How a method runs the steps of a case: one plan each, on a stream of the caller's, so
 * that a graph can hold them all. */
#include "block.h"

#include <string.h>

static bool uses_blas(const block_method *method)
{
    return strcmp(method->name, "blas") == 0;
}

/* ---- Plans ---- */

/* Only the method that is measured takes a config; what it is compared with has the
 * library's choice. */
static ew_status config_of(const block *b, const block_method *method,
                           const block_step *step, ew_config *config_out)
{
    ew_config base = EW_CONFIG_INIT;
    const bool gathers = step->kind == GATHER || step->kind == ACTIVATE;
    if (strcmp(method->name, "entwine") == 0)
        EW_TRY(ew_config_parse(
            gathers ? b->options->gather_config : b->options->scatter_config, &base));
    base.backend = EW_BACKEND_CUDA;
    if (uses_blas(method) &&
        step->kind == LAYER) /* one kernel for sum and norm, as inference engines have it */
        base.epilogue = EW_EPILOGUE_AFTER;
    return ew_method_config(method->name, &base, config_out);
}

ew_status block_method_open(block *b, block_method *method)
{
    for (int i = 0; i < b->num_steps; i++) {
        const block_step *step = &b->steps[i];
        if (!block_has_plan(step))
            continue;
        const ew_problem problem = block_problem(b, step);
        ew_config config = EW_CONFIG_INIT;
        EW_TRY(config_of(b, method, step, &config));
        EW_TRY(ew_plan_create(b->world, &problem, &config, &method->plans[i]));
    }
    return EW_OK;
}

void block_method_close(const block *b, block_method *method)
{
    for (int i = 0; i < b->num_steps; i++)
        if (method->plans[i]) {
            const ewx_graphs *graphs = &method->plans[i]->backend->graphs;
            graphs->close(method->held);
            graphs->close(method->loose);
            method->held = method->loose = NULL;
        }
    for (int i = 0; i < b->num_steps; i++)
        ew_plan_destroy(method->plans[i]);
}

/* As it lies in memory it serves a call as it is; else a plan has its own copy, made once
 * for all calls until the weight changes. */
static const void *weight_of(const block_step *step)
{
    return step->layout == EW_WEIGHT_NK ? step->b->at : NULL;
}

ew_status block_bind(const block *b, const block_method *method)
{
    for (int i = 0; i < b->num_steps; i++)
        if (method->plans[i] && !weight_of(&b->steps[i]))
            EW_TRY(ew_plan_set_weight(method->plans[i], b->steps[i].b->at));
    return EW_OK;
}

void block_start_together(const block *b, const block_method *method, bool together)
{
    for (int i = 0; i < b->num_steps; i++)
        if (method->plans[i])
            method->plans[i]->backend->set_start(
                method->plans[i]->state, (ewx_start){.together = i == 0 && together});
}

/* ---- Kernels of this program, in the rank's own part of the GPU ---- */

static ew_status launch_swiglu(const block *b, const block_step *step)
{
    enum { CTAS_PER_SM = 8 };
    const void *wide = step->wide->at;
    void *out = step->c->at;
    int64_t rows = step->c->rows, cols = step->c->cols;
    void *arguments[] = {&wide, &out, &rows, &cols};
    const dim3 grid = {(unsigned)(CTAS_PER_SM * b->device->sms), 1, 1};
    const dim3 threads = {(unsigned)b->swiglu.threads, 1, 1};
    return ewx_cuda_launch(b->device, &b->swiglu, grid, threads, (ewx_launch_how){0},
                           b->device->producing, arguments);
}

/* c [n x k] = b^T a, summed over the rows of both. */
static ew_status launch_gradient(const block *b, const block_step *step)
{
    return ewx_cuda_blas_gradient(&b->blas, EW_BF16, step->n, step->k, b->options->m,
                                  step->b->at, step->a->at, step->c->at,
                                  b->device->producing);
}

static ew_status launch_inside(const block *b, const block_step *step,
                               ew_status (*launch)(const block *, const block_step *))
{
    EW_TRY(ewx_cuda_follow(b->device->producing, b->forked));
    EW_TRY(launch(b, step));
    return ewx_cuda_record(b->joined, b->device->producing);
}

static ew_status run_inside(const block *b, const block_step *step, ew_stream stream,
                            ew_status (*launch)(const block *, const block_step *))
{
    EW_TRY(ewx_cuda_record(b->forked, stream));
    EW_TRY(ewx_device_enter(b->device));
    const ew_status status = launch_inside(b, step, launch);
    ewx_device_leave(b->device);
    EW_TRY(status);
    return ewx_cuda_follow(stream, b->joined);
}

/* ---- Steps ---- */

static ew_status run_gather(const block *b, ew_plan *plan, const block_step *step,
                            const block_matrix *c, ew_stream stream)
{
    return ew_ag_gemm(plan, b->options->m, step->a->at, weight_of(step), c->at,
                      step->gathered ? step->gathered->at : NULL, stream);
}

static ew_status run_activate(const block *b, const block_method *method, ew_plan *plan,
                              const block_step *step, ew_stream stream)
{
    if (uses_blas(method)) {
        EW_TRY(run_gather(b, plan, step, step->wide, stream));
        return run_inside(b, step, stream, launch_swiglu);
    }
    const int64_t n = step->n / 2;
    const ew_product products[] = {
        {.n = n, .B = step->b->at},
        {.n = n, .B = (const uint16_t *)step->b->at + n * step->k}};
    return ew_ag_gemm_act(plan, b->options->m, step->a->at, products, 2, EW_ACTIVATION_SILU,
                          step->c->at, NULL, stream);
}

static ew_status run_layer(const block *b, ew_plan *plan, const block_step *step,
                           ew_stream stream)
{
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.residual = step->residual->at;
    epilogue.norm_weight = step->norm_weight->at;
    epilogue.normed = step->c->at;
    return ew_gemm_rs_layer(plan, b->options->m, step->a->at, weight_of(step), NULL,
                            &epilogue, stream);
}

static ew_status run_step(const block *b, const block_method *method, int at,
                          ew_stream stream)
{
    const block_step *step = &b->steps[at];
    ew_plan *plan = method->plans[at];
    switch (step->kind) {
    case GATHER:
        return run_gather(b, plan, step, step->c, stream);
    case ACTIVATE:
        return run_activate(b, method, plan, step, stream);
    case LAYER:
        return run_layer(b, plan, step, stream);
    case GRADIENT:
        return run_inside(b, step, stream, launch_gradient);
    case SCATTER:
        break;
    }
    return ew_gemm_rs(plan, b->options->m, step->a->at, weight_of(step), step->c->at,
                      stream);
}

ew_status block_run(block *b, const block_method *method, ew_stream stream, bool singly)
{
    for (int i = 0; i < b->num_steps; i++) {
        EW_TRY(run_step(b, method, i, stream));
        if (!singly)
            continue;
        EW_CUDA_TRY(cudaStreamSynchronize(stream), "a step"); /* its kernels are bounded */
        EW_TRY(method->plans[i] ? ew_plan_wait(method->plans[i]) : EW_OK);
        EW_TRY(ew_world_barrier(b->world));
    }
    return EW_OK;
}
