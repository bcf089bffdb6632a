/* The cases: which matrices there are, and what is done with them. */
#include "block.h"

#include <string.h>

#include "backend/cuda/cuda_memory.h"

const char *const block_cases[] = {"mlp", "o-up", "down-qkv", "training", NULL};

/* ---- Matrices ---- */

static const block_matrix *add(block *b, block_role role, int64_t rows, int64_t cols)
{
    block_matrix *matrix = &b->matrices[b->num_matrices++];
    *matrix = (block_matrix){.role = role, .rows = rows, .cols = cols};
    return matrix;
}

static size_t bytes_of(const block_matrix *matrix)
{
    return (size_t)(matrix->rows * matrix->cols) * 2;
}

static bool is_compared(const block_matrix *matrix)
{
    return matrix->role == STATE || matrix->role == OUTPUT;
}

static ew_status allocate(block *b)
{
    for (int i = 0; i < b->num_matrices; i++) {
        block_matrix *matrix = &b->matrices[i];
        void **places[] = {&matrix->at, &matrix->reference, &matrix->first};
        for (int copy = 0; copy < (is_compared(matrix) ? 3 : 1); copy++)
            EW_TRY(ewx_cuda_allocate(b->world, bytes_of(matrix), places[copy]));
    }
    return EW_OK;
}

static ew_status generate(block *b, int index, bool exact)
{
    block_matrix *matrix = &b->matrices[index];
    const bool is_exact = exact && (matrix->role == ROWS || matrix->role == WEIGHT);
    /* Every rank has its own, but norm weights are everyone's. */
    const uint32_t own = matrix->role == VALUES ? 0 : (uint32_t)b->world->rank;
    const ewx_input input = {.kind = !is_exact              ? EWX_INPUT_RANDOM
                                     : matrix->role == ROWS ? EWX_INPUT_EXACT_A
                                                            : EWX_INPUT_EXACT_B,
                             .dtype = EW_BF16,
                             .layout = EW_WEIGHT_NK,
                             .seed = b->options->seed + 1000 * (uint32_t)index +
                                     (is_exact ? 0 : own),
                             .rank = b->world->rank,
                             .num_ranks = b->world->num_ranks,
                             .rows = matrix->rows,
                             .depth = matrix->cols};
    return ewx_cuda_generate(b->world, &input, matrix->at);
}

ew_status block_load(block *b, bool exact)
{
    for (int i = 0; i < b->num_matrices; i++)
        if (b->matrices[i].role != OUTPUT && b->matrices[i].role != SCRATCH)
            EW_TRY(generate(b, i, exact));
    return EW_OK;
}

ew_status block_poison(block *b)
{
    for (int i = 0; i < b->num_matrices; i++) {
        block_matrix *matrix = &b->matrices[i];
        if (matrix->role == STATE)
            EW_TRY(generate(b, i, true));
        if (matrix->role == OUTPUT || matrix->role == SCRATCH) /* NaN in every element */
            EW_TRY(ewx_cuda_fill(b->world, matrix->at, 0xff, bytes_of(matrix)));
    }
    return EW_OK;
}

/* ---- Steps ---- */

bool block_has_plan(const block_step *step)
{
    return step->kind != GRADIENT;
}

ew_problem block_problem(const block *b, const block_step *step)
{
    ew_problem problem = EW_PROBLEM(b->options->m, step->n, step->k, EW_BF16);
    problem.weight_layout = step->layout;
    problem.op =
        step->kind == GATHER || step->kind == ACTIVATE ? EW_OP_AG_GEMM : EW_OP_GEMM_RS;
    return problem;
}

static block_step *add_step(block *b, block_kind kind, const char *name, int64_t n,
                            int64_t k)
{
    block_step *step = &b->steps[b->num_steps++];
    *step =
        (block_step){.name = name, .kind = kind, .n = n, .k = k, .layout = EW_WEIGHT_NK};
    return step;
}

/* A weight of its own, and a result. */
static block_step *add_call(block *b, block_kind kind, const char *name, int64_t n,
                            int64_t k, const block_matrix *a)
{
    block_step *step = add_step(b, kind, name, n, k);
    const bool gathers = kind == GATHER || kind == ACTIVATE;
    step->a = a;
    step->b = add(b, WEIGHT, n, k);
    step->c =
        add(b, OUTPUT, gathers ? b->options->m : b->rows, kind == ACTIVATE ? n / 2 : n);
    if (kind == ACTIVATE)
        step->wide = add(b, SCRATCH, b->options->m, n);
    if (kind == LAYER) {
        step->residual = add(b, STATE, b->rows, n);
        step->norm_weight = add(b, VALUES, 1, n);
    }
    return step;
}

/* The gradient of the input, by the same weight as it lies in memory, read the other way:
 * the n of the call before is the k of this one. */
static block_step *add_back(block *b, block_kind kind, const char *name,
                            const block_step *forward, const block_matrix *a)
{
    block_step *step = add_step(b, kind, name, forward->k, forward->n);
    step->layout = EW_WEIGHT_KN;
    step->a = a;
    step->b = forward->b;
    step->c = add(b, OUTPUT, kind == GATHER ? b->options->m : b->rows, forward->k);
    if (kind == GATHER)
        step->gathered = add(b, SCRATCH, b->options->m, forward->n);
    return step;
}

/* The gradient of the weight, from what was gathered. */
static void add_gradient(block *b, const char *name, const block_matrix *of_output,
                         const block_matrix *input)
{
    block_step *step = add_step(b, GRADIENT, name, of_output->cols, input->cols);
    step->a = input;
    step->b = of_output;
    step->c = add(b, OUTPUT, step->n, step->k);
}

