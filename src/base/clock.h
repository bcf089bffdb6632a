/* The clock: CLOCK_MONOTONIC nanoseconds, the same for all ranks of a host. */
#ifndef EWX_BASE_CLOCK_H
#define EWX_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ewx_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
