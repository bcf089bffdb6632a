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

/* The processor's own counter, at a fraction of the price: the same for all cores, of a
 * rate that the reader finds out by looking at both clocks twice. */
static inline int64_t ewx_ticks(void)
{
#if defined(__aarch64__)
    int64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#elif defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (int64_t)((uint64_t)high << 32 | low);
#else
    return ewx_now_ns();
#endif
}

#endif
