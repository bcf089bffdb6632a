/* The tuner's search: knob after knob, the best so far races against other values of the
 * knob, in heats of a few plans at a time.  Times are equal on all ranks, so all ranks take
 * the same decisions; only what depends on a clock or on the caller is rank 0's. */
#ifndef EWX_SEARCH_H
#define EWX_SEARCH_H

#include "entwine/tune.h"
#include "tune/candidates.h"
#include "tune/presort.h"
#include "tune/race.h"
#include "measure/sampler.h"

/* A request leaves to policy what no knob has decided yet. */
typedef struct ewx_candidate {
    ew_config request, config;
    ew_plan *plan; /* NULL: not open */
} ewx_candidate;

#define EWX_SEARCH_SEEN (1 + EWX_KNOBS * EWX_KNOB_VALUES)

typedef struct ewx_search {
    ewx_sampler sampler; /* open */
    ew_tune_options options;
    ewx_candidate_space space;
    ewx_candidate built_in;
    ewx_presort planner; /* rank 0's */
    /* ---- from here on zero at the start ---- */
    ewx_candidate best; /* with an open plan */
    double built_in_us, best_us;
    ewx_candidate heat[EW_TUNE_PLANS]; /* the first is the best so far */
    int heat_count;
    int64_t enqueue_ns[EW_TUNE_PLANS]; /* of the heat's last calls */
    ew_config seen[EWX_SEARCH_SEEN];   /* configs that were measured, or refused */
    int num_seen, num_measured, num_refused, num_left_out;
    char profile[EWX_SIM_NAME_BYTES]; /* rank 0's planner's; empty: none */
    int num_rounds, round;
    int64_t started_ns, heat_ns; /* the second: the longest heat */
    int64_t num_calls, heat_calls;
    bool stopped, cut_short; /* asked to end; something was left out */
    ewx_race race;
} ewx_search;

/* The config that a request gets, or why it gets none. */
ew_status ewx_search_choose(const ewx_search *s, const ew_config *request,
                            ew_config *config_out);

/* Collective; close either way. */
ew_status ewx_search_run(ewx_search *s);
void ewx_search_close(ewx_search *s);

#endif
