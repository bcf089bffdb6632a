/* Problem checks, element types and row ownership. */
#include <inttypes.h>

#include "base/checked.h"
#include "base/status.h"
#include "plan/spec.h"

/* Beyond this no index product below can leave 64 bits unnoticed. */
#define MAX_EXTENT ((int64_t)1 << 40)

const char *ew_dtype_name(ew_dtype dtype)
{
    switch (dtype) {
    case EW_FP32:
        return "fp32";
    case EW_BF16:
        return "bf16";
    case EW_FP16:
        return "fp16";
    }
    return "unknown";
}

size_t ew_dtype_bytes(ew_dtype dtype)
{
    return dtype == EW_FP32 ? 4 : dtype == EW_BF16 || dtype == EW_FP16 ? 2 : 0;
}

static ew_status check_extent(const char *name, int64_t value, int64_t least)
{
    if (value < least)
        return ewx_fail(EW_ERR_SHAPE,
                        "%s=%" PRId64 " is too small\n  fix: %s must be at least %" PRId64,
                        name, value, name, least);
    if (value > MAX_EXTENT)
        return ewx_fail(EW_ERR_SHAPE,
                        "%s=%" PRId64 " is too large\n  fix: %s can be at most %" PRId64,
                        name, value, name, MAX_EXTENT);
    return EW_OK;
}

/* A and B, padded and in fp32, and an epilogue's sums, one for each row of a tile, must be
 * countable before anyone multiplies their sizes. */
static ew_status check_operands(const ew_problem *problem)
{
    const ewx_size padding = {512, true}, elem = {sizeof(float), true};
    const ewx_size pieces = {32 * EWX_MAX_RANKS, true}; /* of K, each padded */
    const ewx_size depth =
        ewx_size_mul(ewx_size_add(ewx_size_of(problem->k), pieces), elem);
    const ewx_size a =
        ewx_size_mul(ewx_size_add(ewx_size_of(problem->max_m), padding), depth);
    const ewx_size b = ewx_size_mul(ewx_size_add(ewx_size_of(problem->n), padding), depth);
    const ewx_size sums = ewx_size_mul(ewx_size_mul(ewx_size_of(problem->max_m), elem),
                                       ewx_size_of(ewx_div_up(problem->n, EWX_TILE_N)));
    if (ewx_size_add(ewx_size_add(a, b), sums).ok)
        return EW_OK;
    return ewx_fail(EW_ERR_SHAPE,
                    "M=%" PRId64 ", N=%" PRId64 ", K=%" PRId64
                    " need more bytes than 64 bits can count\n  fix: make %s smaller",
                    problem->max_m, problem->n, problem->k, sums.ok ? "K" : "M or N");
}

ew_status ewx_problem_check_shape(const ew_problem *problem)
{
    if (!ewx_op_find(problem->op))
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "operation %d is unknown\n  fix: use EW_OP_GEMM_RS, EW_OP_GEMM_AR or "
            "EW_OP_AG_GEMM",
            (int)problem->op);
    if (ew_dtype_bytes(problem->dtype) == 0)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "element type %d is unknown\n  fix: use EW_FP32, EW_BF16 or EW_FP16",
            (int)problem->dtype);
    if (problem->weight_layout != EW_WEIGHT_NK && problem->weight_layout != EW_WEIGHT_KN)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "weight layout %d is unknown\n  fix: use EW_WEIGHT_NK or EW_WEIGHT_KN",
            (int)problem->weight_layout);
    EW_TRY(check_extent("M", problem->max_m, 0));
    EW_TRY(check_extent("N", problem->n, 1));
    EW_TRY(check_extent("K", problem->k, 1));
    return check_operands(problem);
}

ew_status ewx_problem_check(const ew_problem *problem, int num_ranks)
{
    EW_TRY(ewx_problem_check_shape(problem));
    if (num_ranks < 1 || num_ranks > EWX_MAX_RANKS)
        return ewx_fail(EW_ERR_SHAPE, "W=%d is out of range\n  fix: use 1 to %d ranks",
                        num_ranks, EWX_MAX_RANKS);
    return EW_OK;
}

void ewx_problem_print(const ew_problem *problem, int num_ranks, ewx_text *text)
{
    ewx_text_add(
        text, "W=%d,M=%" PRId64 ",N=%" PRId64 ",K=%" PRId64 ",type=%s,weight=%s,op=%s",
        num_ranks, problem->max_m, problem->n, problem->k, ew_dtype_name(problem->dtype),
        problem->weight_layout == EW_WEIGHT_NK ? "nk" : "kn", ew_op_name(problem->op));
}

ew_status ewx_place_check(int64_t m, int num_ranks, int rank)
{
    if (m >= 0 && num_ranks >= 1 && rank >= 0 && rank < num_ranks)
        return EW_OK;
    return ewx_fail(EW_ERR_ARGUMENT,
                    "m=%" PRId64 " rows on rank %d of %d are out of range\n"
                    "  fix: use 0 or more rows and ranks 0 to W-1",
                    m, rank, num_ranks);
}

ew_status ew_owned_rows(int64_t m, int num_ranks, int rank, int64_t *first_out,
                        int64_t *count_out)
{
    if (!first_out || !count_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_owned_rows needs places for two rows");
    EW_TRY(ewx_place_check(m, num_ranks, rank));
    const ewx_rows rows = ewx_rows_dealt(m, num_ranks, rank);
    *first_out = rows.first;
    *count_out = rows.count;
    return EW_OK;
}
