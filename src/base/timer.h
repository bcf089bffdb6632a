/* How much of a timeout is used up.  Only time in which this process ran counts: a step
 * between two looks at the clock that lasted far longer than a wait ever sleeps was a
 * freeze (docker pause, SIGSTOP, a suspended job), and counts as one short step.  So a job
 * that was frozen as a whole goes on when it thaws, while a single rank that is stopped is
 * reported in time by those that run. */
#ifndef EWX_BASE_TIMER_H
#define EWX_BASE_TIMER_H

#include <stdbool.h>

#include "base/clock.h"

#define EWX_TIMER_NEVER INT64_MAX

typedef struct ewx_timer {
    int64_t limit_ns; /* EWX_TIMER_NEVER: it does not run out */
    int64_t used_ns;
    int64_t seen_ns; /* when last looked at; 0: not yet */
} ewx_timer;

/* It starts with the first look. */
static inline ewx_timer ewx_timer_begin(int64_t limit_ns)
{
    return (ewx_timer){.limit_ns = limit_ns};
}

/* The most that a step counts.  On a busy machine a step may well take some milliseconds,
 * and those must count, or a timeout would stretch. */
static inline int64_t ewx_timer_step_ns(const ewx_timer *timer)
{
#if EW_MUTANT == 23 /* planted bug: a freeze counts */
    return EWX_TIMER_NEVER;
#endif
    const int64_t usual_ns = timer->limit_ns / 16, least_ns = 20000000;
    const int64_t step_ns = usual_ns > least_ns ? usual_ns : least_ns;
    return step_ns < timer->limit_ns / 2 ? step_ns : timer->limit_ns / 2 + 1;
}

/* Looks at the clock: whether the limit is passed. */
static inline bool ewx_timer_is_over(ewx_timer *timer)
{
    const int64_t now = ewx_now_ns();
    const int64_t passed_ns = timer->seen_ns ? now - timer->seen_ns : 0;
    const int64_t most_ns = ewx_timer_step_ns(timer);
    timer->used_ns += passed_ns < 0 ? 0 : passed_ns < most_ns ? passed_ns : most_ns;
    timer->seen_ns = now;
    return timer->used_ns > timer->limit_ns;
}

/* As above, without counting what has passed since the last look. */
static inline void ewx_timer_skip(ewx_timer *timer)
{
    timer->seen_ns = ewx_now_ns();
}

/* For poll(): how long to sleep at most before the next look, in milliseconds. */
static inline int ewx_timer_sleep_ms(const ewx_timer *timer, int most_ms)
{
    const int64_t left_ns = timer->limit_ns - timer->used_ns;
    const int64_t step_ns = ewx_timer_step_ns(timer);
    const int64_t ms = (left_ns < step_ns ? left_ns : step_ns) / 1000000;
    return ms < 1 ? 1 : ms < most_ms ? (int)ms : most_ms;
}

#endif
