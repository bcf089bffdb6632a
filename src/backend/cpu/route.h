/* How tiles travel between two ranks, in the shape of a put with a signal: whoever has
 * computed a tile posts it, its owner asks whether it is ready, and somebody makes progress
 * meanwhile.  Workers do not know which route they use.
 *
 *     heap   the owner reads the tile where it was computed (cpu_heap.c)
 *     link   the same, as late as an emulated link would bring it (link.c)
 *     wire   the fabric brings it into a replica of the source's segment (wire.c) */
#ifndef EWX_CPU_ROUTE_H
#define EWX_CPU_ROUTE_H

#include <stdbool.h>

#include "plan/walk.h"

typedef struct ewx_cpu_engine ewx_cpu_engine;

typedef struct ewx_route {
    /* Hands a tile of this call over to whoever sums it.  Any worker. */
    void (*post)(ewx_cpu_engine *engine, int part, ewx_tile tile);
    /* Whether src's tile in that slot of ours is there, in this call.  Any worker. */
    bool (*ready)(const ewx_cpu_engine *engine, int src, int64_t slot);
    /* Moves along what is on its way.  The caller's thread only. */
    void (*progress)(ewx_cpu_engine *engine);
    void (*close)(ewx_cpu_engine *engine); /* half-open is fine */
} ewx_route;

extern const ewx_route ewx_route_heap, ewx_route_link, ewx_route_wire;

#endif
