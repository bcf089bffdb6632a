#include "api/products.h"

#include <inttypes.h>

#include "api/epilogue_check.h"
#include "api/weight.h"
#include "base/status.h"

/* What none of the other backends has, nor a BLAS. */
static ew_status check_support(const char *function, const ewx_spec *spec)
{
    const ewx_traits *traits = ewx_traits_of(spec->config.backend);
    if (!traits->has_products)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%s is not available on the %s backend\n"
                        "  fix: call ew_ag_gemm with all weights in one B, or for each",
                        function, traits->name);
    if (spec->config.producer == EW_PRODUCER_BLAS)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "%s has no producer=blas\n"
                        "  fix: use producer=own, or ew_ag_gemm for each weight",
                        function);
    return EW_OK;
}

static ew_status check_count(const char *function, const ew_product *products, int count)
{
    if (count < 1 || count > EW_MAX_PRODUCTS)
        return ewx_fail(EW_ERR_ARGUMENT, "%s has %d products\n  fix: use 1 to %d", function,
                        count, EW_MAX_PRODUCTS);
    return products ? EW_OK : ewx_fail(EW_ERR_ARGUMENT, "%s needs products", function);
}

static ew_status check_sum(const ewx_spec *spec, const ew_product *products, int count)
{
    int64_t left = spec->problem.n;
    for (int i = 0; i < count; i++) {
        if (products[i].n < 1 || products[i].n > left)
            return ewx_fail(EW_ERR_SHAPE,
                            "product %d has n=%" PRId64 ", and %" PRId64
                            " of the plan's N=%" PRId64 " are left\n"
                            "  fix: create the plan with the sum of all n",
                            i, products[i].n, left, spec->problem.n);
        left -= products[i].n;
    }
    if (left > 0)
        return ewx_fail(EW_ERR_SHAPE,
                        "the products have n=%" PRId64 " together, the plan N=%" PRId64
                        "\n  fix: create the plan with the sum of all n",
                        spec->problem.n - left, spec->problem.n);
    return EW_OK;
}

static ew_status take(const char *function, const ew_world *world, const ewx_spec *spec,
                      const ew_product *product, int index, ewx_product *taken)
{
    if (!product->B == !product->weight)
        return ewx_fail(EW_ERR_ARGUMENT, "product %d has %s\n  fix: set either B or weight",
                        index, product->B ? "both a B and a weight" : "no weight");
    if (product->weight)
        EW_TRY(ewx_weight_check(product->weight, function, world, spec, product->n));
    *taken = (ewx_product){product->n, product->B, ewx_weight_packed(product->weight),
                           product->C};
    if (!product->B && !taken->packed)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the weight of product %d holds no values\n"
                        "  fix: call ew_weight_update until it succeeds",
                        index);
    return EW_OK;
}

ew_status ewx_products_take(const char *function, const ew_world *world,
                            const ewx_spec *spec, const ew_product *products, int count,
                            ewx_product *taken)
{
    EW_TRY(check_support(function, spec));
    EW_TRY(check_count(function, products, count));
    EW_TRY(check_sum(spec, products, count));
    for (int i = 0; i < count; i++)
        EW_TRY(take(function, world, spec, &products[i], i, &taken[i]));
    return EW_OK;
}

const char *ew_activation_name(ew_activation activation)
{
    switch (activation) {
    case EW_ACTIVATION_NONE:
        return "none";
    case EW_ACTIVATION_SILU:
        return "silu";
    case EW_ACTIVATION_GELU_TANH:
        return "gelu-tanh";
    }
    return "unknown";
}

static ew_status check_activation(const char *function, const ewx_call *call)
{
    const int count = call->num_products;
    if ((int)call->activation < EW_ACTIVATION_NONE ||
        call->activation > EW_ACTIVATION_GELU_TANH)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "activation %d is unknown\n  fix: use an EW_ACTIVATION_... value",
                        (int)call->activation);
    if (count > 2)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "%s has %d products\n"
                        "  fix: pass a gate, or a gate and an up",
                        function, count);
    if (count == 2 && call->products[0].n != call->products[1].n)
        return ewx_fail(EW_ERR_SHAPE,
                        "the gate has n=%" PRId64 " and the up n=%" PRId64
                        "\n  fix: pass weights of the same n",
                        call->products[0].n, call->products[1].n);
    if (call->m > 0 && !call->C)
        return ewx_fail(EW_ERR_ARGUMENT, "%s needs C for m=%" PRId64, function, call->m);
    return EW_OK;
}

/* What the call writes, then what it reads. */
static ew_status check_overlaps(const ewx_spec *spec, int64_t rows_a, const ewx_call *call)
{
    static const char *const names_c[] = {
        "C of product 0", "C of product 1", "C of product 2", "C of product 3",
        "C of product 4", "C of product 5", "C of product 6", "C of product 7"};
    enum { MOST_PARTS = 2 * EW_MAX_PRODUCTS + 3 };
    const size_t elem = spec->elem_bytes, depth = (size_t)spec->problem.k * elem;
    const char *names[MOST_PARTS] = {"gathered", "C"};
    ewx_part parts[MOST_PARTS] = {
        ewx_part_of(call->gathered, (size_t)call->m * depth),
        ewx_part_of(call->C, (size_t)(call->m * call->products->n) * elem)};
    const int outputs = call->num_products + 2;
    for (int i = 0; i < call->num_products; i++) {
        const ewx_product *product = &call->products[i];
        names[2 + i] = names_c[i];
        parts[2 + i] = ewx_part_of(product->C, (size_t)(call->m * product->n) * elem);
        names[outputs + 1 + i] = "a B";
        parts[outputs + 1 + i] = ewx_part_of(product->B, (size_t)product->n * depth);
    }
    names[outputs] = "A";
    parts[outputs] = ewx_part_of(call->A, (size_t)rows_a * depth);
    return ewx_parts_check(parts, names, outputs, outputs + 1 + call->num_products);
}

ew_status ewx_products_check(const char *function, const ewx_spec *spec, int rank,
                             const ewx_call *call)
{
    const int64_t rows_a = spec->op->rows_a(call->m, spec->num_ranks, rank).count;
    if (call->activates)
        EW_TRY(check_activation(function, call));
    if (rows_a > 0 && !call->A)
        return ewx_fail(EW_ERR_ARGUMENT, "%s needs A for m=%" PRId64, function, call->m);
    for (int i = 0; i < call->num_products; i++)
        if (call->m > 0 && !call->activates && !call->products[i].C)
            return ewx_fail(EW_ERR_ARGUMENT, "%s needs C of product %d for m=%" PRId64,
                            function, i, call->m);
    return check_overlaps(spec, rows_a, call);
}
