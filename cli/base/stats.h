/* Statistics of small arrays: the only place that sorts doubles. */
#ifndef ENTWINE_CLI_STATS_H
#define ENTWINE_CLI_STATS_H

#include <stdint.h>

void cli_sort(double *values, int count);

/* Draws for a bootstrap, the same in every run: from 0 to count - 1; *state starts as 1. */
int cli_draw(uint64_t *state, int count);

/* Fewer samples have no interval, and no verdict. */
enum { CLI_LEAST_SAMPLES = 5 };

/* The ends of the 95 % interval (percentile) of resampled values, which are sorted. */
void cli_percentiles(double *values, int count, double *low_out, double *high_out);

/* Of sorted values, interpolated between the two nearest: 0.5 is the median. */
double cli_quantile(const double *values, int count, double part);

/* The median where sorted values are there as often as `times` says, `count` in all. */
double cli_counted_median(const double *values, const int *times, int count);

/* Sorts the values; 0 when there are none. */
double cli_median(double *values, int count);

/* NAN when there are none. */
double cli_geomean(const double *values, int count);

#endif
