#include "base/stats.h"

#include <math.h>
#include <stdlib.h>

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

void cli_sort(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
}

double cli_quantile(const double *values, int count, double part)
{
    double place = part * (count - 1);
    int below = (int)place;
    int above = below + 1 < count ? below + 1 : below;
    return values[below] + (place - below) * (values[above] - values[below]);
}

double cli_median(double *values, int count)
{
    if (count == 0)
        return 0.0;
    cli_sort(values, count);
    return cli_quantile(values, count, 0.5);
}

double cli_geomean(const double *values, int count)
{
    double sum = 0.0;
    for (int at = 0; at < count; at++)
        sum += log(values[at]);
    return count ? exp(sum / count) : NAN;
}
