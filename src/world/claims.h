/* Memory that ranks are about to touch.  The kernel grants memory that it does not have and
 * kills a process when it is touched, so ranks say beforehand what they need: all claims of
 * the host's ranks together must fit into what is free, or a rank is refused. */
#ifndef EWX_WORLD_CLAIMS_H
#define EWX_WORLD_CLAIMS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/memory.h"
#include "entwine/entwine.h"

/* A rank's part of the ledger, in its mailbox; the rank alone writes it. */
typedef struct ewx_claim {
    _Alignas(64) _Atomic uint64_t bytes; /* claimed and not touched yet */
    /* The limits that apply to this rank, in any order, ended by 0: the machine's own,
     * which applies to every rank. */
    _Atomic uint64_t limits[EWX_MAX_MEMORY_LIMITS];
} ewx_claim;

/* Notes the limits that apply to this rank.  Ranks as processes do so before they meet. */
void ewx_claims_open(ew_world *world);

/* Claims `bytes` for `what` of this rank.  EW_ERR_MEMORY, with the numbers, when they do
 * not fit beside the claims of the other ranks of this host; then nothing is claimed. Ranks
 * that claim at the same time see each other: where not all fit, at least the last one is
 * refused.  `together`: a step that all ranks take, with as many bytes each.  Ranks that
 * have not claimed yet count as if they had.  No rank touches anything before all have
 * claimed. */
ew_status ewx_claim_memory(ew_world *world, size_t bytes, bool together, const char *what);

/* Gives up `bytes` of the claim: they have been touched, so that the kernel counts them
 * from here on, or are no longer needed. */
void ewx_claim_settle(ew_world *world, size_t bytes);

#endif
