/* What repeated tunings of a problem say about each other. */
#ifndef ENTWINE_CLI_TUNE_STATS_H
#define ENTWINE_CLI_TUNE_STATS_H

#include "entwine/tune.h"

/* One problem, tuned `count` times. */
typedef struct cli_repeats {
    int count;
    int num_flips; /* repeats whose config is not the most frequent one */
    int chosen;    /* the repeat with that config that gained most: worth keeping */
    /* 0.02: two per cent over the best time seen, both over the built-in choice's */
    double median_regret, worst_regret;
} cli_repeats;

/* `regrets` gets one value for each repeat. */
cli_repeats cli_repeats_judge(const ew_tune_result *results, int count, double *regrets);

#endif
