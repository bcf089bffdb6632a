/* Laps, and who leaves after each. */
#include "tune/race.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

static const double hopeless = 1.10, far_behind = 1.04, good_enough = 1.01,
                    takes_the_lead = 0.995;
static const double long_race_us = 2.5e6;
enum { FIRST_LOOK = 2, SHORTEST_LAP = 3, LONGEST_LAP = 10, WHOLE_LAPS = 3 };

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower one of two: with few samples a single slow moment does not count. */
static double lower_median(const double *values, int count)
{
    double sorted[EWX_RACE_SAMPLES];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return sorted[(count - 1) / 2];
}

static int fastest(const ewx_race *race)
{
    int best = -1;
    for (int i = 0; i < race->count; i++)
        if (!race->racers[i].out &&
            (best < 0 || race->racers[i].time_us < race->racers[best].time_us))
            best = i;
    return best;
}

int ewx_race_winner(const ewx_race *race)
{
    const int best = fastest(race);
    return race->racers[best].time_us < takes_the_lead * race->racers[0].time_us ? best : 0;
}

/* ---- Laps ---- */

/* One call of each that does not count; how long a lap is follows from the fastest. */
static ew_status warm_up(ewx_race *race, ewx_race_take *take, void *context)
{
    double least_us = INFINITY, us;
    for (int i = 0; i < race->count; i++) {
        EW_TRY(take(context, i, &us));
        least_us = fmin(least_us, us);
    }
    if (race->lap > 0)
        return EW_OK;
    const double calls = race->lap_us / (least_us * (1 + race->idle));
    race->lap = calls < SHORTEST_LAP  ? SHORTEST_LAP
                : calls > LONGEST_LAP ? LONGEST_LAP
                                      : (int)calls;
    return EW_OK;
}

static ew_status run_calls(ewx_race *race, int count, ewx_race_take *take, void *context)
{
    for (int call = 0; call < count; call++, race->num_samples++)
        for (int i = 0; i < race->count; i++) {
            ewx_racer *racer = &race->racers[i];
            if (racer->out)
                continue;
            double *us = &racer->samples_us[race->num_samples];
            EW_TRY(take(context, i, us));
            race->spent_us += *us * (1 + race->idle);
        }
    for (int i = 0; i < race->count; i++)
        if (!race->racers[i].out)
            race->racers[i].time_us =
                lower_median(race->racers[i].samples_us, race->num_samples);
    return EW_OK;
}

/* ---- Judgement ---- */

static void drop_hopeless(ewx_race *race)
{
    const ewx_racer *best = &race->racers[fastest(race)];
    for (int i = 0; i < race->count; i++)
        race->racers[i].out |= race->racers[i].time_us > hopeless * best->time_us;
}

static bool is_worse(const ewx_racer *racer, const ewx_racer *best)
{
    return racer->time_us > good_enough * best->time_us;
}

static bool loses_to(const ewx_race *race, const ewx_racer *racer, const ewx_racer *best)
{
    int lead = 0; /* calls lost less calls won */
    for (int i = 0; i < race->num_samples; i++)
        lead += (racer->samples_us[i] > best->samples_us[i]) -
                (racer->samples_us[i] < best->samples_us[i]);
    const bool lost_all = lead == race->num_samples && is_worse(racer, best);
    return lost_all || lead > 2 * sqrt(race->num_samples);
}

/* Sends the slow ones out; says whether those that stay need another lap. */
static bool is_open(ewx_race *race)
{
    const ewx_racer *best = &race->racers[fastest(race)];
    int num_in = 0, num_worse = 0;
    for (int i = 0; i < race->count; i++) {
        ewx_racer *racer = &race->racers[i];
        if (racer->out)
            continue;
        racer->out = racer != best && (racer->time_us > far_behind * best->time_us ||
                                       loses_to(race, racer, best));
        num_in += !racer->out;
        num_worse += !racer->out && is_worse(racer, best);
    }
    const bool looked_twice = race->num_samples > race->lap;
    return num_in > 1 && race->spent_us <= long_race_us &&
           !(looked_twice && num_worse == 0);
}

static ew_status run_lap(ewx_race *race, ewx_race_take *take, void *context)
{
    int look = 0;
    if (race->num_samples == 0 && !race->whole && race->lap > FIRST_LOOK) {
        look = FIRST_LOOK;
        EW_TRY(run_calls(race, look, take, context));
        drop_hopeless(race);
    }
    return run_calls(race, race->lap - look, take, context);
}

ew_status ewx_race_run(ewx_race *race, ewx_race_take *take, void *context)
{
    const int most_laps = race->whole ? WHOLE_LAPS : EWX_RACE_LAPS;
    bool open = true;
    race->num_samples = 0;
    race->spent_us = 0;
    for (int i = 0; i < race->count; i++)
        race->racers[i].out = false;
    EW_TRY(warm_up(race, take, context));
    for (int lap = 0; open && lap < most_laps &&
                      (lap == 0 || race->num_samples + race->lap <= EWX_RACE_SAMPLES);
         lap++) {
        EW_TRY(run_lap(race, take, context));
        open = race->whole || is_open(race);
    }
    return EW_OK;
}
