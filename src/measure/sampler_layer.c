/* A test sampler's layers: a call with residual addition and RMSNorm, fused or not, and
 * what it must give. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/epilogue_math.h"
#include "base/dtype.h"
#include "base/status.h"
#include "plan/layer.h"
#include "measure/sampler.h"

#define EPS 1e-5f

static int64_t owned_rows(const ewx_sampler *sampler)
{
    return ewx_op_of(sampler->problem)
        ->rows_c(sampler->rows, sampler->world->num_ranks, sampler->world->rank)
        .count;
}

/* Whether every rank has all rows. */
static bool replicates(const ewx_sampler *sampler)
{
    return sampler->problem->op == EW_OP_GEMM_AR;
}

/* The rows of the residual that a layer's call has, among those of C: an AllReduce that
 * fuses has its owned ones, as is the default. */
static ewx_rows residual_rows(const ewx_sampler *sampler, const ewx_runner *runner)
{
    ewx_rows rows = {0, owned_rows(sampler)};
    if (replicates(sampler) && runner->layer == EW_BENCH_FUSED)
        (void)ew_owned_rows(sampler->rows, sampler->world->num_ranks, sampler->world->rank,
                            &rows.first, &rows.count);
    return rows;
}

static size_t row_bytes(const ewx_sampler *sampler)
{
    return (size_t)sampler->problem->n * ew_dtype_bytes(sampler->problem->dtype);
}

/* ---- Matrices ---- */

ew_status ewx_sampler_open_layer(ewx_sampler *sampler)
{
    ew_world *world = sampler->world;
    const ewx_memory *memory = &sampler->backend->memory;
    EW_TRY(memory->allocate(world, sampler->c_bytes, &sampler->residual));
    EW_TRY(memory->allocate(world, row_bytes(sampler), &sampler->norm_weight));
    EW_TRY(memory->allocate(world, sampler->c_bytes, &sampler->plain_normed));
    sampler->normed = sampler->plain_normed;
    sampler->host_sum = malloc(sampler->c_bytes + 1);
    sampler->host_residual = malloc(sampler->c_bytes + 1);
    sampler->host_normed = malloc(sampler->c_bytes + 1);
    sampler->host_weight = malloc(row_bytes(sampler));
    if (sampler->host_sum && sampler->host_residual && sampler->host_normed &&
        sampler->host_weight)
        return EW_OK;
    return ewx_fail(EW_ERR_MEMORY,
                    "no memory to check %zu bytes\n"
                    "  fix: use a smaller shape or fewer ranks",
                    sampler->c_bytes);
}

void ewx_sampler_close_layer(ewx_sampler *sampler)
{
    void *matrices[] = {sampler->plain_normed, sampler->norm_weight, sampler->residual};
    void *hosts[] = {sampler->host_sum, sampler->host_residual, sampler->host_normed,
                     sampler->host_weight};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        if (matrices[i])
            sampler->backend->memory.release(sampler->world, matrices[i]);
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        free(hosts[i]);
}

static ew_status generate(ewx_sampler *sampler, uint32_t salt, int64_t rows, void *matrix)
{
    const ewx_input input = {.kind = EWX_INPUT_RANDOM,
                             .dtype = sampler->problem->dtype,
                             .seed = sampler->seed + salt,
                             .rows = rows,
                             .depth = sampler->problem->n};
    return sampler->backend->memory.generate(sampler->world, &input, matrix);
}

ew_status ewx_sampler_load_layer(ewx_sampler *sampler)
{
    const uint32_t salt =
        replicates(sampler) ? 1000 : 1000 + (uint32_t)sampler->world->rank;
    EW_TRY(generate(sampler, salt, owned_rows(sampler), sampler->residual));
    return generate(sampler, 999, 1, sampler->norm_weight);
}

/* ---- Calls ---- */

