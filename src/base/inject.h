/* Faults on demand, in test builds: ENTWINE_FAULT says where, on which rank and what, e.g.
 *
 *     publish:rank=1,tile=7,drop;kill:rank=2,phase=reduce
 *
 * Rules are separated by ';' and read place:key=value,...
 *
 *     publish:  drop or delay=MS; rank=R, tile=SLOT, nth=N (else all)
 *     wait:     delay=MS; nth=N (else all)
 *     kill: and stop:    phase=PHASE, rank=R; nth=N (else the first time)
 *     memory: and system:   nth=N, rank=R: the n-th allocation, or system call, fails
 *
 * PHASE is bootstrap, block, publish, reduce or teardown; counts start at 1. */
#ifndef EWX_BASE_INJECT_H
#define EWX_BASE_INJECT_H

#include <stdbool.h>

#include "base/probe.h"
#include "entwine/entwine.h"

#ifdef EW_TESTING

#define EWX_MAX_RULES 16

typedef enum ewx_deal {
    EWX_DEAL_DROP,
    EWX_DEAL_DELAY,
    EWX_DEAL_KILL,
    EWX_DEAL_STOP,
    EWX_DEAL_NO_MEMORY,
    EWX_DEAL_NO_SYSTEM
} ewx_deal;

typedef struct ewx_rule {
    ewx_deal deal;
    ewx_probe_point point; /* not for the last two */
    int rank;              /* -1: all */
    int64_t where;         /* -1: anywhere */
    int64_t nth;           /* 0: every time */
    int delay_ms;
} ewx_rule;

/* Strict: EW_ERR_ARGUMENT names what is wrong and how to write it. */
ew_status ewx_inject_parse(const char *text, ewx_rule rules[EWX_MAX_RULES], int *count_out);

/* Takes the rules from ENTWINE_FAULT, none without it, in the process of a rank or of all
 * of them (-1).  Not while ranks run as threads. */
ew_status ewx_inject_load(int rank);
#define EWX_INJECT_LOAD(rank) ewx_inject_load(rank)

/* What a probe does when the test has none of its own. */
int ewx_inject_act(ewx_probe_point point, int rank, int64_t where);
/* Whether this allocation, or this system call, is to fail. */
bool ewx_inject_fails(ewx_deal deal);

#else
#define EWX_INJECT_LOAD(rank) EW_OK
#endif

#endif
