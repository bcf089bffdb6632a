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

int cli_draw(uint64_t *state, int count) /* splitmix64 */
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (int)(((z >> 32) * (uint64_t)count) >> 32);
}

void cli_percentiles(double *values, int count, double *low_out, double *high_out)
{
    cli_sort(values, count);
    *low_out = values[count / 40];
    *high_out = values[count - 1 - count / 40];
}

double cli_quantile(const double *values, int count, double part)
{
    double place = part * (count - 1);
    int below = (int)place;
    int above = below + 1 < count ? below + 1 : below;
    return values[below] + (place - below) * (values[above] - values[below]);
}

double cli_counted_median(const double *values, const int *times, int count)
{
    int passed = 0, at = -1;
    while (passed <= (count - 1) / 2)
        passed += times[++at];
    const double lower = values[at];
    while (passed <= count / 2)
        passed += times[++at];
    return lower + 0.5 * (values[at] - lower);
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
