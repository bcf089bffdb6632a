/* The emulated link: decides when a published tile becomes visible to its owner.  It
 * moves no bytes and costs no CPU, as a NIC would. */
#ifndef EWX_CPU_LINK_H
#define EWX_CPU_LINK_H

#include "backend/cpu/route.h"
#include "world/world.h"

/* Books a transfer of `bytes` from this rank to dst, starting now at the earliest, on
 * this rank's egress and dst's ingress, and returns the time of arrival. */
int64_t ewx_link_book(ew_world *world, int dst, size_t bytes);
/* A tile of this call to dst; to everyone: when the last one has it. */
int64_t ewx_link_book_tile(const ewx_cpu_engine *engine, int part, ewx_tile tile, int dst);

#endif
