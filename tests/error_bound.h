/* How far from the exact value the documented arithmetic may be: fp32 sums over K, one
 * rounding per contribution, fp32 sum over ranks, one rounding. */
#ifndef TESTS_ERROR_BOUND_H
#define TESTS_ERROR_BOUND_H

#include <stdbool.h>
#include <stdint.h>

#include "entwine/entwine.h"

/* One element's exact value and how far from it a result may be. */
typedef struct expectation {
    double value, tolerance;
} expectation;

/* a[r] and b[r]: the K elements of rank r that meet here, as doubles.  eps is that of the
 * kernel's additions: those that do not round to nearest lose twice as much. */
expectation expect_element(ew_dtype dtype, double eps, int num_ranks, int64_t depth,
                           const double *const *a, const double *const *b);

/* The same where contributions are added in any order, with a rounding after each. */
expectation expect_added_element(ew_dtype dtype, double eps, int num_ranks, int64_t depth,
                                 const double *const *a, const double *const *b);

/* Largest relative Frobenius error that is still fine. */
double frobenius_limit(ew_dtype dtype);

typedef struct error_sum {
    double squares, reference_squares;
} error_sum;

/* False when the element is outside its tolerance, or NaN. */
bool add_error(error_sum *sum, double got, const expectation *want);
double relative_error(const error_sum *sum);

#endif
