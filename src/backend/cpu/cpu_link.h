/* The emulated link: decides when a published tile becomes visible to its owner.  It
 * moves no bytes and costs no CPU, as a NIC would. */
#ifndef EWX_CPU_LINK_H
#define EWX_CPU_LINK_H

#include "world/world.h"

/* Books a transfer of `bytes` from this rank to dst, starting now at the earliest, on
 * this rank's egress and dst's ingress, and returns the time of arrival. */
int64_t ewx_link_book(ew_world *world, int dst, size_t bytes);
/* The same to a rank or to EWX_EVERYONE: then when the last one has it. */
int64_t ewx_link_book_to(ew_world *world, int dst, size_t bytes);

#endif
