/* Statistics of small arrays: the only place that sorts doubles. */
#ifndef ENTWINE_CLI_STATS_H
#define ENTWINE_CLI_STATS_H

void cli_sort(double *values, int count);

/* Of sorted values, interpolated between the two nearest: 0.5 is the median. */
double cli_quantile(const double *values, int count, double part);

/* Sorts the values; 0 when there are none. */
double cli_median(double *values, int count);

/* NAN when there are none. */
double cli_geomean(const double *values, int count);

#endif
