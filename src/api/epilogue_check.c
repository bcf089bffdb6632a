#include "api/epilogue_check.h"

#include <math.h>
#include <stdbool.h>

#include "base/status.h"

static ew_status check_norm(const ew_epilogue *epilogue, int64_t rows)
{
    const bool has_weight = epilogue->norm_weight, has_normed = epilogue->normed;
    if (rows > 0 && has_weight != has_normed)
        return ewx_fail(
            EW_ERR_ARGUMENT, "the epilogue has %s and no %s\n  fix: set both, or neither",
            has_weight ? "a norm_weight" : "normed", has_weight ? "normed" : "norm_weight");
    if (has_weight && !(epilogue->eps >= 0 && isfinite(epilogue->eps)))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the epilogue's eps=%g must be finite and not negative\n"
                        "  fix: initialise it with EW_EPILOGUE_INIT, or use 1e-5",
                        (double)epilogue->eps);
    return EW_OK;
}

static bool do_overlap(const ewx_part *one, const ewx_part *other)
{
    return other->at - one->at < one->bytes || one->at - other->at < other->bytes;
}

ew_status ewx_parts_check(const ewx_part *parts, const char *const *names, int num_outputs,
                          int num_parts)
{
    for (int i = 0; i < num_outputs; i++)
        for (int j = i + 1; j < num_parts; j++)
            if (do_overlap(&parts[i], &parts[j]))
                return ewx_fail(EW_ERR_ARGUMENT,
                                "%s and %s overlap: %zu bytes at %p and %zu bytes at %p\n"
                                "  fix: give each a place of its own, or leave out what is "
                                "not needed",
                                names[j], names[i], parts[j].bytes, (void *)parts[j].at,
                                parts[i].bytes, (void *)parts[i].at);
    return EW_OK;
}

/* Of an AllReduce: where rows are summed and normalised by their owners, their norm is all
 * that the others are sent. */
static ew_status check_residual(const ew_epilogue *epilogue, const void *C, ew_op op)
{
    if (epilogue->residual_rows != EW_RESIDUAL_OWNED &&
        (epilogue->residual_rows != EW_RESIDUAL_ALL || op != EW_OP_GEMM_AR))
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the epilogue's residual_rows=%d is not valid for %s\n"
                        "  fix: use EW_RESIDUAL_OWNED, or with gemm-ar EW_RESIDUAL_ALL",
                        (int)epilogue->residual_rows, ew_op_name(op));
    if (op != EW_OP_GEMM_AR || epilogue->residual_rows == EW_RESIDUAL_ALL)
        return EW_OK;
    if (epilogue->residual && !epilogue->norm_weight)
        return ewx_fail(
            EW_ERR_ARGUMENT,
            "ew_gemm_ar_layer has a residual of the rank's own rows and no norm "
            "to return\n  fix: set norm_weight and normed, or give every rank "
            "the whole residual (EW_RESIDUAL_ALL)");
    if (epilogue->norm_weight && C)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_gemm_ar_layer does not return C where each rank normalises its "
                        "own rows\n  fix: pass NULL for C, or use EW_RESIDUAL_ALL");
    return EW_OK;
}

ew_status ewx_epilogue_check(const ew_epilogue *epilogue, const void *C, int64_t rows,
                             ew_op op)
{
    EW_TRY(check_norm(epilogue, rows));
    EW_TRY(check_residual(epilogue, C, op));
    if (rows > 0 && !C && !epilogue->residual && !epilogue->normed)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the layer has no place for its result\n"
                        "  fix: pass C, or an epilogue with a residual or a norm");
    return EW_OK;
}
