/* Whether a figure of plan/occupancy.h holds for a kernel as it was compiled. */
#ifndef NEEDS_H
#define NEEDS_H

#include "plan/occupancy.h"

/* All that matters is what a CTA takes of an SM.  nvcc spends a few registers more or less
 * from one architecture to the next: the figure may be one unit of a warp too large, never
 * too small. */
static inline bool needs_hold(ewx_kernel_needs figure, ewx_kernel_needs compiled)
{
    const ewx_sm_resources expected = ewx_cta_resources(figure, 0);
    const ewx_sm_resources found = ewx_cta_resources(compiled, 0);
    const int spare = expected.registers - found.registers;
    return figure.threads == compiled.threads &&
           expected.shared_bytes == found.shared_bytes && spare >= 0 &&
           spare <= expected.threads / 32 * EWX_REGISTER_UNIT;
}

/* Whether a kernel takes no more of an SM than another, so that what was counted for that
 * one holds for it. */
static inline bool needs_no_more(ewx_kernel_needs bound, ewx_kernel_needs compiled)
{
    const ewx_sm_resources most = ewx_cta_resources(bound, 0);
    const ewx_sm_resources found = ewx_cta_resources(compiled, 0);
    return compiled.threads > 0 && found.registers <= most.registers &&
           found.shared_bytes <= most.shared_bytes && found.threads <= most.threads;
}

#endif
