/* Epochs: 32-bit numbers of calls or rounds, written into flags and never reset.  Comparing
 * by difference keeps working when a number wraps, as long as fewer than 2^31 lie between
 * the two. */
#ifndef EWX_BASE_EPOCH_H
#define EWX_BASE_EPOCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/host_device.h"

EW_HD static inline bool ewx_epoch_reached(uint32_t seen, uint32_t want)
{
#if EW_MUTANT == 5 /* planted bug: a flag that has moved on is missed */
    return seen == want;
#else
    return (int32_t)(seen - want) >= 0;
#endif
}

#endif