ew_status ewx_sampler_call_layer(const ewx_sampler *sampler, const ewx_runner *runner,
                                 ew_stream stream)
{
    const bool all = replicates(sampler);
    const ewx_rows rows = residual_rows(sampler, runner);
    const bool whole_residual = all && runner->layer != EW_BENCH_FUSED;
    unsigned char *residual = sampler->residual;
    const ew_epilogue whole = {
        .struct_size = sizeof whole,
        .eps = EPS,
        .residual = residual + (size_t)rows.first * row_bytes(sampler),
        .norm_weight = sampler->norm_weight,
        .normed = sampler->normed,
        .residual_rows = whole_residual ? EW_RESIDUAL_ALL : EW_RESIDUAL_OWNED};
    /* Fused, nobody wants the bare sum. */
    void *C = runner->layer == EW_BENCH_FUSED ? NULL : sampler->C;
    return (all ? ew_gemm_ar_layer : ew_gemm_rs_layer)(runner->plan, sampler->rows,
                                                       sampler->A, NULL, C, &whole, stream);
}

/* ---- Check ---- */

ew_status ewx_sampler_poison_layer(ewx_sampler *sampler)
{
    ew_world *world = sampler->world;
    const ewx_memory *memory = &sampler->backend->memory;
    EW_TRY(memory->copy(world, sampler->host_sum, sampler->C, sampler->c_bytes));
    EW_TRY(ewx_sampler_load_layer(sampler));
    EW_TRY(
        memory->copy(world, sampler->host_residual, sampler->residual, sampler->c_bytes));
    EW_TRY(memory->copy(world, sampler->host_weight, sampler->norm_weight,
                        row_bytes(sampler)));
    EW_TRY(memory->fill(world, sampler->C, 0xff, sampler->c_bytes));
    return memory->fill(world, sampler->normed, 0xff, sampler->c_bytes);
}

/* The documented sequence for one row, by the row kernels of the cpu: h replaces the host's
 * residual. */
static void expect_row(ewx_sampler *sampler, int64_t row, float *squares)
{
    const ew_problem *p = sampler->problem;
    const size_t elem = ew_dtype_bytes(p->dtype), at = (size_t)(row * p->n) * elem;
    unsigned char *sum = (unsigned char *)sampler->host_sum + at;
    unsigned char *h = (unsigned char *)sampler->host_residual + at;
    const int64_t tiles = ewx_div_up(p->n, EWX_TILE_N);
    for (int64_t tile = 0; tile < tiles; tile++) {
        const size_t col = (size_t)(tile * EWX_TILE_N) * elem;
        const ewx_epilogue_row parts = {
            .sum = sum + col, .residual = h + col, .h = h + col};
        squares[tile] = ewx_epilogue_add(p->dtype, &parts,
                                         ewx_min64(EWX_TILE_N, p->n - tile * EWX_TILE_N));
    }
    ewx_epilogue_normalise(p->dtype, h, ewx_epilogue_scale(squares, tiles, p->n, EPS),
                           sampler->host_weight, (unsigned char *)sampler->host_normed + at,
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

static ew_status compare_outputs(ewx_sampler *sampler, ewx_rows h, ew_check *check_out)
{
    const ewx_memory *memory = &sampler->backend->memory;
    const ew_problem *p = sampler->problem;
    const int64_t count = owned_rows(sampler) * p->n;
    ew_check check = {0};
    /* What was expected has been computed, so the sum's place is free. */
    EW_TRY(memory->copy(sampler->world, sampler->host_sum, sampler->residual,
                        sampler->c_bytes));
    const size_t first = (size_t)h.first * row_bytes(sampler);
    compare(p->dtype, (char *)sampler->host_sum + first,
            (char *)sampler->host_residual + first, h.count * p->n, &check);
    EW_TRY(
        memory->copy(sampler->world, sampler->host_sum, sampler->normed, sampler->c_bytes));
    compare(p->dtype, sampler->host_sum, sampler->host_normed, count, &check);
    *check_out = check;
    return EW_OK;
}

ew_status ewx_sampler_verify_layer(ewx_sampler *sampler, const ewx_runner *runner,
                                   ew_check *check_out)
{
    const int64_t tiles = ewx_div_up(sampler->problem->n, EWX_TILE_N);
    float *squares = malloc((size_t)tiles * sizeof *squares);
    if (!squares)
        return ewx_fail(EW_ERR_MEMORY, "no memory to check %lld columns",
                        (long long)sampler->problem->n);
    for (int64_t row = 0; row < owned_rows(sampler); row++)
        expect_row(sampler, row, squares);
    free(squares);
    return compare_outputs(sampler, residual_rows(sampler, runner), check_out);
}