/* ---- Cases ---- */

static void build_mlp(block *b, int64_t inner)
{
    const int64_t hidden = b->options->hidden;
    const block_step *up =
        add_call(b, ACTIVATE, "gate-up", 2 * inner, hidden, add(b, ROWS, b->rows, hidden));
    add_call(b, LAYER, "down", hidden, inner, up->c);
}

/* The end of one half layer and the beginning of the next: what a chain could join. */
static void build_seam(block *b, block_kind next, const char *const names[2], int64_t k,
                       int64_t n)
{
    const int64_t hidden = b->options->hidden;
    const block_step *end =
        add_call(b, LAYER, names[0], hidden, k, add(b, ROWS, b->options->m, k));
    add_call(b, next, names[1], n, hidden, end->c);
}

/* Four projections, forward and backward; attention and activation are left out, so every
 * product has inputs of its own. */
static void build_training(block *b, int64_t qkv, int64_t attention, int64_t inner)
{
    const int64_t m = b->options->m, hidden = b->options->hidden;
    const block_matrix *dy_mlp = add(b, ROWS, b->rows, hidden);
    const block_matrix *dy_attention = add(b, ROWS, b->rows, hidden);
    const block_matrix *d_up = add(b, ROWS, m, 2 * inner), *d_qkv = add(b, ROWS, m, qkv);
    const block_matrix *mixed = add(b, ROWS, m, attention), *h = add(b, ROWS, m, inner);
    block_step *to_qkv =
        add_call(b, GATHER, "qkv", qkv, hidden, add(b, ROWS, b->rows, hidden));
    to_qkv->gathered = add(b, SCRATCH, m, hidden);
    const block_step *o = add_call(b, SCATTER, "o", hidden, attention, mixed);
    block_step *up =
        add_call(b, GATHER, "gate-up", 2 * inner, hidden, add(b, ROWS, b->rows, hidden));
    up->gathered = add(b, SCRATCH, m, hidden);
    const block_step *down = add_call(b, SCATTER, "down", hidden, inner, h);
    const block_step *back = add_back(b, GATHER, "down dX", down, dy_mlp);
    add_gradient(b, "down dW", back->gathered, h);
    add_gradient(b, "gate-up dW", d_up, up->gathered);
    add_back(b, SCATTER, "gate-up dX", up, d_up);
    back = add_back(b, GATHER, "o dX", o, dy_attention);
    add_gradient(b, "o dW", back->gathered, mixed);
    add_gradient(b, "qkv dW", d_qkv, to_qkv->gathered);
    add_back(b, SCATTER, "qkv dX", to_qkv, d_qkv);
}

static void build(block *b)
{
    const block_options *o = b->options;
    const int64_t inner = o->inner / o->num_ranks, qkv = o->qkv / o->num_ranks;
    const int64_t attention = o->attention / o->num_ranks;
    static const char *const o_up[] = {"o", "gate-up"}, *const down_qkv[] = {"down", "qkv"};
    if (strcmp(o->name, "mlp") == 0)
        build_mlp(b, inner);
    else if (strcmp(o->name, "o-up") == 0)
        build_seam(b, ACTIVATE, o_up, attention, 2 * inner);
    else if (strcmp(o->name, "down-qkv") == 0)
        build_seam(b, GATHER, down_qkv, inner, qkv);
    else
        build_training(b, qkv, attention, inner);
}

static ew_status prepare_kernels(block *b)
{
    EW_CUDA_TRY(cudaEventCreateWithFlags(&b->joined, cudaEventDisableTiming),
                "creating an event");
    b->swiglu = block_swiglu_kernel();
    b->compare = block_compare_kernel();
    EW_TRY(ewx_cuda_entry_prepare(&b->swiglu));
    return ewx_cuda_entry_prepare(&b->compare);
}

static bool has_gradients(const block *b)
{
    for (int i = 0; i < b->num_steps; i++)
        if (b->steps[i].kind == GRADIENT)
            return true;
    return false;
}

ew_status block_open(block *b)
{
    int64_t first;
    EW_TRY(ew_owned_rows(b->options->m, b->options->num_ranks, b->world->rank, &first,
                         &b->rows));
    build(b);
    EW_TRY(allocate(b));
    EW_TRY(ewx_cuda_allocate(b->world, sizeof *b->verdict, (void **)&b->verdict));
    /* Those of a caller's are of the GPU's usual context. */
    EW_CUDA_TRY(cudaSetDevice(b->device->ordinal), "choosing the GPU");
    EW_CUDA_TRY(cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking),
                "creating a stream");
    EW_CUDA_TRY(cudaEventCreateWithFlags(&b->forked, cudaEventDisableTiming),
                "creating an event");
    EW_TRY(ewx_device_enter(b->device));
    ew_status status = prepare_kernels(b);
    if (status == EW_OK && has_gradients(b))
        status = ewx_cuda_blas_open(&b->blas, b->device);
    ewx_device_leave(b->device);
    return status;
}

void block_close(block *b)
{
    if (b->device && ewx_device_enter(b->device) == EW_OK) {
        ewx_cuda_blas_close(&b->blas);
        if (b->joined)
            cudaEventDestroy(b->joined);
        cudaFree(b->verdict);
        ewx_device_leave(b->device);
    }
    if (b->forked)
        cudaEventDestroy(b->forked);
    if (b->stream)
        cudaStreamDestroy(b->stream);
    for (int i = 0; i < b->num_matrices; i++) {
        void *places[] = {b->matrices[i].at, b->matrices[i].reference,
                          b->matrices[i].first};
        for (int copy = 0; copy < 3; copy++)
            if (places[copy])
                ewx_cuda_release(b->world, places[copy]);
    }
}
