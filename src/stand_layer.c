/* A test stand's layers: a call with residual addition and RMSNorm, fused or not, and what
 * it must give. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/epilogue_math.h"
#include "base/dtype.h"
#include "base/status.h"
#include "plan/layer.h"
#include "stand.h"

#define EPS 1e-5f

static int64_t owned_rows(const ewx_stand *stand)
{
    return ewx_op_of(stand->problem)
        ->rows_c(stand->rows, stand->world->num_ranks, stand->world->rank)
        .count;
}

static size_t weight_bytes(const ewx_stand *stand)
{
    return (size_t)stand->problem->n * ew_dtype_bytes(stand->problem->dtype);
}

/* ---- Matrices ---- */

ew_status ewx_stand_open_layer(ewx_stand *stand)
{
    ew_world *world = stand->world;
    const ewx_memory *memory = &stand->backend->memory;
    EW_TRY(memory->allocate(world, stand->c_bytes, &stand->residual));
    EW_TRY(memory->allocate(world, weight_bytes(stand), &stand->norm_weight));
    EW_TRY(memory->allocate(world, stand->c_bytes, &stand->normed));
    stand->host_sum = malloc(stand->c_bytes + 1);
    stand->host_residual = malloc(stand->c_bytes + 1);
    stand->host_normed = malloc(stand->c_bytes + 1);
    stand->host_weight = malloc(weight_bytes(stand));
    if (stand->host_sum && stand->host_residual && stand->host_normed && stand->host_weight)
        return EW_OK;
    return ewx_fail(EW_ERR_MEMORY,
                    "no memory to check %zu bytes\n"
                    "  fix: use a smaller shape or fewer ranks",
                    stand->c_bytes);
}

void ewx_stand_close_layer(ewx_stand *stand)
{
    void *matrices[] = {stand->normed, stand->norm_weight, stand->residual};
    void *hosts[] = {stand->host_sum, stand->host_residual, stand->host_normed,
                     stand->host_weight};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (matrices[i])
            stand->backend->memory.release(stand->world, matrices[i]);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        free(hosts[i]);
}

static ew_status generate(ewx_stand *stand, uint32_t salt, int64_t rows, void *matrix)
{
    const ewx_input input = {.kind = EWX_INPUT_RANDOM,
                             .dtype = stand->problem->dtype,
                             .seed = stand->seed + salt,
                             .rows = rows,
                             .depth = stand->problem->n};
    return stand->backend->memory.generate(stand->world, &input, matrix);
}

ew_status ewx_stand_load_layer(ewx_stand *stand)
{
    EW_TRY(generate(stand, 1000 + (uint32_t)stand->world->rank, owned_rows(stand),
                    stand->residual));
    return generate(stand, 999, 1, stand->norm_weight);
}

/* ---- Calls ---- */

ew_status ewx_stand_call_layer(const ewx_stand *stand, const ewx_runner *runner)
{
    const ew_epilogue whole = {sizeof whole,       EPS,          NULL, stand->residual,
                               stand->norm_weight, stand->normed};
    /* Fused, nobody wants the bare sum. */
    void *C = runner->layer == EW_BENCH_FUSED ? NULL : stand->C;
    return ew_gemm_rs_layer(runner->plan, stand->rows, stand->A, NULL, C, &whole, NULL);
}

/* ---- Check ---- */

ew_status ewx_stand_poison_layer(ewx_stand *stand)
{
    ew_world *world = stand->world;
    const ewx_memory *memory = &stand->backend->memory;
    EW_TRY(memory->copy(world, stand->host_sum, stand->C, stand->c_bytes));
    EW_TRY(ewx_stand_load_layer(stand));
    EW_TRY(memory->copy(world, stand->host_residual, stand->residual, stand->c_bytes));
    EW_TRY(
        memory->copy(world, stand->host_weight, stand->norm_weight, weight_bytes(stand)));
    EW_TRY(memory->fill(world, stand->C, 0xff, stand->c_bytes));
    return memory->fill(world, stand->normed, 0xff, stand->c_bytes);
}

/* The documented sequence for one row, by the row kernels of the cpu: h replaces the host's
 * residual. */
static void expect_row(ewx_stand *stand, int64_t row, float *squares)
{
    const ew_problem *p = stand->problem;
    const size_t elem = ew_dtype_bytes(p->dtype), at = (size_t)(row * p->n) * elem;
    unsigned char *sum = (unsigned char *)stand->host_sum + at;
    unsigned char *h = (unsigned char *)stand->host_residual + at;
    const int64_t tiles = ewx_div_up(p->n, EWX_TILE_N);
    for (int64_t tile = 0; tile < tiles; tile++) {
        const size_t col = (size_t)(tile * EWX_TILE_N) * elem;
        const ewx_epilogue_row parts = {
            .sum = sum + col, .residual = h + col, .h = h + col};
        squares[tile] = ewx_epilogue_add(p->dtype, &parts,
                                         ewx_min64(EWX_TILE_N, p->n - tile * EWX_TILE_N));
    }
    ewx_epilogue_normalise(p->dtype, h, ewx_epilogue_scale(squares, tiles, p->n, EPS),
                           stand->host_weight, (unsigned char *)stand->host_normed + at,
                           p->n);
}

static float value_at(ew_dtype dtype, const void *matrix, int64_t at)
{
    if (dtype == EW_FP32)
        return ((const float *)matrix)[at];
    const uint16_t half = ((const uint16_t *)matrix)[at];
    return dtype == EW_BF16 ? ewx_f32_from_bf16(half) : ewx_f32_from_fp16(half);
}

static void compare(ew_dtype dtype, const void *got, const void *want, int64_t count,
                    ew_check *check)
{
    const size_t elem = ew_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; i++) {
        const size_t at = (size_t)i * elem;
        if (memcmp((const char *)got + at, (const char *)want + at, elem) == 0)
            continue;
        const double error =
            fabs((double)value_at(dtype, got, i) - (double)value_at(dtype, want, i));
        check->wrong++;
        if (!(error <= check->max_abs_err))
            check->max_abs_err = error;
    }
}

static ew_status compare_outputs(ewx_stand *stand, ew_check *check_out)
{
    const ewx_memory *memory = &stand->backend->memory;
    const ew_problem *p = stand->problem;
    const int64_t count = owned_rows(stand) * p->n;
    ew_check check = {0};
    /* What was expected has been computed, so the sum's place is free. */
    EW_TRY(memory->copy(stand->world, stand->host_sum, stand->residual, stand->c_bytes));
    compare(p->dtype, stand->host_sum, stand->host_residual, count, &check);
    EW_TRY(memory->copy(stand->world, stand->host_sum, stand->normed, stand->c_bytes));
    compare(p->dtype, stand->host_sum, stand->host_normed, count, &check);
    *check_out = check;
    return EW_OK;
}

ew_status ewx_stand_verify_layer(ewx_stand *stand, ew_check *check_out)
{
    const int64_t tiles = ewx_div_up(stand->problem->n, EWX_TILE_N);
    float *squares = malloc((size_t)tiles * sizeof *squares);
    if (!squares)
        return ewx_fail(EW_ERR_MEMORY, "no memory to check %lld columns",
                        (long long)stand->problem->n);
    for (int64_t row = 0; row < owned_rows(stand); row++)
        expect_row(stand, row, squares);
    free(squares);
    return compare_outputs(stand, check_out);
}
