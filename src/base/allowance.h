/* A timeout that is spent in slices, by those who wait for a descriptor with poll.  A slice
 * that took many times as long as it was to last counts for no more than that: the job was
 * frozen in it, and goes on. */
#ifndef EWX_BASE_ALLOWANCE_H
#define EWX_BASE_ALLOWANCE_H

#include "base/clock.h"

#define EWX_FROZEN 10 /* times as long */

typedef struct ewx_allowance {
    int64_t left_ns; /* 0 or less: spent */
    int64_t slice_ns;
    int64_t began_ns;
} ewx_allowance;

static inline ewx_allowance ewx_allowance_of(int64_t timeout_ns)
{
    return (ewx_allowance){.left_ns = timeout_ns};
}

/* Begins a slice of at most so long, and returns when it ends. */
static inline int64_t ewx_allowance_begin(ewx_allowance *a, int64_t slice_ns)
{
    a->slice_ns = a->left_ns < slice_ns ? a->left_ns : slice_ns;
    a->began_ns = ewx_now_ns();
    return a->began_ns + a->slice_ns;
}

static inline void ewx_allowance_end(ewx_allowance *a)
{
    const int64_t took_ns = ewx_now_ns() - a->began_ns;
    a->left_ns -= took_ns < EWX_FROZEN * a->slice_ns ? took_ns : a->slice_ns;
}

#endif
