#include "error_bound.h"

#include <math.h>

/* Unit roundoff of a rounding to the type. */
static double roundoff(ew_dtype dtype)
{
    return dtype == EW_FP32 ? 0x1p-24 : dtype == EW_BF16 ? 0x1p-8 : 0x1p-11;
}

/* Half the smallest subnormal. */
static double underflow(ew_dtype dtype)
{
    return dtype == EW_FP16 ? 0x1p-25 : 0x1p-134;
}

double frobenius_limit(ew_dtype dtype)
{
    return dtype == EW_FP32 ? 1e-6 : dtype == EW_BF16 ? 1e-2 : 1e-3;
}

/* `times` as many roundings of the sum over ranks. */
static expectation expect_rounded(ew_dtype dtype, double eps, int num_ranks, int64_t depth,
                                  const double *const *a, const double *const *b, int times)
{
    double total = 0, magnitude = 0, contributions = 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        double own = 0;
        for (int64_t k = 0; k < depth; k++) {
            own += a[rank][k] * b[rank][k];
            magnitude += fabs(a[rank][k] * b[rank][k]);
        }
        total += own;
        contributions += fabs(own);
    }
    const double sums = ((double)depth + num_ranks) * eps * magnitude;
    const double roundings =
        dtype == EW_FP32
            ? 0.0
            : roundoff(dtype) *
                  (contributions * (1 + (times - 1) * (1 + roundoff(dtype))) + fabs(total));
    return (expectation){total, 1.02 * (sums + roundings) +
                                    (num_ranks + 1) * underflow(dtype) +
                                    roundoff(dtype) * sums};
}

expectation expect_element(ew_dtype dtype, double eps, int num_ranks, int64_t depth,
                           const double *const *a, const double *const *b)
{
    return expect_rounded(dtype, eps, num_ranks, depth, a, b, 1);
}

expectation expect_added_element(ew_dtype dtype, double eps, int num_ranks, int64_t depth,
                                 const double *const *a, const double *const *b)
{
    return expect_rounded(dtype, eps, num_ranks, depth, a, b, num_ranks);
}

bool add_error(error_sum *sum, double got, const expectation *want)
{
    const double error = got - want->value;
    sum->squares += error * error;
    sum->reference_squares += want->value * want->value;
    return fabs(error) <= want->tolerance;
}

double relative_error(const error_sum *sum)
{
    return sqrt(sum->squares / sum->reference_squares);
}
