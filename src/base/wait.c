/* The pacing of a wait: spin, yield, sleep. */
#include "base/wait.h"

#include <sched.h>
#include <time.h>

#include "base/probe.h"

/* Yielding is quicker than any wake-up while the peer is about to answer; after this
 * long it is not, and sleeping gives the core away for good. */
#define YIELD_NS 2000000
/* A sleep makes a wait at most half a per cent longer than it was.  It stays short, because
 * some waits also carry bytes; but seven ranks that looked every 50 us at what the eighth
 * did for a second took a third of a core from it. */
#define SHORTEST_SLEEP_NS 50000
#define LONGEST_SLEEP_NS 200000

static long sleep_ns(int64_t waited_ns)
{
    const int64_t share_ns = waited_ns / 200;
    return share_ns < SHORTEST_SLEEP_NS  ? SHORTEST_SLEEP_NS
           : share_ns > LONGEST_SLEEP_NS ? LONGEST_SLEEP_NS
                                         : (long)share_ns;
}

static void relax(void)
{
#if defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#elif defined(__x86_64__)
    __asm__ volatile("pause" ::: "memory");
#endif
}

ew_status ewx_wait_turn(ewx_wait *wait)
{
#if EW_MUTANT != 6 /* planted bug: deaf to the abort word */
    if (wait->abort && atomic_load_explicit(wait->abort, memory_order_acquire))
        return EW_ERR_ABORTED;
#endif
#if EW_MUTANT != 32 /* planted bug: the creation of a world cannot be cancelled */
    if (ewx_is_cancelled(wait->cancel))
        return EW_ERR_ABORTED;
#endif
    if (wait->turn == 0)
        (void)EWX_PROBE(EWX_PROBE_WAIT, -1, 0);
    if (wait->turn++ < wait->spins) {
        relax();
        return EW_OK;
    }
#if EW_MUTANT != 45 /* planted bug: a rank that waits shows no sign of life */
    if (wait->looks)
        atomic_fetch_add_explicit(wait->looks, 1, memory_order_relaxed);
#endif
    if (ewx_timer_is_over(&wait->timer))
        return EW_ERR_TIMEOUT;
    if (wait->timer.used_ns < YIELD_NS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = sleep_ns(wait->timer.used_ns)}, NULL);
    return EW_OK;
}
