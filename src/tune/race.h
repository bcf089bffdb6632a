/* A race between candidates: they take turns call by call, so that a slow moment hits all
 * of them, and after each lap those that are clearly slower leave.  Knows nothing of plans:
 * the caller times the calls.
 *
 * A candidate leaves when both of its first two calls took 10 % longer than the fastest
 * one's better one; after a lap when its median is more than 4 % above the fastest one's,
 * when it lost every call and its median is more than 1 % above, or when it lost so many of
 * the calls in which both took their turn that chance would not explain it (sign test, two
 * standard deviations).  The race ends when one is left, when all that are left lie within
 * 1 % after two laps, or at the limits below. */
#ifndef EWX_RACE_H
#define EWX_RACE_H

#include <stdbool.h>

#include "entwine/entwine.h"

#define EWX_RACE_MOST 6       /* candidates */
#define EWX_RACE_SAMPLES 1024 /* of each */
#define EWX_RACE_LAPS 8

typedef struct ewx_racer {
    bool out;
    double time_us; /* lower median of its samples */
    double samples_us[EWX_RACE_SAMPLES];
} ewx_racer;

typedef struct ewx_race {
    int count;     /* candidates; the first has the lead until one is faster by 0.5 % */
    int lap;       /* calls of each in a lap; 0: 3 to 10, about as many as fit lap_us */
    double lap_us; /* the more, the more calls scatter */
    double idle; /* rest after each call, in units of its time; part of what a lap costs */
    bool whole;  /* all stay for three laps: a last comparison */
    int num_samples; /* of each that is still in */
    double spent_us;
    ewx_racer racers[EWX_RACE_MOST];
} ewx_race;

/* Times one call; equal on all ranks. */
typedef ew_status ewx_race_take(void *context, int racer, double *us_out);

/* count, lap, idle and whole are set by the caller, the rest is found. */
ew_status ewx_race_run(ewx_race *race, ewx_race_take *take, void *context);

/* The first, or the fastest if that is faster by more than 0.5 %. */
int ewx_race_winner(const ewx_race *race);

#endif
