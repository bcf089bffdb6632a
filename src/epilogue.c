#include "epilogue.h"

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
                        "the epilogue's eps=%g is no small positive number\n"
                        "  fix: initialise it with EW_EPILOGUE_INIT, or use 1e-5",
                        (double)epilogue->eps);
    return EW_OK;
}

static ew_status check_places(const ew_epilogue *epilogue, const void *C)
{
    const struct {
        const char *name;
        const void *at;
    } places[] = {{"C", C}, {"residual", epilogue->residual}, {"normed", epilogue->normed}};
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < i; j++)
            if (places[i].at && places[i].at == places[j].at)
                return ewx_fail(EW_ERR_ARGUMENT,
                                "%s and %s are one matrix\n"
                                "  fix: give each a place of its own, or leave C out",
                                places[j].name, places[i].name);
    return EW_OK;
}

ew_status ewx_epilogue_check(const ew_epilogue *epilogue, const void *C, int64_t rows)
{
    EW_TRY(check_norm(epilogue, rows));
    EW_TRY(check_places(epilogue, C));
    if (rows > 0 && !C && !epilogue->residual && !epilogue->normed)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "ew_gemm_rs_layer has no place for its result\n"
                        "  fix: pass C, or an epilogue with a residual or a norm");
    return EW_OK;
}
