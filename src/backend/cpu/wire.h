/* The route between hosts.  Of every rank on another host this one has a replica of its
 * heap segment, in which only what this rank owns is ever touched.  The exchange brings
 * tiles there, their flags are stored when they have arrived, and control messages keep the
 * header fresh: so readers of a segment need not know where its rank is. */
#ifndef EWX_CPU_WIRE_H
#define EWX_CPU_WIRE_H

#include "backend/cpu/route.h"
#include "exchange/exchange.h"

typedef struct ewx_wire {
    ewx_exchange exchange;
    ewx_listener listener;
    int64_t progress_ns; /* when the fabric was last looked at */
    int64_t beat_ns;     /* when the header was last sent */
    int64_t *panel_rows; /* [remote][panel]: rows that have come of one that is not whole */
} ewx_wire;

/* Collective, after the heap; nothing on one host.  `ready`: whether this rank has its
 * heap. */
ew_status ewx_wire_open(ewx_cpu_engine *engine, ew_status ready);

/* Handles a header that has come; the listener's. */
void ewx_wire_hear(void *context, int src, const void *body, size_t bytes);

/* Around a call, on the caller's thread: when it is announced; when all of its tiles are
 * reduced and the exchange is idle. */
void ewx_wire_announce(ewx_cpu_engine *engine);
void ewx_wire_finish(ewx_cpu_engine *engine);

#endif
