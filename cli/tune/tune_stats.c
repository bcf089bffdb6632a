/* Flips and regret of repeated tunings. */
#include "tune/tune_stats.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/stats.h"

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

/* In units of the built-in choice's time in the same repeat: the machine may have been
 * faster or slower as a whole. */
static double relative_time(const ew_tuning *tuning)
{
    return tuning->default_us > 0 ? tuning->time_us / tuning->default_us : 1.0;
}

cli_repeats cli_repeats_judge(const ew_tune_result *results, int count, double *regrets)
{
    cli_repeats found = {.count = count};
    double best = relative_time(&results[0].tuning);
    int most_alike = 0;
    for (int at = 0; at < count; at++) {
        const double mine = relative_time(&results[at].tuning);
        const int alike = count_like(results, count, at);
        best = fmin(best, mine);
        if (alike > most_alike ||
            (alike == most_alike && mine < relative_time(&results[found.chosen].tuning))) {
            most_alike = alike;
            found.chosen = at;
        }
    }
    found.num_flips = count - most_alike;
    for (int at = 0; at < count; at++) {
        regrets[at] = best > 0 ? relative_time(&results[at].tuning) / best - 1 : 0.0;
        found.worst_regret = fmax(found.worst_regret, regrets[at]);
    }
    found.median_regret = cli_median(regrets, count);
    return found;
}
