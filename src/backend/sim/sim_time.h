/* Times of the simulated clock, in ps. */
#ifndef EWX_SIM_TIME_H
#define EWX_SIM_TIME_H

#include <stdint.h>

/* Where the clock ends: 26 days.  Times stick there, and the result is refused. */
#define EWX_SIM_LAST_PS ((int64_t)1 << 61)

static inline int64_t ewx_sim_after(int64_t time_ps, double duration_ps)
{
    return (double)time_ps + duration_ps < (double)EWX_SIM_LAST_PS
               ? time_ps + (int64_t)(duration_ps + 0.5)
               : EWX_SIM_LAST_PS;
}

static inline int64_t ewx_sim_later(int64_t a_ps, int64_t b_ps)
{
    return a_ps > b_ps ? a_ps : b_ps;
}

#endif
