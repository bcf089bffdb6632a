/* Flips and regret of repeated tunings. */
#include "tune_stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double cli_median(double *values, int count)
{
    if (count == 0)
        return 0.0;
    qsort(values, (size_t)count, sizeof *values, by_value);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static bool same_config(const ew_config *a, const ew_config *b)
{
    char left[EW_CONFIG_TEXT_BYTES], right[EW_CONFIG_TEXT_BYTES];
    return ew_config_print(a, left, sizeof left) == EW_OK &&
           ew_config_print(b, right, sizeof right) == EW_OK && strcmp(left, right) == 0;
}

static int count_like(const ew_tune_result *results, int count, int which)
{
    int alike = 0;
    for (int at = 0; at < count; at++)
        alike += same_config(&results[at].tuning.config, &results[which].tuning.config);
    return alike;
}

cli_repeats cli_repeats_judge(const ew_tune_result *results, int count, double *regrets)
{
    cli_repeats found = {.count = count};
    double best_us = results[0].tuning.time_us;
    int most_alike = 0;
    for (int at = 0; at < count; at++) {
        const double time_us = results[at].tuning.time_us;
        const int alike = count_like(results, count, at);
        best_us = fmin(best_us, time_us);
        if (alike > most_alike ||
            (alike == most_alike && time_us < results[found.chosen].tuning.time_us)) {
            most_alike = alike;
            found.chosen = at;
        }
    }
    found.num_flips = count - most_alike;
    for (int at = 0; at < count; at++) {
        regrets[at] = best_us > 0 ? results[at].tuning.time_us / best_us - 1 : 0.0;
        found.worst_regret = fmax(found.worst_regret, regrets[at]);
    }
    found.median_regret = cli_median(regrets, count);
    return found;
}
