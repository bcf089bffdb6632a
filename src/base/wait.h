/* The one way to wait for a word that another thread or process will write.  A wait is
 * always bounded and always notices an abort; it spins, then yields the core, then sleeps,
 * so that more ranks than cores still make progress.  A script in the tests checks that
 * no other file polls. */
#ifndef EWX_BASE_WAIT_H
#define EWX_BASE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/timer.h"
#include "entwine/entwine.h"

typedef struct ewx_wait {
    const _Atomic uint64_t *abort; /* non-zero: stop waiting; may be NULL */
    const volatile int *cancel;    /* the same, written by the program; may be NULL */
    _Atomic uint32_t *looks;       /* counts looks at the clock; may be NULL */
    ewx_timer timer;               /* from the first turn on */
    int32_t spins;                 /* turns before the first yield */
    int32_t turn;
} ewx_wait;

static inline ewx_wait ewx_wait_begin(const _Atomic uint64_t *abort, int64_t timeout_ns,
                                      int32_t spins)
{
    return (ewx_wait){.abort = abort, .timer = ewx_timer_begin(timeout_ns), .spins = spins};
}

/* The program's word is a plain int: a signal handler may have nothing better.  Acquire
 * pairs with a release store of a thread. */
static inline bool ewx_is_cancelled(const volatile int *cancel)
{
    return cancel && __atomic_load_n(cancel, __ATOMIC_ACQUIRE) != 0;
}

/* Lets some time pass.  EW_ERR_ABORTED or EW_ERR_TIMEOUT (without a text: the caller
 * knows what it waited for) end the wait. */
ew_status ewx_wait_turn(ewx_wait *wait);

/* Waits until `condition`, re-evaluated at every turn, holds; `status` says whether it
 * did. */
#define EWX_AWAIT(status, wait, condition)             \
    for ((status) = EW_OK; !(condition);)              \
        if (((status) = ewx_wait_turn(wait)) != EW_OK) \
            break;

#endif
